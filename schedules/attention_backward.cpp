#include "schedules/attention_backward.h"

#include <cmath>
#include <regex>

#include "dsl/adjoints.h"
#include "schedules/loading_roles.h"
#include "schedules/whole_tiles.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

constexpr int64_t rows_of_warpgroup = 64;
constexpr int64_t neighbours = 8, threads_of_delta = 128, numbers_of_box = 4;  // of 16 bytes

double as_double(int64_t count) { return static_cast<double>(count); }

/// What the rule's argument adds to the score, if the score's adjoint is given.
Expr adjoint_of_argument(const Expr& score, const Expr& adjoint, const Tensor& argument) {
    Expr result;
    for (const ReadAdjoint& part : adjoints_of_reads(score, adjoint, score))
        if (part.read.as<Read>()->operation == argument.operation()) result = add_adjoints(result, part.adjoint);
    return result.defined() ? result : constant(f32, 0.0);
}

AttentionScores scores_of(const AttentionShape& shape, const AttentionGradients& a, const std::string& suffix,
                          const Tensor& lse, const ScoreRule& rule, const WeightRule& weight_rule) {
    const auto& [B, H, S, N, D, E, G, causal, type] = shape;
    const double to_score = 1 / std::sqrt(as_double(D)), to_base_2 = std::log2(std::exp(1.0));
    AttentionScores of;
    Axis d = reduce_axis("d", D), w = reduce_axis("w", E);
    auto masked = [&](const Expr& score, const Expr& i, const Expr& j) {
        return shape.causal ? select(j <= i, score, -infinity) : score;
    };
    of.s = compute("s" + suffix, {B, H, S, N}, [&](Expr b, Expr h, Expr i, Expr j) {
        Expr score = sum(cast(f32, a.q(b, i, h, d)) * cast(f32, a.k(b, j, h / shape.group, d)), d);
        return rule ? score * to_score : masked(score, i, j);
    });
    auto changed = [&](const Expr& b, const Expr& h, const Expr& i, const Expr& j) {
        return masked(rule(of.s(b, h, i, j), {b, h, i, j}), i, j);
    };
    of.p = compute("p" + suffix, {B, H, S, N}, [&](Expr b, Expr h, Expr i, Expr j) {
        Expr exponent = rule ? changed(b, h, i, j) * to_base_2 : of.s(b, h, i, j) * (to_base_2 * to_score);
        return exp2(exponent - lse(b, h, i));
    });
    of.w = of.p;
    auto weight = [&](const Expr& b, const Expr& h, const Expr& i, const Expr& j) {
        return weight_rule(of.p(b, h, i, j), {b, h, i, j});
    };
    if (weight_rule)
        of.w = compute("w" + suffix, {B, H, S, N}, [&](Expr b, Expr h, Expr i, Expr j) { return weight(b, h, i, j); });
    of.dp = compute("dp" + suffix, {B, H, S, N}, [&](Expr b, Expr h, Expr i, Expr j) {
        return sum(cast(f32, a.g(b, i, h, w)) * cast(f32, a.v(b, j, h / shape.group, w)), w);
    });
    of.ds = compute("ds" + suffix, {B, H, S, N}, [&](Expr b, Expr h, Expr i, Expr j) {
        Expr of_weight = of.dp(b, h, i, j);
        if (weight_rule) of_weight = adjoint_of_argument(weight(b, h, i, j), of_weight, of.p);
        Expr adjoint = of.p(b, h, i, j) * (of_weight - a.delta(b, h, i));
        return rule ? adjoint_of_argument(changed(b, h, i, j), adjoint, of.s) : adjoint;
    });
    return of;
}

}  // namespace

double flops_of_gradients(const AttentionShape& shape) {
    // Of queries and keys: scores, dk and dq. Of values: dp and dv.
    return shape.flops() / as_double(shape.depth + shape.width) * as_double(3 * shape.depth + 2 * shape.width);
}

double bytes_of_gradients(const AttentionShape& shape) {
    const double lse = as_double(shape.batch * shape.heads * shape.rows) * 4;
    return 2 * (shape.bytes() - lse) + lse;
}

