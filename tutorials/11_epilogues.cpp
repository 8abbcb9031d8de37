// Tutorial 11: epilogues are expressions, and so is whatever else one makes up.
//
// Libraries list what may stand behind a product: bias, GELU, a residual. Here that is part of the declaration, and the
// schedule of tutorial 10 does not look at it: mma() asks that the reduction be a sum of products of two elements, and
// whatever is done with the sum is computed where it lies, in the registers of the warpgroup. Nothing below is known to
// any other file of Tilewright.
#include "tutorials/lesson.h"

using namespace tw;

namespace {

/// A product over rows of `a` and of `b`, and what is made of it.
struct Product {
    Tensor a, b;
    std::vector<Tensor> outputs;
};

using Epilogue = std::function<std::vector<Expr>(const Expr& sum, const Expr& i, const Expr& j)>;

/// Outputs over [m, n], made of sum_k a[i, k] * b[j, k] and its indices.
Product product(const std::vector<std::string>& names, int64_t m, int64_t n, int64_t k, const Epilogue& epilogue) {
    Product p{input("a", bf16, {m, k}), input("b", bf16, {n, k}), {}};
    Axis r = reduce_axis("k", k);
    p.outputs = compute_tuple(names, {m, n}, [&](Expr i, Expr j) {
        return epilogue(sum(cast(f32, p.a(i, r)) * cast(f32, p.b(j, r)), r), i, j);
    });
    return p;
}

/// Where the result leaves the registers.
enum class Leaves { Directly, ThroughSharedMemory };

/// Tutorial 10, for any of them: it names the product's operands and nothing else.
Schedule hopper(const Product& p, Leaves leaves = Leaves::Directly) {
    Schedule s(p.outputs, target("sm_90a"));
    const Tensor& c = p.outputs[0];
    auto [i, j] = s.loops<2>(c);
    auto [bi, it] = s.split(i, 128, Tail::Mask);
    auto [bj, nj] = s.split(j, 64, Tail::Mask);
    auto [wi, mi] = s.split(it, 64);
    auto [ko, ki] = s.split(s.reduce(c), 64, Tail::Mask);
    s.order({bi, bj, wi, ko, mi, nj, ki});
    s.persistent({bi, bj}, {.blocks = 3});
    s.bind(wi, warpgroup);
    Stage as = s.stage(c, p.a, Memory::Shared, ko), bs = s.stage(c, p.b, Memory::Shared, ko);
    if (leaves == Leaves::ThroughSharedMemory) s.stage(c, Memory::Shared, bj);
    s.mma(c, wgmma, {.m = mi, .n = nj, .k = ki});
    s.pipeline(ko, {.stages = 3, .in_flight = 1});
    s.roles({{"load", warps(1), registers(40), {as, bs}}, {"math", warpgroups(2), registers(232), {c}}});
    return s;
}

}  // namespace

int main(int argc, char** argv) {
    Lesson lesson(argc, argv, "11. Epilogues");
    const int64_t M = lesson.size(200, 4096), N = lesson.size(136, 4096), K = lesson.size(128, 4096);
    const double flops = 2.0 * M * N * K;

    Tensor bias = input("bias", f32, {N}), residual = input("residual", bf16, {M, N}), scale = input("scale", f32, {M});
    lesson.say("Bias, GELU, residual. The extents divide by no tile; the edges are masked:");
    Product block = product({"y"}, M, N, K, [&](const Expr& sum, const Expr& i, const Expr& j) {
        return std::vector{cast(bf16, gelu(sum + bias(j)) + cast(f32, residual(i, j)))};
    });
    lesson.show(block.outputs[0]);
    lesson.run(hopper(block), flops, "bias, GELU, residual");

    // An output more: what a backward pass wants to keep. Both are made of the same sum in one pass.
    lesson.say("Two outputs: the sum as it is, and rows scaled, as for numbers quantised row by row:");
    Product both = product({"raw", "scaled"}, M, N, K, [&](const Expr& sum, const Expr& i, const Expr&) {
        return std::vector{sum, cast(bf16, sum * scale(i))};
    });
    for (const Tensor& output : both.outputs) lesson.show(output);
    lesson.run(hopper(both), flops, "two outputs");

    // What attention does with scores, without being told that these are scores.
    lesson.say("Capped softly at 30, and masked above the diagonal:");
    Product scores = product({"scores"}, M, N, K, [&](const Expr& sum, const Expr& i, const Expr& j) {
        return std::vector{select(j <= i, 30.0 * tanh(sum / 30.0), constant(f32, -infinity))};
    });
    lesson.show(scores.outputs[0]);
    lesson.run(hopper(scores), flops, "capped and masked");

    // Lanes hold pairs of neighbours, so stores of bf16 write 4 bytes at a time. From shared memory whole rows leave, 16
    // bytes a thread. One line of the schedule says so; what is computed in between does not change.
    lesson.say("The result through shared memory: stage(y, Memory::Shared, loop):");
    lesson.compare("directly", hopper(block), "through shared memory", hopper(block, Leaves::ThroughSharedMemory), flops);
    lesson.show_lines(hopper(block, Leaves::ThroughSharedMemory), {"y_shared"});
    return lesson.finish();
}
