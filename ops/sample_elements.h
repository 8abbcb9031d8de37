// Elements of a declared computation, each made of what it needs alone, with what tensor cores may do to them.
#pragma once
#include <vector>

#include "dsl/interpret.h"

namespace tw {

struct SampleOptions {
    Precision precision = Precision::Declared;
    bool rounds_operands = false;  ///< a schedule may round f32 elements for a tensor core
    bool few_bits = false;         ///< products of fp8 may be summed by wgmma
    int order = 0;                 ///< of the terms of commutative reductions: 0 the declared one, others differ
};

struct SampledElement {
    Value value;
    double unit_error = 0;  ///< by as much another value is right, if tensor cores make the sums that they can; Float64
    int64_t terms = 0;      ///< terms, and elements between, that were evaluated for it
};

/// The tensor's elements at the points. Between them and the inputs only those elements are evaluated that are read.
///
/// `unit_error`: a sum of K products that a tensor core can take over is made by at most K / k + 1 instructions of k
/// terms. Each aligns its terms and the sum so far to the largest of them, drops what is behind 25 bits, and drops what
/// a float cannot hold of their sum: less than (k + 1) 2^-25 + 2^-23 times the largest; parts of the sum are added
/// with a rounding of 2^-24. The largest is bounded by the running sums, in the declared order and of every n-th term,
/// and by the terms' magnitudes. Of terms that are several products each product counts as one.
/// wgmma keeps 13 bits of sums of fp8 (`few_bits`). What is made of sums may move as far as it does at the ends of
/// their intervals.
std::vector<SampledElement> sample_elements(const Tensor& output, const std::vector<std::vector<int64_t>>& points,
                                            const Bindings& bindings, const SampleOptions& options);

}  // namespace tw
