// Matrix instructions for computations of many forms: whole numbers, whose sums are exact in every order, bit for bit.
#include <cstring>

#include "tests/ops/random_cases.h"
#include "tests/ops/whole_numbers.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

class Mma : public RandomCases {
protected:
    Mma() : RandomCases(7) {}
};
TW_ON_EACH_DEVICE(Mma);

/// Tiles of a product c[..., i, j] over the reduce loop, for warps of warp_m x warp_n elements.
struct WarpTiles {
    int64_t block_m = 64, block_n = 64, block_k = 32, warp_m = 32, warp_n = 32;
    int stages = 3;
};

/// Returns the loop over the tiles of k, and the instruction's loops.
std::pair<Loop, MmaLoops> tile_for_warps(Schedule& s, const Tensor& c, const WarpTiles& t) {
    std::vector<Loop> data = s.data_loops(c), order(data.begin(), data.end() - 2);
    auto [bi, it] = s.split(data[data.size() - 2], t.block_m, Tail::Mask);
    auto [bj, jt] = s.split(data.back(), t.block_n, Tail::Mask);
    auto [wi, mi] = s.split(it, t.warp_m);
    auto [wj, nj] = s.split(jt, t.warp_n);
    auto [ko, ki] = s.split(s.reduce(c), t.block_k, Tail::Mask);
    for (Loop loop : {bi, bj, wi, wj, ko, mi, nj, ki}) order.push_back(loop);
    s.order(order);
    for (size_t d = 0; d + 2 < data.size(); ++d) s.bind(data[d], grid.z);
    s.bind(bi, grid.y);
    s.bind(bj, grid.x);
    s.bind(wi, warp);
    s.bind(wj, warp);
    return {ko, {mi, nj, ki}};
}

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

/// A product of bf16 whose loops are ready for mma.
struct Ready {
    explicit Ready(const std::string& arch = "sm_90a") : s({c}, target(arch)) {
        auto [i, j] = s.loops<2>(c);
        auto [io, ii] = s.split(i, 16);
        auto [jo, ji] = s.split(j, 8);
        auto [ko, ki] = s.split(s.reduce(c), 16);
        s.order({io, jo, ko, ii, ji, ki});
        loops = {ii, ji, ki};
        outer = {io, jo, ko};
    }
    Tensor a = input("a", bf16, {64, 64}), b = input("b", bf16, {64, 64});
    Axis k = reduce_axis("k", 64);
    Tensor c = compute("c", {64, 64}, [&](Expr i, Expr j) { return sum(cast(f32, a(i, k)) * cast(f32, b(j, k)), k); });
    Schedule s;
    MmaLoops loops, outer;
};

TEST(MmaErrors, SayWhatDoesNotFit) {
    Ready r;
    EXPECT_ERROR(r.s.mma(r.c, mma_sync, {r.loops.m, Loop(), r.loops.k}), ".n is missing; name three loops");
    EXPECT_ERROR(r.s.mma(r.c, mma_sync, {r.loops.k, r.loops.n, r.loops.m}),
                 "m and n must be loops of the result, k one of");
    EXPECT_ERROR(r.s.mma(r.c, mma_sync, {r.outer.m, r.loops.n, r.loops.k}),
                 "are not its innermost ones; order them last");
    r.s.bind(r.loops.m, thread);
    EXPECT_ERROR(r.s.mma(r.c, mma_sync, r.loops), "is bound to thread; the instruction runs it itself");
    r.s.bind(r.loops.m, serial);
    r.s.bind(r.outer.m, thread);
    EXPECT_ERROR(r.s.mma(r.c, mma_sync, r.loops), "but whole warps work on it; bind it to warp");
    r.s.bind(r.outer.m, serial);
    r.s.mma(r.c, mma_sync, r.loops);
    EXPECT_ERROR(r.s.split(r.loops.m, 8), "is run by a matrix instruction; split it before mma");
}

