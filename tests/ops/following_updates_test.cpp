// Updates behind the body of another stage's loop: what an iteration has made is combined with elements in memory.
// Whole numbers, bit for bit.
#include "tests/ops/random_cases.h"
#include "tests/ops/whole_numbers.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

class FollowingUpdates : public RandomCases {
protected:
    FollowingUpdates() : RandomCases(59) {}
};
TW_ON_EACH_DEVICE(FollowingUpdates);

/// How often each number occurs among the elements of a product, counted where they are made.
TEST_P(FollowingUpdates, CountTheElementsOfAProduct) {
    for (int round = 0; round < 8; ++round) {
        const int64_t m = between(1, 90), n = between(1, 60), k = 8 * between(1, 6), bins = between(1, 9);
        const bool kept = chance();
        Tensor a = input("a", bf16, {m, k}), b = input("b", bf16, {n, k});
        Axis r = reduce_axis("r", k), i1 = reduce_axis("i1", m), j1 = reduce_axis("j1", n);
        Tensor c =
            compute("c", {m, n}, [&](Expr i, Expr j) { return sum(cast(f32, a(i, r)) * cast(f32, b(j, r)), r); });
        Tensor counts = compute("counts", {bins}, [&](Expr bin) {
            const Expr of = cast(i64, c(i1, j1)) % bins;
            return sum(select(of == bin, 1, 0), {i1, j1});
        });
        Schedule s(kept ? std::vector{c, counts} : std::vector{counts}, device_target());
        auto [i, j] = s.loops<2>(c);
        auto [block, row] = s.split(i, 32, Tail::Mask);
        auto [tile, column] = s.split(j, 16, Tail::Mask);
        auto [warps, in_warp] = s.split(row, 16);
        auto [step, term] = s.split(s.reduce(c), 16, Tail::Mask);
        s.order({block, tile, warps, step, in_warp, column, term});
        s.bind(block, grid.y);
        s.bind(tile, grid.x);
        s.bind(warps, warp);
        Stage updates = s.scatter(counts, Combine::Atomic);
        s.at(updates, warps);
        if (kept) s.stage(c, Memory::Registers, warps);
        for (const Tensor& operand : {a, b}) s.stage(c, operand, Memory::Shared, step);
        s.mma(c, mma_sync, {.m = in_warp, .n = column, .k = term});
        SCOPED_TRACE(s.trace_as_cpp());
        expect_declared(s, whole_numbers(s.outputs(), round));
        EXPECT_EQ(replay(s.save(), s.outputs(), device_target()).to_string(), s.to_string());
    }
}

/// Of the terms of rows' sums, tile by tile, sums along columns.
TEST_P(FollowingUpdates, AddTermsOfRowsAlongColumns) {
    for (int round = 0; round < 12; ++round) {
        const int64_t rows = between(1, 70), columns = between(1, 90), block_rows = 4 * between(1, 8);
        Tensor x = input("x", f32, {rows, columns});
        Tensor e = compute("e", {rows, columns}, [&](Expr i, Expr j) { return x(i, j) * x(i, j) + 1.0; });
        Axis j = reduce_axis("j", columns), i = reduce_axis("i", rows);
        Tensor l = compute("l", {rows}, [&](Expr i) { return sum(e(i, j), j); });
        Tensor of_columns = compute("of_columns", {columns}, [&](Expr j) { return sum(e(i, j) * 3.0, i) + 1.0; });
        Schedule s({l, of_columns}, device_target());
        auto [block, row] = s.split(s.loops<1>(l)[0], block_rows, Tail::Mask);
        auto [step, term] = s.split(s.reduce(l), between(1, 24), Tail::Mask);
        s.order({block, step, row, term});
        s.bind(block, grid.x);
        s.bind(row, thread);
        const int64_t parts = chance() ? block_rows : block_rows / 4;
        Stage updates = s.rfactor(of_columns, s.split(s.reduce(of_columns), parts, Tail::Mask)[0], Combine::Atomic);
        s.at(updates, step);
        s.at(e, step);
        SCOPED_TRACE(s.trace_as_cpp());
        expect_declared(s, whole_numbers(s.outputs(), round));
        EXPECT_EQ(replay(s.save(), s.outputs(), device_target()).to_string(), s.to_string());
    }
}

