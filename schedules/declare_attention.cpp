// What attention is.
#include <algorithm>
#include <cmath>

#include "dsl/constant_factors.h"
#include "schedules/attention.h"
#include "schedules/require_sizes.h"
#include "schedules/whole_tiles.h"
#include "support/error.h"

namespace tw::schedules {

double AttentionShape::flops() const {
    double pairs = as_double(rows) * as_double(keys);
    if (causal) {
        // Under the diagonal: the integral of min(max(i + keys_before, 0), keys) over rows.
        auto up_to = [&](int64_t row) {
            const double seen = as_double(std::clamp<int64_t>(row + keys_before, 0, keys));
            return seen * seen / 2 + as_double(std::max<int64_t>(row + keys_before - keys, 0)) * as_double(keys);
        };
        pairs = up_to(rows) - up_to(0);
    }
    return 2 * as_double(batch) * as_double(heads) * pairs * as_double(depth + width);
}

double AttentionShape::bytes() const {
    double of_rows = as_double(rows) * as_double(heads) * as_double(depth + width);
    double of_keys = as_double(keys) * as_double(heads / group) * as_double(depth + width);
    return as_double(batch) * ((of_rows + of_keys) * bytes_of(type) + as_double(heads) * as_double(rows) * 4);
}

Shape AttentionShape::of_tokens(int64_t count, int64_t of_heads, int64_t of_head) const {
    return heads_first ? Shape{batch, of_heads, count, of_head} : Shape{batch, count, of_heads, of_head};
}

Expr AttentionShape::at(const Tensor& of_tokens, const Expr& b, const Expr& token, const Expr& head,
                        const Expr& x) const {
    return heads_first ? of_tokens(b, head, token, x) : of_tokens(b, token, head, x);
}

std::array<Loop, 4> AttentionShape::loops_of(const Schedule& s, const Tensor& of_tokens,
                                             std::source_location where) const {
    const auto [b, second, third, x] = s.loops<4>(of_tokens, where);
    return heads_first ? std::array{b, third, second, x} : std::array{b, second, third, x};
}

Expr AttentionShape::position(const Expr& row) const {
    const int64_t moved = causal ? keys_before : rows == 1 ? keys - 1 : 0;
    return moved == 0 ? row : row + moved;
}

SoftmaxSum with_score(const SoftmaxSum& of_keys, const Expr& score) {
    const Expr base_2 = score * std::log2(std::exp(1.0)), top = max(of_keys.top, base_2);
    return {top, of_keys.sum * exp2(of_keys.top - top) + exp2(base_2 - top)};
}

Expr exponent_of(const Expr& score, const Expr& top, double scale, bool far) {
    return far ? (score - top) * scale : score * scale - top * scale;
}

namespace {

const double to_base_2 = std::log2(std::exp(1.0));

}  // namespace

Expr sum_beside_top(const Expr& of_keys, const Expr& top, const Expr& sink) {
    // Below all scores by 2^128 or more, a row's keys weigh nothing beside the sink.
    return sink.defined() ? of_keys + exp2(sink * to_base_2 - top * to_base_2) : of_keys;
}

Expr lse_of_sum(const Expr& beside_top, const Expr& top, const Expr& sink) {
    if (!sink.defined()) return top * to_base_2 + log2(beside_top);
    constexpr double largest = 0x1p127;
    return max(top * to_base_2 + log2(min(beside_top, largest)), sink * to_base_2);
}

SavedSoftmax saved_softmax(const std::string& suffix, const Tensor& m,
                           const std::function<Expr(const std::vector<Expr>& row)>& beside_top) {
    const Shape rows(m.shape().begin(), m.shape().end());
    auto of_row = [&](const std::vector<Expr>& row, const Expr& empty, const std::function<Expr(Expr)>& otherwise) {
        const Expr top = m.read(std::vector<Operand>(row.begin(), row.end()));
        return select(top == -infinity, empty, otherwise(top));
    };
    SavedSoftmax saved;
    saved.top = compute("top" + suffix, rows, [&](const std::vector<Expr>& row) {
        return of_row(row, constant(f32, 0.0), [](const Expr& top) { return top; });
    });
    saved.spread = compute("spread" + suffix, rows, [&](const std::vector<Expr>& row) {
        return of_row(row, constant(f32, INFINITY), [&](const Expr&) { return log2(beside_top(row)); });
    });
    return saved;
}

std::vector<Tensor> results_of(const Tensor& o, const Tensor& lse, const SavedSoftmax& softmax) {
    std::vector<Tensor> all{o, lse};
    if (softmax.defined()) all.insert(all.end(), {softmax.top, softmax.spread});
    return all;
}

std::vector<Tensor> Attention::results() const {
    if (!of_rows) return results_of(o, lse, softmax);
    std::vector<Tensor> all{o};
    all.insert(all.end(), of_rows->begin(), of_rows->end());
    return all;
}

void check_sinks(int64_t heads, const Tensor& sinks, std::source_location where) {
    if (!sinks.defined()) return;
    user_check(sinks.type() == f32 && sinks.rank() == 1 && is_constant(sinks.shape()[0], heads), where,
               "attention: sinks '{}' are {} of {} dimensions; give a score for each head, f32 [{}]", sinks.name(),
               name_of(sinks.type()), sinks.rank(), heads);
}

void check_attention_sizes(const AttentionShape& shape, std::source_location where) {
    const auto& [B, H, S, N, D, E, G, causal, type, before, heads_first] = shape;
    require_sizes("attention", {{"batch", B}, {"heads", H}, {"rows", S}, {"keys", N}, {"depth", D}, {"width", E}},
                  where);
    user_check(G >= 1 && H % G == 0, where, "attention: {} heads are no multiple of a group of {}", H, G);
    user_check(is_float(type), where, "attention: operands of {}; cast them to a float type", name_of(type));
    user_check(causal || before == 0, where,
               "attention: keys_before = {} of rows that see all keys; set causal, or leave keys_before out", before);
}

void check_attention(const AttentionShape& shape, std::source_location where) {
    check_attention_sizes(shape, where);
    constexpr int64_t most = 256, of_boxes = 8;
    for (const auto& [name, extent] : {std::pair("depth", shape.depth), std::pair("width", shape.width)})
        user_check(
            extent % of_boxes == 0 && extent <= most, where,
            "attention: {} {}; heads have a multiple of 8 elements, 16 bytes, up to 256: fill them up with zeros", name,
            extent);
    user_check(shape.type == bf16 || shape.type == f16, where,
               "attention: operands of {}; tensor cores multiply bf16 or f16 here, so cast them", name_of(shape.type));
}

namespace {

std::string text_of(Type type, const Shape& shape) {
    std::vector<std::string> extents;
    for (const Extent& each : shape) extents.push_back(to_string(each.expr));
    return fmt::format("{} [{}]", name_of(type), fmt::join(extents, ", "));
}
std::string text_of(const Tensor& tensor) {
    return text_of(tensor.type(), Shape(tensor.shape().begin(), tensor.shape().end()));
}

bool is_of(const Tensor& tensor, Type type, const Shape& shape) {
    return tensor.type() == type && std::ranges::equal(tensor.shape(), shape, [](const Expr& a, const Extent& b) {
               return as_constant(a) == as_constant(b.expr);
           });
}

}  // namespace

Tensor operand_of_attention(const Tensor& given, const std::string& name, Type type, const Shape& shape,
                            std::source_location where) {
    if (!given.defined()) return input(name, type, shape);
    user_check(is_of(given, type, shape), where,
               "attention: '{}' is {}, where the shape says {} for '{}'; give that, such as a computed view",
               given.name(), text_of(given), text_of(type, shape), name);
    return given;
}

Tensor table_of_attention(const Tensor& given, const std::string& name, const Shape& shape, const std::string& made_by,
                          std::source_location where) {
    if (!given.defined()) return input(name, i32, shape);
    user_check(is_of(given, i32, shape), where,
               "attention: the table '{}' is {}, where shape and tiles say {} for '{}'; give what {} makes of them",
               given.name(), text_of(given), text_of(i32, shape), name, made_by);
    return given;
}

void inline_view(Schedule& s, const Tensor& operand, std::source_location where) {
    if (operand.operation()->outputs[operand.output()].body.as<Read>()) s.inline_stage(operand, where);
}

Attention declare_attention(const AttentionShape& shape, const ScoreRule& rule, bool rule_skips,
                            const WeightRule& weight_rule, const Tensor& sinks, const AttentionOperands& operands,
                            std::source_location where) {
    CalledFrom caller(where);
    const auto& [B, H, S, N, D, E, G, causal, type, before, heads_first] = shape;
    check_attention_sizes(shape);
    check_sinks(H, sinks);
    Attention a;
    a.suffix = operands.suffix;
    a.rules = {.score = rule, .skips = rule_skips, .weights = weight_rule, .sinks = sinks};
    auto named = [&](const char* name) { return name + operands.suffix; };
    a.skips = causal || rule_skips;
    a.q = operand_of_attention(operands.q, named("q"), type, shape.of_tokens(S, H, D));
    a.k = operand_of_attention(operands.k, named("k"), type, shape.of_tokens(N, H / G, D));
    a.v = operand_of_attention(operands.v, named("v"), type, shape.of_tokens(N, H / G, E));
    Axis d = reduce_axis("d", D), j1 = reduce_axis("j1", N), j2 = reduce_axis("j2", N), j3 = reduce_axis("j3", N);
    const double to_score = 1 / std::sqrt(as_double(D));
    // What all scores have in common waits for the exponential: s, m are scores without it.
    const bool far = may_add_far(rule);
    ScaledExpr scaled;
    a.s = compute(named("s"), {B, H, S, N}, [&](Expr b, Expr h, Expr i, Expr j) {
        Expr score = sum(cast(f32, shape.at(a.q, b, i, h, d)) * cast(f32, shape.at(a.k, b, j, h / shape.group, d)), d);
        const ScorePlace at{b, h, i, j, shape.position(i)};
        scaled = {score, to_score};
        if (rule) {
            score = changed_by(rule, score * to_score, at);
            a.of_pairs = inputs_of_pairs(score, at);
            score = with_line_inputs(score, at, a.of_lines);
            scaled = far ? ScaledExpr{score} : take_constants(score);  // gradients make the same score again
        }
        return shape.causal ? select(j <= i + shape.keys_before, scaled.rest, -infinity) : scaled.rest;
    });
    const double scale = to_base_2 * scaled.factor;
    a.to_base_2 = scale;
    a.offset = scaled.offset;
    a.missing = operands.missing;
    a.m = compute(named("m"), {B, H, S}, [&](Expr b, Expr h, Expr i) { return reduce_max(a.s(b, h, i, j1), j1); });
    a.p = compute(named("p"), {B, H, S, N}, [&](Expr b, Expr h, Expr i, Expr j) {
        return exp2(exponent_of(a.s(b, h, i, j), a.m(b, h, i), scale, far));
    });
    a.w = a.p;
    if (weight_rule)
        a.w = compute(named("w"), {B, H, S, N}, [&](Expr b, Expr h, Expr i, Expr j) {
            return weighed_by(weight_rule, a.p(b, h, i, j), {b, h, i, j, shape.position(i)});
        });
    a.l = compute(named("l"), {B, H, S}, [&](Expr b, Expr h, Expr i) { return sum(a.p(b, h, i, j2), j2); });
    // Of a row without keys all terms are 0.
    auto of_seen = [&](const Expr& b, const Expr& h, const Expr& i, const Expr& sum) {
        return rule || shape.has_empty_rows() ? select(a.m(b, h, i) == -infinity, 0.0, sum) : sum;
    };
    auto top_of = [&](const Expr& b, const Expr& h, const Expr& i) {
        return ScaledExpr{a.m(b, h, i), scale, to_base_2 * scaled.offset}.value();
    };
    auto divided_by = [&](const Expr& b, const Expr& h, const Expr& i) {
        const SoftmaxSum of_keys{top_of(b, h, i), of_seen(b, h, i, a.l(b, h, i))};
        return sinks.defined() ? with_score(of_keys, sinks(h)) : of_keys;
    };
    auto sink_of = [&](const Expr& h) { return sinks.defined() ? sinks(h) : Expr(); };
    auto beside_top = [&](const Expr& b, const Expr& h, const Expr& i) {
        return sum_beside_top(of_seen(b, h, i, a.l(b, h, i)), a.m(b, h, i), sink_of(h));
    };
    const Shape of_o = shape.of_tokens(S, H, E);
    const std::string name_of_o = operands.o.empty() ? named("o") : operands.o;
    a.o = compute(name_of_o, {of_o.begin() + a.missing, of_o.end()}, [&](const std::vector<Expr>& axes) {
        std::vector<Expr> at(static_cast<size_t>(a.missing), integer(0));
        at.insert(at.end(), axes.begin(), axes.end());
        const Expr &b = at[0], &i = at[shape.heads_first ? 2 : 1], &h = at[shape.heads_first ? 1 : 2], &e = at[3];
        Expr values = sum(a.w(b, h, i, j3) * cast(f32, shape.at(a.v, b, j3, h / shape.group, e)), j3);
        if (!sinks.defined()) return cast(shape.type, of_seen(b, h, i, values * (1.0 / a.l(b, h, i))));
        if (far) return cast(shape.type, of_seen(b, h, i, values * (1.0 / beside_top(b, h, i))));
        const SoftmaxSum whole = divided_by(b, h, i);
        return cast(shape.type, of_seen(b, h, i, values * (exp2(top_of(b, h, i) - whole.top) / whole.sum)));
    });
    a.lse = compute(named("lse"), {B, H, S}, [&](Expr b, Expr h, Expr i) {
        if (far) return lse_of_sum(beside_top(b, h, i), a.m(b, h, i), sink_of(h));
        const SoftmaxSum whole = divided_by(b, h, i);
        return whole.top + log2(whole.sum);
    });
    if (far)
        a.softmax = saved_softmax(operands.suffix, a.m,
                                  [&](const std::vector<Expr>& row) { return beside_top(row[0], row[1], row[2]); });
    return a;
}

}  // namespace tw::schedules
