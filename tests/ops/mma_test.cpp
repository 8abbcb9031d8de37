// Matrix instructions for computations of many forms: whole numbers, whose sums are exact in every order, bit for bit.
#include <cstring>

#include "tests/ops/random_cases.h"
#include "tests/ops/warp_tiles.h"
#include "tests/ops/whole_numbers.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

class Mma : public RandomCases {
protected:
    Mma() : RandomCases(7) {}
};
TW_ON_EACH_DEVICE(Mma);

/// An operand that the unit reads as `type`: tf32 lies in f32.
Tensor operand(const std::string& name, Type type, const Shape& shape) {
    return input(name, type == tf32 ? f32 : type, shape);
}
Expr factor(Type type, const Expr& element) {
    return type == tf32 ? truncate_tf32(element) : cast(type == i8 ? i32 : f32, element);
}

/// Whole numbers; those of f32 have bits behind them that tf32 lacks.
Bindings operands(const Tensor& output, Type type, unsigned seed) {
    Bindings bindings = whole_numbers({output}, seed);
    std::mt19937 random(seed);
    for (auto& [name, array] : bindings.inputs)
        for (size_t at = 0; type == tf32 && at < array.bytes.size(); at += sizeof(uint32_t)) {
            uint32_t bits;
            std::memcpy(&bits, array.bytes.data() + at, sizeof bits);
            if (bits << 1) bits |= random() % (1 << 13);
            std::memcpy(array.bytes.data() + at, &bits, sizeof bits);
        }
    return bindings;
}

TEST_P(Mma, ProductsOfEveryTypeAndTransposition) {
    const Type types[] = {bf16, f16, i8, e4m3, e5m2, tf32};
    for (int round = 0; round < 30; ++round) {
        Type type = types[round % 6];
        int64_t m = between(1, 150), n = between(1, 130), k = between(1, 200);
        bool ta = chance(), tb = chance();
        Tensor a = ta ? operand("a", type, {k, m}) : operand("a", type, {m, k});
        Tensor b = tb ? operand("b", type, {n, k}) : operand("b", type, {k, n});
        Axis r = reduce_axis("r", k);
        Tensor c = compute("c", {m, n}, [&](Expr i, Expr j) {
            Expr x = factor(type, ta ? a(r, i) : a(i, r)), y = factor(type, tb ? b(j, r) : b(r, j));
            return sum(chance() ? x * y : y * x, r);
        });
        Schedule s({c}, device_target());
        WarpTiles tiles{.block_m = 32 << between(0, 1), .block_n = 32 << between(0, 1), .block_k = 32 << between(0, 1)};
        tiles.warp_m = 16 << between(0, 1);
        tiles.warp_n = 8 << between(0, 2);
        if (type == tf32 && round % 4 == 1) tiles.block_k = 12;  // by instructions of four
        auto [ko, loops] = tile_for_warps(s, c, tiles);
        s.stage(c, a, Memory::Shared, ko);
        s.stage(c, b, Memory::Shared, ko);
        s.mma(c, mma_sync, loops);
        if (int stages = between(1, 4); stages > 1) s.pipeline(ko, {.stages = stages});
        SCOPED_TRACE(s.trace_as_cpp());
        EXPECT_EQ(replay(s.save(), {c}, device_target()).to_string(), s.to_string());
        expect_declared(s, operands(c, type, round));
        if (type != tf32) continue;
        bool by_matrices = build(s).cuda().find("tw::ldmatrix") != std::string::npos;
        EXPECT_EQ(by_matrices, !ta || tb) << "of elements that lie along k";
    }
}