/// Of c = f q, f = relu(k q'), also t = f' k: terms of c that warpgroups have in registers are factors of a second
/// product, whose tiles leave as boxes that add themselves.
TEST_P(FollowingUpdates, AddProductsOfTermsByBoxes) {
    for (int round = 0; round < 6; ++round) {
        const int64_t groups = between(1, 2), block_rows = 64 * groups,
                      depth = groups == 1 ? 16 * between(1, 5) : 32 << between(0, 2);
        const int64_t m = block_rows * between(1, 3), n = 64 * between(1, 3);
        Tensor k = input("k", bf16, {m, depth}), q = input("q", bf16, {n, depth});
        Axis d = reduce_axis("d", depth), r = reduce_axis("r", n), i1 = reduce_axis("i1", m);
        Tensor products = compute("products", {m, n},
                                  [&](Expr i, Expr j) { return sum(cast(f32, k(i, d)) * cast(f32, q(j, d)), d); });
        Tensor f = compute("f", {m, n}, [&](Expr i, Expr j) { return min(relu(products(i, j)), 3.0); });
        Tensor c = compute("c", {m, depth}, [&](Expr i, Expr x) { return sum(f(i, r) * cast(f32, q(r, x)), r); });
        Tensor t = compute("t", {n, depth}, [&](Expr j, Expr x) { return sum(f(i1, j) * cast(f32, k(i1, x)), i1); });
        Schedule s({c, t}, device_target());
        auto [i, x] = s.loops<2>(c);
        auto [block, in_block] = s.split(i, block_rows, {"block", "in_block"});
        auto [step, term] = s.split(s.reduce(c), 64, {"step", "term"});
        auto of_group = [&](Loop rows) {
            auto [group, row] = s.split(rows, 64, {"group", "row"});
            s.bind(group, warpgroup);
            return std::pair(group, row);
        };
        auto [group, row] = of_group(in_block);
        s.order({block, step, group, row, x, term});
        s.bind(block, grid.x);
        Stage updates = s.rfactor(t, s.split(s.reduce(t), block_rows)[0], Combine::Atomic);
        s.at(updates, step);
        s.at(f, step);
        s.set_memory(f, Memory::Registers);
        of_group(s.data_loops(f)[0]);
        for (auto [reader, memory] : {std::pair(StageRef(c), Memory::Registers), {StageRef(updates), Memory::Shared}}) {
            Stage rounded = s.stage(reader, f, memory, step);
            s.round_to(rounded, bf16);
            of_group(s.data_loops(rounded)[0]);
        }
        s.mma(c, wgmma, {.m = row, .n = x, .k = term});
        s.at(products, step);
        s.set_memory(products, Memory::Registers);
        auto [p_i, p_j] = s.loops<2>(products);
        auto [p_group, p_row] = of_group(p_i);
        auto [d_tile, in_d] = s.split(s.reduce(products), depth);
        s.order({p_group, d_tile, p_row, p_j, in_d});
        s.stage({products, updates}, k, Memory::Shared, block);
        s.stage({products, c}, q, Memory::Shared, step);
        s.mma(products, wgmma, {.m = p_row, .n = p_j, .k = in_d});
        auto [part, j, column] = s.loops<3>(updates);
        s.via(s.stage(updates, Memory::Shared, part), Copy::Tma);
        auto [of_columns, in_columns] = s.split(column, depth / groups);
        auto [k_tile, in_k] = s.split(s.reduce(updates), block_rows);
        s.order({part, of_columns, k_tile, j, in_columns, in_k});
        s.bind(of_columns, warpgroup);
        s.mma(updates, wgmma, {.m = j, .n = in_columns, .k = in_k});
        if (n > 64 && chance()) s.cut(step, {integer(1)});
        if (chance()) s.pipeline(step, {.stages = 2});
        SCOPED_TRACE(s.trace_as_cpp());
        EXPECT_NE(build(s).cuda().find("tw::tma_reduce_add("), std::string::npos);
        expect_declared(s, whole_numbers(s.outputs(), round));
        EXPECT_EQ(replay(s.save(), s.outputs(), device_target()).to_string(), s.to_string());
    }
}

/// f and what two sums over it read: rows' of c, columns' of t.
struct TwoWays {
    Tensor x = input("x", f32, {64, 48});
    Tensor f = compute("f", {64, 48}, [&](Expr i, Expr j) { return x(i, j) + 1.0; });
    Axis i = reduce_axis("i", 64), j = reduce_axis("j", 48);
    Tensor t = compute("t", {48}, [&](Expr n) { return sum(f(i, n), i); });
};

/// Loops along an axis that the terms do not follow would add everything again in each of their iterations.
TEST(FollowingUpdatesRefused, OfIterationsThatAreMasked) {
    TwoWays two;
    Tensor q = input("q", f32, {48, 1});
    Tensor c = compute("c", {64, 1}, [&](Expr i, Expr x) { return sum(two.f(i, two.j) * q(two.j, x), two.j); });
    Schedule s({c, two.t}, target("sm_90a"));
    auto [rows, x] = s.loops<2>(c);
    auto [outer, inner] = s.split(x, 32, Tail::Mask);
    auto [step, term] = s.split(s.reduce(c), 16);
    auto [block, row] = s.split(rows, 32);
    s.order({block, outer, inner, step, row, term});
    s.bind(block, grid.x);
    s.bind(inner, thread);
    Stage updates = s.rfactor(two.t, s.split(s.reduce(two.t), 32)[0], Combine::Atomic);
    EXPECT_ERROR(s.at(updates, step), "would make elements several times");
}

