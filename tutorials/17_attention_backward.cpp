// Tutorial 17: backward. Gradients from what a forward pass saved; two sums over one loop that need no law; products
// whose rows come from registers.
//
// Scores are not kept between the passes: they would fill memory. The logarithm of a row's sum is kept (tutorial 16),
// from which any tile of probabilities can be made again, finished: nothing is corrected while the loop runs.
#include <cmath>

#include "tutorials/lesson.h"

using namespace tw;

namespace {

/// For o = softmax(q k' / sqrt(d)) v and g = dL/do: with p the probabilities, dv = p' g; with dp = g v', the gradient
/// of the scores is ds = p (dp - delta), where delta = sum_j p dp = sum_e g o, a number for each row; dq = ds k, dk =
/// ds' q.
struct Gradients {
    Tensor q, k, v, g, o, lse, delta, s, p, dp, ds, dk, dv;

    Gradients(int64_t heads, int64_t rows, int64_t depth, bool causal) {
        for (auto [tensor, name] : {std::pair(&q, "q"), {&k, "k"}, {&v, "v"}, {&g, "g"}, {&o, "o"}})
            *tensor = input(name, bf16, {heads, rows, depth});
        lse = input("lse", f32, {heads, rows});
        Axis d = reduce_axis("d", depth), e1 = reduce_axis("e1", depth), e2 = reduce_axis("e2", depth),
             i1 = reduce_axis("i1", rows), i2 = reduce_axis("i2", rows);
        const double scale = 1 / std::sqrt(static_cast<double>(depth)), c = std::log2(std::exp(1.0)) * scale;
        delta = compute("delta", {heads, rows},
                        [&](Expr h, Expr i) { return sum(cast(f32, g(h, i, e1)) * cast(f32, o(h, i, e1)), e1); });
        s = compute("s", {heads, rows, rows}, [&](Expr h, Expr i, Expr j) {
            Expr score = sum(cast(f32, q(h, i, d)) * cast(f32, k(h, j, d)), d);
            return causal ? select(j <= i, score, -infinity) : score;
        });
        p = compute("p", {heads, rows, rows}, [&](Expr h, Expr i, Expr j) { return exp2(s(h, i, j) * c - lse(h, i)); });
        dp = compute("dp", {heads, rows, rows},
                     [&](Expr h, Expr i, Expr j) { return sum(cast(f32, g(h, i, e2)) * cast(f32, v(h, j, e2)), e2); });
        ds = compute("ds", {heads, rows, rows},
                     [&](Expr h, Expr i, Expr j) { return p(h, i, j) * (dp(h, i, j) - delta(h, i)); });
        dv = compute("dv", {heads, rows, depth},
                     [&](Expr h, Expr j, Expr e) { return cast(bf16, sum(p(h, i1, j) * cast(f32, g(h, i1, e)), i1)); });
        dk = compute("dk", {heads, rows, depth}, [&](Expr h, Expr j, Expr x) {
            return cast(bf16, sum(ds(h, i2, j) * cast(f32, q(h, i2, x)), i2) * scale);
        });
    }
};

/// The tile of a product under a step, keys as rows: so it lies in registers as the product that reads it wants its
/// rows.
MmaLoops transposed(Schedule& s, const Tensor& product, const Loop& step, int64_t depth) {
    s.at(product, step);
    s.set_memory(product, Memory::Registers);
    auto [h, i, j] = s.loops<3>(product);
    auto [k_tile, k] = s.split(s.reduce(product), depth, {"k_tile", "k"});
    s.order({h, k_tile, j, i, k});
    return {.m = j, .n = i, .k = k};
}

/// A block takes 128 keys of a head and goes through all queries in tiles of 64.
Schedule of_keys_and_values(const Gradients& a, int64_t depth, bool causal) {
    Schedule s({a.dk, a.dv}, target("sm_90a"));
    auto [delta_block, delta_row] = s.split(s.fuse(s.data_loops(a.delta), "rows"), 128, {"delta_block", "delta_row"});
    s.bind(delta_block, grid.x);  // a kernel of its own, a row a thread
    s.bind(delta_row, thread);

    auto [h, j, x] = s.loops<3>(a.dk);
    auto [block, in_block] = s.split(j, 128, {"block", "in_block"});
    auto [half, row] = s.split(in_block, 64, {"half", "row"});
    auto [step, term] = s.split(s.reduce(a.dk), 64, {"step", "term"});
    s.order({h, block, half, step, row, x, term});
    s.bind(h, grid.y);
    s.bind(block, grid.x);
    s.bind(half, warpgroup);
    s.stream({a.dv, a.dk}, step);  // neither needs the other: no law, no correction
    for (const Tensor& made : {a.ds, a.p}) {
        s.at(made, step);
        s.set_memory(made, Memory::Registers);
    }
    s.round_to(s.stage(a.dv, a.p, Memory::Registers, step), bf16);
    s.round_to(s.stage(a.dk, a.ds, Memory::Registers, step), bf16);
    s.mma(a.dk, wgmma, {.m = row, .n = x, .k = term});
    auto member = s.data_loops(a.dv);
    s.mma(a.dv, wgmma, {.m = member[1], .n = member[2], .k = s.reduce(a.dv)});
    MmaLoops of_s = transposed(s, a.s, step, depth), of_dp = transposed(s, a.dp, step, depth);
    if (causal) s.skip(step, a.s);  // queries in front of the block's keys
    Stage keys = s.stage(a.s, a.k, Memory::Shared, block), values = s.stage(a.dp, a.v, Memory::Shared, block);
    Stage queries = s.stage({a.s, a.dk}, a.q, Memory::Shared, step);  // one copy for two products: rows, then columns
    Stage given = s.stage({a.dp, a.dv}, a.g, Memory::Shared, step);
    Stage sums = s.stage(a.p, a.lse, Memory::Shared, step), deltas = s.stage(a.ds, a.delta, Memory::Shared, step);
    s.mma(a.s, wgmma, of_s);
    s.mma(a.dp, wgmma, of_dp);
    s.pipeline(step, {.stages = 2});
    s.roles({{"load", warps(1), registers(24), {keys, values, queries, given, sums, deltas}},
             {"math", warpgroups(2), registers(240), {a.dk}}});
    return s;
}

}  // namespace