/// Tiles of a product for warpgroups of 64 rows each.
std::pair<Loop, MmaLoops> tile_for_warpgroups(Schedule& s, const Tensor& c, int64_t block_m, int64_t block_n,
                                              int64_t block_k) {
    std::vector<Loop> data = s.data_loops(c), order(data.begin(), data.end() - 2);
    auto [bi, it] = s.split(data[data.size() - 2], block_m, Tail::Mask);
    auto [bj, nj] = s.split(data.back(), block_n, Tail::Mask);
    auto [wi, mi] = s.split(it, 64);
    auto [ko, ki] = s.split(s.reduce(c), block_k, Tail::Mask);
    for (Loop loop : {bi, bj, wi, ko, mi, nj, ki}) order.push_back(loop);
    s.order(order);
    for (size_t d = 0; d + 2 < data.size(); ++d) s.bind(data[d], grid.z);
    s.bind(bi, grid.y);
    s.bind(bj, grid.x);
    s.bind(wi, warpgroup);
    return {ko, {mi, nj, ki}};
}

TEST_P(Mma, ProductsByWarpgroups) {
    const Type types[] = {bf16, f16, i8, e4m3, e5m2, tf32};
    int by_tma = 0;
    for (int round = 0; round < 20; ++round) {
        Type type = types[round % 6];
        bool pairs = bytes_of(type) == 2, ta = pairs && chance(), tb = !pairs || chance();  // others are not transposed
        int64_t m = between(1, 150), n = between(1, 130), k = between(1, 200);
        if (chance()) m = (m + 15) / 16 * 16, n = (n + 15) / 16 * 16, k = (k + 15) / 16 * 16;  // rows as TMA wants them
        Tensor a = ta ? operand("a", type, {k, m}) : operand("a", type, {m, k});
        Tensor b = tb ? operand("b", type, {n, k}) : operand("b", type, {k, n});
        Axis r = reduce_axis("r", k);
        Tensor c = compute("c", {m, n}, [&](Expr i, Expr j) {
            return sum(factor(type, ta ? a(r, i) : a(i, r)) * factor(type, tb ? b(j, r) : b(r, j)), r);
        });
        Schedule s({c}, device_target());
        int64_t block_n = 16 * between(1, 4), block_k = 32 / bytes_of(type) << between(0, 2);
        auto [ko, loops] = tile_for_warpgroups(s, c, 64 << between(0, 1), block_n, block_k);
        s.stage(c, a, Memory::Shared, ko);
        s.stage(c, b, Memory::Shared, ko);
        s.mma(c, wgmma, loops);
        if (int stages = between(1, 4); stages > 1) s.pipeline(ko, {.stages = stages});
        SCOPED_TRACE(s.trace_as_cpp());
        expect_declared(s, operands(c, type, round));
        if (round % 5 == 0) expect_compiles(build(s));
        by_tma += build(s).cuda().find("tw::tma_load(") != std::string::npos;
    }
    EXPECT_GT(by_tma, 3);
    EXPECT_LT(by_tma, 17);
}

// Copies of f32 elements that hold narrower ones: the nearest tf32, or bf16, of which truncation leaves all.
TEST_P(Mma, CopiesRoundedToTf32) {
    Tensor a = input("a", f32, {70, 90}), b = input("b", f32, {50, 90});
    Axis r = reduce_axis("r", 90);
    for (Type type : {tf32, bf16}) {
        auto factor = [&](const Expr& x) { return type == tf32 ? x : truncate_tf32(x); };
        Tensor c = compute("c", {70, 50}, [&](Expr i, Expr j) { return sum(factor(a(i, r)) * factor(b(j, r)), r); });
        for (MatrixUnit unit : {mma_sync, wgmma}) {
            Schedule s({c}, device_target());
            auto [ko, loops] = unit == wgmma ? tile_for_warpgroups(s, c, 64, 48, 32) : tile_for_warps(s, c, {});
            for (const Tensor& x : {a, b}) s.round_to(s.stage(c, x, Memory::Shared, ko), type);
            s.mma(c, unit, loops);
            s.pipeline(ko, {.stages = 2});
            EXPECT_EQ(s.roundings(), (std::vector<Type>{type, type}));
            expect_declared(s, whole_numbers({c}, 5));
            Bindings bindings = random_bindings({c}, 6);
            Executable executable(build(s), device_);
            CheckResult check =
                check_output(c, bindings, run_on(executable, bindings)[0], {.roundings = s.roundings()});
            EXPECT_TRUE(check.ok) << check.text;
            EXPECT_GT(check.error, 1e-6) << "they were not rounded";
        }
    }
}

