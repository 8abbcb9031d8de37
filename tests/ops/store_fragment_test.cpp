// Results of tensor cores that go to shared memory: as matrices of 8 x 8 elements where rows of them lie side by side
// and no lane is left out, as pairs elsewhere. Those that go to global memory: as lines of a row, once lanes have
// exchanged theirs, or as pairs. Bit for bit.
#include <algorithm>
#include <set>

#include "tests/ops/random_cases.h"
#include "tests/ops/whole_numbers.h"

namespace tw {
namespace {

class StoreFragment : public RandomCases {
protected:
    StoreFragment() : RandomCases(23) {}

    int64_t multiple(int largest) {
        const int64_t units[] = {1, 8, 8, 16}, unit = units[between(0, 3)];
        return unit * between(1, static_cast<int>(largest / unit));
    }

    /// Of one instruction; 0 if there is none.
    static int64_t matrices_in(const std::string& cuda) { return parameter_of("tw::stmatrix<", cuda); }
    static int64_t parameter_of(const std::string& call, const std::string& cuda) {
        size_t at = cuda.find(call);
        return at == std::string::npos ? 0 : std::stoll(cuda.substr(at + call.size()));
    }

    static bool mentions(const Schedule& s, const std::string& text) {
        return build(s).cuda().find(text) != std::string::npos;
    }
};
TW_ON_EACH_DEVICE(StoreFragment);

/// A product with a bias for each column, whose result goes through shared memory.
struct StagedProduct {
    struct Options {
        int64_t m, n, k;
        Type type = bf16;
        MatrixUnit unit = mma_sync;
        int64_t block_m = 64, block_n = 32, block_k = 32;
        bool boxes = false, swapped = false, staged = true;
        std::string arch = "sm_90a";
    };

    explicit StagedProduct(const Options& o, const Target& target)
        : a(input("a", bf16, {o.m, o.k})),
          b(input("b", bf16, {o.n, o.k})),
          bias(input("bias", f32, {o.n})),
          c(product(o)),
          s({c}, target) {
        auto [i, j] = s.loops<2>(c);
        auto [bi, it] = s.split(i, o.block_m, Tail::Mask);
        auto [bj, jt] = s.split(j, o.block_n, Tail::Mask);
        Loop rows = o.swapped ? jt : it, columns = o.swapped ? it : jt;
        bool group = o.unit == wgmma;
        auto [wi, mi] = s.split(rows, group ? 64 : 16);
        auto [ko, ki] = s.split(s.reduce(c), o.block_k, Tail::Mask);
        s.order({bi, bj, wi, ko, mi, columns, ki});
        s.bind(bi, grid.y);
        s.bind(bj, grid.x);
        s.bind(wi, group ? warpgroup : warp);
        if (o.staged) {
            Stage out = s.stage(c, Memory::Shared, bj);
            if (o.boxes) s.via(out, Copy::Tma);
        }
        s.stage(c, a, Memory::Shared, ko);
        s.stage(c, b, Memory::Shared, ko);
        s.mma(c, o.unit, {.m = mi, .n = columns, .k = ki});
        s.pipeline(ko, {.stages = 2});
    }

    Tensor product(const Options& o) const {
        Axis r = reduce_axis("r", o.k);
        return compute("c", {o.m, o.n}, [&](Expr i, Expr j) {
            return cast(o.type, sum(cast(f32, a(i, r)) * cast(f32, b(j, r)), r) + bias(j));
        });
    }