AttentionGradients declare_attention_gradients(const AttentionShape& shape, bool together, const ScoreRule& rule,
                                               bool rule_skips, const WeightRule& weight_rule) {
    const auto& [B, H, S, N, D, E, G, causal, type] = shape;
    const Attention forward = declare_attention(shape);
    AttentionGradients a;
    a.by_rule = rule != nullptr;
    a.skips = causal || rule_skips;
    a.q = forward.q, a.k = forward.k, a.v = forward.v;
    a.g = input("g", type, {B, S, H, E});
    a.o = input("o", type, {B, S, H, E});
    a.lse = input("lse", f32, {B, H, S});
    // As many as boxes of them want; those behind the last row are its own.
    const int64_t with_more = rounded_up(S, numbers_of_box);
    auto there = [&](const Expr& i) { return with_more == shape.rows ? i : min(i, shape.rows - 1); };
    Axis e = reduce_axis("e", E);
    a.delta = compute("delta", {B, H, with_more}, [&](Expr b, Expr h, Expr i) {
        return sum(cast(f32, a.g(b, there(i), h, e)) * cast(f32, a.o(b, there(i), h, e)), e);
    });
    a.lse_of_keys = a.lse;
    if (with_more != S)
        a.lse_of_keys =
            compute("lse_of_keys", {B, H, with_more}, [&](Expr b, Expr h, Expr i) { return a.lse(b, h, there(i)); });
    const double scale = 1 / std::sqrt(as_double(D));
    a.of_queries = scores_of(shape, a, "_of_dq", a.lse, rule, weight_rule);
    a.of_keys = scores_of(shape, a, "", a.lse_of_keys, rule, weight_rule);
    a.of_values = together ? a.of_keys : scores_of(shape, a, "_of_dv", a.lse_of_keys, rule, weight_rule);
    Axis j1 = reduce_axis("j1", N), i1 = reduce_axis("i1", S), i2 = reduce_axis("i2", S);
    Axis h1 = reduce_axis("h1", G), h2 = reduce_axis("h2", G);
    auto in_group = [&](const Axis& head, const Axis& row) {
        return shape.group == 1 ? std::vector<Axis>{row} : std::vector<Axis>{head, row};
    };
    auto head_of = [&](const Expr& h, const Axis& in_group) {
        return shape.group == 1 ? h : h * shape.group + in_group;
    };
    a.dq = compute("dq", {B, S, H, D}, [&](Expr b, Expr i, Expr h, Expr x) {
        return cast(shape.type,
                    sum(a.of_queries.ds(b, h, i, j1) * cast(f32, a.k(b, j1, h / shape.group, x)), j1) * scale);
    });
    a.dk = compute("dk", {B, N, H / G, D}, [&](Expr b, Expr j, Expr h, Expr x) {
        Expr head = head_of(h, h1);
        return cast(shape.type,
                    sum(a.of_keys.ds(b, head, i1, j) * cast(f32, a.q(b, i1, head, x)), in_group(h1, i1)) * scale);
    });
    a.dv = compute("dv", {B, N, H / G, E}, [&](Expr b, Expr j, Expr h, Expr x) {
        Expr head = head_of(h, h2);
        return cast(shape.type, sum(a.of_values.w(b, head, i2, j) * cast(f32, a.g(b, i2, head, x)), in_group(h2, i2)));
    });
    return a;
}

namespace {

/// The nest of a gradient: blocks of rows, of which each warpgroup has 64, and steps along the last of its terms.
struct Nest {
    Loop tile, group, step, row, column, term;
};

class GradientSchedule {
public:
    GradientSchedule(const AttentionGradients& gradients, const AttentionShape& shape, const GradientTiles& tiles,
                     const Target& target, std::source_location where)
        : shape_(shape), tiles_(tiles), a_(gradients), s_({a_.dq, a_.dk, a_.dv}, target), where_(where) {}

    Schedule run() {
        schedule_delta();
        if (a_.lse_of_keys.name() != a_.lse.name()) schedule_lse();
        schedule_queries();
        schedule_keys();
        if (!tiles_.together) schedule_values();
        return std::move(s_);
    }

private:
    /// A row is summed by threads side by side, each with a few neighbours of it.
    void schedule_delta() {
        const auto [b, h, i] = s_.loops<3>(a_.delta, where_);
        Loop rows = s_.fuse({b, h, i}, "all_rows", where_);
        const int64_t vectors = divided(shape_.width, neighbours);
        int64_t lanes = 1;
        while (lanes < vectors && lanes < 32) lanes *= 2;
        auto [block, row] = s_.split(rows, threads_of_delta / lanes, Tail::Mask, {"row_block", "row"}, where_);
        auto [part, in_part] =
            s_.split(s_.reduce(a_.delta), lanes * neighbours, Tail::Mask, {"part", "in_part"}, where_);
        auto [lane, element] = s_.split(in_part, neighbours, {"lane", "element"}, where_);
        s_.bind(block, grid.x, where_);
        s_.bind(row, thread, where_);
        s_.bind(lane, thread, where_);
        s_.unroll(element, where_);
    }

