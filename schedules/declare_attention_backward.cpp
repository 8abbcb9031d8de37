#include <algorithm>
#include <cmath>
#include <utility>

#include "dsl/constant_factors.h"
#include "dsl/differentiate.h"
#include "schedules/attention_backward.h"
#include "schedules/whole_tiles.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

constexpr int64_t numbers_of_box = 4;  // of 16 bytes

Expr masked_score(const AttentionShape& shape, const Expr& score, const Expr& i, const Expr& j) {
    return shape.causal ? select(j <= i + shape.keys_before, score, -infinity) : score;
}

/// What the rule makes of a score.
Expr changed_score(const AttentionShape& shape, const Tensor& s, const ScoreRule& rule, const ScorePlace& at) {
    return masked_score(shape, changed_by(rule, s(at.batch, at.head, at.row, at.key), at), at.row, at.key);
}

/// The expression of scores, where `s` has those without the factor that the depth gives them.
Expr of_products(const AttentionShape& shape, const Expr& expr, const Tensor& s) {
    return transform(expr, [&](const Expr& node) -> Expr {
        const Read* read = node.as<Read>();
        if (!read || read->operation != s.operation()) return {};
        return node * (1 / std::sqrt(as_double(shape.depth)));
    });
}

/// Of what the softmax takes.
Expr adjoint_of_score(const AttentionGradients& a, const AttentionScores& of, const WeightRule& weight_rule,
                      const ScorePlace& at) {
    const Expr p = of.p(at.batch, at.head, at.row, at.key);
    Expr of_weight = of.dp(at.batch, at.head, at.row, at.key);
    if (weight_rule) of_weight = adjoint_of_argument(weighed_by(weight_rule, p, at), of_weight, of.p);
    return p * (of_weight - a.delta(at.batch, at.head, at.row));
}

/// Whether the rule's derivative by the input is that by the score, as of sums.
bool has_adjoint_of_score(const AttentionShape& shape, const Tensor& s, const ScoreRule& rule, const Tensor& input) {
    const Expr i = index_variable("i", 0, shape.rows - 1);
    const ScorePlace at{index_variable("b", 0, shape.batch - 1), index_variable("h", 0, shape.heads - 1), i,
                        index_variable("j", 0, shape.keys - 1), shape.position(i)};
    const Expr score = changed_score(shape, s, rule, at), adjoint = scalar("adjoint", f32);
    return equal(adjoint_of_argument(score, adjoint, input), adjoint_of_argument(score, adjoint, s));
}

