#include "schedules/ranged_gradients.h"

namespace tw::schedules {

GradientTiles ranged_gradient_tiles(const AttentionShape& shape, const Target& target) {
    AttentionShape without = shape;
    without.causal = false, without.keys_before = 0;
    return walked_gradient_tiles(without, ranged_tiles(shape).rows, target);
}

Schedule ranged_gradients_schedule(const RangedGradients& gradients, const AttentionShape& shape,
                                   const GradientTiles& tiles, const Target& target, std::source_location where) {
    const WalkedShape of{.group = shape.group,
                         .depth = shape.depth,
                         .width = shape.width,
                         .type = shape.type,
                         .batches = true,
                         .heads_first = shape.heads_first};
    Schedule s = walked_gradients_schedule(gradients, of, tiles, target, where);
    if (gradients.of_tiles.ranges.defined()) schedule_ranges(s, gradients.of_tiles, where);
    return s;
}

std::optional<NamedRangedGradients> parse_ranged_gradients(const std::string& name) {
    const std::string prefix = "attention_ranged_gradients_";
    if (!name.starts_with(prefix)) return {};
    const auto walked = parse_walked_tiles(name.substr(prefix.size()));
    const auto forward = walked ? parse_attention("attention_" + walked->forward) : std::nullopt;
    if (!forward || forward->tiles) return {};
    return NamedRangedGradients{*forward, walked->tiles};
}

}  // namespace tw::schedules