    void schedule_lse() {
        const auto [b, h, i] = s_.loops<3>(a_.lse_of_keys, where_);
        auto [block, inside] = s_.split(s_.fuse({b, h, i}, "all_lse", where_), threads_of_delta, Tail::Mask,
                                        {"lse_block", "lse_thread"}, where_);
        s_.bind(block, grid.x, where_);
        s_.bind(inside, thread, where_);
    }

    /// Gradients of keys are sums over the heads of a group, too, and the first of them have the most causal terms; of
    /// queries the last.
    Nest nest_of(const Tensor& gradient, int64_t rows, int64_t step_extent, bool of_keys, const std::string& name) {
        auto [b, i, h, columns] = s_.loops<4>(gradient, where_);
        const bool of_group = of_keys && shape_.group > 1;
        const int64_t width = as_constant(s_.extent(columns)).value();
        auto [x_tile, x] = s_.split(columns, padded_head(width), Tail::Mask, {"x_tile", "x"}, where_);
        auto [block, in_block] = s_.split(i, rows, Tail::Mask, {"block", "in_block"}, where_);
        auto [group, row] = s_.split(in_block, rows_of_warpgroup, {"group", "row"}, where_);
        auto [step, term] =
            s_.split(s_.reduce(gradient, of_group ? 1 : 0), step_extent, Tail::Mask, {"step", "term"}, where_);
        auto [h_group, h_in_group] = s_.split(h, heads_side_by_side(of_keys), {"h_group", "h_in_group"}, where_);
        std::vector<Loop> order{b, h_group, block, h_in_group, x_tile, group};
        if (of_group) order.push_back(s_.reduce(gradient, 0));
        order.insert(order.end(), {step, row, x, term});
        s_.order(order, where_);
        Loop tile = h_in_group;
        if (shape_.causal && !of_keys) {
            const int64_t blocks = divided(shape_.rows, rows);
            const int64_t all = shape_.batch * shape_.heads * blocks;
            s_.persistent({b, h_group, block, h_in_group}, {.blocks = static_cast<int>(all), .longest_first = true},
                          where_);
        } else {
            tile = s_.fuse({b, h_group, block, h_in_group}, name, where_);
            s_.bind(tile, grid.x, where_);
        }
        s_.bind(group, warpgroup, where_);
        return {tile, group, step, row, x, term};
    }

    /// Of causal ones, so that the longest tiles are the first.
    int64_t heads_side_by_side(bool of_keys) const {
        if (!shape_.causal) return 1;
        const int64_t group = of_keys ? shape_.group : 1;
        const int64_t bytes =
            (shape_.rows * group + shape_.keys) * (shape_.depth + shape_.width) * bytes_of(shape_.type);
        return heads_in_l2(shape_.heads / group, bytes);
    }

    /// The tile of scores or of their adjoints under a step, in registers; of keys by queries if `transposed`.
    MmaLoops product_under(const Loop& step, const Tensor& product, int64_t terms, bool transposed) {
        s_.at(product, step, where_);
        s_.set_memory(product, Memory::Registers, where_);
        auto [b, h, i, j] = s_.loops<4>(product, where_);
        auto [k_tile, k] = s_.split(s_.reduce(product), padded_head(terms), Tail::Mask, {"k_tile", "k"}, where_);
        const Loop m = transposed ? j : i, n = transposed ? i : j;
        s_.order({b, h, k_tile, m, n, k}, where_);
        return {.m = m, .n = n, .k = k};
    }

    /// A rule's masks stand in the probabilities, others in the scores.
    void skip_masked(const Loop& step, const AttentionScores& of) {
        const Tensor& masked = a_.by_rule ? of.p : of.s;
        s_.skip(step, masked, where_);
        if (!a_.by_rule) s_.cut(step, where_partial(masked), where_);  // else it may have parts at both ends
    }

    void keep(const Tensor& made, const Loop& step) {
        s_.at(made, step, where_);
        s_.set_memory(made, Memory::Registers, where_);
    }
    /// What a gradient reads of it is rounded to the operands' type, in registers.
    void round_for(const Tensor& gradient, const Tensor& made, const Loop& step) {
        s_.round_to(s_.stage(gradient, made, Memory::Registers, step, where_), shape_.type, where_);
    }

