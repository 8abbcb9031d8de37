// That declarations of passes are what networks declare.
#pragma once
#include <gtest/gtest.h>

#include "schedules/convolution.h"
#include "tests/ops/whole_numbers.h"

namespace tw::schedules {

/// Bit for bit, of whole numbers: the declaration, whatever it copies, pads and joins, is that convolution.
inline void expect_plain(const Tensor& declared, const ConvolutionShape& shape, ConvolutionPass pass, unsigned seed) {
    const std::vector<Tensor> plain{plain_convolution(shape, pass)};
    const std::vector<HostArray> expected = interpret_plain(plain, whole_numbers(plain, seed)),
                                 got = interpret_plain({declared}, whole_numbers({declared}, seed));
    const auto differs = difference(declared.name(), got[0], expected[0], bitwise);
    EXPECT_FALSE(differs) << *differs;
}

}  // namespace tw::schedules
