// Gradients against central finite differences, computed in float64 by the interpreter of declarations.
#pragma once
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dsl/differentiate.h"
#include "dsl/interpret.h"
#include "dsl/schedule.h"

namespace tw {

inline std::vector<int64_t> constants(const std::vector<Expr>& shape) {
    std::vector<int64_t> result;
    for (const Expr& extent : shape) result.push_back(require_constant(extent));
    return result;
}

inline HostArray random_array(const Tensor& tensor, uint64_t seed, double lo = 0.2, double hi = 1.7) {
    HostArray array = host_array(tensor.type(), constants(tensor.shape()));
    fill_uniform(array, lo, hi, seed);
    return array;
}

inline double& real_at(HostArray& array, int64_t element) {
    return reinterpret_cast<double*>(array.bytes.data())[element];
}

/// Every element of every gradient against (L(x + h) - L(x - h)) / 2h with L = sum(adjoint * output). f64 throughout.
inline void expect_gradients(const Tensor& output, const std::vector<Tensor>& inputs, Bindings bindings,
                             uint64_t seed = 1) {
    Tensor adjoint = input("adjoint", f64, {output.shape().begin(), output.shape().end()});
    for (size_t i = 0; i < inputs.size(); ++i)
        if (!bindings.inputs.count(inputs[i].name()))
            bindings.inputs[inputs[i].name()] = random_array(inputs[i], seed * 31 + i);
    bindings.inputs["adjoint"] = random_array(adjoint, seed * 31 + 30, -1, 1);
    auto loss = [&] {
        HostArray value = interpret_plain({output}, bindings)[0];
        double sum = 0;
        for (int64_t e = 0; e < value.num_elements(); ++e)
            sum += real_at(value, e) * real_at(bindings.inputs["adjoint"], e);
        return sum;
    };
    std::vector<Tensor> derived = gradients(output, adjoint, inputs);
    std::vector<HostArray> got = interpret_plain(derived, bindings);
    // what is derived can be scheduled
    for (size_t i = 0; i < derived.size(); ++i) {
        if (derived[i].operation()->is_input()) continue;
        HostArray scheduled = interpret_tree(Schedule({derived[i]}, target("sm_90a")).tree(), bindings)[0];
        auto report = difference(derived[i].name(), scheduled, got[i], near(1 << 20, 1e-12));
        ASSERT_FALSE(report) << *report;
    }
    constexpr double h = 1e-5;
    for (size_t i = 0; i < inputs.size(); ++i)
        for (int64_t e = 0; e < got[i].num_elements(); ++e) {
            double& x = real_at(bindings.inputs[inputs[i].name()], e);
            double before = x;
            x = before + h;
            double above = loss();
            x = before - h;
            double below = loss();
            x = before;
            double expected = (above - below) / (2 * h), value = real_at(got[i], e);
            ASSERT_NEAR(value, expected, 1e-6 * (1 + std::fabs(expected)))
                << "element " << e << " of d_" << inputs[i].name() << " of\n"
                << to_string(*output.operation()) << "\nderived as\n"
                << to_string(*derived[i].operation());
        }
}

inline std::string text(const Tensor& tensor) { return to_string(*tensor.operation()); }

}  // namespace tw
