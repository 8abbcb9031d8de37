// Tutorial 17: backward. Gradients from what a forward pass saved; two sums over one loop that need no law; products
// whose rows come from registers.
//
// Scores are not kept between the passes: they would fill memory. The logarithm of a row's sum is kept (tutorial 16),
// from which any tile of probabilities can be made again, finished: nothing is corrected while the loop runs. Each step
// of the schedules says one thing, and the emulator counts what it changes.
#include <cmath>

#include "tutorials/counter.h"

using namespace tw;

namespace {

/// For o = softmax(q k' / sqrt(d)) v and g = dL/do: with p the probabilities, dv = p' g; with dp = g v', the gradient
/// of the scores is ds = p (dp - delta), where delta = sum_j p dp = sum_e g o, a number for each row; dq = ds k, dk =
/// ds' q.
struct Gradients {
    Tensor q, k, v, g, o, lse, delta, s, p, dp, ds, dk, dv, dq;

    Gradients(int64_t heads, int64_t rows, int64_t depth, bool causal) {
        for (auto [tensor, name] : {std::pair(&q, "q"), {&k, "k"}, {&v, "v"}, {&g, "g"}, {&o, "o"}})
            *tensor = input(name, bf16, {heads, rows, depth});
        lse = input("lse", f32, {heads, rows});
        Axis d = reduce_axis("d", depth), e1 = reduce_axis("e1", depth), e2 = reduce_axis("e2", depth),
             i1 = reduce_axis("i1", rows), i2 = reduce_axis("i2", rows), j1 = reduce_axis("j1", rows);
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
        dq = compute("dq", {heads, rows, depth}, [&](Expr h, Expr i, Expr x) {
            return cast(bf16, sum(ds(h, i, j1) * cast(f32, k(h, j1, x)), j1) * scale);
        });
    }
};

void an_element_a_thread(Schedule& s, const Tensor& stage) {
    auto [block, element] = s.split(s.fuse(s.data_loops(stage), "all"), 128, Tail::Mask, {"block", "element"});
    s.bind(block, grid.x);
    s.bind(element, thread);
}

/// Each stage a kernel of its own: scores, probabilities and their adjoints lie in global memory.
Schedule plain(const Gradients& a) {
    Schedule s({a.dk, a.dv}, target("sm_90a"));
    for (const Tensor& stage : {a.delta, a.s, a.p, a.dp, a.ds, a.dv, a.dk}) an_element_a_thread(s, stage);
    return s;
}

/// How far the schedules for tensor cores go.
enum class Until { Unit, Pipeline, Roles, Skip };

void of_roles(Schedule& s, const Tensor& computed, const std::vector<StageRef>& loaded, const Loop& step, Until until) {
    if (until >= Until::Pipeline) s.pipeline(step, {.stages = 2});
    if (until >= Until::Roles)
        s.roles({{"load", warps(1), registers(24), loaded}, {"math", warpgroups(2), registers(240), {computed}}});
}

/// A block takes 128 keys of a head and goes through all queries in tiles of 64.
Schedule of_keys_and_values(const Gradients& a, int64_t depth, Until until) {
    Schedule s({a.dk, a.dv}, target("sm_90a"));
    an_element_a_thread(s, a.delta);  // a kernel of its own
    auto [h, j, x] = s.loops<3>(a.dk);
    auto [block, half, row] = s.split(j, {128, 64}, Tail::Divide, {"block", "half", "row"});
    auto [step, term] = s.split(s.reduce(a.dk), 64, {"step", "term"});
    s.order({h, block, half, step, row, x, term});
    s.bind(h, grid.y);
    s.bind(block, grid.x);
    s.bind(half, warpgroup);
    s.stream({a.dv, a.dk}, step);  // neither needs the other: no law, no correction
    s.at({a.ds, a.p}, step, Memory::Registers);
    s.stage({{a.dv, a.p}, {a.dk, a.ds}}, Memory::Registers, step, bf16);
    s.mma({a.dk, a.dv}, wgmma);
    s.at({a.s, a.dp}, step, Memory::Registers);
    for (const Tensor& product : {a.s, a.dp}) {
        // Keys as rows: so the tile lies in registers as the product that reads it wants its rows.
        auto [p_h, p_i, p_j] = s.loops<3>(product);
        auto [k_tile, k] = s.split(s.reduce(product), depth, {"k_tile", "k"});
        s.order({p_h, k_tile, p_j, p_i, k});
    }
    if (until >= Until::Skip) s.skip(step, a.s);  // queries in front of the block's keys
    auto [keys, values] = s.stage({{a.s, a.k}, {a.dp, a.v}}, Memory::Shared, block);
    auto [queries, given, sums, deltas] =  // one copy of q for two products, rows of one and columns of the other
        s.stage({{{a.s, a.dk}, a.q}, {{a.dp, a.dv}, a.g}, {a.p, a.lse}, {a.ds, a.delta}}, Memory::Shared, step);
    s.mma({a.s, a.dp}, wgmma);
    of_roles(s, a.dk, {keys, values, queries, given, sums, deltas}, step, until);
    return s;
}

/// A block takes 128 queries of a head and goes through all keys: the same, the other way round. Of lse and delta each
/// thread needs those of its rows.
Schedule of_queries(const Gradients& a, int64_t depth, Until until) {
    Schedule s({a.dq}, target("sm_90a"));
    an_element_a_thread(s, a.delta);
    auto [h, i, x] = s.loops<3>(a.dq);
    auto [block, half, row] = s.split(i, {128, 64}, Tail::Divide, {"block", "half", "row"});
    auto [step, term] = s.split(s.reduce(a.dq), 64, {"step", "term"});
    s.order({h, block, half, step, row, x, term});
    s.bind(h, grid.y);
    s.bind(block, grid.x);
    s.bind(half, warpgroup);
    s.at({a.ds, a.p}, step, Memory::Registers);
    s.stage({{a.dq, a.ds}}, Memory::Registers, step, bf16);
    s.mma({a.dq}, wgmma);
    s.at({a.s, a.dp}, step, Memory::Registers);
    for (const Tensor& product : {a.s, a.dp}) {
        auto [p_h, p_i, p_j] = s.loops<3>(product);
        auto [k_tile, k] = s.split(s.reduce(product), depth, {"k_tile", "k"});
        s.order({p_h, k_tile, p_i, p_j, k});
    }
    if (until >= Until::Skip) s.skip(step, a.s);  // keys behind the block's queries
    auto [queries, given] = s.stage({{a.s, a.q}, {a.dp, a.g}}, Memory::Shared, block);
    auto [keys, values] = s.stage({{{a.s, a.dq}, a.k}, {a.dp, a.v}}, Memory::Shared, step);
    s.stage({{a.p, a.lse}, {a.ds, a.delta}}, Memory::Registers, half);
    s.mma({a.s, a.dp}, wgmma);
    of_roles(s, a.dq, {queries, given, keys, values}, step, until);
    return s;
}

/// The same gradients, step by step.
void show_the_steps(Lesson& lesson) {
    constexpr int64_t rows = 256, depth = 16;
    const Gradients full(1, rows, depth, false), causal(1, rows, depth, true);
    const Counter count(lesson);
    lesson.say(
        "Step by step, each checked against the formula in float64; what the emulator counts, as in tutorial 16. Of dk "
        "and dv:");
    count.heading();
    const auto apart = count("a kernel for each", plain(full));
    const auto unit = count("tensor cores", of_keys_and_values(full, depth, Until::Unit));
    const auto pipelined = count("copies ahead, by TMA", of_keys_and_values(full, depth, Until::Pipeline));
    const auto with_roles = count("roles", of_keys_and_values(full, depth, Until::Roles));
    const auto masked = count("causal", of_keys_and_values(causal, depth, Until::Roles));
    const auto skipped = count("causal, steps skipped", of_keys_and_values(causal, depth, Until::Skip));
    lesson.expect(unit.global_bytes < apart.global_bytes / 20,
                  "in one pass, neither scores nor their adjoints leave the registers");
    // Two blocks of keys, each with keys and values of its own and four steps of 64 queries: q and g, lse and delta.
    const uint64_t once = 2 * 128 * depth * 2, step = 2 * 64 * depth * 2 + 2 * 64 * 4;
    lesson.expect(with_roles.box_bytes == 2 * (once + 4 * step),
                  fmt::format("boxes bring {} bytes: q once for both products that read it", with_roles.box_bytes));
    lesson.expect(pipelined.box_bytes <= with_roles.box_bytes && pipelined.global_bytes > with_roles.global_bytes,
                  "without roles, threads copy what is there once for a block");
    lesson.expect(masked.box_bytes - skipped.box_bytes == 2 * step,
                  "causal, the second block has no queries in its first two steps, which are left out");

    lesson.say("Of dq, a sum over keys: a kernel of its own, each element of which is one thread's sum:");
    count.heading();
    count("tensor cores", of_queries(full, depth, Until::Unit));
    count("copies ahead, by TMA", of_queries(full, depth, Until::Pipeline));
    const auto of_rows = count("roles", of_queries(full, depth, Until::Roles));
    count("causal, steps skipped", of_queries(causal, depth, Until::Skip));
    lesson.expect(of_rows.box_bytes == with_roles.box_bytes - 2 * 4 * 2 * 64 * 4,
                  "scores are made again; lse and delta of a thread's rows are in its registers, and come once");
}

}  // namespace

