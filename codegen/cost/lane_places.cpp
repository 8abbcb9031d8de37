#include "codegen/cost/lane_places.h"

#include "dsl/simplify.h"

namespace tw::codegen {

std::optional<std::vector<int64_t>> starts_of(const Access& place, const LaneScope& scope,
                                              const std::array<bool, warp_lanes>& active) {
    std::vector<int64_t> starts;
    LaneValues at = LaneValues::all(0);
    for (size_t d = 0; d < rank_of(*place.buffer); ++d) {
        auto index = evaluate_lanes(place.indices[d], scope);
        if (!index) return {};
        const int64_t extent = bounds_of(place.buffer->shape[d]).max.value_or(1);
        for (int lane = 0; lane < warp_lanes; ++lane)
            at.of_lane[lane] = at.of_lane[lane] * extent + index->of_lane[lane];
    }
    for (int lane = 0; lane < warp_lanes; ++lane)
        if (active[lane]) starts.push_back(at.of_lane[lane] * bytes_of(place.buffer->type));
    return starts;
}

}  // namespace tw::codegen
