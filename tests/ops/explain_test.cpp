// What explain() says of copies, vectors and orders is so.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ops/program.h"
#include "tests/ops/plain_product.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(Explain, FragmentsOfWhatIsNotStagedSaySo) {
    auto [a, b, c] = bf16_product(64, 64, 32);
    Schedule s({c}, target("sm_90a"));
    auto [i, j] = s.loops<2>(c);
    auto [bi, mi] = s.split(i, 32);
    auto [bj, nj] = s.split(j, 32);
    auto [ko, ki] = s.split(s.reduce(c), 16);
    s.order({bi, bj, ko, mi, nj, ki});
    s.stage(c, b, Memory::Shared, ko);
    s.mma(c, mma_sync, {.m = mi, .n = nj, .k = ki});
    EXPECT_THAT(build(s).explain(),
                AllOf(HasSubstr("a_fragment: by plain loads: 'a' is in global memory, and matrices are loaded from "
                                "shared memory; stage it there"),
                      Not(HasSubstr("b_fragment: by plain loads")), Not(HasSubstr("16 bytes of a row"))));
}

/// Copies that all threads make together, of a tile of x of that shape.
std::string staged(const Tensor& x, const Tensor& y, int64_t rows, int64_t columns) {
    Schedule s({y}, target("sm_90a"));
    auto loops = s.loops<2>(y);
    auto [bi, ti] = s.split(loops[0], rows, Tail::Mask);
    auto [bj, tj] = s.split(loops[1], columns, Tail::Mask);
    s.order({bi, bj, ti, tj});
    s.bind(bi, grid.y);
    s.bind(bj, grid.x);
    s.bind(ti, thread);
    s.bind(tj, thread);
    s.stage(y, x, Memory::Shared, bj);
    return build(s).explain();
}

TEST(Explain, CopiesNameWhatKeepsThemNarrow) {
    Tensor pairs = input("pairs", f32, {64, 64, 2});
    Tensor y = compute("y", {64, 64}, [&](Expr i, Expr j) { return pairs(i, j, 0) * pairs(i, j, 1); });
    EXPECT_THAT(staged(pairs, y, 16, 8),
                AllOf(HasSubstr("pairs has 2 neighbours in its last dimension here, no multiple of 4"),
                      Not(HasSubstr("in a row here")), Not(HasSubstr("vector loop"))));
    // Rows of 130 bytes: the two more on either side cost nothing, the rows' starts do.
    Tensor valid = input("valid", u8, {80, 130});
    Tensor near = compute("near", {80, 130}, [&](Expr i, Expr j) {
        return cast(i32, padded(valid, 0)(i, j - 2)) + cast(i32, padded(valid, 0)(i, j + 2));
    });
    EXPECT_THAT(staged(valid, near, 16, 32),
                AllOf(HasSubstr("2 elements of 1 bytes at once: the rows of valid start at "),
                      HasSubstr("which is only 2-byte aligned"), Not(HasSubstr("neighbours in"))));
}

std::string in_parts(const std::vector<Tensor>& y) {
    Schedule s(y, target("sm_90a"));
    auto [step, part] = s.split(s.reduce(y[0]), 8);
    s.order({part, step});
    s.bind(part, thread);
    return build(s).explain();
}

TEST(Explain, RoundingIsNamedWhereOrderRounds) {
    Tensor x = input("x", f32, {4, 64}), n = input("n", i32, {4, 64});
    Axis k = reduce_axis("k", 64);
    auto of = [&](const std::function<Expr(Expr i)>& value) { return compute("y", {4}, value); };
    const std::string order = "the terms of 'y' are combined in another order", pairs = "their parts of 'y' in pairs";
    EXPECT_THAT(in_parts({of([&](Expr i) { return sum(x(i, k), k); })}),
                AllOf(HasSubstr(order + ": floats may differ by rounding\n"),
                      HasSubstr(pairs + ": floats may differ by rounding\n")));
    auto best = compute_tuple("y", {4}, [&](const std::vector<Expr>& i) { return argmax(x(i[0], k), k); });
    for (const auto& exact : {std::vector{of([&](Expr i) { return reduce_max(x(i, k), k); })},
                              std::vector{of([&](Expr i) { return sum(n(i, k), k); })}, best})
        EXPECT_THAT(in_parts(exact),
                    AllOf(HasSubstr(order + "\n"), HasSubstr(pairs + "\n"), Not(HasSubstr("rounding"))));
}

/// y(i, j) = x(i, j + shift) * 2 by vectors of 4, of rows of so many elements.
std::string in_vectors(int64_t columns, int64_t row, int64_t shift) {
    Tensor x = input("x", f32, {16, row});
    Tensor y = compute("y", {16, columns}, [&](Expr i, Expr j) { return x(i, j + shift) * 2.0; });
    Schedule s({y}, target("sm_90a"));
    auto [i, j] = s.loops<2>(y);
    auto [jo, ji] = s.split(j, 4, Tail::Mask);
    s.bind(i, grid.x);
    s.bind(jo, thread);
    s.bind(ji, tw::vector);
    return build(s).explain();
}

TEST(Explain, VectorsThatBecomeNarrowerAreTold) {
    const std::string of = "y: of the vector loop 'j_inner' of 4, ";
    EXPECT_THAT(in_vectors(128, 128, 0), Not(HasSubstr("vector loop")));
    EXPECT_THAT(in_vectors(130, 130, 0), HasSubstr(of + "'y' is stored 2 at once, 'x' is read 2 at once: "));
    EXPECT_THAT(in_vectors(32, 33, 1), HasSubstr(of + "'x' is read one by one: "));
    EXPECT_THAT(in_vectors(32, 34, 2), HasSubstr(of + "'x' is read 2 at once: "));
    EXPECT_THAT(in_vectors(33, 33, 0), HasSubstr(of + "'y' is stored one by one, 'x' is read one by one: "));
}

