// Pipelines that are not equally long each time: as long as an element's place says, or as data say.
#include "tests/ops/random_cases.h"
#include "tests/ops/whole_numbers.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

class UnevenLoops : public RandomCases {
protected:
    UnevenLoops() : RandomCases(29) {}
};
TW_ON_EACH_DEVICE(UnevenLoops);

constexpr int64_t tile = 64;

/// Who decides how many blocks of terms an element sums.
enum class Decides { Place, Data, Both };

/// c[e, i, j] = sum of a[e, i, k] b[e, j, k] over the first so many blocks of k.
struct Product {
    Tensor a, b, length, c;

    Product(int64_t batch, int64_t rows, int64_t columns, int64_t blocks, int64_t block, Decides decides)
        : a(input("a", bf16, {batch, rows, blocks * block})),
          b(input("b", bf16, {batch, columns, blocks * block})),
          length(input("length", i32, {batch})),
          c(compute("c", {batch, rows, columns}, [&](Expr e, Expr i, Expr j) {
              Expr by_place = min(i / tile + 1, blocks), by_data = min(cast(i64, length(e)), blocks);
              Expr both = select(i / tile * tile < length(e), Expr(blocks), Expr(0));
              Axis q = reduce_axis("q", decides == Decides::Place  ? by_place
                                        : decides == Decides::Data ? by_data
                                                                   : both),
                   r = reduce_axis("r", block);
              return sum(cast(f32, a(e, i, q * block + r)) * cast(f32, b(e, j, q * block + r)), {q, r});
          })) {}
};

struct Options {
    int64_t block_n = 32;
    int warpgroups = 1, stages = 3, in_flight = 0, cluster = 1, turns = 1;
    int persistent_blocks = 0;  ///< 0: each block has one tile
    bool longest_first = false, dynamic = false;
    bool roles = true;
    Copy how = Copy::Tma;
};

Schedule scheduled(const Product& p, const Options& o, const Target& target) {
    Schedule s({p.c}, target);
    auto [e, i, j] = s.loops<3>(p.c);
    Loop q = s.reduce(p.c, 0), r = s.reduce(p.c, 1);
    auto [bi, mi] = s.split(i, tile, Tail::Mask);
    auto [bj, jt] = s.split(j, o.block_n * o.warpgroups, Tail::Mask);
    auto [wj, nj] = s.split(jt, o.block_n);
    auto [bo, rank] = s.split(bj, o.cluster, Tail::Mask);
    s.order({e, bi, bo, rank, wj, q, mi, nj, r});
    if (o.persistent_blocks) {
        s.persistent({e, bi, bo},
                     {.blocks = o.persistent_blocks, .longest_first = o.longest_first, .dynamic = o.dynamic});
    } else {
        s.bind(e, grid.z);
        s.bind(bi, grid.y);
        s.bind(bo, grid.x);
    }
    s.bind(rank, cluster);
    s.bind(wj, warpgroup);
    Stage as = s.stage(p.c, p.a, Memory::Shared, q), bs = s.stage(p.c, p.b, Memory::Shared, q);
    s.mma(p.c, wgmma, {.m = mi, .n = nj, .k = r});
    s.pipeline(q, {.stages = o.stages, .in_flight = o.roles ? o.in_flight : 0});
    if (o.roles) {
        s.roles({{"load", warps(1), {}, {as, bs}},
                 {"math", warpgroups(o.warpgroups * o.turns), {}, {p.c}, ping_pong(o.turns)}});
    } else {
        s.via(as, o.how);
        s.via(bs, o.how);
    }
    return s;
}

