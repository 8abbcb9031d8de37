#include "schedules/varlen_gradients.h"

#include "schedules/whole_tiles.h"

namespace tw::schedules {

Schedule varlen_gradients_schedule(const VarlenGradients& gradients, const VarlenShape& shape,
                                   const GradientTiles& tiles, const Target& target, std::source_location where) {
    const WalkedShape of{.group = shape.group, .depth = shape.depth, .width = shape.width, .type = shape.type};
    return walked_gradients_schedule(gradients, of, tiles, target, where);
}

GradientTiles varlen_gradient_tiles(const VarlenShape& shape, const Target& target) {
    const AttentionShape padded{.batch = 1,
                                .heads = shape.heads,
                                .rows = shape.rows,
                                .keys = shape.keys,
                                .depth = shape.depth,
                                .width = shape.width,
                                .group = shape.group,
                                .type = shape.type};
    return walked_gradient_tiles(padded, varlen_tiles(shape).rows, target);
}

double varlen_gradients_flops(const VarlenShape& shape, const Offsets& of_rows, const Offsets& of_keys,
                              const SeenKeys& seen) {
    // Of queries and keys: scores, dk and dq. Of values: dp and dv.
    return varlen_flops(shape, of_rows, of_keys, seen) / as_double(shape.depth + shape.width) *
           as_double(3 * shape.depth + 2 * shape.width);
}

std::optional<NamedVarlenGradients> parse_varlen_gradients(const std::string& name) {
    const std::string prefix = "attention_varlen_gradients_";
    if (!name.starts_with(prefix)) return {};
    const auto walked = parse_walked_tiles(name.substr(prefix.size()));
    const auto forward = walked ? parse_varlen("attention_varlen_" + walked->forward) : std::nullopt;
    if (!forward || forward->tiles) return {};
    return NamedVarlenGradients{.shape = forward->shape, .rules = forward->rules, .tiles = walked->tiles};
}

}  // namespace tw::schedules
