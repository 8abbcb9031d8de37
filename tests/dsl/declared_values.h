// Schedules that compute what they declare, of whole numbers, whose sums are exact in any order.
#pragma once
#include <gtest/gtest.h>

#include "dsl/interpret.h"
#include "dsl/schedule.h"

namespace tw {

inline HostArray integers(Type type, const std::vector<int64_t>& shape, int64_t lo, int64_t hi, uint64_t seed) {
    HostArray array = host_array(type, shape);
    fill_integers(array, lo, hi, seed);
    return array;
}

/// The tree gives what is declared, bit for bit, and its steps give it again.
inline void expect_declared_values(const Schedule& s, const Bindings& bindings) {
    std::vector<HostArray> got = interpret_tree(s.tree(), bindings), wanted = interpret_plain(s.outputs(), bindings);
    for (size_t k = 0; k < got.size(); ++k) {
        auto differs = difference(s.outputs()[k].name(), got[k], wanted[k], equal_values);
        EXPECT_FALSE(differs) << *differs << "\n" << s.to_string();
    }
    EXPECT_EQ(replay(s.save(), s.outputs(), s.target()).to_string(), s.to_string());
}

}  // namespace tw
