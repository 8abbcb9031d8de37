#include "codegen/cost/lane_values.h"

#include "codegen/access/access.h"
#include "dsl/integers.h"
#include "dsl/simplify.h"

namespace tw::codegen {
namespace {

using Lanes = std::optional<LaneValues>;

/// The operation in each lane, or once where all have the same.
template <class F>
Lanes each_lane(const LaneValues& a, const LaneValues& b, const F& apply) {
    LaneValues result;
    result.is_uniform = a.is_uniform && b.is_uniform;
    result.by_data = a.by_data || b.by_data;
    for (int lane = 0; lane < warp_lanes; ++lane) {
        if (lane > 0 && result.is_uniform) {
            result.of_lane[lane] = result.of_lane[0];
            continue;
        }
        std::optional<int64_t> value = apply(a.of_lane[lane], b.of_lane[lane]);
        if (!value) return {};
        result.of_lane[lane] = *value;
    }
    return result;
}

/// The mixing step of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
uint64_t mixed(uint64_t x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

Lanes element(const Load& load, const LaneScope& scope) {
    constexpr uint64_t most = 1 << 20;
    LaneValues seed = LaneValues::all(0);
    for (size_t d = 0; d < std::min(rank_of(*load.buffer), load.indices.size()); ++d) {
        Lanes index = evaluate_lanes(load.indices[d], scope);
        if (!index) return {};
        Lanes next = each_lane(seed, *index, [](int64_t a, int64_t b) {
            return std::optional<int64_t>(static_cast<int64_t>(mixed(static_cast<uint64_t>(a * 31 + b)) % most));
        });
        seed = *next;
    }
    const int64_t below = load.buffer->below;
    if (below > 0)
        for (int64_t& value : seed.of_lane) value %= below;
    seed.by_data = true;
    return seed;
}

Lanes chosen(const Select& select, const LaneScope& scope) {
    Lanes condition = evaluate_lanes(select.condition, scope);
    if (!condition) return {};
    if (condition->is_uniform) return evaluate_lanes(condition->of_lane[0] != 0 ? select.yes : select.no, scope);
    Lanes yes = evaluate_lanes(select.yes, scope), no = evaluate_lanes(select.no, scope);
    if (!yes || !no) return {};
    LaneValues result = *no;
    result.is_uniform = false;
    result.by_data = yes->by_data || no->by_data || condition->by_data;
    for (int lane = 0; lane < warp_lanes; ++lane)
        if (condition->of_lane[lane] != 0) result.of_lane[lane] = yes->of_lane[lane];
    return result;
}

}  // namespace

std::optional<LaneValues> evaluate_lanes(const Expr& expr, const LaneScope& scope) {
    if (!expr.defined() || is_float(expr.type())) return {};
    if (auto value = as_constant(expr)) return LaneValues::all(*value);
    if (expr.as<Variable>()) {
        auto known = scope.find(expr.id());
        return known == scope.end() ? Lanes() : known->second;
    }
    if (const Cast* cast = expr.as<Cast>()) return evaluate_lanes(cast->a, scope);
    if (const Load* load = expr.as<Load>()) return element(*load, scope);
    if (const Select* select = expr.as<Select>()) return chosen(*select, scope);
    if (const Unary* node = expr.as<Unary>(); node && (node->op == UnaryOp::Not || node->op == UnaryOp::Negate)) {
        Lanes a = evaluate_lanes(node->a, scope);
        if (!a) return {};
        const bool negates = node->op == UnaryOp::Negate;
        return each_lane(*a, *a, [&](int64_t x, int64_t) {
            return std::optional<int64_t>(negates ? -x : static_cast<int64_t>(x == 0));
        });
    }
    const Binary* node = expr.as<Binary>();
    if (!node) return {};
    Lanes a = evaluate_lanes(node->a, scope), b = evaluate_lanes(node->b, scope);
    if (!a || !b) return {};
    return each_lane(*a, *b, [&](int64_t x, int64_t y) { return apply_to_integers(node->op, x, y); });
}

}  // namespace tw::codegen