TEST(MmaErrors, OfFormsAndTypes) {
    Axis k = reduce_axis("k", 16);
    auto attempt = [&](Type x, Type y, const std::function<Expr(Expr, Expr)>& term, const std::string& arch = "sm_90a",
                       bool entangled = false) {
        Tensor a = input("a", x, {32, 16}), b = input("b", y, {8, 16});
        Tensor c =
            compute("c", {16, 8}, [&](Expr i, Expr j) { return sum(term(a(entangled ? i + j : i, k), b(j, k)), k); });
        Schedule s({c}, target(arch));
        auto [i, j] = s.loops<2>(c);
        s.order({s.reduce(c), i, j});
        s.mma(c, mma_sync, {i, j, s.reduce(c)});
    };
    auto product = [](Expr x, Expr y) { return cast(f32, x) * cast(f32, y); };
    attempt(bf16, bf16, product);
    EXPECT_ERROR(attempt(bf16, bf16, [](Expr x, Expr y) { return cast(f32, x) + cast(f32, y); }),
                 "its terms are no products of two elements");
    EXPECT_ERROR(attempt(bf16, bf16, [](Expr x, Expr y) { return exp(cast(f32, x)) * cast(f32, y); }),
                 "compute what stands around them in stages of their own");
    EXPECT_ERROR(attempt(bf16, bf16, product, "sm_90a", true), "it must depend on 'i' and 'k', and not on 'j'");
    EXPECT_ERROR(attempt(bf16, f16, product), "its factors are bf16 and f16; no instruction multiplies these");
    auto bare_product = [](Expr x, Expr y) { return x * y; };
    EXPECT_ERROR(attempt(f32, f32, bare_product), "write truncate_tf32(x) of both, or round the stages");
    EXPECT_ERROR(attempt(f32, bf16, product), "its factors are f32 and bf16; of f32 it multiplies the first 10 bits");
    EXPECT_ERROR(attempt(f64, f64, bare_product), "no instruction multiplies f64 to sums of f64");
    EXPECT_ERROR(attempt(e4m3, e4m3, product, "sm_80"), "needs sm_89, the target is sm_80");
    EXPECT_ERROR(attempt(i8, i8, [](Expr x, Expr y) { return cast(i32, x) * cast(i32, y); }),
                 "which must be multiples");
}

TEST(MmaErrors, OfLoops) {
    Ready r;
    r.s.bind(r.outer.m, warpgroup);
    EXPECT_ERROR(r.s.bind(r.outer.n, warp), "a warpgroup has 4 warps; bind them to warp alone");
    Tensor d = compute("d", {64, 64}, [&](Expr i, Expr j) { return r.c(i, j) + 1.0; });
    Schedule two({d}, target("sm_90a"));
    EXPECT_ERROR(two.mma(r.c, mma_sync, {two.loops<2>(d)[0], two.loops<2>(r.c)[1], two.reduce(r.c)}), "belongs to 'd'");
}

/// A product of 64 x 64 x 32 of these operands, staged or not, by wgmma.
void build_by_warpgroup(const Tensor& a, const Tensor& b, int64_t n,
                        const std::function<Expr(Expr, Expr, const Axis&)>& term, bool staged = true) {
    Axis k = reduce_axis("k", 64);
    Tensor c = compute("c", {64, n}, [&](Expr i, Expr j) { return sum(term(i, j, k), k); });
    Schedule s({c}, target("sm_90a"));
    auto [i, j] = s.loops<2>(c);
    auto [ko, ki] = s.split(s.reduce(c), 32);
    s.order({ko, i, j, ki});
    if (staged) s.stage(c, a, Memory::Shared, ko);
    if (staged && !a.same(b)) s.stage(c, b, Memory::Shared, ko);
    s.mma(c, wgmma, {i, j, ki});
    build(s);
}

TEST(MmaErrors, OfWhatWarpgroupsRead) {
    auto f = [](Expr x) { return cast(f32, x); };
    Tensor a = input("a", bf16, {64, 64}), b = input("b", bf16, {64, 64}), thick = input("a", bf16, {64, 64, 2}),
           narrow = input("b", bf16, {64, 8}), bytes = input("a", i8, {64, 64}), other = input("b", i8, {64, 64}),
           cube = input("a", bf16, {64, 8, 64});
    build_by_warpgroup(a, b, 64, [&](Expr i, Expr j, const Axis& k) { return f(a(i, k)) * f(b(j, k)); });
    EXPECT_ERROR(build_by_warpgroup(
                     a, b, 64, [&](Expr i, Expr j, const Axis& k) { return f(a(i, k)) * f(b(j, k)); }, false),
                 "reads its operands from shared memory, but 'a' is in global; stage it");
    EXPECT_ERROR(build_by_warpgroup(
                     a, b, 64, [&](Expr i, Expr j, const Axis& k) { return f(a(i, k)) * f(b(j, k)); }, false),
                 "mma_test.cpp:");  // the step's line
    EXPECT_ERROR(
        build_by_warpgroup(thick, b, 64, [&](Expr i, Expr j, const Axis& k) { return f(thick(i, k, 0)) * f(b(j, k)); }),
        "with neighbours along rows, columns or k; stage it so");
    EXPECT_ERROR(build_by_warpgroup(
                     bytes, other, 64,
                     [&](Expr i, Expr j, const Axis& k) { return cast(i32, bytes(k, i)) * cast(i32, other(j, k)); }),
                 "with neighbours along k; transpose it in memory");
    EXPECT_ERROR(
        build_by_warpgroup(a, narrow, 8, [&](Expr i, Expr j, const Axis& k) { return f(a(i, k)) * f(narrow(k, j)); }),
        "reads lines of 32, 64 or 128 bytes in groups of eight");
    EXPECT_ERROR(build_by_warpgroup(cube, cube, 8,
                                    [&](Expr i, Expr j, const Axis& k) { return f(cube(i, 0, k)) * f(cube(0, j, k)); }),
                 "in two layouts; stage a copy for each");
    EXPECT_ERROR(build_by_warpgroup(
                     a, b, 64, [&](Expr i, Expr j, const Axis& k) { return f(padded(a, 0)(i - 1, k)) * f(b(j, k)); }),
                 "its terms are no products of two elements");
    EXPECT_ERROR(
        build_by_warpgroup(a, b, 64, [&](Expr i, Expr j, const Axis& k) { return f(a(i / 2, k)) * f(b(j, k)); }),
        "which does not step evenly with the tile");
}

