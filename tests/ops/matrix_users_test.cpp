// Copies as matrices, stage(.., As::Matrix), of computations that are no convolutions.
#include <gmock/gmock.h>

#include "ops/program.h"
#include "tests/ops/random_cases.h"
#include "tests/ops/whole_numbers.h"

namespace tw {
namespace {

using testing::HasSubstr;

class MatrixUsers : public RandomCases {
protected:
    MatrixUsers() : RandomCases(77) {}
};
TW_ON_EACH_DEVICE(MatrixUsers);

/// pre[b, g, h] = sum_k x[b, k] w[g, h, k] + bias[g, h]: a block has 16 hidden units of all four gates of an LSTM,
/// whose weights arrive as one box.
TEST_P(MatrixUsers, GatesOfAnLstmAreOneRequest) {
    const Tensor x = input("x", bf16, {64, 96}), w = input("w", bf16, {4, 48, 96}), bias = input("bias", f32, {4, 48});
    const Axis k = reduce_axis("k", 96);
    const Tensor pre = compute("pre", {64, 4, 48}, [&](Expr b, Expr g, Expr h) {
        return cast(bf16, sum(cast(f32, x(b, k)) * cast(f32, w(g, h, k)), k) + bias(g, h));
    });
    Schedule s({pre}, device_target());
    if (!s.target().has_wgmma) GTEST_SKIP() << "needs wgmma";
    auto [b, g, h] = s.loops<3>(pre);
    auto [tile, unit] = s.split(h, 16, {"tile", "unit"});
    auto [step, in_step] = s.split(s.reduce(pre), 32, {"step", "k"});
    s.order({tile, b, g, unit, step, in_step});
    const Loop n = s.fuse(g, unit, "n");
    s.order({tile, step, b, n, in_step});
    s.bind(tile, grid.x);
    s.stage(pre, x, Memory::Shared, step);
    s.via(s.stage(pre, w, Memory::Shared, step, As::Matrix), Copy::Tma);
    s.mma(pre, wgmma, {.m = b, .n = n, .k = in_step});
    s.pipeline(step, {.stages = 2});
    EXPECT_THAT(build(s).explain(), HasSubstr("w_shared: by the tensor memory accelerator, pixels (im2col) of 32 x 64 elements"));
    EXPECT_EQ(replay(s.save(), s.outputs(), s.target()).to_string(), s.to_string());
    expect_declared(s, whole_numbers(s.outputs(), 3));
}

/// score[b, i, j] = sum_d q[64 b + i, d] k[32 b + u j - v, d]: each block of queries sees every u-th key of a window,
/// which moves by half a block and has zeros beyond both ends.
TEST_P(MatrixUsers, StridedWindowsOfKeys) {
    for (int round = 0; round < 4; ++round) {
        const int blocks = between(1, 3), keys = 8 * between(4, 14), stride = between(1, 3), before = between(0, 40);
        const Tensor q = input("q", bf16, {64 * blocks, 32}), k = input("k", bf16, {keys, 32});
        const Axis d = reduce_axis("d", 32);
        const Tensor score = compute("score", {blocks, 64, 48}, [&](Expr b, Expr i, Expr j) {
            return sum(cast(f32, q(b * 64 + i, d)) * cast(f32, padded(k, 0)(b * 32 + j * stride - before, d)), d);
        });
        Schedule s({score}, device_target());
        if (!s.target().has_wgmma) GTEST_SKIP() << "needs wgmma";
        auto [b, i, j] = s.loops<3>(score);
        auto [step, in_step] = s.split(s.reduce(score), 16, {"step", "d"});
        s.order({b, step, i, j, in_step});
        s.bind(b, grid.x);
        s.stage(score, q, Memory::Shared, step, As::Matrix);
        s.stage(score, k, Memory::Shared, step, As::Matrix);
        s.mma(score, wgmma, {.m = i, .n = j, .k = in_step});
        s.pipeline(step, {.stages = 2});
        SCOPED_TRACE(s.trace_as_cpp());
        EXPECT_THAT(build(s).explain(), HasSubstr(stride == 1 ? "k_shared: by the tensor memory accelerator, boxes of"
                                                              : "which is no box"));
        expect_declared(s, whole_numbers(s.outputs(), static_cast<unsigned>(round)));
    }
}

}  // namespace
}  // namespace tw