    /// The probabilities, and what dv reads of them, or of what a rule makes of them.
    void keep_for_values(const AttentionScores& of, const Loop& step) {
        const bool by_rule = of.w.operation() != of.p.operation();
        if (by_rule) {
            round_for(a_.dv, of.w, step);
            s_.inline_stage(of.w, where_);
        }
        keep(of.p, step);
        if (!by_rule) round_for(a_.dv, of.p, step);
    }

    void schedule_queries() {
        const AttentionScores& of = a_.of_queries;
        const Nest n = nest_of(a_.dq, tiles_.query_rows, tiles_.query_step, false, "query_tile");
        keep(of.ds, n.step);
        keep(of.p, n.step);
        round_for(a_.dq, of.ds, n.step);
        s_.mma(a_.dq, wgmma, {.m = n.row, .n = n.column, .k = n.term}, where_);
        MmaLoops of_s = product_under(n.step, of.s, shape_.depth, false),
                 of_dp = product_under(n.step, of.dp, shape_.width, false);
        if (a_.skips && shape_.keys > rounded_up(tiles_.query_rows, tiles_.query_step)) skip_masked(n.step, of);
        Stage queries = s_.stage(of.s, a_.q, Memory::Shared, n.tile, where_),
              given = s_.stage(of.dp, a_.g, Memory::Shared, n.tile, where_);
        Stage keys = s_.stage({of.s, a_.dq}, a_.k, Memory::Shared, n.step, where_),
              values = s_.stage(of.dp, a_.v, Memory::Shared, n.step, where_);
        s_.stage(of.p, a_.lse, Memory::Registers, n.group, where_);
        s_.stage(of.ds, a_.delta, Memory::Registers, n.group, where_);
        s_.mma(of.s, wgmma, of_s, where_);
        s_.mma(of.dp, wgmma, of_dp, where_);
        s_.pipeline(n.step, {.stages = tiles_.stages}, where_);
        s_.roles(loading_roles({queries, given, keys, values}, a_.dq, tiles_.query_rows / rows_of_warpgroup), where_);
    }

    void schedule_keys() {
        const AttentionScores& of = a_.of_keys;
        const Nest n = nest_of(a_.dk, tiles_.key_rows, tiles_.key_step, true, "key_tile");
        if (tiles_.together) s_.stream({a_.dv, a_.dk}, n.step, where_);
        keep(of.ds, n.step);
        if (tiles_.together)
            keep_for_values(of, n.step);
        else
            keep(of.p, n.step);
        round_for(a_.dk, of.ds, n.step);
        s_.mma(a_.dk, wgmma, {.m = n.row, .n = n.column, .k = n.term}, where_);
        if (tiles_.together) {
            auto [b, j, h, x] = s_.loops<4>(a_.dv, where_);
            const Loop term = s_.all_loops(a_.dv).back();
            if (shape_.group > 1)
                s_.order({b, h, s_.reduce(a_.dv, 0), j, x, term}, where_);
            else
                s_.order({b, h, j, x, term}, where_);
            s_.mma(a_.dv, wgmma, {.m = j, .n = x, .k = term}, where_);
        }
        MmaLoops of_s = product_under(n.step, of.s, shape_.depth, true),
                 of_dp = product_under(n.step, of.dp, shape_.width, true);
        if (a_.skips && shape_.keys > rounded_up(tiles_.key_rows, tiles_.key_step)) skip_masked(n.step, of);
        Stage keys = s_.stage(of.s, a_.k, Memory::Shared, n.tile, where_),
              values = s_.stage(of.dp, a_.v, Memory::Shared, n.tile, where_);
        Stage queries = s_.stage({of.s, a_.dk}, a_.q, Memory::Shared, n.step, where_);
        Stage given = tiles_.together ? s_.stage({of.dp, a_.dv}, a_.g, Memory::Shared, n.step, where_)
                                      : s_.stage(of.dp, a_.g, Memory::Shared, n.step, where_);
        Stage lse = s_.stage(of.p, a_.lse_of_keys, Memory::Shared, n.step, where_),
              delta = s_.stage(of.ds, a_.delta, Memory::Shared, n.step, where_);
        s_.mma(of.s, wgmma, of_s, where_);
        s_.mma(of.dp, wgmma, of_dp, where_);
        s_.pipeline(n.step, {.stages = tiles_.stages}, where_);
        s_.roles(loading_roles({keys, values, queries, given, lse, delta}, a_.dk, tiles_.key_rows / rows_of_warpgroup),
                 where_);
    }