TEST(MmaErrors, OfTwoUnitsAndTwoWays) {
    Axis r = reduce_axis("r", 32), k = reduce_axis("k", 64);
    Tensor a = input("a", bf16, {64, 32}), b = input("b", bf16, {64, 32}), d = input("d", bf16, {64, 64});
    Tensor p = compute("p", {64, 64},
                       [&](Expr i, Expr j) { return cast(bf16, sum(cast(f32, a(i, r)) * cast(f32, b(j, r)), r)); });
    Tensor z = compute("z", {64, 64}, [&](Expr i, Expr j) { return sum(cast(f32, p(i, k)) * cast(f32, d(j, k)), k); });
    Schedule s({z}, target("sm_90a"));
    auto [i, j] = s.loops<2>(z);
    auto [io, ii] = s.split(i, 64);
    s.order({io, s.reduce(z), ii, j});
    s.at(p, io);
    s.set_memory(p, Memory::Shared);
    s.stage(z, d, Memory::Shared, io);
    auto [pi, pj] = s.loops<2>(p);
    EXPECT_ERROR(s.mma(p, mma_sync, {pi, pj, s.reduce(p)}),
                 "a loop of the reduction must stand outside of 'i' and 'j', so that all sums of a tile are kept: "
                 "order({r, i, j})");
    s.order({s.reduce(p), pi, pj});
    s.mma(p, mma_sync, {pi, pj, s.reduce(p)});
    s.mma(z, wgmma, {ii, j, s.reduce(z)});
    EXPECT_ERROR(build(s), "uses both mma_sync and wgmma; use one matrix unit in a kernel");

    Tensor y = compute("y", {64, 64},
                       [&](Expr row, Expr column) { return cast(f32, p(row, column)) + cast(f32, p(column, row)); });
    Schedule both({y}, target("sm_90a"));
    auto [yi, yj] = both.loops<2>(y);
    auto [yo, y_inner] = both.split(yi, 64);
    both.order({yo, y_inner, yj});
    both.at(p, yo);
    both.set_memory(p, Memory::Registers);
    auto [qi, qj] = both.loops<2>(p);
    both.order({both.reduce(p), qi, qj});
    both.mma(p, mma_sync, {qi, qj, both.reduce(p)});
    EXPECT_ERROR(build(both), "meets registers that lanes share as rows and such that they share as columns");
}

TEST(Tma, IsAPromise) {
    auto attempt = [](int64_t columns, int stages, const std::string& arch = "sm_90a", bool shared_out = false) {
        Tensor x = input("x", f32, {64, columns});
        Axis r = reduce_axis("r", 64);
        Tensor y = compute("y", {64}, [&](Expr j) { return sum(x(r, j), r); });
        Schedule s({y}, target(arch));
        auto [ro, ri] = s.split(s.reduce(y), 8, Tail::Mask);
        auto [j] = s.loops<1>(y);
        s.order({j, ro, ri});
        s.bind(j, thread);
        Stage copy = s.stage(y, x, Memory::Shared, ro);
        if (shared_out) s.bind(s.loops<2>(copy)[0], thread);
        if (stages > 1) s.pipeline(ro, {.stages = stages});
        s.via(copy, Copy::Tma);
        build(s);
    };
    attempt(64, 2);
    EXPECT_ERROR(attempt(66, 2), "rows of 'x' are 66 elements apart, which is no multiple of 16 bytes");
    EXPECT_ERROR(attempt(64, 2, "sm_90a", true), "its loops are bound to threads, and one thread asks for a whole box");
    EXPECT_ERROR(attempt(64, 1), "its loop is not pipelined; pipeline(loop, {.stages = 2}) has it run ahead");
    EXPECT_ERROR(attempt(64, 2, "sm_80"), "via(x_shared, tma): needs sm_90, the target is sm_80");
}