TEST_P(UnevenLoops, CountTheirIterations) {
    for (int round = 0; round < 9; ++round) {
        Decides decides = static_cast<Decides>(round % 3);
        int64_t batch = between(1, 3), rows = between(1, 3) * tile - 8 * between(0, 3), blocks = between(1, 5);
        Product p(batch, rows, 8 * between(1, 12), blocks, 16 << between(0, 2), decides);
        Options o{.stages = between(2, 4)};
        o.warpgroups = between(1, 2);
        o.in_flight = between(0, o.stages - 1);
        o.persistent_blocks = chance() ? between(1, 5) : 0;
        o.longest_first = chance();
        o.roles = between(0, 3) > 0;
        o.cluster = o.roles && chance() ? 2 : 1;
        if (o.persistent_blocks && o.roles && chance()) o.turns = between(2, 3), o.warpgroups = 1;
        o.how = chance() ? Copy::Tma : Copy::Async;
        o.dynamic = o.cluster == 1 && o.turns == 1 && chance();
        Schedule s = scheduled(p, o, device_target());
        SCOPED_TRACE(s.trace_as_cpp());
        EXPECT_EQ(replay(s.save(), {p.c}, device_target()).to_string(), s.to_string());
        Bindings bindings = whole_numbers({p.c}, round);
        if (decides != Decides::Place)
            fill_integers(bindings.inputs.at("length"), -1, static_cast<int>(decides == Decides::Data ? blocks : rows),
                          round);
        expect_declared(s, bindings);
        if (round % 3 == 0) expect_compiles(build(s));
    }
}

// One role does all: each way to copy, in each kind of block.
TEST_P(UnevenLoops, NeedNoRoles) {
    for (Decides decides : {Decides::Place, Decides::Data, Decides::Both})
        for (int persistent : {0, 3})
            for (auto [how, stages] : {std::pair(Copy::Tma, 3), {Copy::Tma, 2}, {Copy::Async, 3}, {Copy::Vector, 2}}) {
                Product p(between(1, 3), between(1, 3) * tile, 32, between(1, 4), 32, decides);
                Schedule s =
                    scheduled(p, {.stages = stages, .persistent_blocks = persistent, .roles = false, .how = how},
                              device_target());
                SCOPED_TRACE(s.trace_as_cpp());
                Bindings bindings = whole_numbers({p.c}, stages);
                if (decides != Decides::Place)
                    fill_integers(bindings.inputs.at("length"), -1, decides == Decides::Data ? 4 : 192, stages);
                expect_declared(s, bindings);
            }
}

// The data that decide may stand in a table of several dimensions.
TEST_P(UnevenLoops, OfATableOfLengths) {
    for (int round = 0; round < 6; ++round) {
        constexpr int64_t blocks = 3, block = 32;
        int64_t batch = between(1, 3), tiles = between(1, 3);
        bool roles = round % 2 == 0;
        Tensor a = input("a", bf16, {batch, tiles * tile, blocks * block}),
               b = input("b", bf16, {batch, 32, blocks * block}), length = input("length", i32, {batch, tiles});
        Tensor c = compute("c", {batch, tiles * tile, 32}, [&](Expr e, Expr i, Expr j) {
            Axis q = reduce_axis("q", min(cast(i64, length(e, i / tile)), blocks)), r = reduce_axis("r", block);
            return sum(cast(f32, a(e, i, q * block + r)) * cast(f32, b(e, j, q * block + r)), {q, r});
        });
        Schedule s({c}, device_target());
        auto [e, i, j] = s.loops<3>(c);
        auto [bi, mi] = s.split(i, tile);
        Loop q = s.reduce(c, 0), r = s.reduce(c, 1);
        s.order({e, bi, q, mi, j, r});
        if (round % 3 == 0) {
            s.bind(e, grid.y);
            s.bind(bi, grid.x);
        } else {
            s.persistent({e, bi}, {.blocks = 2});
        }
        Stage as = s.stage(c, a, Memory::Shared, q), bs = s.stage(c, b, Memory::Shared, q);
        s.mma(c, wgmma, {.m = mi, .n = j, .k = r});
        s.pipeline(q, {.stages = 3});
        int groups = round == 4 ? 2 : 1;
        if (roles)
            s.roles({{"load", warps(1), {}, {as, bs}}, {"math", warpgroups(groups), {}, {c}, ping_pong(groups)}});
        SCOPED_TRACE(s.trace_as_cpp());
        Bindings bindings = whole_numbers({c}, round);
        fill_integers(bindings.inputs.at("length"), -1, static_cast<int>(blocks), round);
        expect_declared(s, bindings);
    }
}