/// A product of blocks of block_m x block_n, a loop of whose rows of `m` is bound to `level`.
std::string explained_product(MatrixUnit unit, int64_t rows, int64_t columns, int64_t block_n, int64_t m, Level level,
                              int64_t block_m = 128) {
    auto [a, b, c] = bf16_product(rows, columns, 64);
    Schedule s({c}, target("sm_90a"));
    auto [i, j] = s.loops<2>(c);
    auto [bi, it] = s.split(i, block_m, Tail::Mask);
    auto [bj, nj] = s.split(j, block_n, Tail::Mask);
    auto [group, mi] = s.split(it, m);
    auto [ko, ki] = s.split(s.reduce(c), 64);
    s.order({bi, bj, group, ko, mi, nj, ki});
    s.bind(bi, grid.y);
    s.bind(bj, grid.x);
    s.bind(group, level);
    s.stage(c, a, Memory::Shared, ko);
    s.stage(c, b, Memory::Shared, ko);
    s.mma(c, unit, {.m = mi, .n = nj, .k = ki});
    return build(s).explain();
}

TEST(Explain, WarpsThatRepeatOthersAreNamed) {
    const std::string repeats = "mma_sync, a warp's instruction, work for 1: the others repeat it; bind loops to warp";
    EXPECT_THAT(explained_product(mma_sync, 128, 64, 64, 64, warpgroup), HasSubstr(repeats));
    EXPECT_THAT(explained_product(mma_sync, 128, 64, 64, 64, warp), Not(HasSubstr("a warp's instruction")));
    EXPECT_THAT(explained_product(wgmma, 128, 64, 64, 64, warpgroup), Not(HasSubstr("a warp's instruction")));
}

TEST(Explain, TilesLargerThanWhatTheyTile) {
    EXPECT_THAT(explained_product(wgmma, 64, 64, 128, 64, warpgroup),
                AllOf(HasSubstr("'c': tiles of 128 along 'i' are larger than its 64 elements"),
                      HasSubstr("'c': tiles of 128 along 'j' are larger than its 64 elements")));
    EXPECT_THAT(explained_product(wgmma, 200, 64, 64, 64, warpgroup), Not(HasSubstr("are larger than")));
    // An instruction of a warpgroup has 64 rows.
    EXPECT_THAT(explained_product(wgmma, 40, 64, 64, 64, warpgroup, 64), Not(HasSubstr("are larger than")));
    EXPECT_THAT(explained_product(wgmma, 64, 40, 64, 64, warpgroup, 64),
                HasSubstr("'c': tiles of 64 along 'j' are larger than its 40 elements"));
}

/// Sums of a's rows in the block that multiplies them; all in a thread, but for loops that are bound.
std::string explained_sums(bool is_whole, bool is_bound) {
    auto [a, b, c] = bf16_product(64, 64, 32);
    const Axis terms = reduce_axis("terms", 32);
    const Tensor rows = compute("rows", {64}, [&](Expr i) { return sum(cast(f32, a(i, terms)), terms); });
    const Tensor total = compute("total", {1}, [&](Expr) {
        const Axis m = reduce_axis("m", 64);
        return sum(rows(m), m);
    });
    const Tensor y =
        compute("y", {64, 64}, [&](Expr i, Expr j) { return cast(f32, c(i, j)) + (is_whole ? total(0) : rows(i)); });
    Schedule s({y}, target("sm_90a"));
    auto [i, j] = s.loops<2>(y);
    auto [bj, jt] = s.split(j, 32);
    s.order({bj, i, jt});
    s.bind(bj, grid.x), s.bind(i, thread);
    if (is_whole) s.at(total, bj), s.set_memory(total, Memory::Shared);
    s.at(c, bj), s.at(rows, bj);
    s.set_memory(c, Memory::Shared), s.set_memory(rows, Memory::Shared);
    const auto [m, n] = s.loops<2>(c);
    const auto [ko, ki] = s.split(s.reduce(c), 16);
    s.order({ko, m, n, ki});
    s.mma(c, mma_sync, {.m = m, .n = n, .k = ki});
    if (is_bound) s.bind(s.loops<1>(rows)[0], thread);
    return build(s).explain();
}

TEST(Explain, SumsOfOneThreadNameTheLoopToBind) {
    const std::string of_rows = "rows: runs on thread 0 of 64, because each iteration of 'i' makes one element; ";
    EXPECT_THAT(explained_sums(false, false), HasSubstr(of_rows + "bind 'i', or a part of it, to threads"));
    EXPECT_THAT(explained_sums(false, true), Not(HasSubstr("runs on thread 0")));
    EXPECT_THAT(explained_sums(true, true),
                HasSubstr("total: runs on thread 0 of 64, because it has a single element"));
}

TEST(Explain, SumsOfAWarpgroupFitItsRegisters) {
    EXPECT_ERROR(explained_product(wgmma, 128, 512, 512, 64, warpgroup),
                 "a warpgroup sums 64 x 512 elements, 256 in each thread, which has 255 registers at most; split 'i");
    EXPECT_THAT(explained_product(wgmma, 128, 256, 256, 64, warpgroup), HasSubstr("is computed by wgmma"));
}

}  // namespace
}  // namespace tw