    void schedule_values() {
        const AttentionScores& of = a_.of_values;
        const Nest n = nest_of(a_.dv, tiles_.key_rows, tiles_.key_step, true, "value_tile");
        keep_for_values(of, n.step);
        s_.mma(a_.dv, wgmma, {.m = n.row, .n = n.column, .k = n.term}, where_);
        MmaLoops of_s = product_under(n.step, of.s, shape_.depth, true);
        if (a_.skips && shape_.keys > rounded_up(tiles_.key_rows, tiles_.key_step)) skip_masked(n.step, of);
        Stage keys = s_.stage(of.s, a_.k, Memory::Shared, n.tile, where_);
        Stage queries = s_.stage(of.s, a_.q, Memory::Shared, n.step, where_),
              given = s_.stage(a_.dv, a_.g, Memory::Shared, n.step, where_),
              lse = s_.stage(of.p, a_.lse_of_keys, Memory::Shared, n.step, where_);
        s_.mma(of.s, wgmma, of_s, where_);
        s_.pipeline(n.step, {.stages = tiles_.stages}, where_);
        // With masks in the loop twice, registers do not suffice.
        if (!a_.skips) s_.delay(a_.dv, n.step, {.iterations = 1, .before = of.p}, where_);
        s_.roles(loading_roles({keys, queries, given, lse}, a_.dv, tiles_.key_rows / rows_of_warpgroup), where_);
    }

    const AttentionShape& shape_;
    const GradientTiles& tiles_;
    const AttentionGradients& a_;
    Schedule s_;
    std::source_location where_;
};

}  // namespace

Schedule attention_gradients_schedule(const AttentionShape& shape, const GradientTiles& tiles, const Target& target,
                                      std::source_location where) {
    return attention_gradients_schedule(declare_attention_gradients(shape, tiles.together), shape, tiles, target,
                                        where);
}

Schedule attention_gradients_schedule(const AttentionGradients& gradients, const AttentionShape& shape,
                                      const GradientTiles& tiles, const Target& target, std::source_location where) {
    return GradientSchedule(gradients, shape, tiles, target, where).run();
}

GradientTiles gradient_tiles(const AttentionShape& shape, const Target& target) {
    const int64_t depth = std::max(shape.depth, shape.width);
    GradientTiles tiles;
    tiles.together = depth <= 128;  // else sums of both do not fit into registers
    tiles.key_step = depth <= 64 ? 128 : depth <= 128 ? 64 : 48;
    tiles.query_step = depth <= 128 ? 128 : 48;
    // Rather two blocks side by side than one that is twice as high.
    auto suited = [&](int64_t rows, int64_t heads, int64_t tile) {
        const int64_t blocks = shape.batch * heads * divided(rows, rows_of_warpgroup);
        return blocks <= target.multiprocessors ? rows_of_warpgroup : tile;
    };
    tiles.query_rows = suited(shape.rows, shape.heads, tiles.query_rows);
    tiles.key_rows = suited(shape.keys, shape.heads / shape.group, tiles.key_rows);
    // A single tile that the tensor does not fill is as small as the tensor is, for the second of two sums.
    const bool single = shape.batch * shape.heads == shape.group && shape.keys <= tiles.key_rows;
    if (single && shape.keys % rows_of_warpgroup != 0) tiles.together = false;
    return tiles;
}

std::optional<NamedAttentionGradients> parse_attention_gradients(const std::string& name) {
    static const std::regex form("attention_gradients(_.*?)(?:_tile(\\d+)x(\\d+)q(\\d+)x(\\d+)s([1-9])(a)?)?");
    std::smatch match;
    if (!std::regex_match(name, match, form)) return {};
    const auto forward = parse_attention("attention" + match[1].str());
    if (!forward || forward->tiles) return {};
    NamedAttentionGradients named{.forward = *forward, .tiles = {}};
    if (match[2].matched) {
        named.tiles = GradientTiles{.key_rows = std::stoll(match[2]),
                                    .key_step = std::stoll(match[3]),
                                    .query_rows = std::stoll(match[4]),
                                    .query_step = std::stoll(match[5]),
                                    .stages = std::stoi(match[6]),
                                    .together = !match[7].matched};
        for (int64_t rows : {named.tiles->key_rows, named.tiles->query_rows})
            if (rows % rows_of_warpgroup != 0 || rows > 3 * rows_of_warpgroup || rows == 0) return {};
    }
    return named;
}

}  // namespace tw::schedules
