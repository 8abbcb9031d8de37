// What a pass of a convolution is, said without its schedule's declaration: convolve(), and what gradients() derives.
#pragma once
#include <gtest/gtest.h>

#include "dsl/differentiate.h"
#include "schedules/convolution.h"
#include "schedules/convolve.h"
#include "tests/ops/whole_numbers.h"

namespace tw::schedules {

inline Tensor plain_convolution(const ConvolutionShape& s, ConvolutionPass pass, const Tensor& bias = {}) {
    auto operand = [&](const char* name, const Shape& shape) {
        return input(name, s.type, in_layout(s.layout, shape));
    };
    const Tensor x = operand("x", {s.images, s.height, s.width, s.channels}),
                 w = operand("w", {s.filters, s.kernel_h, s.kernel_w, s.channels / s.groups}),
                 dy = operand("dy", {s.images, s.rows(), s.columns(), s.filters});
    const Tensor y = convolve("y", x, w, bias,
                              {.stride = {s.stride},
                               .dilation = {s.dilation},
                               .padding = {s.padding},
                               .groups = s.groups,
                               .layout = s.layout});
    if (pass == ConvolutionPass::Forward) return y;
    return gradients(y, dy, {pass == ConvolutionPass::DataGradient ? x : w})[0];
}

/// Bit for bit, of whole numbers: the declaration, whatever it copies, pads and joins, is that convolution.
inline void expect_plain(const Tensor& declared, const ConvolutionShape& shape, ConvolutionPass pass, unsigned seed) {
    const std::vector<Tensor> plain{plain_convolution(shape, pass)};
    const std::vector<HostArray> expected = interpret_plain(plain, whole_numbers(plain, seed)),
                                 got = interpret_plain({declared}, whole_numbers({declared}, seed));
    const auto differs = difference(declared.name(), got[0], expected[0], bitwise);
    EXPECT_FALSE(differs) << *differs;
}

}  // namespace tw::schedules