AttentionScores scores_of(const AttentionShape& shape, AttentionGradients& a, const std::string& suffix,
                          Tensor RowNumber::*of_rows, const ScoreRule& rule, const WeightRule& weight_rule,
                          bool of_pairs) {
    const auto& [B, H, S, N, D, E, G, causal, type, before, heads_first] = shape;
    const double to_score = 1 / std::sqrt(as_double(D)), to_base_2 = std::log2(std::exp(1.0));
    AttentionScores of;
    auto by_views = [&](const Expr& value, const ScorePlace& at) {
        return with_line_inputs(value, at, of.lines, suffix);
    };
    Axis d = reduce_axis("d", D), w = reduce_axis("w", E);
    of.s = compute("s" + suffix, {B, H, S, N}, [&](Expr b, Expr h, Expr i, Expr j) {
        Expr score = sum(cast(f32, shape.at(a.q, b, i, h, d)) * cast(f32, shape.at(a.k, b, j, h / shape.group, d)), d);
        return rule ? score : masked_score(shape, score, i, j);
    });
    of.p = compute("p" + suffix, {B, H, S, N}, [&](Expr b, Expr h, Expr i, Expr j) {
        const std::vector<Expr> numbers = numbers_at(a.row_numbers, of_rows, {b, h, i});
        if (!rule) return exp2(exponent_of(of.s(b, h, i, j), to_base_2 * to_score, numbers));
        const ScorePlace at{b, h, i, j, shape.position(i)};
        const Expr score = changed_score(shape, of.s, rule, at);
        a.of_pairs = inputs_of_pairs(score, at);
        const Expr changed = of_products(shape, by_views(score, at), of.s);
        if (numbers.size() > 1) return exp2(exponent_of(changed, to_base_2, numbers));
        ScaledExpr exponent = take_constants(changed * to_base_2);
        const double offset = std::exchange(exponent.offset, 0);
        return exp2(exponent.value() - (offset == 0 ? numbers[0] : numbers[0] - offset));
    });
    of.w = of.p;
    if (weight_rule)
        of.w = compute("w" + suffix, {B, H, S, N}, [&](Expr b, Expr h, Expr i, Expr j) {
            return weighed_by(weight_rule, of.p(b, h, i, j), {b, h, i, j, shape.position(i)});
        });
    of.dp = compute("dp" + suffix, {B, H, S, N}, [&](Expr b, Expr h, Expr i, Expr j) {
        return sum(cast(f32, shape.at(a.g, b, i, h, w)) * cast(f32, shape.at(a.v, b, j, h / shape.group, w)), w);
    });
    auto is_of_score = [&](const PairInput& each) { return has_adjoint_of_score(shape, of.s, rule, each.tensor); };
    if (of_pairs && !std::ranges::all_of(a.of_pairs, is_of_score))
        of.dc = compute("dc" + suffix, {B, H, S, N}, [&](Expr b, Expr h, Expr i, Expr j) {
            return adjoint_of_score(a, of, weight_rule, {b, h, i, j, shape.position(i)});
        });
    of.ds = compute("ds" + suffix, {B, H, S, N}, [&](Expr b, Expr h, Expr i, Expr j) {
        const ScorePlace at{b, h, i, j, shape.position(i)};
        const Expr adjoint = of.dc.defined() ? of.dc(b, h, i, j) : adjoint_of_score(a, of, weight_rule, at);
        if (!rule) return adjoint;
        const Expr of_rule = by_views(adjoint_of_argument(changed_score(shape, of.s, rule, at), adjoint, of.s), at);
        return join_constants(of_products(shape, of_rule, of.s));
    });
    return of;
}

