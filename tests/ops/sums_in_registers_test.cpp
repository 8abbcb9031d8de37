// Sums of tensor cores that results are made of, and tiles whose place data tell: whole numbers, bit for bit.
#include "tests/ops/random_cases.h"
#include "tests/ops/whole_numbers.h"

namespace tw {
namespace {

class SumsInRegisters : public RandomCases {
protected:
    SumsInRegisters() : RandomCases(23) {}
};
TW_ON_EACH_DEVICE(SumsInRegisters);

class TilesByData : public RandomCases {
protected:
    TilesByData() : RandomCases(29) {}

    /// Whole numbers; those of `name` choose among so many.
    Bindings choosing(const Tensor& output, const std::string& name, int64_t count, unsigned seed) {
        Bindings bindings = whole_numbers({output}, seed);
        fill_integers(bindings.inputs.at(name), 0, count - 1, seed);
        return bindings;
    }
};
TW_ON_EACH_DEVICE(TilesByData);

/// y, made of several elements of a product, in tiles of `block_m` rows of the product.
struct MadeOfSums {
    Tensor a, b, product, y;

    MadeOfSums(int64_t m, int64_t n, int64_t k, int64_t y_columns,
               const std::function<Expr(const Tensor& product, const Expr& i, const Expr& j)>& element)
        : a(input("a", bf16, {m, k})), b(input("b", bf16, {n, k})) {
        Axis r = reduce_axis("r", k);
        product =
            compute("product", {m, n}, [&](Expr i, Expr j) { return sum(cast(f32, a(i, r)) * cast(f32, b(j, r)), r); });
        y = compute("y", {m, y_columns}, [&](Expr i, Expr j) { return element(product, i, j); });
    }