TEST(Tma, IsAPromiseForResults) {
    auto attempt = [](int64_t columns, Memory memory, bool added_up = false, bool threads = false) {
        Tensor x = input("x", f32, {64, columns});
        Tensor y = compute("y", {64, columns}, [&](Expr i, Expr j) { return x(i, j) * 2.0; });
        Axis t = reduce_axis("t", columns);
        Tensor sums = compute("sums", {64}, [&](Expr i) { return sum(y(i, t), t); });
        Schedule s(added_up ? std::vector<Tensor>{y, sums} : std::vector<Tensor>{y}, target("sm_90a"));
        auto [i, j] = s.loops<2>(y);
        auto [io, ii] = s.split(i, 8);
        Stage out = s.stage(y, memory, io);
        if (added_up) s.at(sums, io);
        if (threads) s.bind(s.loops<2>(out)[0], thread);
        if (memory == Memory::Shared) {
            EXPECT_ERROR(s.via(out, Copy::Async), "it is a copy out of shared; asynchronous");
        }
        s.via(out, Copy::Tma);
        build(s);
    };
    attempt(64, Memory::Shared);
    EXPECT_ERROR(attempt(63, Memory::Shared), "rows of 'y' are 63 elements apart, which is no multiple of 16 bytes");
    EXPECT_ERROR(attempt(64, Memory::Registers),
                 "what it copies lives in registers; asynchronous copies go into shared");
    EXPECT_ERROR(attempt(64, Memory::Shared, true), "other parts of the kernel use 'y' too");
    EXPECT_ERROR(attempt(64, Memory::Shared, false, true), "its loops are bound to threads");
}

TEST(MmaErrors, OfWhatStaysMasked) {
    Tensor a = input("a", bf16, {60, 64}), b = input("b", bf16, {64, 64});
    Axis k = reduce_axis("k", 64);
    Tensor c = compute("c", {60, 64}, [&](Expr i, Expr j) { return sum(cast(f32, a(i, k)) * cast(f32, b(j, k)), k); });
    Schedule s({c}, target("sm_90a"));
    auto [ko, loops] = tile_for_warps(s, c, {});
    s.mma(c, mma_sync, loops);
    EXPECT_ERROR(build(s), "stage 'a' and 'b' in shared memory, where zeros take the place of what is missing");
}

TEST(MmaErrors, OfWhatIsComputedAndStaysMasked) {
    Tensor a = input("a", bf16, {60, 60}), b = input("b", bf16, {64, 60});
    Axis k = reduce_axis("k", 60);
    Tensor p = compute("p", {60, 60}, [&](Expr i, Expr j) { return cast(bf16, cast(f32, a(i, j)) * 2.0); });
    Tensor c = compute("c", {60, 64}, [&](Expr i, Expr j) { return sum(cast(f32, p(i, k)) * cast(f32, b(j, k)), k); });
    Schedule s({c}, target("sm_90a"));
    auto [i, j] = s.loops<2>(c);
    auto [io, ii] = s.split(i, 32, Tail::Mask);
    auto [ko, ki] = s.split(s.reduce(c), 32, Tail::Mask);
    s.order({io, ko, ii, j, ki});
    s.at(p, ko);
    s.set_memory(p, Memory::Shared);
    s.stage(c, b, Memory::Shared, ko);
    s.mma(c, mma_sync, {.m = ii, .n = j, .k = ki});
    std::string told;
    try {
        told = build(s).explain();
    } catch (const Error& error) {
        told = error.what();
    }
    EXPECT_EQ(told.find("stage both operands"), told.npos) << told;
    EXPECT_EQ(told.find("need no mask;"), told.npos) << told;
}

