// What users compute by the steps of attention, from their own expressions: weights that no maximum needs, by matrix
// units in one pass, and what stands around attention in a model, with gradients.
#include <gmock/gmock.h>

#include "dsl/differentiate.h"
#include "ops/check.h"
#include "schedules/choose.h"
#include "schedules/loading_roles.h"
#include "tests/ops/random_cases.h"

namespace tw::schedules {
namespace {

class AttentionKin : public RandomCases {
protected:
    AttentionKin() : RandomCases(53) {}

    void check(const Schedule& s, const std::vector<Tensor>& outputs, const Bindings& bindings) {
        SCOPED_TRACE(s.trace_as_cpp());
        const Program program = build(s);
        Executable executable(program, device_);
        const std::vector<HostArray> got = run_on(executable, bindings);
        for (size_t k = 0; k < outputs.size(); ++k) {
            const CheckResult result =
                check_output(outputs[k], bindings, got[k], {.approximate = program.approximate()});
            EXPECT_TRUE(result.ok) << outputs[k].name() << ": " << result.text;
        }
    }
    void check_chosen(const std::vector<Tensor>& outputs) {
        const Schedule s = choose_schedule(outputs, device_target());
        check(s, s.outputs(), random_bindings(s.outputs(), 9));
    }
};
TW_ON_EACH_DEVICE(AttentionKin);

/// o[h, i, e] = sum_j p[h, i, j] v[h, j, e], p of the scores s[h, i, j]; `total` of all p in a row if that divides.
struct Weighted {
    Tensor q, k, v, s, p, total, o;
};
using WeightOf = std::function<Expr(const Expr& score, const Expr& i, const Expr& j)>;

Weighted declare(int64_t heads, int64_t rows, int64_t keys, int64_t depth, const WeightOf& weight, bool divides) {
    Weighted w{.q = input("q", bf16, {heads, rows, depth}),
               .k = input("k", bf16, {heads, keys, depth}),
               .v = input("v", bf16, {heads, keys, depth}),
               .s = {},
               .p = {},
               .total = {},
               .o = {}};
    const Axis d = reduce_axis("d", depth), j = reduce_axis("j", keys);
    w.s = compute("s", {heads, rows, keys},
                  [&](Expr h, Expr i, Expr t) { return sum(cast(f32, w.q(h, i, d)) * cast(f32, w.k(h, t, d)), d); });
    w.p = compute("p", {heads, rows, keys}, [&](Expr h, Expr i, Expr t) { return weight(w.s(h, i, t), i, t); });
    if (divides) w.total = compute("total", {heads, rows}, [&](Expr h, Expr i) { return sum(w.p(h, i, j), j); });
    w.o = compute("o", {heads, rows, depth}, [&](Expr h, Expr i, Expr e) {
        const Expr all = sum(w.p(h, i, j) * cast(f32, w.v(h, j, e)), j);
        return cast(bf16, divides ? all / w.total(h, i) : all);
    });
    return w;
}

/// Both products by warpgroups in one pass over the keys, weights in registers.
Schedule in_one_pass(const Weighted& w, const Target& target, bool causal) {
    Schedule s({w.o}, target);
    auto [h, i, e] = s.loops<3>(w.o);
    auto [block, row] = s.split(i, 64, Tail::Mask);
    auto [step, term] = s.split(s.reduce(w.o), 64, Tail::Mask);
    s.order({h, block, step, row, e, term});
    const Loop tile = s.fuse(h, block, "tile");
    s.bind(tile, grid.x);
    if (w.total.defined()) s.stream({w.total, w.o}, step);
    s.at(w.p, step);
    s.set_memory(w.p, Memory::Registers);
    s.round_to(s.stage(w.o, w.p, Memory::Registers, step), bf16);
    s.mma(w.o, wgmma, {.m = row, .n = e, .k = term});
    s.at(w.s, step);
    s.set_memory(w.s, Memory::Registers);
    auto [s_h, s_i, s_j] = s.loops<3>(w.s);
    auto [d_tile, d] = s.split(s.reduce(w.s), 64);
    s.order({s_h, d_tile, s_i, s_j, d});
    if (causal) s.skip(step, w.p);
    const Stage queries = s.stage(w.s, w.q, Memory::Shared, tile), keys = s.stage(w.s, w.k, Memory::Shared, step),
                values = s.stage(w.o, w.v, Memory::Shared, step);
    s.mma(w.s, wgmma, {.m = s_i, .n = s_j, .k = d});
    s.pipeline(step, {.stages = 2});
    s.roles(loading_roles(s.target(), {queries, keys, values}, w.o, {.warpgroups = 1}));
    return s;
}

TEST_P(AttentionKin, SigmoidsOfScores) {
    for (const bool causal : {false, true}) {
        const int64_t heads = between(1, 2), rows = between(65, 200);
        const Weighted w = declare(
            heads, rows, rows, 64,
            [&](const Expr& score, const Expr& i, const Expr& j) {
                const Expr weight = sigmoid(score * 0.125 - 4.0);
                return causal ? select(j <= i, weight, 0.0) : weight;
            },
            false);
        check(in_one_pass(w, device_target(), causal), {w.o}, random_bindings({w.o}, 5));
    }
}

/// Normalised linear attention: features are not negative, and their products weigh.
TEST_P(AttentionKin, ProductsOfFeatures) {
    const int64_t heads = between(1, 2), rows = between(65, 150), keys = between(65, 300);
    const Weighted w = declare(
        heads, rows, keys, 64, [&](const Expr& score, const Expr&, const Expr&) { return abs(score) + 1.0; }, true);
    check(in_one_pass(w, device_target(), false), {w.o}, random_bindings({w.o}, 6));
}

/// Rotary embedding: halves of a head turn by an angle of their place; the gradient turns back.
TEST_P(AttentionKin, RotationsOfHalves) {
    const int64_t rows = between(1, 40), heads = between(1, 3), half = 4 * between(1, 8);
    const Tensor x = input("x", bf16, {rows, heads, 2 * half}), cosines = input("cosines", f32, {rows, half}),
                 sines = input("sines", f32, {rows, half});
    const Tensor y = compute("y", {rows, heads, 2 * half}, [&](Expr i, Expr h, Expr d) {
        const Expr other =
            select(d < half, -cast(f32, x(i, h, (d + half) % (2 * half))), cast(f32, x(i, h, (d + half) % (2 * half))));
        return cast(bf16, cast(f32, x(i, h, d)) * cosines(i, d % half) + other * sines(i, d % half));
    });
    check_chosen({y});
    check_chosen({gradients(y, input("dy", bf16, {rows, heads, 2 * half}), {x})[0]});
}

/// A residual and the norm of the sum, both kept, and gradients of both operands and the gain.
TEST_P(AttentionKin, ResidualsWithNorms) {
    const int64_t rows = between(2, 30), columns = 8 * between(1, 12);
    const Tensor x = input("x", bf16, {rows, columns}), r = input("r", bf16, {rows, columns}),
                 gain = input("gain", f32, {columns});
    const Axis k = reduce_axis("k", columns);
    const Tensor h =
        compute("h", {rows, columns}, [&](Expr i, Expr j) { return cast(f32, x(i, j)) + cast(f32, r(i, j)); });
    const Tensor scale = compute("scale", {rows}, [&](Expr i) {
        return rsqrt(sum(h(i, k) * h(i, k), k) / static_cast<double>(columns) + 1e-5);
    });
    const Tensor y =
        compute("y", {rows, columns}, [&](Expr i, Expr j) { return cast(bf16, h(i, j) * scale(i) * gain(j)); });
    check_chosen({h, y});
    check_chosen(gradients(y, input("dy", bf16, {rows, columns}), {x, r, gain}));
}

}  // namespace
}  // namespace tw::schedules
