// A warp that loads beside warpgroups that compute.
#pragma once
#include <array>
#include <utility>
#include <vector>

#include "dsl/schedule.h"

namespace tw::schedules {

/// One warp fills what is `loaded`, 1 to 3 warpgroups compute; their registers together fill a multiprocessor's.
inline std::vector<Role> loading_roles(const std::vector<StageRef>& loaded, const StageRef& computed,
                                       int64_t warpgroups) {
    constexpr std::array<std::pair<int, int>, 3> of_thread{{{56, 256}, {24, 240}, {32, 160}}};
    const auto [loading, computing] = of_thread.at(static_cast<size_t>(warpgroups - 1));
    return {{"load", warps(1), registers(loading), loaded},
            {"math", tw::warpgroups(static_cast<int>(warpgroups)), registers(computing), {computed}}};
}

}  // namespace tw::schedules
