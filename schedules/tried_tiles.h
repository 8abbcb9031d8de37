// Parts of a computation that are scheduled by tiles of a product, of which some are tried.
#pragma once
#include <functional>
#include <optional>
#include <vector>

#include "schedules/composed_parts.h"
#include "schedules/tensor_product.h"

namespace tw::schedules {

struct TilesAndSchedule {
    WarpgroupTiles tiles;
    Schedule schedule;
};

/// Those of the tilings whose schedule takes least by the model of time; nothing if there are none. Throws Error with
/// what refuses the first one if none can be built.
std::optional<TilesAndSchedule> fastest_tiles(const std::vector<WarpgroupTiles>& tilings,
                                              const std::function<Schedule(const WarpgroupTiles&)>& make,
                                              const Target& target);

/// The schedule of a part by these tiles: the one that was tried over the same operands, `tried`, else made anew.
std::function<Schedule(const std::vector<Tensor>&)> schedule_by_tiles(
    const TilesAndSchedule& best, const std::vector<Tensor>& tried,
    std::function<Schedule(const std::vector<Tensor>& operands, const WarpgroupTiles&)> make);

}  // namespace tw::schedules
