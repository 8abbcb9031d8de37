// Tutorial 16: one pass. Reductions that need each other's results, side by side; attention from its formula.
//
// softmax looks at a row three times: for the largest score, for the sum of exp(score - largest), for the result.
// stream() makes it look once: while the largest so far grows, what was summed with an older one is multiplied by
// exp(older - newer). That factor is derived from the formula, whatever it is.
//
// Attention is that between two products. From its formula to a Hopper kernel each step of the schedule says one thing;
// all compute the same, and the emulator counts what each moves.
#include <cmath>

#include "tutorials/counter.h"

using namespace tw;

namespace {

/// The logarithm of a sum of exponentials, as it is written: the largest first, so that none is infinite.
struct LogSum {
    Tensor x, largest, total, y;
};

LogSum log_sum(int64_t rows, int64_t columns) {
    LogSum p{input("x", f32, {rows, columns}), {}, {}, {}};
    Axis j = reduce_axis("j", columns), k = reduce_axis("k", columns);
    p.largest = compute("largest", {rows}, [&](Expr i) { return reduce_max(p.x(i, j), j); });
    p.total = compute("total", {rows}, [&](Expr i) { return sum(exp(p.x(i, k) - p.largest(i)), k); });
    p.y = compute("y", {rows}, [&](Expr i) { return p.largest(i) + log(p.total(i)); });
    return p;
}

Schedule in_one_pass(const LogSum& p) {
    Schedule s({p.y}, target("sm_90a"));
    auto [i] = s.loops<1>(p.total);
    auto [block, row] = s.split(i, 4, Tail::Mask, {"block", "row"});
    auto [tile, term] = s.split(s.reduce(p.total), 128, Tail::Mask, {"tile", "term"});
    s.order({block, row, tile, term});
    s.bind(block, grid.x);
    s.bind(row, warp);
    s.stream({p.largest, p.total}, tile);  // p.total, the last, owns the loop
    for (Loop terms : {term, s.reduce(p.largest)}) s.bind(s.split(terms, 32)[1], lane);
    s.at(p.y, row);
    return s;
}

/// o[h, i, e] = sum_j softmax_j(q k' / sqrt(d))[h, i, j] v[h, j, e], and the logarithm of the sums, which a step back
/// needs. No stage of this is a kernel.
struct Attention {
    Tensor q, k, v, s, m, p, l, o, lse;