// One segment's loop has one iteration, the other's has two: only the first is dropped.
TEST_P(UnevenLoops, SegmentsHaveLengthsOfTheirOwn) {
    Tensor a = input("a", f32, {24, 24}), b = input("b", f32, {24, 11});
    Tensor y = compute("y", {24, 11}, [&](Expr i, Expr j) {
        Axis k = reduce_axis("k", i / 4 * 4 + 4);
        return sum(a(i, k) * b(k, j), k);
    });
    Schedule s({y}, device_target());
    s.cut(s.loops<2>(y)[0], {13});
    s.split(s.reduce(y), 16, Tail::Mask);
    expect_declared(s, whole_numbers({y}, 1));
}

// Stream-K: the terms of all tiles, one behind another, are cut into equal shares, one a block; a share ends one tile's
// sum and begins another's. The sums of each tile's parts are added in order.
TEST_P(UnevenLoops, ShareTheTermsOfAllTiles) {
    constexpr int64_t columns = 32, block = 32;
    for (auto [row_tiles, column_tiles, blocks, shares] : {std::array<int64_t, 4>{2, 3, 4, 5}, {1, 2, 7, 4}}) {
        int64_t tiles = row_tiles * column_tiles, work = tiles * blocks, share = (work + shares - 1) / shares;
        int64_t most_tiles = (share + blocks - 2) / blocks + 1, most_shares = (blocks + share - 2) / share + 1;
        Tensor a = input("a", bf16, {row_tiles * tile, blocks * block}),
               b = input("b", bf16, {column_tiles * columns, blocks * block});
        Tensor parts = compute("parts", {shares, most_tiles, tile, columns}, [&](Expr s, Expr t, Expr i, Expr j) {
            Expr first = s * share, which = first / blocks + t;
            Expr begin = max(first, which * blocks), end = min(min(first + share, (which + 1) * blocks), work);
            Axis q = reduce_axis("q", max(end - begin, 0)), r = reduce_axis("r", block);
            Expr k = min(max(first - which * blocks, 0) + q, blocks - 1) * block + r, there = min(which, tiles - 1);
            return sum(
                cast(f32, a(there / column_tiles * tile + i, k)) * cast(f32, b(there % column_tiles * columns + j, k)),
                {q, r});
        });
        Tensor c = compute("c", {row_tiles * tile, column_tiles * columns}, [&](Expr i, Expr j) {
            Axis z = reduce_axis("z", most_shares);
            Expr here = i / tile * column_tiles + j / columns, s = here * blocks / share + z;
            Expr t = min(max(here - s * share / blocks, 0), most_tiles - 1);
            Expr part = parts(min(s, shares - 1), t, i % tile, j % columns);
            return sum(select(s * share < (here + 1) * blocks, part, 0.0f), z);
        });
        Schedule s({c}, device_target());
        auto [share_of, t, i, j] = s.loops<4>(parts);
        Loop q = s.reduce(parts, 0), r = s.reduce(parts, 1);
        auto [wi, mi] = s.split(i, tile);
        s.order({share_of, t, wi, q, mi, j, r});
        s.bind(share_of, grid.x);
        s.bind(wi, warpgroup);
        Stage as = s.stage(parts, a, Memory::Shared, q), bs = s.stage(parts, b, Memory::Shared, q);
        s.mma(parts, wgmma, {.m = mi, .n = j, .k = r});
        s.pipeline(q, {.stages = 3, .in_flight = 1});
        s.roles({{"load", warps(1), {}, {as, bs}}, {"math", warpgroups(1), {}, {parts}}});
        auto [rows, inside] = s.split(s.fuse(s.data_loops(c)), 128, Tail::Mask);
        s.bind(rows, grid.x);
        s.bind(inside, thread);
        SCOPED_TRACE(s.trace_as_cpp());
        expect_declared(s, whole_numbers({c}, 3));
        Axis k = reduce_axis("k", blocks * block);
        Tensor plain = compute("plain", {row_tiles * tile, column_tiles * columns},
                               [&](Expr i, Expr j) { return sum(cast(f32, a(i, k)) * cast(f32, b(j, k)), k); });
        Bindings bindings = whole_numbers({c}, 3);
        auto differs =
            difference("c", interpret_plain({c}, bindings)[0], interpret_plain({plain}, bindings)[0], bitwise);
        EXPECT_FALSE(differs) << *differs;
    }
}