int main(int argc, char** argv) {
    Lesson lesson(argc, argv, "17. Backward");
    const int64_t heads = lesson.size(1, 16), length = lesson.size(256, 4096), depth = lesson.size(16, 64);
    const double flops = 8.0 * static_cast<double>(heads * length * length * depth);

    lesson.say("Gradients of keys and values, of what the forward pass saved (o, lse) and of dL/do (g):");
    Gradients full(heads, length, depth, false);
    for (const Tensor& each : {full.delta, full.s, full.p, full.dp, full.ds, full.dv, full.dk}) lesson.show(each);
    Schedule both = of_keys_and_values(full, depth, false);
    lesson.show(both);
    lesson.say("Four products a step, of which two take their rows from registers:");
    lesson.show_lines(both, {"_registers<", "wgmma_wait"});
    lesson.run(both, flops, "dk and dv");

    lesson.say("Causal: a key has no queries in front of it, and the same step leaves them out, transposed:");
    Gradients causal(heads, length, depth, true);
    lesson.run(of_keys_and_values(causal, depth, true), flops / 2, "causal dk and dv");

    lesson.say(
        "dq is a sum over keys: a kernel of its own, with the scores the other way round, so that each element is one "
        "thread's sum, the same bits in every run. schedules/attention_backward.cpp has it, any lengths, grouped heads "
        "and head sizes; `tw run attention_gradients_bf16_1x2x128x64` runs and checks it.");
    lesson.say(
        "Sequences of many lengths, packed one behind another, have both kernels with loops as long as tables say: dq "
        "by "
        "tiles of rows, which go through the keys that they see, dk and dv by tiles of keys, which go through the rows "
        "that "
        "see them. So there is a table for each, made of the same offsets, by varlen_tables(.., TilesOf::Keys) on the "
        "host "
        "or by a kernel (declare_varlen_tables). `with_varlen_gradients(attention, shape, forward, tiles)` "
        "(schedules/varlen_gradients.h) is the attention of tutorial 18 whose result gradients() differentiates: "
        "`varlen_tiles(shape)` and `varlen_gradient_tiles(shape, target)` fit each other. Rows that see no key, and "
        "keys "
        "that no row sees, have gradients 0.");
    return lesson.finish();
}