// Without matrix instructions: boxes of a table, added up.
TEST_P(Mma, BoxesForSimt) {
    constexpr int64_t Rows = 100, Columns = 96;
    Tensor x = input("x", f32, {Rows, Columns});
    Axis r = reduce_axis("r", Rows);
    Tensor y = compute("y", {Columns}, [&](Expr j) { return sum(x(r, j), r); });
    for (int stages : {2, 3, 4}) {
        Schedule s({y}, device_target());
        auto [j] = s.loops<1>(y);
        auto [jo, ji] = s.split(j, 64, Tail::Mask);
        auto [ro, ri] = s.split(s.reduce(y), 8, Tail::Mask);
        s.order({jo, ji, ro, ri});
        s.bind(jo, grid.x);
        s.bind(ji, thread);
        Stage copy = s.stage(y, x, Memory::Shared, ro);
        s.pipeline(ro, {.stages = stages});
        s.via(copy, Copy::Tma);
        EXPECT_NE(build(s).cuda().find("tw::tma_load("), std::string::npos);
        expect_declared(s, whole_numbers({y}, stages));
    }
}

// Boxes that leave: transposed blocks of a batch, some of them cut by the tensor's end, as several blocks in turn
// make them.
TEST_P(Mma, BoxesOfResults) {
    int64_t swizzled = 0;
    for (int round = 0; round < 8; ++round) {
        Type type = round % 2 ? bf16 : f32;
        int64_t unit = 16 / bytes_of(type), rows = unit * between(1, 20), columns = between(1, 100);
        int64_t tile_rows = unit * between(1, 9), tile_columns = round < 2 ? 1 : 8 * between(1, 5);
        Tensor x = input("x", type, {3, rows, columns});
        Tensor y = compute("y", {3, columns, rows}, [&](Expr b, Expr j, Expr i) { return x(b, i, j); });
        Schedule s({y}, device_target());
        auto [b, j, i] = s.loops<3>(y);
        auto [jo, ji] = s.split(j, tile_columns, Tail::Mask);
        auto [io, ii] = s.split(i, tile_rows, Tail::Mask);
        s.order({b, jo, io, ji, ii});
        s.persistent({b, jo, io}, {.blocks = between(1, 5)});
        Stage out = s.stage(y, Memory::Shared, io);
        s.via(out, Copy::Tma);
        SCOPED_TRACE(s.trace_as_cpp());
        std::string cuda = build(s).cuda();
        EXPECT_NE(cuda.find("tw::tma_store(y_map"), std::string::npos) << cuda;
        swizzled += cuda.find("tw::swizzle<") != std::string::npos;
        EXPECT_EQ(replay(s.save(), {y}, device_target()).to_string(), s.to_string());
        expect_declared(s, whole_numbers({y}, round));
    }
    EXPECT_GT(swizzled, 0);
}

// What a user might bring: batches, a factor computed on the way, a masked and capped result in two outputs' types.
TEST_P(Mma, AComputationOfOnesOwn) {
    constexpr int64_t B = 2, I = 70, J = 90, K = 100;
    Tensor x = input("x", bf16, {B, I, K}), g = input("g", bf16, {K}), y = input("y", bf16, {B, K, J});
    Axis k = reduce_axis("k", K);
    Tensor xg = compute("xg", {B, I, K},
                        [&](Expr b, Expr i, Expr r) { return cast(bf16, cast(f32, x(b, i, r)) * cast(f32, g(r))); });
    Tensor z = compute("z", {B, I, J}, [&](Expr b, Expr i, Expr j) {
        Expr capped = min(max(sum(cast(f32, xg(b, i, k)) * cast(f32, y(b, k, j)), k), -50.0), 50.0);
        return select(j <= i, capped, constant(f32, -1.0));
    });
    for (MatrixUnit unit : {mma_sync, wgmma}) {
        Schedule s({z}, device_target());
        auto [ko, loops] = unit == wgmma ? tile_for_warpgroups(s, z, 64, 48, 32) : tile_for_warps(s, z, {});
        s.at(xg, ko);
        s.set_memory(xg, Memory::Shared);
        s.stage(z, y, Memory::Shared, ko);
        s.mma(z, unit, loops);
        s.pipeline(ko, {.stages = 2});
        expect_declared(s, whole_numbers({z}, 5));
    }
}