    /// Blocks of `y_block` columns of y, whose loops inside begin with multiples of `eights`.
    Schedule scheduled(const Target& target, MatrixUnit unit, int64_t y_block, int64_t eights, bool roles) const {
        Schedule s({y}, target);
        auto [i, j] = s.loops<2>(y);
        bool group = unit == wgmma;
        auto [bi, it] = s.split(i, group ? 128 : 32, Tail::Mask);
        auto [bj, jt] = s.split(j, y_block, Tail::Mask);
        auto [wi, mi] = s.split(it, group ? 64 : 16);
        auto [eight, column] = s.split(jt, eights);
        s.order({bi, bj, wi, mi, eight, column});
        s.bind(bi, grid.y);
        s.bind(bj, grid.x);
        s.bind(wi, group ? warpgroup : warp);
        s.at(product, wi);
        s.set_memory(product, Memory::Registers);
        auto [pi, pj] = s.loops<2>(product);
        auto [ko, ki] = s.split(s.reduce(product), 32, Tail::Mask);
        s.order({ko, pi, pj, ki});
        Stage as = s.stage(product, a, Memory::Shared, ko), bs = s.stage(product, b, Memory::Shared, ko);
        s.mma(product, unit, {.m = pi, .n = pj, .k = ki});
        s.pipeline(ko, {.stages = 3});
        if (roles) s.roles({{"load", warps(1), {}, {as, bs}}, {"math", warpgroups(2), {}, {y}}});
        return s;
    }
};

// Columns in eights by turns: what is multiplied lies in registers of the same thread.
TEST_P(SumsInRegisters, PairsOfColumns) {
    for (int round = 0; round < 4; ++round) {
        int64_t m = between(1, 200), k = 8 * between(1, 12), columns = 8 * between(1, 20);
        MadeOfSums p(m, 2 * columns, k, columns, [](const Tensor& product, const Expr& i, const Expr& j) {
            Expr first = j / 8 * 16 + j % 8;
            return relu(product(i, first)) * product(i, first + 8);
        });
        bool group = round % 2 == 0;
        Schedule s = p.scheduled(device_target(), group ? wgmma : mma_sync, 8 * between(1, 6), 8, group && chance());
        SCOPED_TRACE(s.trace_as_cpp());
        expect_declared(s, whole_numbers({p.y}, round));
        // The first instruction overwrites what it finds.
        std::string cuda = build(s).cuda();
        EXPECT_EQ(cuda.find("tw::leave_undefined(") != std::string::npos, group) << cuda;
        EXPECT_EQ(replay(s.save(), {p.y}, device_target()).to_string(), s.to_string());
    }
}

// Halves of rows, as a rotation of positions takes them.
TEST_P(SumsInRegisters, HalvesOfRows) {
    for (MatrixUnit unit : {wgmma, mma_sync}) {
        constexpr int64_t Half = 24;
        Tensor turn = input("turn", f32, {Half});
        MadeOfSums p(between(1, 150), 2 * Half, 40, Half, [&](const Tensor& product, const Expr& i, const Expr& j) {
            return product(i, j) * turn(j) - product(i, j + Half);
        });
        Schedule s = p.scheduled(device_target(), unit, Half, Half, unit == wgmma);
        expect_declared(s, whole_numbers({p.y}, 7));
    }
}

// The totals of a block's tile stay in registers; their results leave through shared memory piece by piece.
TEST_P(SumsInRegisters, LeavePieceByPiece) {
    for (int round = 0; round < 8; ++round) {
        bool group = round % 2 == 0, boxes = group && chance();
        int64_t pieces = between(1, 3), piece = group ? 64 : 16, rows = group ? 128 : 32, columns = pieces * piece;
        int64_t m = between(1, 3) * rows + between(0, 20), n = between(1, 2) * columns + 8 * between(0, 2), k = 40;
        Tensor a = input("a", bf16, {m, k}), b = input("b", bf16, {n, k}), bias = input("bias", f32, {n});
        Axis r = reduce_axis("r", k);
        Tensor c = compute("c", {m, n}, [&](Expr i, Expr j) {
            return cast(bf16, relu(sum(cast(f32, a(i, r)) * cast(f32, b(j, r)), r) + bias(j)));
        });
        Schedule s({c}, device_target());
        Stage total = s.accumulators(c);
        auto [i, j] = s.loops<2>(c);
        auto [bi, it] = s.split(i, rows, Tail::Mask);
        auto [bj, jt] = s.split(j, columns, Tail::Mask);
        auto [wi, mi] = s.split(it, rows / 2);
        auto [out, nj] = s.split(jt, piece);
        s.order({bi, bj, out, wi, mi, nj});
        s.persistent({bi, bj}, {.blocks = 2});
        s.bind(wi, group ? warpgroup : warp);
        s.at(total, bj);
        s.set_memory(total, Memory::Registers);
        auto [ti, tj] = s.loops<2>(total);
        auto [own_wi, own_mi] = s.split(ti, rows / 2);
        auto [ko, ki] = s.split(s.reduce(total), 32, Tail::Mask);
        s.order({own_wi, ko, own_mi, tj, ki});
        s.bind(own_wi, group ? warpgroup : warp);
        s.stage(c, bias, Memory::Shared, bj);
        Stage as = s.stage(total, a, Memory::Shared, ko), bs = s.stage(total, b, Memory::Shared, ko);
        s.mma(total, group ? wgmma : mma_sync, {.m = own_mi, .n = tj, .k = ki});
        s.pipeline(ko, {.stages = 3});
        Stage leaving = s.stage(c, Memory::Shared, out);
        if (boxes) s.via(leaving, Copy::Tma);
        if (group && chance()) s.roles({{"load", warps(1), {}, {as, bs}}, {"math", warpgroups(2), {}, {c}}});
        SCOPED_TRACE(s.trace_as_cpp());
        expect_declared(s, whole_numbers({c}, round));
        EXPECT_EQ(replay(s.save(), {c}, device_target()).to_string(), s.to_string());
        // The sums stay where they were made, those of columns that are not there too.
        EXPECT_EQ(build(s).cuda().find("c_total_sum"), std::string::npos) << build(s).cuda();
    }
}

// Any reduction, with several accumulators too: the place of the largest element, shared by the threads of a row.
TEST_P(SumsInRegisters, TotalsOfRows) {
    for (int round = 0; round < 4; ++round) {
        int64_t rows = between(1, 40), columns = between(1, 90);
        Tensor x = input("x", f32, {rows, columns});
        Axis j = reduce_axis("j", columns);
        auto largest = compute_tuple("largest", {rows}, [&](const std::vector<Expr>& i) {
            std::vector<Expr> best = argmax(x(i[0], j), j);
            return std::vector<Expr>{best[0] * 2.0f, best[1]};
        });
        Schedule s({largest[0], largest[1]}, device_target());
        Stage total = s.accumulators(largest[0]);
        Loop i = s.loops<1>(largest[0])[0];
        auto [block, row] = s.split(i, 8, Tail::Mask);
        s.bind(block, grid.x);
        s.bind(row, thread);
        s.at(total, chance() ? row : block);
        expect_declared(s, whole_numbers({largest[0], largest[1]}, round));
    }
}

// Iterations behind the last term add nothing, also where what they would add is there in registers.
TEST_P(SumsInRegisters, TermsThatAreNotThere) {
    Tensor x = input("x", f32, {4, 17});
    Axis t = reduce_axis("t", 4), q = reduce_axis("q", 1);
    Tensor sums = compute("sums", {1, 17}, [&](Expr i, Expr j) { return sum(x(i * 4 + t, j), t); });
    Tensor total = compute("total", {17}, [&](Expr i) { return sum(sums(q, i), q); });
    Schedule s({total}, device_target());
    auto [qo, qi] = s.split(s.reduce(total), 4, Tail::Mask);
    Stage parts = s.rfactor(total, s.fuse(qo, qi));
    Loop i = s.loops<1>(total)[0];
    s.at(parts, i);
    s.at(sums, i);
    expect_declared(s, whole_numbers({total}, 1));
}

// Each block of rows with a matrix that an input chooses: boxes, asynchronous copies and plain ones go there.
TEST_P(TilesByData, ProductsWithChosenMatrices) {
    for (int round = 0; round < 6; ++round) {
        bool roles = round % 3 == 0;
        int64_t blocks = between(1, 4), matrices = between(1, 5), n = 8 * between(1, 20), k = 8 * between(1, 20);
        Tensor a = input("a", bf16, {blocks, 64, k}), b = input("b", bf16, {matrices, n, k}),
               choice = input("choice", i32, {blocks});
        Axis r = reduce_axis("r", k);
        Tensor c = compute("c", {blocks, 64, n}, [&](Expr q, Expr i, Expr j) {
            return sum(cast(f32, a(q, i, r)) * cast(f32, b(choice(q), j, r)), r);
        });
        Schedule s({c}, device_target());
        auto [q, i, j] = s.loops<3>(c);
        auto [bj, nj] = s.split(j, 32, Tail::Mask);
        auto [wi, mi] = s.split(i, roles ? 64 : 16);
        auto [ko, ki] = s.split(s.reduce(c), 32, Tail::Mask);
        s.order({q, bj, wi, ko, mi, nj, ki});
        s.bind(q, grid.y);
        s.bind(bj, grid.x);
        s.bind(wi, roles ? warpgroup : warp);
        Stage as = s.stage(c, a, Memory::Shared, ko), bs = s.stage(c, b, Memory::Shared, ko);
        s.mma(c, roles ? wgmma : mma_sync, {.m = mi, .n = nj, .k = ki});
        s.pipeline(ko, {.stages = round % 3 == 1 ? 2 : 3});
        if (roles) s.roles({{"load", warps(1), {}, {as, bs}}, {"math", warpgroups(1), {}, {c}}});
        SCOPED_TRACE(s.trace_as_cpp());
        expect_declared(s, choosing(c, "choice", matrices, round));
        EXPECT_EQ(replay(s.save(), {c}, device_target()).to_string(), s.to_string());
        // A tile of one matrix is there, not all of them.
        EXPECT_NE(s.to_string().find("b_shared: bf16 [1, 32, 32] in shared"), std::string::npos) << s.to_string();
    }
}

// A place in a table of several dimensions, for each way to copy; the table may have gaps between its rows.
TEST_P(TilesByData, ChosenByTables) {
    for (int round = 0; round < 8; ++round) {
        constexpr int64_t Blocks = 3, Chosen = 2, Kinds = 2, K = 32;
        int64_t matrices = between(1, 5), n = 8 * between(1, 6);
        Tensor a = input("a", bf16, {Blocks, Chosen, 64, K}), b = input("b", bf16, {matrices, n, K}),
               choice =
                   round % 2 ? input("choice", i32, {Blocks, Kinds, Chosen}) : input("choice", i32, {Blocks, Chosen});
        Axis q = reduce_axis("q", Chosen), k = reduce_axis("k", K);
        Tensor c = compute("c", {Blocks, 64, n}, [&](Expr e, Expr i, Expr j) {
            Expr which = round % 2 ? choice(e, 1, q) : choice(e, q);
            return sum(cast(f32, a(e, q, i, k)) * cast(f32, b(which, j, k)), {q, k});
        });
        Schedule s({c}, device_target());
        auto [e, i, j] = s.loops<3>(c);
        Loop qo = s.reduce(c, 0), ki = s.reduce(c, 1);
        auto [wi, mi] = s.split(i, 64);
        s.order({e, wi, qo, mi, j, ki});
        if (chance())
            s.persistent({e}, {.blocks = 2});
        else
            s.bind(e, grid.x);
        s.bind(wi, warpgroup);
        Stage as = s.stage(c, a, Memory::Shared, qo), bs = s.stage(c, b, Memory::Shared, qo);
        s.mma(c, wgmma, {.m = mi, .n = j, .k = ki});
        s.pipeline(qo, {.stages = between(2, 3)});
        const Copy ways[] = {Copy::Tma, Copy::Async, Copy::Vector};
        if (round < 4) s.roles({{"load", warps(1), {}, {as, bs}}, {"math", warpgroups(1), {}, {c}}});
        if (round >= 4) s.via(bs, ways[round % 3]);
        SCOPED_TRACE(s.trace_as_cpp());
        expect_declared(s, choosing(c, "choice", matrices, round));
    }
}

// Pages of a table, by a list: a copy in shared memory of the one that a block reads.
TEST_P(TilesByData, PagesOfATable) {
    constexpr int64_t Pages = 6, Rows = 20, Columns = 33, Blocks = 9;
    Tensor table = input("table", f32, {Pages, Rows, Columns}), page = input("page", i32, {Blocks}),
           weight = input("weight", f32, {Blocks, Rows});
    Axis t = reduce_axis("t", Rows);
    Tensor y = compute("y", {Blocks, Columns},
                       [&](Expr block, Expr j) { return sum(table(page(block), t, j) * weight(block, t), t); });
    Schedule s({y}, device_target());
    auto [block, j] = s.loops<2>(y);
    s.bind(block, grid.x);
    s.bind(j, thread);
    s.stage(y, table, Memory::Shared, block);
    std::string cuda = build(s).cuda();
    EXPECT_NE(cuda.find("table_shared[1][20][33]"), std::string::npos) << cuda;
    expect_declared(s, choosing(y, "page", Pages, 3));
}

// A place that a place tells: the whole table is there, whether or not the first list has a copy.
TEST_P(TilesByData, PagesOfPages) {
    constexpr int64_t Pages = 5, Columns = 40, Blocks = 7;
    Tensor table = input("table", f32, {Pages, Columns}), page = input("page", i32, {Pages}),
           first = input("first", i32, {Blocks});
    Tensor y = compute("y", {Blocks, Columns}, [&](Expr block, Expr j) { return table(page(first(block)), j) * 2.0f; });
    for (bool copied : {false, true}) {
        Schedule s({y}, device_target());
        auto [block, j] = s.loops<2>(y);
        s.bind(block, grid.x);
        s.bind(j, thread);
        if (copied) s.stage(y, first, Memory::Global);
        s.stage(y, table, Memory::Shared, block);
        EXPECT_NE(s.to_string().find("table_shared: f32 [5, 40] in shared"), std::string::npos) << s.to_string();
        Bindings bindings = choosing(y, "page", Pages, 5);
        fill_integers(bindings.inputs.at("first"), 0, Pages - 1, 7);
        expect_declared(s, bindings);
    }
}

}  // namespace
}  // namespace tw
