// Central differences of a declaration in float64, for gradients that kernels computed in f32.
#pragma once
#include <algorithm>
#include <cmath>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dsl/interpret.h"
#include "ops/check.h"

namespace tw {

inline std::span<float> floats_of(HostArray& array) {
    return {reinterpret_cast<float*>(array.bytes.data()), array.bytes.size() / sizeof(float)};
}

/// Random inputs that have few bits, so that a step away from them is exact.
inline Bindings coarse_bindings(const std::vector<Tensor>& tensors, uint64_t seed) {
    Bindings bindings = random_bindings(tensors, seed);
    for (auto& [name, array] : bindings.inputs)
        if (array.type == Type::F32)
            for (float& x : floats_of(array)) x = std::round(x * 1024) / 1024;
    return bindings;
}

/// The slopes of sum(adjoint * output), where "adjoint" is bound (1 for a scalar output).
class FiniteDifferences {
public:
    FiniteDifferences(const Tensor& output, const Bindings& bindings) : output_(output), bindings_(bindings) {}

    /// Element by element, at most MaxElements of them, and along two directions that change all.
    void expect_gradient(const std::string& input, HostArray gradient) {
        SCOPED_TRACE("d_" + input);
        std::span<float> got = floats_of(gradient);
        std::vector<size_t> elements(got.size());
        for (size_t e = 0; e < elements.size(); ++e) elements[e] = e;
        std::shuffle(elements.begin(), elements.end(), random_);
        elements.resize(std::min(elements.size(), MaxElements));
        for (size_t e : elements) {
            std::vector<float> direction(got.size(), 0.0f);
            direction[e] = 1;
            expect_slope(input, direction, got, fmt::format("element {}", e));
        }
        for (int d = 0; d < 2; ++d) {
            std::vector<float> direction(got.size());
            for (float& each : direction) each = random_() % 2 ? 1 : -1;
            expect_slope(input, direction, got, "all elements");
        }
    }

    /// Few of the points may lie beside a kink, where a difference tells nothing.
    void expect_few_kinks() const { EXPECT_LE(num_kinks_ * 20, num_slopes_); }

    ~FiniteDifferences() {
        fmt::print("{} slopes, {} at kinks, largest error {:.1e}\n", num_slopes_, num_kinks_, largest_);
    }

private:
    static constexpr double Step = 1.0 / 4096;
    static constexpr double Tolerance =
        2e-6;  // of f32 kernels, seen 1.2e-7; the differences themselves are good to about 1e-10
    static constexpr size_t MaxElements = 48;  // of an input, each by itself

    void expect_slope(const std::string& input, const std::vector<float>& direction, std::span<const float> gradient,
                      const std::string& what) {
        double fine = slope(input, direction, Step), coarse = slope(input, direction, 2 * Step);
        ++num_slopes_;
        if (std::fabs(fine - coarse) > 1e-7 * (1 + std::fabs(fine))) {
            ++num_kinks_;
            return;
        }
        double got = 0, scale = 1;
        for (size_t e = 0; e < gradient.size(); ++e) {
            got += double(direction[e]) * gradient[e];
            scale += std::fabs(double(direction[e]) * gradient[e]);
        }
        largest_ = std::max(largest_, std::fabs(got - fine) / scale);
        EXPECT_LE(std::fabs(got - fine), Tolerance * scale) << what << ": " << got << ", expected " << fine;
    }

    /// By four points, with an error of step^4 / 30 times the fifth derivative. The points are exact in f32.
    double slope(const std::string& input, const std::vector<float>& direction, double step) {
        auto rise = [&](double distance) {
            return loss_at(input, direction, distance) - loss_at(input, direction, -distance);
        };
        return (8 * rise(step) - rise(2 * step)) / (12 * step);
    }

    double loss_at(const std::string& input, const std::vector<float>& direction, double distance) {
        HostArray before = bindings_.inputs.at(input);
        std::span<float> x = floats_of(bindings_.inputs.at(input));
        for (size_t e = 0; e < x.size(); ++e) x[e] += float(distance) * direction[e];
        HostArray value = interpret_plain({output_}, bindings_, Precision::Float64)[0];
        bindings_.inputs.at(input) = before;
        const auto* values = reinterpret_cast<const double*>(value.bytes.data());
        auto adjoint = bindings_.inputs.find("adjoint");
        if (adjoint == bindings_.inputs.end()) return values[0];
        double sum = 0;
        for (float weight : floats_of(adjoint->second)) sum += weight * *values++;
        return sum;
    }

    Tensor output_;
    Bindings bindings_;
    std::mt19937 random_{7};
    int num_slopes_ = 0, num_kinks_ = 0;
    double largest_ = 0;
};

}  // namespace tw