/// Columns of warpgroups begin inside of the operand's lines: right as far as one line has them all, else refused.
TEST_P(Mma, BeginsInsideOfLines) {
    int refused = 0;
    for (const int64_t columns : {8, 16, 24, 32, 40, 48, 64, 96}) {
        Tensor a = input("a", bf16, {64, 32}), b = input("b", bf16, {32, 2 * columns});
        Axis r = reduce_axis("r", 32);
        Tensor c = compute("c", {64, 2 * columns},
                           [&](Expr i, Expr j) { return sum(cast(f32, a(i, r)) * cast(f32, b(r, j)), r); });
        Schedule s({c}, device_target());
        auto [i, j] = s.loops<2>(c);
        auto [block, row] = s.split(i, 64);
        auto [group, column] = s.split(j, columns);
        auto [step, term] = s.split(s.reduce(c), 32);
        s.order({block, group, step, row, column, term});
        s.bind(block, grid.x);
        s.bind(group, warpgroup);
        for (const Tensor& operand : {a, b}) s.stage(c, operand, Memory::Shared, block);
        s.mma(c, wgmma, {.m = row, .n = column, .k = term});
        SCOPED_TRACE(columns);
        try {
            build(s);
        } catch (const Error& error) {
            EXPECT_NE(std::string(error.what()).find("beyond the end of lines of"), std::string::npos) << error.what();
            ++refused;
            continue;
        }
        expect_declared(s, whole_numbers({c}, 5));
    }
    EXPECT_EQ(refused, 4);
}

/// A warp stores matrices, and loads them again turned or as they are: a lane's row is of elements that others have, so
/// that they meet in between, also where each warp has a matrix of its own.
TEST_P(Mma, MatricesThatAWarpStoresAndLoads) {
    for (const bool turned : {true, false})
        for (const int64_t warps : {1, 4}) {
            Tensor a = input("a", bf16, {4, 16, 16}), b = input("b", bf16, {4, 16, 16}),
                   x = input("x", bf16, {4, 16, 16});
            Axis k = reduce_axis("k", 16), r = reduce_axis("r", 16);
            Tensor h = compute("h", {4, 16, 16}, [&](Expr g, Expr i, Expr j) {
                return cast(bf16, sum(cast(f32, a(g, i, k)) * cast(f32, b(g, j, k)), k));
            });
            Tensor t = compute("t", {4, 16, 16}, [&](Expr g, Expr p, Expr j) {
                return turned ? sum(cast(f32, x(g, r, p)) * cast(f32, h(g, r, j)), r)
                              : sum(cast(f32, h(g, p, r)) * cast(f32, x(g, r, j)), r);
            });
            Schedule s({t}, device_target());
            auto [g, i, j] = s.loops<3>(t);
            auto [block, own] = s.split(g, warps, {"block", "own"});
            auto [tile, term] = s.split(s.reduce(t), 16);
            s.order({block, own, tile, i, j, term});
            s.bind(block, grid.x);
            s.bind(own, warp);
            s.at(h, own);
            s.set_memory(h, Memory::Shared);
            auto [h_g, h_i, h_j] = s.loops<3>(h);
            auto [h_tile, h_term] = s.split(s.reduce(h), 16);
            s.order({h_g, h_tile, h_i, h_j, h_term});
            s.bind(h_g, warp);
            s.mma(h, mma_sync, {.m = h_i, .n = h_j, .k = h_term});
            s.mma(t, mma_sync, {.m = i, .n = j, .k = term});
            SCOPED_TRACE(s.trace_as_cpp());
            EXPECT_NE(build(s).cuda().find("__sync"), std::string::npos);
            expect_declared(s, whole_numbers({t}, 5));
        }
}

/// Several instructions side by side, of which the second begins inside of a line, or with one.
TEST_P(Mma, BeginsEachInstructionWithALine) {
    for (const auto& [columns, refused] :
         {std::pair(256, false), std::pair(288, true), std::pair(320, true), std::pair(384, false)}) {
        Tensor a = input("a", bf16, {64, 32}), b = input("b", bf16, {32, columns});
        Axis r = reduce_axis("r", 32);
        Tensor c = compute("c", {64, columns},
                           [&](Expr i, Expr j) { return sum(cast(f32, a(i, r)) * cast(f32, b(r, j)), r); });
        Schedule s({c}, device_target());
        auto [i, j] = s.loops<2>(c);
        auto [block, row] = s.split(i, 64);
        auto [step, term] = s.split(s.reduce(c), 32);
        s.order({block, step, row, j, term});
        s.bind(block, grid.x);
        for (const Tensor& operand : {a, b}) s.stage(c, operand, Memory::Shared, block);
        s.mma(c, wgmma, {.m = row, .n = j, .k = term});
        SCOPED_TRACE(columns);
        if (refused)
            EXPECT_ERROR(build(s), "'b_shared' is read beyond the end of lines of");
        else
            expect_declared(s, whole_numbers({c}, 5));
    }
}

}  // namespace
}  // namespace tw