    Tensor a, b, bias, c;
    Schedule s;
};

/// Matrices of an instruction: edges may not cut them, and what one instruction stores is there for all or none.
int64_t expected(const StagedProduct::Options& o) {
    auto uncut = [](int64_t extent, int64_t block, int64_t unit) { return extent % unit == 0 || extent % block == 0; };
    if (bytes_of(o.type) != 2 || !uncut(o.m, o.block_m, 8) || !uncut(o.n, o.block_n, 8)) return 0;
    bool both_halves = uncut(o.m, o.block_m, 16), two_tiles = o.block_n % 16 == 0 && uncut(o.n, o.block_n, 16);
    return (both_halves ? 2 : 1) * (two_tiles ? 2 : 1);
}

TEST_P(StoreFragment, ProductsOfManyShapes) {
    std::set<int64_t> seen;
    for (int round = 0; round < 28; ++round) {
        const Type types[] = {bf16, f16, f32, bf16};
        StagedProduct::Options o{.m = multiple(140), .n = multiple(100), .k = between(1, 40)};
        o.type = types[round % 4];
        o.unit = chance() ? wgmma : mma_sync;
        o.block_m = 64 << between(0, 1);
        o.block_n = o.unit == wgmma ? 16 * between(1, 4) : 8 * between(1, 5);
        o.boxes = o.n % 8 == 0 && chance();
        StagedProduct p(o, device_target());
        SCOPED_TRACE(p.s.trace_as_cpp());
        Program program = build(p.s);
        std::string cuda = program.cuda();
        bool told = program.explain().find("may cut matrices of 8 x 8") != std::string::npos;
        bool aligned = std::min(o.n, o.block_n) % 8 == 0;  // rows of the tile
        EXPECT_EQ(told, aligned && bytes_of(o.type) == 2 && expected(o) == 0) << program.explain();
        EXPECT_EQ(matrices_in(cuda), expected(o)) << cuda;
        EXPECT_EQ(cuda.find("tw::stmatrix_trans<"), std::string::npos);
        seen.insert(expected(o));
        expect_declared(p.s, whole_numbers({p.c}, round));
        if (round % 4 == 0) expect_compiles(program);
    }
    EXPECT_EQ(seen, (std::set<int64_t>{0, 1, 2, 4}));
}

/// Neighbouring lanes that exchange results: rows of the result in memory and of its tiles are lines that many make,
/// and an edge cuts none.
int64_t expected_lanes(const StagedProduct::Options& o) {
    const int64_t most = 8 / bytes_of(o.type), tiles = o.block_n / 8;
    for (int64_t lanes = most; lanes > 1; lanes /= 2) {
        const bool cut = o.n % o.block_n != 0 && o.n % (2 * lanes) != 0;
        if (o.n % (2 * lanes) == 0 && !cut && tiles % lanes == 0) return lanes;
    }
    return 0;
}

TEST_P(StoreFragment, ProductsStoredToGlobalMemory) {
    std::set<int64_t> seen;
    for (int round = 0; round < 28; ++round) {
        const Type types[] = {bf16, f16, f32, bf16};
        StagedProduct::Options o{.m = between(1, 140), .n = multiple(100), .k = between(1, 40)};
        o.type = types[round % 4];
        o.staged = false;
        o.unit = chance() ? wgmma : mma_sync;
        o.block_m = 64 << between(0, 1);
        o.block_n = 16 * between(1, 4);
        StagedProduct p(o, device_target());
        SCOPED_TRACE(p.s.trace_as_cpp());
        Program program = build(p.s);
        const int64_t lanes = expected_lanes(o), found = parameter_of("tw::transpose_lanes<", program.cuda());
        // The halves of rows serve as well, where no edge may part them.
        EXPECT_TRUE(found == lanes || (lanes == 0 && found == 2)) << lanes << " or " << found << program.cuda();
        seen.insert(found);
        expect_declared(p.s, whole_numbers({p.c}, round));
        if (round % 4 == 0) expect_compiles(program);
    }
    EXPECT_EQ(seen, (std::set<int64_t>{0, 2, 4}));
}

// The unit computes the transposed tile: its columns are what lies far apart.
TEST_P(StoreFragment, ProductsOfSwappedOperands) {
    for (int round = 0; round < 8; ++round) {
        StagedProduct::Options o{.m = 8 * between(1, 9), .n = 8 * between(1, 20), .k = between(1, 60)};
        o.swapped = true;
        o.unit = chance() ? wgmma : mma_sync;
        o.block_n = 64 << between(0, 1);
        o.block_m = 16 * between(1, 3);
        o.boxes = chance();
        StagedProduct p(o, device_target());
        SCOPED_TRACE(p.s.trace_as_cpp());
        EXPECT_TRUE(mentions(p.s, "tw::stmatrix_trans<")) << build(p.s).cuda();
        expect_declared(p.s, whole_numbers({p.c}, round));
        if (round % 3 == 0) expect_compiles(build(p.s));
    }
}

TEST(StoreFragmentTargets, OlderOnesStorePairs) {
    StagedProduct::Options o{.m = 64, .n = 64, .k = 64};
    for (const char* arch : {"sm_80", "sm_89", "sm_90"}) {
        bool stores = build(StagedProduct(o, target(arch)).s).cuda().find("tw::stmatrix<4>") != std::string::npos;
        EXPECT_EQ(stores, std::string(arch) == "sm_90") << arch;
    }
}

// Weights of a causal attention: the unit makes them, masks and bends them, and takes them as an operand again.
TEST_P(StoreFragment, OperandsOfTheNextProduct) {
    constexpr int64_t S = 128, D = 32;
    Tensor q = input("q", bf16, {S, D}), k = input("k", bf16, {S, D}), v = input("v", bf16, {S, D});
    Axis d = reduce_axis("d", D), t = reduce_axis("t", S);
    Tensor p = compute("p", {S, S}, [&](Expr i, Expr j) {
        Expr score = sum(cast(f32, q(i, d)) * cast(f32, k(j, d)), d);
        return cast(bf16, select(j <= i, min(max(score, -4.0), 4.0), constant(f32, 0.0)));
    });
    Tensor o = compute("o", {S, D}, [&](Expr i, Expr e) { return sum(cast(f32, p(i, t)) * cast(f32, v(t, e)), t); });
    for (MatrixUnit unit : {mma_sync, wgmma}) {
        Schedule s({o}, device_target());
        auto [i, e] = s.loops<2>(o);
        auto [bi, mi] = s.split(i, unit == wgmma ? 64 : 16, Tail::Mask);
        auto [to, ti] = s.split(s.reduce(o), 32);
        s.order({bi, to, mi, e, ti});
        s.bind(bi, grid.x);
        s.at(p, to);
        s.set_memory(p, Memory::Shared);
        auto [pi, pj] = s.loops<2>(p);
        auto [ro, ri] = s.split(s.reduce(p), 16);
        s.order({ro, pi, pj, ri});
        s.stage(p, q, Memory::Shared, to);
        s.stage(p, k, Memory::Shared, to);
        s.stage(o, v, Memory::Shared, to);
        s.mma(p, unit, {.m = pi, .n = pj, .k = ri});
        s.mma(o, unit, {.m = mi, .n = e, .k = ti});
        SCOPED_TRACE(build(s).cuda());
        EXPECT_TRUE(mentions(s, "tw::stmatrix<4>(&shared.p"));
        expect_declared(s, whole_numbers({o}, 3));
    }
}

// Pairs of sums: the columns of a tile are a loop around eights.
TEST_P(StoreFragment, GatedPairs) {
    for (int round = 0; round < 3; ++round) {
        int64_t m = 16 * between(4, 12), columns = 16 * between(1, 9), k = 8 * between(1, 8);
        Tensor a = input("a", bf16, {m, k}), b = input("b", bf16, {2 * columns, k});
        Axis r = reduce_axis("r", k);
        Tensor product = compute("product", {m, 2 * columns},
                                 [&](Expr i, Expr j) { return sum(cast(f32, a(i, r)) * cast(f32, b(j, r)), r); });
        Tensor y = compute("y", {m, columns}, [&](Expr i, Expr j) {
            Expr gate = j / 8 * 16 + j % 8;
            return cast(bf16, relu(product(i, gate)) * product(i, gate + 8));
        });
        Schedule s({y}, device_target());
        auto [i, j] = s.loops<2>(y);
        auto [bi, it] = s.split(i, 128, Tail::Mask);
        auto [bj, jt] = s.split(j, 32, Tail::Mask);
        auto [wi, mi] = s.split(it, 64);
        auto [eight, column] = s.split(jt, 8);
        s.order({bi, bj, wi, mi, eight, column});
        s.bind(bi, grid.y);
        s.bind(bj, grid.x);
        s.bind(wi, warpgroup);
        s.at(product, wi);
        s.set_memory(product, Memory::Registers);
        auto [pi, pj] = s.loops<2>(product);
        auto [ko, ki] = s.split(s.reduce(product), 32, Tail::Mask);
        s.order({ko, pi, pj, ki});
        Stage out = s.stage(y, Memory::Shared, bj);
        if (chance()) s.via(out, Copy::Tma);
        s.stage(product, a, Memory::Shared, ko);
        s.stage(product, b, Memory::Shared, ko);
        s.mma(product, wgmma, {.m = pi, .n = pj, .k = ki});
        s.pipeline(ko, {.stages = 3});
        SCOPED_TRACE(build(s).cuda());
        EXPECT_TRUE(mentions(s, "tw::stmatrix<4>(&shared.y"));
        expect_declared(s, whole_numbers({y}, round));
    }
}

}  // namespace
}  // namespace tw