TEST(UnevenLoopErrors, SayWhatToDo) {
    Product p(2, 128, 64, 4, 32, Decides::Place);
    Schedule s({p.c}, target("sm_90a"));
    auto [e, i, j] = s.loops<3>(p.c);
    Loop q = s.reduce(p.c, 0);
    EXPECT_ERROR(s.fuse(q, s.reduce(p.c, 1)), "the element decides how many iterations one of them has");
    auto [io, ii] = s.split(i, tile);
    s.order({e, io, q, ii, j});  // all rows of a tile sum as much
    EXPECT_ERROR(s.order({e, q, io}),
                 "loop 'q' of 'c' must stand inside of 'j_outer', which decides how many iterations");
}

/// A loop as long as an element says asks whether the element is there, also where its place is told by a loop of one
/// iteration further inside.
TEST_P(UnevenLoops, OfElementsWhoseLoopStandsInside) {
    const Tensor counts = input("counts", i32, {1}), x = input("x", f32, {1, 8});
    const Tensor y = compute("y", {1}, [&](Expr i) {
        const Axis q = reduce_axis("q", max(min(cast(i64, counts(i)), 8), 0));
        return sum(x(i, q), q);
    });
    Schedule s({y}, device_target());
    auto [outer, inner] = s.split(s.loops<1>(y)[0], 16, Tail::Mask);
    auto [parts, in_part] = s.split(s.reduce(y), 3, Tail::Mask);
    auto [pairs, in_pair] = s.split(parts, 2, Tail::Mask);
    s.order({inner, in_part, pairs, in_pair, outer});
    const Bindings bindings = whole_numbers({y}, 3);
    EXPECT_EQ(difference("y", interpret_tree(s.tree(), bindings)[0], interpret_plain({y}, bindings)[0], bitwise),
              std::nullopt);
    expect_declared(s, bindings);
}

/// Elements of a stage whose loops nobody bound are shared out among the threads that are there: behind the last
/// element there are no terms, of which a copy in shared memory has as many as the longest element needs.
TEST_P(UnevenLoops, OfElementsThatThreadsShareOut) {
    for (int round = 0; round < 8; ++round) {
        const int64_t rows = between(9, 70), threads = 8 << between(0, 2), block = between(1, 8);
        const auto length = [&](const Expr& i) {
            return round % 4 == 0   ? i + 1
                   : round % 4 == 1 ? i / block * block + block
                   : round % 4 == 2 ? i * 2
                                    : max(i - block, 0);
        };
        const int64_t most = std::vector<int64_t>{rows, (rows + block - 1) / block * block, rows * 2 - 2,
                                                  std::max<int64_t>(rows - 1 - block, 1)}[round % 4];
        const Tensor x = input("x", f32, {most}), z = input("z", f32, {rows, 32});
        const Tensor t = compute("t", {rows}, [&](Expr i) {
            const Axis k = reduce_axis("k", length(i));
            return sum(x(k), k);
        });
        const Tensor y = compute("y", {rows, 32}, [&](Expr i, Expr j) { return t(i) + z(i, j); });
        Schedule s({y}, device_target());
        const auto [i, j] = s.loops<2>(y);
        const auto [all, row] = s.split(i, rows);
        const auto [part, column] = s.split(j, threads);
        s.bind(column, thread);
        s.at(t, all);
        s.set_memory(t, Memory::Shared);
        if (round >= 4) s.split(s.reduce(t), between(2, 9), Tail::Mask);
        s.stage(t, x, Memory::Shared, all);
        SCOPED_TRACE(s.trace_as_cpp());
        expect_declared(s, whole_numbers({y}, round));
    }
}

}  // namespace
}  // namespace tw