/// The input's gradient: of what it has once for all batches, or heads, the sum of theirs.
Tensor gradient_of_pairs(const AttentionShape& shape, const PairInput& input, const Tensor& adjoints,
                         const std::string& suffix) {
    const Axis batch = reduce_axis("of_batch", shape.batch), head = reduce_axis("of_head", shape.heads);
    const Shape extents(input.tensor.shape().begin(), input.tensor.shape().end());
    return compute("d_" + input.tensor.name() + suffix, extents, [&](const std::vector<Expr>& at) {
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
                                const std::string& suffix) {
    const auto& [B, H, S, N, D, E, G, causal, type, before, heads_first] = shape;
    AttentionScores& of = a.of_keys;
    for (const PairInput& input : a.of_pairs) {
        Tensor adjoints = a.ds_kept;
        if (!has_adjoint_of_score(shape, of.s, rule, input.tensor))
            adjoints =
                compute(input.tensor.name() + "_adjoint" + suffix, {B, H, N, S}, [&](Expr b, Expr h, Expr j, Expr i) {
                    const ScorePlace at{b, h, i, j, shape.position(i)};
                    const Expr adjoint = of.dc(b, h, i, j), score = changed_score(shape, of.s, rule, at);
                    const Expr of_input =
                        with_line_inputs(adjoint_of_argument(score, adjoint, input.tensor), at, of.lines);
                    return cast(shape.type, join_constants(of_products(shape, of_input, of.s)));
                });
        a.adjoints_of_pairs.push_back(adjoints);
        a.gradients_of_pairs.push_back(gradient_of_pairs(shape, input, adjoints, suffix));
    }
}

/// What a score without a value takes of a row's softmax, its weights' sum being 1, times what that is worth there.
Tensor gradient_of_sinks(const AttentionShape& shape, const AttentionGradients& a, const Tensor& sinks,
                         const std::string& suffix) {
    const Axis b = reduce_axis("of_batch", shape.batch), i = reduce_axis("of_row", shape.rows);
    return compute("d_" + sinks.name() + suffix, {shape.heads}, [&](Expr h) {
        const Expr share = exp2(sinks(h) * std::log2(std::exp(1.0)) - a.lse(b, h, i));
        return -sum(share * a.delta(b, h, i), {b, i});
    });
}

}  // namespace

AttentionGradients declare_attention_gradients(const AttentionShape& shape, const GradientPasses& passes,
                                               const ScoreRule& rule, bool rule_skips, const WeightRule& weight_rule,
                                               const Tensor& sinks, const AttentionSaved& saved,
                                               std::source_location where) {
    CalledFrom caller(where);
    const auto& [B, H, S, N, D, E, G, causal, type, before, heads_first] = shape;
    check_attention_sizes(shape);
    check_sinks(H, sinks);
    auto named = [&](const char* name) { return name + saved.suffix; };
    AttentionGradients a;
    a.by_rule = rule != nullptr;
    a.skips = causal || rule_skips;
    auto given = [&](const Tensor& tensor, const char* name, Type of, const Shape& extents) {
        return operand_of_attention(tensor, named(name), of, extents);
    };
    a.q = given(saved.q, "q", type, shape.of_tokens(S, H, D));
    a.k = given(saved.k, "k", type, shape.of_tokens(N, H / G, D));
    a.v = given(saved.v, "v", type, shape.of_tokens(N, H / G, E));
    a.g = given(saved.g, "g", type, shape.of_tokens(S, H, E));
    a.o = given(saved.o, "o", type, shape.of_tokens(S, H, E));
    a.lse = given(saved.lse, "lse", f32, {B, H, S});
    // As many as boxes of them want; those behind the last row are its own.
    const int64_t with_more = rounded_up(S, numbers_of_box);
    auto there = [&](const Expr& i) { return with_more == shape.rows ? i : min(i, shape.rows - 1); };
    Axis e = reduce_axis("e", E);
    a.delta = compute(named("delta"), {B, H, with_more}, [&](Expr b, Expr h, Expr i) {
        return sum(cast(f32, shape.at(a.g, b, there(i), h, e)) * cast(f32, shape.at(a.o, b, there(i), h, e)), e);
    });
    a.row_numbers = row_numbers(a.lse, softmax_of(rule, saved.softmax, given, {B, H, S}),
                                rule || shape.has_empty_rows(), saved.suffix);
    if (sinks.defined()) a.d_sinks = gradient_of_sinks(shape, a, sinks, saved.suffix);
    const double scale = 1 / std::sqrt(as_double(D));
    if (!passes.kept && !passes.added)
        a.of_queries = scores_of(shape, a, named("_of_dq"), &RowNumber::of_queries, rule, weight_rule, false);
    // Beside the forward pass, whose scores have the plain names.
    a.of_keys = scores_of(shape, a, named(saved.o.defined() ? "_of_dk" : ""), &RowNumber::of_keys, rule, weight_rule,
                          passes.of_pairs);
    a.of_values = passes.together ? a.of_keys
                                  : scores_of(shape, a, named("_of_dv"), &RowNumber::of_keys, rule, weight_rule, false);
    Axis j1 = reduce_axis("j1", N), i1 = reduce_axis("i1", S), i2 = reduce_axis("i2", S);
    Axis h1 = reduce_axis("h1", G), h2 = reduce_axis("h2", G);
    auto in_group = [&](const Axis& head, const Axis& row) {
        return shape.group == 1 ? std::vector<Axis>{row} : std::vector<Axis>{head, row};
    };
    auto head_of = [&](const Expr& h, const Axis& in_group) {
        return shape.group == 1 ? h : h * shape.group + in_group;
    };
    if (passes.kept)
        a.ds_kept = compute(named("ds_kept"), {B, H, N, S},
                            [&](Expr b, Expr h, Expr j, Expr i) { return cast(shape.type, a.of_keys.ds(b, h, i, j)); });
    if (passes.of_pairs) declare_gradients_of_pairs(shape, a, rule, saved.suffix);
    auto ds_of_query = [&](const Expr& b, const Expr& h, const Expr& i, const Expr& j) {
        if (passes.kept) return cast(f32, a.ds_kept(b, h, j, i));
        return passes.added ? a.of_keys.ds(b, h, i, j) : a.of_queries.ds(b, h, i, j);
    };
    auto of_tokens = [&](const char* name, int64_t count, int64_t heads, int64_t of_head, auto&& element) {
        return compute(named(name), shape.of_tokens(count, heads, of_head), [&](Expr b, Expr y, Expr z, Expr x) {
            return cast(shape.type, shape.heads_first ? element(b, z, y, x) : element(b, y, z, x));
        });
    };
    a.dq = of_tokens("dq", S, H, D, [&](const Expr& b, const Expr& i, const Expr& h, const Expr& x) {
        return sum(ds_of_query(b, h, i, j1) * cast(f32, shape.at(a.k, b, j1, h / shape.group, x)), j1) * scale;
    });
    a.dk = of_tokens("dk", N, H / G, D, [&](const Expr& b, const Expr& j, const Expr& h, const Expr& x) {
        const Expr head = head_of(h, h1);
        return sum(a.of_keys.ds(b, head, i1, j) * cast(f32, shape.at(a.q, b, i1, head, x)), in_group(h1, i1)) * scale;
    });
    a.dv = of_tokens("dv", N, H / G, E, [&](const Expr& b, const Expr& j, const Expr& h, const Expr& x) {
        const Expr head = head_of(h, h2);
        return sum(a.of_values.w(b, head, i2, j) * cast(f32, shape.at(a.g, b, i2, head, x)), in_group(h2, i2));
    });
    return a;
}

Tensor with_attention_gradients(const Attention& attention, const AttentionShape& shape, const GradientPasses& passes,
                                std::source_location where) {
    const Attention& a = attention;
    const AttentionRules& rules = a.rules;
    std::vector<Tensor> inputs{a.q, a.k, a.v};
    user_check(!passes.of_pairs || !a.of_pairs.empty(), where,
               "attention: gradients of what the rule reads are asked for, but the rule reads nothing for "
               "each row and key in rows of a multiple of 16 bytes; pad its rows, or leave `of_pairs` out");
    if (passes.of_pairs)
        for (const PairInput& input : a.of_pairs) inputs.push_back(input.tensor);
    if (rules.sinks.defined()) inputs.push_back(rules.sinks);
    auto function = [=](const Tensor& o, const Tensor& adjoint) {
        const Tensor g = compute("g_of_o" + a.suffix, Shape(o.shape().begin(), o.shape().end()),
                                 [&](Expr b, Expr y, Expr z, Expr e) { return cast(shape.type, adjoint(b, y, z, e)); });
        const AttentionGradients made = declare_attention_gradients(
            shape, passes, a.rules.score, a.rules.skips, a.rules.weights, a.rules.sinks,
            {.q = a.q, .k = a.k, .v = a.v, .g = g, .o = o, .lse = a.lse, .softmax = a.softmax, .suffix = a.suffix},
            where);
        std::vector<Tensor> all{made.dq, made.dk, made.dv};
        all.insert(all.end(), made.gradients_of_pairs.begin(), made.gradients_of_pairs.end());
        if (made.d_sinks.defined()) all.push_back(made.d_sinks);
        return all;
    };
    return with_gradient(a.o, inputs, function, where);
}

}  // namespace tw::schedules
