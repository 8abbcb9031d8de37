// Where a step first makes an infinity or a NaN.
//
//   if (auto found = first_not_finite(compiled.planned())) fmt::print("{}\n", found->text());
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ops/step/planned_step.h"

namespace tw {

struct NotFinite {
    std::string value;        ///< its name in the plan
    std::vector<int64_t> at;  ///< the first such element, by dimensions as they lie in memory (StepPlan::laid_out)
    double element = 0;
    std::optional<size_t> group = {};  ///< that wrote it; none: it was given
    std::vector<std::string> operations = {};
    /// The first of these that makes one of finite numbers, and its scope; empty: none does, called one by one.
    std::string operation = {}, scope = {};

    /// "group 3 (z, h) makes inf at [4, 0] of h, of finite inputs; the first to make one is z (blocks.0.up)".
    std::string text() const;
};

/// Runs the step group by group, with its inputs as they are, and looks at what each has written, in the order of the
/// plan: the first element that is no finite number, and where inputs hold one, that of the first such input. A group
/// of several operations then runs again on the same inputs, each operation by a kernel of its own, which stores what
/// the group's do not: the first one that makes such an element counts, also an infinity that is meant, as that of a
/// mask. Results and overwritten inputs are put back. Copies all values to the host and compiles kernels, for looking
/// into a step, not for each one.
std::optional<NotFinite> first_not_finite(const PlannedStep& step);

}  // namespace tw