    Attention(int64_t heads, int64_t rows, int64_t depth, bool causal) {
        q = input("q", bf16, {heads, rows, depth}), k = input("k", bf16, {heads, rows, depth});
        v = input("v", bf16, {heads, rows, depth});
        Axis d = reduce_axis("d", depth), j1 = reduce_axis("j1", rows), j2 = reduce_axis("j2", rows),
             j3 = reduce_axis("j3", rows);
        const double c = std::log2(std::exp(1.0)) / std::sqrt(static_cast<double>(depth));
        s = compute("s", {heads, rows, rows}, [&](Expr h, Expr i, Expr j) {
            Expr score = sum(cast(f32, q(h, i, d)) * cast(f32, k(h, j, d)), d);
            return causal ? select(j <= i, score, -infinity) : score;
        });
        m = compute("m", {heads, rows}, [&](Expr h, Expr i) { return reduce_max(s(h, i, j1), j1); });
        p = compute("p", {heads, rows, rows},
                    [&](Expr h, Expr i, Expr j) { return exp2(s(h, i, j) * c - m(h, i) * c); });
        l = compute("l", {heads, rows}, [&](Expr h, Expr i) { return sum(p(h, i, j2), j2); });
        o = compute("o", {heads, rows, depth}, [&](Expr h, Expr i, Expr e) {
            return cast(bf16, sum(p(h, i, j3) * cast(f32, v(h, j3, e)), j3) / l(h, i));
        });
        lse = compute("lse", {heads, rows}, [&](Expr h, Expr i) { return m(h, i) * c + log2(l(h, i)); });
    }
};

/// Each stage a kernel of its own, an element a thread: scores and their exponentials lie in global memory.
Schedule plain(const Attention& a) {
    Schedule s({a.o, a.lse}, target("sm_90a"));
    for (const Tensor& stage : {a.s, a.m, a.p, a.l, a.o, a.lse}) {
        auto [block, element] = s.split(s.fuse(s.data_loops(stage), "all"), 128, Tail::Mask, {"block", "element"});
        s.bind(block, grid.x);
        s.bind(element, thread);
    }
    return s;
}

/// A row a thread, which goes once through all keys, in tiles of 16: what was in memory between the stages is in its
/// registers. Threads of a block share the keys and the values of a tile.
Schedule in_one_pass(const Attention& a) {
    Schedule s({a.o, a.lse}, target("sm_90a"));
    auto [h, i, e] = s.loops<3>(a.o);
    auto [block, row] = s.split(i, 64, {"block", "row"});
    auto [tile, term] = s.split(s.reduce(a.o), 16, {"tile", "term"});
    s.order({h, block, row, tile, e, term});
    s.bind(h, grid.y);
    s.bind(block, grid.x);
    s.bind(row, thread);
    s.stream({a.m, a.l, a.o}, tile);  // p, which stands between, comes along
    s.at({a.s}, tile, Memory::Registers);
    s.at(a.lse, row);
    s.stage({{a.s, a.k}, {a.o, a.v}}, Memory::Shared, tile);
    return s;
}

/// How far the schedule for tensor cores goes.
enum class Until { Unit, Pipeline, Roles, Overlap, Skip };

/// A block takes 128 rows of a head, 64 a warpgroup, and goes through all keys in tiles of 64. Scores, their
/// exponentials and all sums stay in registers.
Schedule attention(const Attention& a, int64_t depth, Until until) {
    Schedule s({a.o, a.lse}, target("sm_90a"));
    auto [h, i, e] = s.loops<3>(a.o);
    auto [block, half, row] = s.split(i, {128, 64}, Tail::Divide, {"block", "half", "row"});
    auto [tile, term] = s.split(s.reduce(a.o), 64, {"tile", "term"});
    s.order({h, block, half, tile, row, e, term});
    s.bind(h, grid.y);
    s.bind(block, grid.x);
    s.bind(half, warpgroup);
    s.stream({a.m, a.l, a.o}, tile);
    s.set_memory(a.p, Memory::Registers);
    s.stage({{a.o, a.p}}, Memory::Registers, tile, bf16);  // for the tensor core; l sums what is not rounded
    s.at({a.s}, tile, Memory::Registers);
    auto [s_h, s_i, s_j] = s.loops<3>(a.s);
    auto [d_tile, d] = s.split(s.reduce(a.s), depth, {"d_tile", "d"});
    s.order({s_h, d_tile, s_i, s_j, d});
    if (until == Until::Skip) s.skip(tile, a.s);  // tiles behind the diagonal, whose terms are all 0
    s.at(a.lse, half);
    s.stage(a.s, a.q, Memory::Shared, block);
    auto [keys, values] = s.stage({{a.s, a.k}, {a.o, a.v}}, Memory::Shared, tile);
    s.mma({a.s, a.o}, wgmma);
    if (until >= Until::Pipeline) s.pipeline(tile, {.stages = 2});
    if (until == Until::Overlap) s.delay(a.o, tile, {.before = a.m});  // s(j), o(j - 1), softmax(j)
    if (until >= Until::Roles)
        s.roles({{"load", warps(1), registers(24), {keys, values}}, {"math", warpgroups(2), registers(240), {a.o}}});
    return s;
}

/// The same formula, step by step.
void show_the_steps(Lesson& lesson, const Counter& count) {
    constexpr int64_t rows = 256, depth = 16;
    const Attention full(1, rows, depth, false), causal(1, rows, depth, true);
    lesson.say(
        "Step by step, each checked against the formula in float64. How many kernels there are, what threads ask of "
        "global memory (requests of a warp, and bytes), what boxes bring, and passes of threads through the banks of "
        "shared memory:");
    count.heading();
    const auto apart = count("a kernel for each", plain(full));
    const auto once = count("one pass", in_one_pass(full));
    const auto unit = count("tensor cores", attention(full, depth, Until::Unit));
    const auto pipelined = count("copies ahead, by TMA", attention(full, depth, Until::Pipeline));
    const auto with_roles = count("roles", attention(full, depth, Until::Roles));
    const auto overlap = count("products overlap", attention(full, depth, Until::Overlap));
    const auto masked = count("causal", attention(causal, depth, Until::Roles));
    const auto skipped = count("causal, tiles skipped", attention(causal, depth, Until::Skip));

    // Of apart, scores and exponentials alone are written once and read: by the maximum, the exponentials, their sum,
    // and for each of 16 columns of o.
    lesson.expect(once.global_bytes < apart.global_bytes / 3, "in one pass, scores never leave the registers");
    lesson.expect(unit.shared_wavefronts < once.shared_wavefronts / 10,
                  "tensor cores read shared memory themselves, and 64 rows share what a thread had for its own");
    // Two blocks of rows, each with four tiles of 64 keys and values.
    const uint64_t tiles = 2 * 4 * 2 * 64 * depth * 2;
    lesson.expect(pipelined.box_bytes == tiles && with_roles.box_bytes == tiles && overlap.box_bytes == tiles,
                  fmt::format("boxes bring {} bytes of keys and values, whoever asks and whenever", tiles));
    lesson.expect(with_roles.global_bytes == pipelined.global_bytes, "what is left to threads are queries and results");
    // Of two blocks, the first needs two tiles of four.
    lesson.expect(masked.box_bytes == tiles && skipped.box_bytes == tiles * 3 / 4,
                  "a mask changes no byte; what it makes zero is skipped by a step of its own");
}

}  // namespace

