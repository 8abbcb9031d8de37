// Followers that read, beside their leader, what is made for it at an index that is none of its dimensions.
#include <gmock/gmock.h>

#include "tests/ops/random_cases.h"
#include "tests/ops/whole_numbers.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

/// Rows of a batch one behind the other, of which the result has each `step`-th: y[b, t] = sums[b (T step) + t step].
struct Flattened {
    int64_t batch, length, step, rows, columns, terms;
    Tensor a, sums, y;

    Flattened(int64_t batch, int64_t length, int64_t step, int64_t rows, int64_t columns, int64_t terms)
        : batch(batch), length(length), step(step), rows(rows), columns(columns), terms(terms) {
        a = input("a", f32, {batch * length * step, terms});
        const Tensor b = input("b", f32, {columns, terms});
        const Axis k = reduce_axis("k", terms);
        sums =
            compute("sums", {made(), columns}, [&](Expr m, Expr j) { return sum(padded(a, 0.0)(m, k) * b(j, k), k); });
        y = compute("y", {batch, length, columns},
                    [&](Expr n, Expr t, Expr j) { return relu(sums(n * (length * step) + t * step, j)); });
    }
    /// Rows of sums in whole tiles.
    int64_t made() const {
        const int64_t tile = rows * step;
        return (batch * length * step + tile - 1) / tile * tile;
    }
    /// Tiles of `rows` of the result, a thread each.
    Loop tiled(Schedule& s) const {
        auto [n, t, j] = s.loops<3>(y);
        auto [tile, row] = s.split(s.fuse(n, t), rows, Tail::Mask, {"tile", "row"});
        s.bind(row, thread);
        return tile;
    }
};

class FollowersBeside : public RandomCases {
protected:
    FollowersBeside() : RandomCases(37) {}
};
TW_ON_EACH_DEVICE(FollowersBeside);

/// Largest magnitudes of blocks of rows, which go over the ends of sequences, and energies of tiles made of those of
/// blocks: of whole numbers, bit for bit.
TEST_P(FollowersBeside, ReduceBlocksOfWhatOnlyTheLeaderReads) {
    for (int round = 0; round < 10; ++round) {
        const int64_t blocks = between(1, 4), block = between(1, 6), step = between(1, 3);
        const Flattened p(between(1, 4), between(1, 30), step, blocks * block, between(1, 20), between(1, 9));
        const int64_t rows = block * step, count = p.made() / rows;
        const Axis r = reduce_axis("r", rows), u = reduce_axis("u", rows), v = reduce_axis("v", blocks);
        const Tensor largest = compute("largest", {count, p.columns},
                                       [&](Expr q, Expr j) { return reduce_max(abs(p.sums(q * rows + r, j)), r); });
        const Tensor energy = compute("energy", {count, p.columns}, [&](Expr q, Expr j) {
            return sum(p.sums(q * rows + u, j) * p.sums(q * rows + u, j), u);
        });
        const Tensor of_tile = compute("of_tile", {count / blocks, p.columns},
                                       [&](Expr q, Expr j) { return sum(energy(q * blocks + v, j), v); });
        // Of all columns, which an iteration makes.
        const Axis w = reduce_axis("w", rows), j1 = reduce_axis("j1", p.columns), j2 = reduce_axis("j2", p.columns);
        const Tensor peak = compute("peak", {count}, [&](Expr q) {
            return reduce_max(abs(p.sums(q * rows + w, j1)), {w, j1});
        });
        const Tensor total = compute("total", {p.made()}, [&](Expr m) { return sum(p.sums(m, j2), j2); });
        const std::vector<Tensor> outputs{p.y, largest, of_tile, peak, total};
        SCOPED_TRACE(
            fmt::format("{} of {} rows, each {}th; tiles of {} blocks of {}", p.batch, p.length, step, blocks, block));
        Schedule s(outputs, device_target());
        const Loop tile = p.tiled(s);
        for (const Tensor& follower : {largest, energy, of_tile}) {
            s.at(follower, tile);
            s.bind(s.loops<2>(follower)[1], thread);
        }
        for (const Tensor& follower : {peak, total}) {
            s.at(follower, tile);
            s.bind(s.loops<1>(follower)[0], thread);
        }
        s.at(p.sums, tile);
        s.set_memory(p.sums, Memory::Shared);
        s.bind(s.loops<2>(p.sums)[0], thread);
        if (chance())
            s.persistent({tile}, {.blocks = 3});
        else
            s.bind(tile, grid.x);
        SCOPED_TRACE(s.trace_as_cpp());
        const Program program = build(s);
        EXPECT_EQ(program.kernels().size(), 1u);
        expect_declared(s, whole_numbers(outputs, static_cast<unsigned>(round)));
        EXPECT_EQ(replay(s.save(), outputs, device_target()).to_string(), s.to_string());
        s.check_each_step(whole_numbers(outputs, static_cast<unsigned>(round)));
    }
}

