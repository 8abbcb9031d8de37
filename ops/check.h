// Checking what a kernel computed against the declaration, in float64.
#pragma once
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "dsl/interpret.h"

namespace tw {

struct CheckResult {
    bool ok = false;
    double error = 0;  ///< largest |got - reference| over the checked elements, divided by the largest |reference|
    double plain_error = 0;  ///< of the declared computation evaluated in its own types, the same way; of few elements
                             ///< the largest in several orders of the terms
    double unit_error = 0;   ///< that tensor cores may make at most, the same way; see sample_elements.h
    int64_t elements = 0;    ///< checked
    std::string text;        ///< "max error 1.2e-07 against float64 (plain f32: 1.5e-07), 1000 elements"
};

/// Random inputs for a computation: floats uniform in [-1, 1), sizes at their largest; integers in [0, 8), or, where
/// they are indices or lengths, in what the declaration gives them room for: see integer_ranges.h.
/// `fill_floats`: draws inputs of floats, in place of the above.
Bindings random_bindings(const std::vector<Tensor>& outputs, uint64_t seed,
                         const std::function<void(HostArray&, uint64_t seed)>& fill_floats = {});

struct CheckOptions {
    bool approximate = false;          ///< the kernels use named approximations
    std::vector<Type> roundings = {};  ///< what the schedule rounds to: Schedule::roundings()
    /// Of these the tensors that are declared, Schedule::rounded(): the plain error is that of a declaration that
    /// rounds them, too, however much what reads them makes of it.
    std::vector<std::pair<Tensor, Type>> rounded = {};
    bool few_bits = false;  ///< wgmma sums products of fp8: it keeps 13 bits behind the largest term
    int64_t samples = 4096;
    /// So many terms, and elements between, are evaluated about: of elements that need many, fewer are checked, four
    /// at least. 0: no such limit.
    int64_t most_terms = 0;
    uint64_t seed = 1;
};

/// Compares `got` with the float64 value of the declaration at up to `samples` random elements (all, if there are no
/// more). Passes if the error is at most 1.5 times the plain one (4 times if `approximate`), or within a few roundings
/// of the type; each of the schedule's roundings adds one of its type, relative to the largest element. Where elements
/// are made of sums that tensor cores can compute, which truncate instead of rounding, each may lie as much farther off
/// as truncation takes it at most.
///
/// NaN passes only where float64 has it, too. A plain error of more than a quarter of the largest of 64 or more
/// elements does not pass: such a declaration of floats has lost its result, and tells nothing of the schedule's.
///
/// Of fewer than 64 elements the largest error is a matter of luck. Their plain error is the largest in several orders
/// of the terms, and four times as much is allowed, or, of types narrower than f32, as much of a rounding of the type.
/// bench/harness/operands.py has the same rules, with plain errors in one order of the terms.
CheckResult check_output(const Tensor& output, const Bindings& bindings, const HostArray& got,
                         const CheckOptions& options = {});

}  // namespace tw
