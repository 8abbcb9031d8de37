#include <algorithm>
#include <cmath>

#include "dsl/adjoints.h"
#include "schedules/attention_backward.h"
#include "schedules/whole_tiles.h"

namespace tw::schedules {
namespace {

constexpr int64_t numbers_of_box = 4;  // of 16 bytes

/// What the rule's argument adds to the score, if the score's adjoint is given.
Expr adjoint_of_argument(const Expr& score, const Expr& adjoint, const Tensor& argument) {
    Expr result;
    for (const ReadAdjoint& part : adjoints_of_reads(score, adjoint, score))
        if (part.read.as<Read>()->operation == argument.operation()) result = add_adjoints(result, part.adjoint);
    return result.defined() ? result : constant(f32, 0.0);
}

Expr masked_score(const AttentionShape& shape, const Expr& score, const Expr& i, const Expr& j) {
    return shape.causal ? select(j <= i, score, -infinity) : score;
}

/// What the rule makes of a score.
Expr changed_score(const AttentionShape& shape, const Tensor& s, const ScoreRule& rule, const ScorePlace& at) {
    return masked_score(shape, rule(s(at.batch, at.head, at.row, at.key), at), at.row, at.key);
}

/// Of what the softmax takes.
Expr adjoint_of_score(const AttentionGradients& a, const AttentionScores& of, const WeightRule& weight_rule,
                      const ScorePlace& at) {
    const Expr p = of.p(at.batch, at.head, at.row, at.key);
    Expr of_weight = of.dp(at.batch, at.head, at.row, at.key);
    if (weight_rule) of_weight = adjoint_of_argument(weight_rule(p, at), of_weight, of.p);
    return p * (of_weight - a.delta(at.batch, at.head, at.row));
}

AttentionScores scores_of(const AttentionShape& shape, AttentionGradients& a, const std::string& suffix,
                          const Tensor& lse, const ScoreRule& rule, const WeightRule& weight_rule) {
    const auto& [B, H, S, N, D, E, G, causal, type] = shape;
    const double to_score = 1 / std::sqrt(as_double(D)), to_base_2 = std::log2(std::exp(1.0));
    AttentionScores of;
    auto by_views = [&](const Expr& value, const ScorePlace& at) {
        return with_line_inputs(value, at, of.lines, suffix);
    };
    Axis d = reduce_axis("d", D), w = reduce_axis("w", E);
    of.s = compute("s" + suffix, {B, H, S, N}, [&](Expr b, Expr h, Expr i, Expr j) {
        Expr score = sum(cast(f32, a.q(b, i, h, d)) * cast(f32, a.k(b, j, h / shape.group, d)), d);
        return rule ? score * to_score : masked_score(shape, score, i, j);
    });
    of.p = compute("p" + suffix, {B, H, S, N}, [&](Expr b, Expr h, Expr i, Expr j) {
        if (!rule) return exp2(of.s(b, h, i, j) * (to_base_2 * to_score) - lse(b, h, i));
        const Expr score = changed_score(shape, of.s, rule, {b, h, i, j});
        a.of_pairs = inputs_of_pairs(score, {b, h, i, j});
        return exp2(by_views(score, {b, h, i, j}) * to_base_2 - lse(b, h, i));
    });
    of.w = of.p;
    if (weight_rule)
        of.w = compute("w" + suffix, {B, H, S, N}, [&](Expr b, Expr h, Expr i, Expr j) {
            return weight_rule(of.p(b, h, i, j), {b, h, i, j});
        });
    of.dp = compute("dp" + suffix, {B, H, S, N}, [&](Expr b, Expr h, Expr i, Expr j) {
        return sum(cast(f32, a.g(b, i, h, w)) * cast(f32, a.v(b, j, h / shape.group, w)), w);
    });
    of.ds = compute("ds" + suffix, {B, H, S, N}, [&](Expr b, Expr h, Expr i, Expr j) {
        const Expr adjoint = adjoint_of_score(a, of, weight_rule, {b, h, i, j});
        if (!rule) return adjoint;
        return by_views(adjoint_of_argument(changed_score(shape, of.s, rule, {b, h, i, j}), adjoint, of.s),
                        {b, h, i, j});
    });
    return of;
}

/// Whether the rule's derivative by the input is that by the score, as of sums.
bool has_adjoint_of_score(const AttentionShape& shape, const Tensor& s, const ScoreRule& rule, const Tensor& input) {
    const ScorePlace at{index_variable("b", 0, shape.batch - 1), index_variable("h", 0, shape.heads - 1),
                        index_variable("i", 0, shape.rows - 1), index_variable("j", 0, shape.keys - 1)};
    const Expr score = changed_score(shape, s, rule, at), adjoint = scalar("adjoint", f32);
    return equal(adjoint_of_argument(score, adjoint, input), adjoint_of_argument(score, adjoint, s));
}

/// The input's gradient: of what it has once for all batches, or heads, the sum of theirs.
Tensor gradient_of_pairs(const AttentionShape& shape, const PairInput& input, const Tensor& adjoints) {
    const Axis batch = reduce_axis("of_batch", shape.batch), head = reduce_axis("of_head", shape.heads);
    const Shape extents(input.tensor.shape().begin(), input.tensor.shape().end());
    return compute("d_" + input.tensor.name(), extents, [&](const std::vector<Expr>& at) {
        auto index = [&](size_t of, const Expr& otherwise) {
            return input.dimension[of] < 0 ? otherwise : at[static_cast<size_t>(input.dimension[of])];
        };
        std::vector<Axis> over;
        auto summed = [&](const Axis& axis, int64_t extent) {
            if (extent > 1) over.push_back(axis);
            return extent > 1 ? Expr(axis) : integer(0);
        };
        const Expr b = input.dimension[0] < 0 ? summed(batch, shape.batch) : index(0, {}),
                   h = input.dimension[1] < 0 ? summed(head, shape.heads) : index(1, {});
        const Expr adjoint = cast(f32, adjoints(b, h, index(3, {}), index(2, {})));
        const Expr total = over.empty() ? adjoint : sum(adjoint, over);
        return input.tensor.type() == f32 ? total : cast(input.tensor.type(), total);
    });
}

void declare_gradients_of_pairs(const AttentionShape& shape, AttentionGradients& a, const ScoreRule& rule,
                                const WeightRule& weight_rule) {
    const auto& [B, H, S, N, D, E, G, causal, type] = shape;
    AttentionScores& of = a.of_keys;
    for (const PairInput& input : a.of_pairs) {
        Tensor adjoints = a.ds_kept;
        if (!has_adjoint_of_score(shape, of.s, rule, input.tensor))
            adjoints = compute(input.tensor.name() + "_adjoint", {B, H, N, S}, [&](Expr b, Expr h, Expr j, Expr i) {
                const Expr adjoint = adjoint_of_score(a, of, weight_rule, {b, h, i, j});
                const Expr score = changed_score(shape, of.s, rule, {b, h, i, j});
                return cast(shape.type, with_line_inputs(adjoint_of_argument(score, adjoint, input.tensor),
                                                         {b, h, i, j}, of.lines));
            });
        a.adjoints_of_pairs.push_back(adjoints);
        a.gradients_of_pairs.push_back(gradient_of_pairs(shape, input, adjoints));
    }
}

/// What a score without a value takes of a row's softmax, its weights' sum being 1, times what that is worth there.
Tensor gradient_of_sinks(const AttentionShape& shape, const AttentionGradients& a, const Tensor& sinks) {
    const Axis b = reduce_axis("of_batch", shape.batch), i = reduce_axis("of_row", shape.rows);
    return compute("d_" + sinks.name(), {shape.heads}, [&](Expr h) {
        const Expr share = exp2(sinks(h) * std::log2(std::exp(1.0)) - a.lse(b, h, i));
        return -sum(share * a.delta(b, h, i), {b, i});
    });
}

}  // namespace

AttentionGradients declare_attention_gradients(const AttentionShape& shape, const GradientPasses& passes,
                                               const ScoreRule& rule, bool rule_skips, const WeightRule& weight_rule,
                                               const Tensor& sinks) {
    const auto& [B, H, S, N, D, E, G, causal, type] = shape;
    check_sinks(shape, sinks);
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
    if (sinks.defined()) a.d_sinks = gradient_of_sinks(shape, a, sinks);
    const double scale = 1 / std::sqrt(as_double(D));
    if (!passes.kept && !passes.added) a.of_queries = scores_of(shape, a, "_of_dq", a.lse, rule, weight_rule);
    a.of_keys = scores_of(shape, a, "", a.lse_of_keys, rule, weight_rule);
    a.of_values = passes.together ? a.of_keys : scores_of(shape, a, "_of_dv", a.lse_of_keys, rule, weight_rule);
    Axis j1 = reduce_axis("j1", N), i1 = reduce_axis("i1", S), i2 = reduce_axis("i2", S);
    Axis h1 = reduce_axis("h1", G), h2 = reduce_axis("h2", G);
    auto in_group = [&](const Axis& head, const Axis& row) {
        return shape.group == 1 ? std::vector<Axis>{row} : std::vector<Axis>{head, row};
    };
    auto head_of = [&](const Expr& h, const Axis& in_group) {
        return shape.group == 1 ? h : h * shape.group + in_group;
    };
    if (passes.kept)
        a.ds_kept = compute("ds_kept", {B, H, N, S},
                            [&](Expr b, Expr h, Expr j, Expr i) { return cast(shape.type, a.of_keys.ds(b, h, i, j)); });
    if (passes.of_pairs) declare_gradients_of_pairs(shape, a, rule, weight_rule);
    auto ds_of_query = [&](const Expr& b, const Expr& h, const Expr& i, const Expr& j) {
        if (passes.kept) return cast(f32, a.ds_kept(b, h, j, i));
        return passes.added ? a.of_keys.ds(b, h, i, j) : a.of_queries.ds(b, h, i, j);
    };
    a.dq = compute("dq", {B, S, H, D}, [&](Expr b, Expr i, Expr h, Expr x) {
        return cast(shape.type, sum(ds_of_query(b, h, i, j1) * cast(f32, a.k(b, j1, h / shape.group, x)), j1) * scale);
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

}  // namespace tw::schedules