/// What no iteration has as a whole, or what another one makes, is refused.
TEST(FollowersBesideErrors, TellWhatAnIterationMakes) {
    const Flattened p(3, 16, 1, 24, 8, 4);
    for (int64_t rows : {16, 48, 36}) {
        const Axis r = reduce_axis("r", rows);
        const Tensor largest = compute("largest", {p.made() / rows, p.columns},
                                       [&](Expr q, Expr j) { return reduce_max(p.sums(q * rows + r, j), r); });
        Schedule s({p.y, largest}, target("sm_90a"));
        const Loop tile = p.tiled(s);
        EXPECT_ERROR(s.at(largest, tile),
                     "'largest' cannot follow 'y' here: each iteration of 'tile' would compute it");
    }
    // Sequences with four rows between them, which no iteration would make.
    const Tensor x = input("x", f32, {60, 8});
    const Tensor twice = compute("twice", {60, 8}, [&](Expr m, Expr j) { return x(m, j) * 2.0; });
    const Tensor apart =
        compute("apart", {3, 16, 8}, [&](Expr n, Expr t, Expr j) { return twice(n * 20 + t, j) + 1.0; });
    const Axis u = reduce_axis("u", 4);
    const Tensor sums = compute("sums", {12, 8}, [&](Expr q, Expr j) { return sum(twice(q * 4 + u, j), u); });
    Schedule gaps({apart, sums}, target("sm_90a"));
    const Loop step = gaps.split(gaps.loops<3>(apart)[1], 4)[0];
    EXPECT_ERROR(gaps.at(sums, step), "'sums' cannot follow 'apart' here: each iteration of 'i' would compute it");
    const Axis r = reduce_axis("r", 8);
    const Tensor largest = compute("largest", {p.made() / 8, p.columns},
                                   [&](Expr q, Expr j) { return reduce_max(p.sums(q * 8 + r, j), r); });
    const Tensor scaled = compute("scaled", {3, 16, p.columns},
                                  [&](Expr n, Expr t, Expr j) { return p.y(n, t, j) + largest((n * 16 + t) / 8, j); });
    Schedule s({p.y, largest, scaled}, target("sm_90a"));
    const Loop tile = p.tiled(s);
    s.at(largest, tile);
    EXPECT_ERROR(s.at(scaled, tile), "'scaled' cannot follow 'y' here: it reads more of 'largest' than one iteration");
}

