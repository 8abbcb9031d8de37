// Tutorial 13: epilogues are expressions, and so is whatever else one makes up.
//
// Libraries list what may stand behind a product: bias, GELU, a residual. Here that is part of the declaration, and the
// schedule of tutorial 12 does not look at it: mma() asks that the reduction be a sum of products of two elements, and
// whatever is done with the sum is computed where it lies, in the registers of the warpgroup. Nothing below is known to
// any other file of Tilewright.
#include "tutorials/lesson.h"
#include "tutorials/roles_and_tiles.h"

using namespace tw;

namespace {

/// Where the result leaves the registers.
enum class Leaves { Directly, ThroughSharedMemory };

/// Tutorial 12, for any of them: it names the product's operands and nothing else.
Schedule hopper(const Product& p, int blocks, Leaves leaves = Leaves::Directly) {
    Schedule s(p.outputs, target("sm_90a"));
    const Tensor& c = p.outputs[0];
    Tiles tiles = tiles_of(s, c, blocks);
    if (leaves == Leaves::ThroughSharedMemory) s.stage(c, Memory::Shared, tiles.tile);
    load_and_multiply(s, c, p.a, p.b, tiles.ko, tiles.unit, c);
    return s;
}

/// accumulators() takes the sums out of the result: they stay in registers, all of a tile's, while results leave by 64
/// columns, one piece after another, as boxes. Warpgroups share the rows of both in the same way.
Schedule piece_by_piece(const Product& p, int blocks) {
    Schedule s(p.outputs, target("sm_90a"));
    const Tensor& c = p.outputs[0];
    Stage total = s.accumulators(c);
    auto [i, j] = s.loops<2>(c);
    auto [bi, it] = s.split(i, 128, Tail::Mask, {"bi", "it"});
    auto [bj, jt] = s.split(j, 128, Tail::Mask, {"bj", "jt"});
    auto [epilogue_tile, nj] = s.split(jt, 64, {"epilogue_tile", "nj"});
    auto [wi, mi] = s.split(it, 64, {"wi", "mi"});
    s.order({bi, bj, epilogue_tile, wi, mi, nj});
    s.persistent({bi, bj}, {.blocks = blocks});
    s.bind(wi, warpgroup);
    s.at(total, bj);
    s.set_memory(total, Memory::Registers);
    auto [ti, tj] = s.loops<2>(total);
    auto [own_wi, rows] = s.split(ti, 64, {"own_wi", "rows"});
    auto [ko, ki] = s.split(s.reduce(total), 64, Tail::Mask, {"ko", "ki"});
    s.order({own_wi, ko, rows, tj, ki});
    s.bind(own_wi, warpgroup);
    s.via(s.stage(c, Memory::Shared, epilogue_tile), Copy::Tma);
    load_and_multiply(s, total, p.a, p.b, ko, {.m = rows, .n = tj, .k = ki}, c);
    return s;
}

/// y = GELU(a b' + bias) + residual.
Product feed_forward(int64_t m, int64_t n, int64_t k) {
    Tensor bias = input("bias", f32, {n}), residual = input("residual", bf16, {m, n});
    return product("y", m, n, k, [&](const Expr& sum, const Expr& i, const Expr& j) {
        return std::vector{cast(bf16, gelu(sum + bias(j)) + cast(f32, residual(i, j)))};
    });
}

}  // namespace

int main(int argc, char** argv) {
    Lesson lesson(argc, argv, "13. Epilogues");
    const int64_t M = lesson.size(200, 4096), N = lesson.size(136, 4096), K = lesson.size(128, 4096);
    const int blocks = static_cast<int>(lesson.size(3, 0));  // 0: one for each multiprocessor
    const double flops = 2.0 * M * N * K;

    lesson.say("Bias, GELU, residual. The extents divide by no tile; the edges are masked:");
    Product block = feed_forward(M, N, K);
    lesson.show(block.outputs[0]);
    lesson.run(hopper(block, blocks), flops, "bias, GELU, residual");

    // An output more: what a backward pass wants to keep. Both are made of the same sum in one pass.
    Tensor scale = input("scale", f32, {M});
    lesson.say("Two outputs: the sum as it is, and rows scaled, as for numbers quantised row by row:");
    Product both = product("raw_and_scaled", M, N, K, [&](const Expr& sum, const Expr& i, const Expr&) {
        return std::vector{sum, cast(bf16, sum * scale(i))};
    });
    lesson.show(both.outputs[0]);
    lesson.run(hopper(both, blocks), flops, "two outputs");

    // What attention does with scores, without being told that these are scores.
    lesson.say("Capped softly at 30, and masked above the diagonal:");
    Product scores = product("scores", M, N, K, [&](const Expr& sum, const Expr& i, const Expr& j) {
        return std::vector{select(j <= i, 30.0 * tanh(sum / 30.0), -infinity)};
    });
    lesson.show(scores.outputs[0]);
    lesson.run(hopper(scores, blocks), flops, "capped and masked");

    // Lanes hold pairs of neighbours, so stores of bf16 write 4 bytes at a time. From shared memory whole rows leave,
    // 16 bytes a thread. One line of the schedule says so; what is computed in between does not change.
    lesson.say("The result through shared memory: stage(y, Memory::Shared, loop):");
    Product even = feed_forward(M, lesson.size(128, 4096), K);
    Schedule direct = hopper(even, blocks), staged = hopper(even, blocks, Leaves::ThroughSharedMemory);
    lesson.compare("directly", direct, "through shared memory", staged, flops);
    lesson.show_lines(staged, {"&shared.y"});

    // The tile on its way out takes memory from the stages of the pipeline: half a tile takes half of it.
    lesson.say("By pieces of 64 columns, while the sums wait in registers: accumulators(y):");
    Schedule pieces = piece_by_piece(even, blocks);
    lesson.show(pieces);
    lesson.compare("the whole tile", staged, "by pieces", pieces, flops);

    return lesson.finish();
}
