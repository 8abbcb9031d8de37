#include "schedules/tried_tiles.h"

#include <algorithm>

#include "codegen/cost/predict_time.h"
#include "dsl/edit.h"
#include "support/error.h"

namespace tw::schedules {

std::optional<TilesAndSchedule> fastest_tiles(const std::vector<WarpgroupTiles>& tilings,
                                              const std::function<Schedule(const WarpgroupTiles&)>& make,
                                              const Target& target) {
    std::optional<TilesAndSchedule> best;
    std::optional<Error> refused;
    double least = 0;
    for (const WarpgroupTiles& tiles : tilings) try {
            Schedule s = made_with_trees_later([&] { return make(tiles); });
            const double seconds = codegen::predict_time(s.tree(), target).seconds;
            if (best && seconds >= least) continue;
            best.emplace(tiles, std::move(s));
            least = seconds;
        } catch (const Error& error) {
            if (!refused) refused = error;  // other tiles may be legal
        }
    if (!best && refused) throw Error(*refused);
    return best;
}

std::function<Schedule(const std::vector<Tensor>&)> schedule_by_tiles(
    const TilesAndSchedule& best, const std::vector<Tensor>& tried,
    std::function<Schedule(const std::vector<Tensor>& operands, const WarpgroupTiles&)> make) {
    return [best, tried, make = std::move(make)](const std::vector<Tensor>& operands) {
        const auto same = [](const Tensor& one, const Tensor& other) { return one.same(other); };
        return std::ranges::equal(operands, tried, same) ? best.schedule : make(operands, best.tiles);
    };
}

}  // namespace tw::schedules