int main(int argc, char** argv) {
    Lesson lesson(argc, argv, "16. One pass");
    const int64_t rows = lesson.size(10, 8192), columns = lesson.size(300, 8192);

    lesson.say("A maximum, and a sum that needs it, in one pass:");
    LogSum sums = log_sum(rows, columns);
    for (const Tensor& each : {sums.largest, sums.total, sums.y}) lesson.show(each);
    Schedule once = in_one_pass(sums);
    lesson.show(once);
    lesson.say("total_sum is corrected when the largest grows, and largest_so_far is what terms read:");
    lesson.run(once, 4.0 * static_cast<double>(rows * columns), "log sum exp");

    lesson.say("Attention is the same with a product in front and a product behind:");
    const int64_t heads = lesson.size(1, 16), length = lesson.size(256, 4096), depth = 64;
    Attention full(heads, length, depth, false);
    for (const Tensor& each : {full.s, full.m, full.p, full.l, full.o}) lesson.show(each);
    const Counter count(lesson);
    show_the_steps(lesson, count);
    Schedule fused = attention(full, depth, Until::Roles);
    lesson.show(fused);
    lesson.run(fused, 4.0 * static_cast<double>(heads * length * length * depth), "attention");
    lesson.say("With a mask the formula changes, and one step leaves out what it makes zero:");
    Attention causal(heads, length, depth, true);
    lesson.run(attention(causal, depth, Until::Skip), 4.0 * static_cast<double>(heads * length * length * depth),
               "causal attention");

    lesson.say("Terms without a factor that changes alone are refused; the message says which part has none:");
    lesson.show_error([&] {
        Tensor x = input("x", f32, {8, 64});
        Axis j = reduce_axis("j", 64), k = reduce_axis("k", 64);
        Tensor mean = compute("mean", {8}, [&](Expr i) { return sum(x(i, j), j) / 64.0; });
        Tensor variance = compute("variance", {8}, [&](Expr i) {
            Expr away = x(i, k) - mean(i);
            return sum(away * away, k) / 64.0;
        });
        Schedule s({variance}, target("sm_90a"));
        s.stream({mean, variance}, s.reduce(variance));
    });
    return lesson.finish();
}
