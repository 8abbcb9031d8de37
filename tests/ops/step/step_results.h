// What steps make, and that two make the same.
#pragma once
#include <vector>

#include <gtest/gtest.h>

#include "dsl/interpret.h"
#include "ops/step/planned_step.h"

namespace tw {

/// The results of one run on these inputs, in the order in which they were declared.
inline std::vector<HostArray> run_step(const PlannedStep& step, const schedules::Declared& declared,
                                       const Bindings& data) {
    for (const auto& [name, array] : data.inputs) step.set(name, array);
    step.run();
    std::vector<HostArray> results;
    for (const Tensor& result : declared.outputs) results.push_back(step.get(result.name()));
    return results;
}

inline void expect_same_bits(const std::vector<HostArray>& got, const std::vector<HostArray>& expected) {
    ASSERT_EQ(got.size(), expected.size());
    for (size_t k = 0; k < got.size(); ++k) EXPECT_TRUE(got[k].bytes == expected[k].bytes) << "result " << k;
}

}  // namespace tw
