// Reductions over blocks of a tile, made while the tile is there: column sums, largest magnitudes, scales of blocks.
// Whole numbers, bit for bit.
#include "tests/ops/random_cases.h"
#include "tests/ops/whole_numbers.h"

namespace tw {
namespace {

class TileReductions : public RandomCases {
protected:
    TileReductions() : RandomCases(31) {}
};
TW_ON_EACH_DEVICE(TileReductions);

/// y, made of a product, and its tiles of `rows` x `columns`, which stay in shared memory for those who follow.
struct Tiled {
    Tensor a, b, y;
    int64_t rows, columns;

    Tiled(int64_t m, int64_t n, int64_t k, int64_t rows, int64_t columns)
        : a(input("a", bf16, {m, k})), b(input("b", bf16, {n, k})), rows(rows), columns(columns) {
        Tensor bias = input("bias", f32, {n});
        Axis r = reduce_axis("r", k);
        y = compute("y", {m, n}, [&](Expr i, Expr j) {
            return cast(bf16, relu(sum(cast(f32, a(i, r)) * cast(f32, b(j, r)), r) + bias(j)));
        });
    }

    int64_t m() const { return *as_constant(y.shape()[0]); }
    int64_t n() const { return *as_constant(y.shape()[1]); }

    struct Loops {
        Loop tile, ko, mi, nj, ki;
    };
    Loops tiled(Schedule& s, bool groups, bool persistent) const {
        auto [i, j] = s.loops<2>(y);
        auto [bi, it] = s.split(i, rows, Tail::Mask);
        auto [bj, nj] = s.split(j, columns, Tail::Mask);
        auto [wi, mi] = s.split(it, groups ? 64 : 16);
        auto [ko, ki] = s.split(s.reduce(y), 32, Tail::Mask);
        s.order({bi, bj, wi, ko, mi, nj, ki});
        if (persistent) {
            s.persistent({bi, bj}, {.blocks = 3});
        } else {
            s.bind(bi, grid.y);
            s.bind(bj, grid.x);
        }
        s.bind(wi, groups ? warpgroup : warp);
        return {bj, ko, mi, nj, ki};
    }
    void multiplied(Schedule& s, const Loops& l, bool groups, bool roles) const {
        s.stage(y, Memory::Shared, l.tile);
        Stage as = s.stage(y, a, Memory::Shared, l.ko), bs = s.stage(y, b, Memory::Shared, l.ko);
        s.mma(y, groups ? wgmma : mma_sync, {.m = l.mi, .n = l.nj, .k = l.ki});
        s.pipeline(l.ko, {.stages = 3});
        if (roles)
            s.roles({{"load", warps(1), {}, {as, bs}}, {"math", warpgroups(static_cast<int>(rows / 64)), {}, {y}}});
    }
};

// As a layer's backward pass wants them: the gradient of the bias, and how large a number eight bits must hold.
TEST_P(TileReductions, ColumnSumsAndLargestMagnitude) {
    for (int round = 0; round < 8; ++round) {
        bool groups = round % 2 == 0, roles = round % 4 == 0;
        Tiled p(between(1, 300), 8 * between(1, 20), 8 * between(1, 9),
                groups ? 64 * between(1, 2) : 16 * between(1, 3), 8 * between(1, 8));
        Axis i = reduce_axis("i", p.m()), i2 = reduce_axis("i2", p.m()), j2 = reduce_axis("j2", p.n());
        Tensor sums = compute("sums", {p.n()}, [&](Expr j) { return sum(cast(f32, p.y(i, j)), i); });
        Tensor largest = compute("largest", {}, [&](const std::vector<Expr>&) {
            return reduce_max(abs(cast(f32, p.y(i2, j2))), {i2, j2});
        });
        std::vector<Tensor> outputs{p.y, sums, largest};
        Schedule s(outputs, device_target());
        // Parts, one a tile, which the tile's own threads make; then what is left of the reductions.
        Stage sums_of_tile = s.rfactor(sums, s.split(s.reduce(sums), p.rows, Tail::Mask)[0]);
        Loop ri = s.reduce(largest, 0), rj = s.reduce(largest, 1);
        auto [rbi, rit] = s.split(ri, p.rows, Tail::Mask);
        auto [rbj, rjt] = s.split(rj, p.columns, Tail::Mask);
        Stage rows_of_tiles = s.rfactor(largest, rbi);
        Stage largest_of_tile = s.rfactor(rows_of_tiles, rbj);
        Tiled::Loops l = p.tiled(s, groups, chance());
        s.at(sums_of_tile, l.tile);
        s.at(largest_of_tile, l.tile);
        s.bind(s.loops<2>(sums_of_tile)[1], thread);
        p.multiplied(s, l, groups, roles);
        SCOPED_TRACE(s.trace_as_cpp());
        expect_declared(s, whole_numbers(outputs, round));
        EXPECT_EQ(replay(s.save(), outputs, device_target()).to_string(), s.to_string());
    }
}

// Quotients by the largest of a block, which stays in the kernel: as numbers of eight bits with a scale each block.
TEST_P(TileReductions, ScalesOfBlocks) {
    for (int round = 0; round < 6; ++round) {
        bool groups = round % 2 == 0;
        int64_t block = int64_t{16} << between(0, 1), rows = groups ? 64 : 32;
        Tiled p(rows * between(1, 4), block * between(1, 5), 8 * between(1, 9), rows, block * between(1, 2));
        Axis u = reduce_axis("u", block), v = reduce_axis("v", block);
        Tensor scale = compute("scale", {p.m() / block, p.n() / block}, [&](Expr i, Expr j) {
            return reduce_max(cast(f32, p.y(i * block + u, j * block + v)), {u, v}) + 1.0;
        });
        Tensor z = compute("z", {p.m(), p.n()}, [&](Expr i, Expr j) {
            return cast(bf16, cast(f32, p.y(i, j)) / scale(i / block, j / block));
        });
        std::vector<Tensor> outputs{p.y, scale, z};
        Schedule s(outputs, device_target());
        Tiled::Loops l = p.tiled(s, groups, chance());
        s.at(scale, l.tile);
        s.at(z, l.tile);
        p.multiplied(s, l, groups, groups && chance());
        SCOPED_TRACE(s.trace_as_cpp());
        expect_declared(s, whole_numbers(outputs, round));
    }
}

// What no tile has as a whole is refused.
TEST_P(TileReductions, BlocksThatTilesCutAreRefused) {
    Tiled p(256, 64, 32, 64, 64);
    for (int64_t block : {96, 128, 48}) {
        Axis t = reduce_axis("t", block);
        Tensor sums = compute("sums", {256 / block, 64},
                              [&](Expr q, Expr j) { return sum(cast(f32, p.y(q * block + t, j)), t); });
        Schedule s({p.y, sums}, device_target());
        Tiled::Loops l = p.tiled(s, true, false);
        std::string before = s.to_string();
        try {
            s.at(sums, l.tile);
            FAIL() << block << "\n" << s.to_string();
        } catch (const Error& error) {
            EXPECT_NE(std::string(error.what()).find("reads more of dimension 0"), std::string::npos) << error.what();
        }
        EXPECT_EQ(s.to_string(), before);
    }
}

}  // namespace
}  // namespace tw