int main(int argc, char** argv) {
    Lesson lesson(argc, argv, "17. Backward");
    const int64_t heads = lesson.size(1, 16), length = lesson.size(256, 4096), depth = lesson.size(16, 64);
    const double flops = 8.0 * static_cast<double>(heads * length * length * depth);

    lesson.say("Gradients of keys and values, of what the forward pass saved (o, lse) and of dL/do (g):");
    Gradients full(heads, length, depth, false);
    for (const Tensor& each : {full.delta, full.s, full.p, full.dp, full.ds, full.dv, full.dk}) lesson.show(each);
    show_the_steps(lesson);
    Schedule both = of_keys_and_values(full, depth, Until::Roles);
    lesson.show(both);
    lesson.say("Four products a step, of which two take their rows from registers:");
    lesson.show_lines(both, {"_registers<", "wgmma_wait"});
    lesson.run(both, flops, "dk and dv");

    if (lesson.device()->kind() == DeviceKind::Cuda) {
        lesson.say("Causal: a key has no queries in front of it, and the same step leaves them out, transposed:");
        Gradients causal(heads, length, depth, true);
        lesson.run(of_keys_and_values(causal, depth, Until::Skip), flops / 2, "causal dk and dv");
    }

    lesson.say(
        "schedules/attention_backward.cpp has both kernels, for any lengths, grouped heads and head sizes, with the "
        "same "
        "bits in every run; `tw run attention_gradients_bf16_1x2x128x64` runs and checks them.");
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
