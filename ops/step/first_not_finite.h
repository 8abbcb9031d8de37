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
    std::vector<int64_t> at;  ///< the first such element
    double element = 0;
    std::optional<size_t> group = {};  ///< that wrote it; none: it was given
    std::vector<std::string> operations = {};

    /// "group 3 (z, h) makes inf at [4, 0] of h, of finite inputs".
    std::string text() const;
};

/// Runs the step group by group, with its inputs as they are, and looks at what each has written, in the order of the
/// plan: the first element that is no finite number, and where inputs hold one, that of the first such input. Groups
/// are those that the step runs, so that what a kernel does not store cannot be seen. Results and overwritten inputs
/// are put back. Copies all values to the host, for looking into a step, not for each one.
std::optional<NotFinite> first_not_finite(const PlannedStep& step);

}  // namespace tw
