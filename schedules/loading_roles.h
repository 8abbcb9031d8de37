// A warp that loads beside warpgroups that compute.
#pragma once
#include <algorithm>
#include <array>
#include <vector>

#include "dsl/schedule.h"

namespace tw::schedules {

struct LoadingRoles {
    int64_t warpgroups = 1;  ///< that compute, 1 to 4 with those of all turns
    int loading = 0;         ///< registers of a thread that loads; 0: few
    int most = 256;          ///< registers of a thread that computes
    int ping_pong = 1;
};

/// One warp fills what is `loaded`, warpgroups compute; their registers together are what the threads start with.
inline std::vector<Role> loading_roles(const Target& target, const std::vector<StageRef>& loaded,
                                       const StageRef& computed, const LoadingRoles& options) {
    constexpr std::array few{56, 24, 32, 24};
    const int loading = options.loading ? options.loading : few.at(static_cast<size_t>(options.warpgroups - 1)),
              computing_groups = static_cast<int>(options.warpgroups), groups = computing_groups + 1,
              start = std::min(256, static_cast<int>(target.registers) / (128 * groups) / 8 * 8),
              computing = std::min(options.most, (start * groups - loading) / computing_groups / 8 * 8);
    return {{"load", warps(1), registers(loading), loaded},
            {"math", tw::warpgroups(computing_groups), registers(computing), {computed}, ping_pong(options.ping_pong)}};
}

}  // namespace tw::schedules
