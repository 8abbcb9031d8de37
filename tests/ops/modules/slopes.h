// Tensors of random numbers, and central differences of references in float64.
#pragma once
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "ops/autograd.h"

namespace tw::nn {

using Values = std::vector<double>;

/// Numbers of f32 in -1..1.
inline Values random_values(int64_t count, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::uniform_real_distribution<float> uniform(-1, 1);
    Values values(static_cast<size_t>(count));
    for (double& value : values) value = uniform(random);
    return values;
}

inline Tensor of_values(const std::shared_ptr<Backend>& backend, const std::vector<int64_t>& shape,
                        const Values& values, const std::string& name) {
    HostArray host = host_array(f32, shape);
    const std::vector<float> rounded(values.begin(), values.end());
    std::memcpy(host.bytes.data(), rounded.data(), host.bytes.size());
    return {backend, host, name};  // also in a step that is captured
}

inline Values values_of(const Tensor& tensor) {
    const std::vector<float> values = tensor.data().read<float>();
    return {values.begin(), values.end()};
}

inline void expect_near(const Values& got, const Values& expected, double tolerance, const std::string& what) {
    ASSERT_EQ(got.size(), expected.size()) << what;
    for (size_t e = 0; e < got.size(); ++e)
        ASSERT_NEAR(got[e], expected[e], tolerance * (1 + std::fabs(expected[e]))) << what << " " << e;
}

/// d loss / d values, element by element.
inline Values slopes(Values& values, const std::function<double()>& loss) {
    constexpr double h = 1e-6;
    Values found;
    for (double& value : values) {
        const double before = value;
        value = before + h;
        const double above = loss();
        value = before - h;
        found.push_back((above - loss()) / (2 * h));
        value = before;
    }
    return found;
}

}  // namespace tw::nn