/// A follower of what is kept for terms reads what one block has made of it.
TEST(FollowingUpdatesRefused, FollowersThatReadMoreThanIsKept) {
    TwoWays two;
    Tensor l = compute("l", {64}, [&](Expr i) { return sum(two.f(i, two.j), two.j); });
    Tensor kept = compute("kept", {64, 48}, [&](Expr i, Expr j) { return two.f(i, j) * 2.0; });
    Tensor z = compute("z", {48}, [&](Expr n) { return sum(kept(two.i, n), two.i); });
    Schedule s({l, kept, z}, target("sm_90a"));
    auto [block, row] = s.split(s.loops<1>(l)[0], 32);
    auto [step, term] = s.split(s.reduce(l), 16);
    s.order({block, step, row, term});
    s.bind(block, grid.x);
    s.at(kept, step);
    auto [i, j] = s.loops<2>(kept);
    s.order({j, i});
    EXPECT_ERROR(s.at(z, j), "it reads more of dimension 0 of ");
}

/// What a stream reduces on the way is not complete where an iteration's terms are kept.
TEST(FollowingUpdatesRefused, OfWhatAStreamHasSoFar) {
    Tensor x = input("x", f32, {64, 48}), v = input("v", f32, {48});
    Axis i = reduce_axis("i", 64), j = reduce_axis("j", 48), k = reduce_axis("k", 48);
    Tensor scores = compute("scores", {64, 48}, [&](Expr r, Expr n) { return x(r, n) * 2.0; });
    Tensor m = compute("m", {64}, [&](Expr r) { return reduce_max(scores(r, k), k); });
    Tensor p = compute("p", {64, 48}, [&](Expr r, Expr n) { return exp(scores(r, n) - m(r)); });
    Tensor o = compute("o", {64}, [&](Expr r) { return sum(p(r, j) * v(j), j); });
    Tensor t = compute("t", {48}, [&](Expr n) { return sum(p(i, n), i); });
    Schedule s({o, t}, target("sm_90a"));
    auto [block, row] = s.split(s.loops<1>(o)[0], 32);
    auto [step, term] = s.split(s.reduce(o), 16);
    s.order({block, step, row, term});
    s.bind(block, grid.x);
    Stage updates = s.rfactor(t, s.split(s.reduce(t), 32)[0], Combine::Atomic);
    s.at(updates, step);
    s.at(p, step);
    EXPECT_ERROR(s.stream({m, o}, step), "keeps what an iteration of");
}

/// skip leaves iterations out in which followers would still store or combine something.
TEST(FollowingUpdatesRefused, OfIterationsThatCount) {
    Tensor x = input("x", f32, {64, 48}), w = input("w", f32, {8});
    Axis j = reduce_axis("j", 48), j2 = reduce_axis("j2", 48), k = reduce_axis("k", 8);
    Tensor e = compute("e", {64, 48}, [&](Expr r, Expr n) { return select(n <= r, x(r, n), 0.0); });
    Tensor l = compute("l", {64}, [&](Expr r) { return sum(e(r, j), j); });
    Tensor y = compute("y", {64, 48}, [&](Expr r, Expr n) { return sum(e(r, n) * w(k), k) + 5.0; });
    Tensor z = compute("z", {64}, [&](Expr r) { return sum(y(r, j2), j2); });
    Schedule s({l, z}, target("sm_90a"));
    auto [block, row] = s.split(s.loops<1>(l)[0], 32);
    auto [step, term] = s.split(s.reduce(l), 16);
    s.order({block, step, row, term});
    s.bind(block, grid.x);
    s.at(y, step);
    s.at(e, step);
    EXPECT_ERROR(s.skip(step, e), "'y'");
}

TEST(FollowingUpdatesRefused, OfPartsOfBlocks) {
    Tensor x = input("x", f32, {64, 48});
    Tensor e = compute("e", {64, 48}, [&](Expr i, Expr j) { return x(i, j) + 1.0; });
    Axis j = reduce_axis("j", 48), i = reduce_axis("i", 64);
    Tensor l = compute("l", {64}, [&](Expr i) { return sum(e(i, j), j); });
    Tensor of_columns = compute("of_columns", {48}, [&](Expr j) { return sum(e(i, j), i); });
    Schedule s({l, of_columns}, target("sm_90a"));
    auto [block, row] = s.split(s.loops<1>(l)[0], 8);
    auto [step, term] = s.split(s.reduce(l), 8);
    s.order({block, step, row, term});
    Stage updates = s.rfactor(of_columns, s.split(s.reduce(of_columns), 16)[0], Combine::Atomic);
    EXPECT_ERROR(s.at(updates, step), "of dimension 0 it reduces blocks of 16, but an iteration of 'j_outer' makes 8");
}

}  // namespace
}  // namespace tw
