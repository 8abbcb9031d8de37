#include "ops/attention.h"

#include "dsl/differentiate.h"
#include "dsl/edit.h"
#include "dsl/own_schedule.h"
#include "schedules/attention.h"
#include "schedules/attention_backward.h"
#include "support/error.h"

namespace tw::nn {
namespace {

using Tensors = std::vector<tw::Tensor>;
using schedules::AttentionShape;

AttentionShape shape_of(const Tensors& in, bool causal) {
    auto extent = [&](size_t operand, size_t dim) { return require_constant(in[operand].shape()[dim]); };
    AttentionShape shape{.batch = extent(0, 0),
                         .heads = extent(0, 2),
                         .rows = extent(0, 1),
                         .keys = extent(1, 1),
                         .depth = extent(0, 3),
                         .width = extent(2, 3),
                         .group = extent(0, 2) / extent(1, 2),
                         .causal = causal,
                         .type = in[0].type()};
    if (causal) shape.keys_before = shape.keys - shape.rows;
    return shape;
}

/// o, then the logarithms of its sums, by which gradients make scores again.
Tensors forward(const Tensors& in, bool causal) {
    return schedules::declare_attention(shape_of(in, causal), {}, false, {}, {}, {.q = in[0], .k = in[1], .v = in[2]})
        .results();
}
Schedule forward_schedule(const Tensors& in, bool causal, const Target& target) {
    const AttentionShape shape = shape_of(in, causal);
    schedules::check_attention(shape);
    const schedules::Attention a =
        schedules::declare_attention(shape, {}, false, {}, {}, {.q = in[0], .k = in[1], .v = in[2]});
    return schedules::attention_schedule(a, shape, schedules::attention_tiles(a, shape, target), target);
}

/// Of q, k, v, the adjoint of o, o, and the logarithms.
schedules::AttentionGradients gradients_of(const Tensors& in, bool causal, const schedules::GradientPasses& passes) {
    return schedules::declare_attention_gradients(
        shape_of(in, causal), passes, {}, false, {}, {},
        {.q = in[0], .k = in[1], .v = in[2], .g = in[3], .o = in[4], .lse = in[5]});
}
Tensors backward(const Tensors& in, bool causal) {
    const schedules::AttentionGradients made = gradients_of(in, causal, {});
    return {made.dq, made.dk, made.dv};
}
Schedule backward_schedule(const Tensors& in, bool causal, const Target& target) {
    const AttentionShape shape = shape_of(in, causal);
    schedules::check_attention(shape);
    const schedules::GradientTiles tiles = schedules::gradient_tiles(shape, target);
    return schedules::attention_gradients_schedule(gradients_of(in, causal, tiles.passes), shape, tiles, target);
}

tw::Tensor as_type(Type type, const tw::Tensor& adjoint) {
    if (adjoint.type() == type) return adjoint;
    return compute("d_attention", {adjoint.shape().begin(), adjoint.shape().end()}, [&](const std::vector<Expr>& at) {
        return cast(type, adjoint.read({at.begin(), at.end()}));
    });
}

tw::Tensor declared(const Tensors& in, bool causal) {
    const std::string name = causal ? "causal attention" : "attention";
    const Tensors made = with_schedule(
        name, in, [=](const Tensors& operands) { return forward(operands, causal); },
        [=](const Tensors& operands, const Target& target) {
            return made_with_trees_later([&] { return forward_schedule(operands, causal, target); });
        });
    const tw::Tensor lse = made[1];
    return with_gradient(made[0], in, [=](const tw::Tensor& o, const tw::Tensor& adjoint) {
        return with_schedule(
            name + " backward", {in[0], in[1], in[2], as_type(o.type(), adjoint), o, lse},
            [=](const Tensors& operands) { return backward(operands, causal); },
            [=](const Tensors& operands, const Target& target) {
                return made_with_trees_later([&] { return backward_schedule(operands, causal, target); });
            },
            ScheduleOf::Equivalent);  // which may keep adjoints of scores
    });
}

}  // namespace

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options,
                 std::source_location where) {
    const auto &a = q.shape(), &b = k.shape(), &c = v.shape();
    const bool fits = a.size() == 4 && b.size() == 4 && c.size() == 4 && a[0] == b[0] && a[0] == c[0] && b[1] == c[1] &&
                      b[2] == c[2] && a[3] == b[3] && b[2] > 0 && a[2] % b[2] == 0;
    user_check(
        fits, where,
        "attention: q is {}, k {}, v {}; give [batch, rows, heads, depth], [batch, keys, heads of keys, depth] and "
        "[batch, keys, heads of keys, width], with heads a multiple of those of keys",
        shape_text(a), shape_text(b), shape_text(c));
    user_check(q.type() == k.type() && q.type() == v.type() && is_float(q.type()), where,
               "attention: q is {}, k {}, v {}; give three of one float type", name_of(q.type()), name_of(k.type()),
               name_of(v.type()));
    user_check(!options.causal || a[1] <= b[1], where,
               "attention: {} causal rows of {} keys, the first ones would see none; give as many keys at least", a[1],
               b[1]);
    const bool causal = options.causal;
    return operator_with("attention", causal ? "causal" : "",
                         [causal](const Tensors& in) { return declared(in, causal); })({q, k, v}, where);
}

}  // namespace tw::nn