/// Of all columns, where a loop around leads to some of them.
TEST(FollowersBesideErrors, TellOfPartsOfRows) {
    const Flattened p(3, 16, 1, 24, 8, 4);
    const Axis r = reduce_axis("r", 8), j = reduce_axis("j", p.columns);
    const Tensor peak = compute("peak", {p.made() / 8}, [&](Expr q) {
        return reduce_max(p.sums(q * 8 + r, j), {r, j});
    });
    for (const int64_t columns : {8, 4}) {
        Schedule s({p.y, peak}, target("sm_90a"));
        auto [n, t, f] = s.loops<3>(p.y);
        auto [tile, row] = s.split(s.fuse(n, t), p.rows, Tail::Mask, {"tile", "row"});
        auto [block, column] = s.split(f, columns, {"block", "column"});
        s.order({tile, block, row, column});
        if (columns == 8)
            s.at(peak, block);
        else
            EXPECT_ERROR(s.at(peak, block),
                         "'peak' cannot follow 'y' here: of what both read it needs all along dimension 2 of 'y'");
    }
}

/// Beside the block of an iteration, elements that another one makes: of the leader, or of a stage beside.
TEST(FollowersBesideErrors, TellOfElementsElsewhere) {
    const Flattened p(3, 16, 1, 24, 8, 4);
    const Axis r = reduce_axis("r", 8);
    const Tensor largest = compute("largest", {p.made() / 8, p.columns},
                                   [&](Expr q, Expr j) { return reduce_max(p.sums(q * 8 + r, j), r); });
    const Tensor copy = compute("copy", {3, 16, p.columns}, [&](Expr n, Expr t, Expr j) { return p.y(n, t, j) + 1.0; });
    for (const Tensor& elsewhere : {p.y, copy}) {
        const Tensor first = compute("first", {p.made() / 8, p.columns},
                                     [&](Expr q, Expr j) { return largest(q, j) + elsewhere(0, 0, j); });
        Schedule s({p.y, copy, largest, first}, target("sm_90a"));
        const Loop tile = p.tiled(s);
        s.at(copy, tile);
        s.at(largest, tile);
        EXPECT_ERROR(s.at(first, tile), "'first' cannot follow 'y' here: it reads more of dimension 0 of 'y'");
    }
}

/// What the leader stands behind, too.
TEST(FollowersBesideErrors, TellOfTilesElsewhere) {
    const Tensor x = input("x", f32, {256, 8});
    const Tensor y = compute("y", {256, 8}, [&](Expr i, Expr j) { return x(i, j) * 2.0; });
    const Axis r = reduce_axis("r", 32);
    const Tensor sums = compute("sums", {8, 8}, [&](Expr q, Expr j) { return sum(y(q * 32 + r, j), r); });
    for (const bool is_own : {true, false}) {
        const Tensor after =
            compute("after", {8, 8}, [&](Expr q, Expr j) { return sums(q, j) + y(is_own ? q * 32 : (7 - q) * 32, j); });
        Schedule s({y, sums, after}, target("sm_90a"));
        const Loop tile = s.split(s.loops<2>(y)[0], 32, {"tile", "row"})[0];
        s.at(sums, tile);
        if (is_own)
            s.at(after, s.loops<2>(sums)[1]);
        else
            EXPECT_ERROR(s.at(after, s.loops<2>(sums)[1]),
                         "'after' cannot follow 'y' here: it reads more of dimension 0 of 'y'");
    }
}

/// Every other element of two rows is made in an iteration, not the two that a sum needs.
TEST(FollowersBesideErrors, BlocksThatSeveralIterationsMakeAreRefused) {
    const Tensor x = input("x", f32, {8, 17});
    const Tensor y = compute("y", {8, 17}, [&](Expr i, Expr j) { return max(x(i, j), -1.0); });
    const Axis t = reduce_axis("t", 2);
    const Tensor sums = compute("sums", {4, 17}, [&](Expr i, Expr j) { return sum(y(i * 2 + t, j), t); });
    Schedule s({sums}, target("sm_90a"));
    auto [i, j] = s.loops<2>(y);
    auto [v, inner] = s.split(s.fuse(i, j), 2, Tail::Mask, {"v", "inner"});
    s.order({inner, v});
    EXPECT_ERROR(s.at(sums, inner), "'sums' cannot follow 'y' here: it reads more of dimension 0 of 'y'");
}

}  // namespace
}  // namespace tw