// A convolution along rows: its window in shared memory is read at shifted rows.
TEST_P(Mma, AConvolution) {
    constexpr int64_t N = 3, W = 50, C = 40, F = 24, T = 3;
    Tensor x = input("x", f16, {N, W + T - 1, C}), w = input("w", f16, {F, T, C});
    Axis t = reduce_axis("t", T), c = reduce_axis("c", C);
    Tensor y = compute("y", {N, W, F}, [&](Expr n, Expr p, Expr f) {
        return sum(cast(f32, x(n, p + t, c)) * cast(f32, w(f, t, c)), {t, c});
    });
    Schedule s({y}, device_target());
    auto [n, p, f] = s.loops<3>(y);
    auto [po, pi] = s.split(p, 32, Tail::Mask);
    auto [fo, fi] = s.split(f, 16, Tail::Mask);
    auto [wp, mi] = s.split(pi, 16);
    auto [co, ci] = s.split(s.reduce(y, 1), 16, Tail::Mask);
    s.order({n, po, fo, wp, co, s.reduce(y, 0), mi, fi, ci});
    s.bind(n, grid.z);
    s.bind(po, grid.y);
    s.bind(fo, grid.x);
    s.bind(wp, warp);
    s.stage(y, x, Memory::Shared, co);
    s.stage(y, w, Memory::Shared, co);
    s.mma(y, mma_sync, {.m = mi, .n = fi, .k = ci});
    expect_declared(s, whole_numbers({y}, 9));
}

// Another stage reads the sums from registers: its loops are shared among lanes as the instruction left them.
TEST_P(Mma, EpiloguesOfTheirOwnStages) {
    constexpr int64_t M = 96, N = 80, K = 64;
    Tensor a = input("a", bf16, {M, K}), b = input("b", bf16, {N, K}), bias = input("bias", f32, {N});
    Axis k = reduce_axis("k", K);
    Tensor c = compute("c", {M, N}, [&](Expr i, Expr j) { return sum(cast(f32, a(i, k)) * cast(f32, b(j, k)), k); });
    Tensor y = compute("y", {M, N}, [&](Expr i, Expr j) { return cast(bf16, max(c(i, j) + bias(j), 0.0)); });
    for (Memory memory : {Memory::Registers, Memory::Shared}) {
        Schedule s({y}, device_target());
        auto [i, j] = s.loops<2>(y);
        auto [bi, it] = s.split(i, 32);
        auto [bj, jt] = s.split(j, 16);
        auto [wi, im] = s.split(it, 16);
        s.order({bi, bj, wi, im, jt});
        s.bind(bi, grid.y);
        s.bind(bj, grid.x);
        s.bind(wi, warp);
        s.at(c, wi);
        s.set_memory(c, memory);
        auto [ci, cj] = s.loops<2>(c);
        auto [ko, ki] = s.split(s.reduce(c), 32);
        s.order({ko, ci, cj, ki});
        s.stage(c, a, Memory::Shared, ko);
        s.stage(c, b, Memory::Shared, ko);
        s.mma(c, mma_sync, {ci, cj, ki});
        expect_declared(s, whole_numbers({y}, 11));
    }
}

}  // namespace
}  // namespace tw
