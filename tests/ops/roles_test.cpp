// Roles, blocks that take tiles in turn, and instructions in flight: whole numbers, bit for bit.
#include <regex>

#include <gmock/gmock.h>

#include "runtime/compile/cubin_cache.h"
#include "tests/ops/plain_product.h"
#include "tests/ops/random_cases.h"
#include "tests/ops/whole_numbers.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

class Roles : public RandomCases {
protected:
    Roles() : RandomCases(11) {}
};
TW_ON_EACH_DEVICE(Roles);

/// c = a b' over rows of 64 for each of some warpgroups, copies by a role of their own.
struct Product {
    Tensor a, b, c;
    Schedule s;
    Loop ko;

    struct Options {
        int64_t m = 256, n = 192, k = 256;
        int64_t block_n = 64, block_k = 64;
        int64_t rows = 64;  ///< of a warpgroup
        int warpgroups = 1, stages = 3, in_flight = 0;
        int cluster = 1, cluster_columns = 1;  ///< blocks, one under another and side by side
        int turns = 1;
        int persistent_blocks = 0;  ///< 0: each block has one tile
        int registers = 0;
        bool transposed_a = false, transposed_b = true;
        bool load_both = true;
        enum class Result { Direct, Staged, Boxes } result = Result::Direct;
    };

    static Tensor product(const Tensor& a, const Tensor& b, const Options& o) {
        Axis r = reduce_axis("r", o.k);
        return compute("c", {o.m, o.n}, [&](Expr i, Expr j) {
            Expr x = cast(f32, o.transposed_a ? a(r, i) : a(i, r)), y = cast(f32, o.transposed_b ? b(j, r) : b(r, j));
            return sum(x * y, r);
        });
    }

    explicit Product(const Options& o, const Target& target)
        : a(o.transposed_a ? input("a", bf16, {o.k, o.m}) : input("a", bf16, {o.m, o.k})),
          b(o.transposed_b ? input("b", bf16, {o.n, o.k}) : input("b", bf16, {o.k, o.n})),
          c(product(a, b, o)),
          s({c}, target) {
        auto [i, j] = s.loops<2>(c);
        auto [bi, it] = s.split(i, o.rows * o.warpgroups, Tail::Mask);
        auto [column, nj] = s.split(j, o.block_n, Tail::Mask);
        auto [wi, mi] = s.split(it, o.rows);
        auto [k, ki] = s.split(s.reduce(c), o.block_k, Tail::Mask);
        ko = k;
        auto [bo, rank] = s.split(bi, o.cluster, Tail::Mask);
        auto [bj, side] = s.split(column, o.cluster_columns, Tail::Mask);
        s.order({bo, bj, rank, side, wi, ko, mi, nj, ki});
        if (o.persistent_blocks) {
            s.persistent({bo, bj}, {.blocks = o.persistent_blocks});
        } else {
            s.bind(bo, grid.y);
            s.bind(bj, grid.x);
        }
        s.bind(rank, cluster);
        s.bind(side, cluster);
        s.bind(wi, warpgroup);
        if (o.result != Options::Result::Direct) {
            Stage out = s.stage(c, Memory::Shared, side);
            if (o.result == Options::Result::Boxes) s.via(out, Copy::Tma);
        }
        Stage as = s.stage(c, a, Memory::Shared, ko), bs = s.stage(c, b, Memory::Shared, ko);
        s.mma(c, wgmma, {.m = mi, .n = nj, .k = ki});
        s.pipeline(ko, {.stages = o.stages, .in_flight = o.in_flight});
        std::vector<StageRef> loaded{as};
        if (o.load_both) loaded.push_back(bs);
        s.roles({{"load", warps(1), registers(o.registers ? 40 : 0), loaded},
                 {"math", warpgroups(o.warpgroups * o.turns), registers(o.registers), {c}, ping_pong(o.turns)}});
    }
};

TEST_P(Roles, ProductsOfManyShapes) {
    for (int round = 0; round < 10; ++round) {
        Product::Options o{.m = 8 * between(1, 40), .n = 8 * between(1, 30), .k = 8 * between(1, 50)};
        o.block_n = 16 * between(1, 4);
        o.block_k = 16 << between(0, 2);
        o.warpgroups = between(1, 2);
        o.stages = between(2, 4);
        o.in_flight = between(0, o.stages - 1);
        o.persistent_blocks = chance() ? between(1, 7) : 0;
        o.registers = chance() ? 232 : 0;
        o.transposed_a = chance();
        o.transposed_b = chance();
        o.result = static_cast<Product::Options::Result>(round % 3);
        o.cluster = chance() ? 1 : between(2, 4);
        o.cluster_columns = chance() ? 1 : between(2, 8 / o.cluster);
        if (o.persistent_blocks && chance()) o.turns = 2, o.warpgroups = 1;
        Product p(o, device_target());
        SCOPED_TRACE(p.s.trace_as_cpp());
        EXPECT_EQ(replay(p.s.save(), {p.c}, device_target()).to_string(), p.s.to_string());
        expect_declared(p.s, whole_numbers({p.c}, round));
        if (round % 3 == 0) expect_compiles(build(p.s));
    }
}

/// 256 sums in each of 256 threads, of the 168 registers that 384 threads have each.
Schedule many_sums(int registers_of_math) {
    auto [a, b, c] = plain_product(256, 256, 64);
    Schedule s({c}, target("sm_90a"));
    auto [i, j] = s.loops<2>(c);
    auto [ti, ri] = s.split(i, 16);
    auto [tj, rj] = s.split(j, 16);
    auto [ko, ki] = s.split(s.reduce(c), 16);
    s.order({ti, tj, ko, ki, ri, rj});
    s.bind(ti, thread);
    s.bind(tj, thread);
    Stage as = s.stage(c, a, Memory::Shared, ko), bs = s.stage(c, b, Memory::Shared, ko);
    s.pipeline(ko, {.stages = 2});
    auto given = [&](int count) { return registers_of_math ? registers(count) : Registers{}; };
    s.roles({{"load", warps(1), given(40), {as, bs}}, {"math", warpgroups(2), given(registers_of_math), {c}}});
    return s;
}

TEST(RolesWarnings, SpillsWhereRegistersCouldBeGiven) {
    std::vector<std::string> warnings;
    auto before = set_warning_sink([&](const std::string& text) { warnings.push_back(text); });
    bool compiles = true;
    try {
        Executable(build(many_sums(232)), open_device("null:sm_90a"));
        EXPECT_TRUE(warnings.empty()) << testing::PrintToString(warnings);
        Executable(build(many_sums(0)), open_device("null:sm_90a"));
    } catch (const NvrtcMissing&) {
        compiles = false;
    }
    set_warning_sink(before);
    if (!compiles) GTEST_SKIP() << "NVRTC is not on this machine";
    ASSERT_EQ(warnings.size(), 1u);
    EXPECT_THAT(warnings[0], testing::HasSubstr("and its roles give none; have the role that computes take"));
}

// Boxes that all blocks of a cluster want alike come from one of them each, whatever has readers.
// Of 192 sums, 168 registers hold none more, 232 do; of 128 sums of one instruction, no thread of 512 ever holds them.
TEST(RoleErrors, TilesThatRegistersDoNotHoldSayWhatHelps) {
    auto compiled = [](const Product::Options& o) {
        Executable(build(Product(o, target("sm_90a")).s), open_device("null:sm_90a"));
    };
    Product::Options o{.m = 512, .n = 384, .block_n = 192, .rows = 128, .warpgroups = 2, .stages = 2, .in_flight = 1};
    o.registers = 232;
    try {
        compiled(o);
    } catch (const NvrtcMissing&) {
        GTEST_SKIP() << "NVRTC is not on this machine";
    }
    o.registers = 0;
    EXPECT_ERROR(compiled(o), "have the one that computes take what the others do not need: registers(...) for each");
    EXPECT_ERROR((compiled({.m = 384, .n = 512, .block_n = 256, .warpgroups = 3, .stages = 2, .in_flight = 1})),
                 "more registers than the 128 that each thread of so large a block begins with");
}

TEST_P(Roles, LoadForTheCluster) {
    Product p({.m = 320, .k = 128, .cluster = 2}, device_target());
    std::string cuda = build(p.s).cuda();
    EXPECT_NE(cuda.find("tw::tma_load_multicast(&shared.b_shared"), std::string::npos) << cuda;
    EXPECT_NE(cuda.find("tw::tma_load(&shared.a_shared"), std::string::npos);
    Product both({.m = 320, .n = 500, .k = 128, .cluster = 2, .cluster_columns = 4}, device_target());
    cuda = build(both.s).cuda();
    for (const char* call : {"tw::tma_load_multicast(&shared.a_shared", "tw::tma_load_multicast(&shared.b_shared"})
        EXPECT_NE(cuda.find(call), std::string::npos) << cuda;
    expect_declared(both.s, whole_numbers({both.c}, 1));
    expect_compiles(build(both.s));
}

// The same for sums by threads, of batches that have a table each, or one for all.
TEST_P(Roles, LoadTablesForTheCluster) {
    for (bool own_tables : {false, true}) {
        constexpr int64_t Batches = 3, Rows = 500, Terms = 70, Columns = 32;
        Tensor x = input("x", f32, {Batches, Rows, Terms}), table = input("table", f32, {Batches, Terms, Columns});
        Axis q = reduce_axis("q", Terms);
        Tensor y = compute("y", {Batches, Rows, Columns}, [&](Expr e, Expr i, Expr j) {
            return sum(x(e, i, q) * table(own_tables ? e : Expr(1), q, j), q);
        });
        Schedule s({y}, device_target());
        auto [e, i, j] = s.loops<3>(y);
        auto [eo, batch] = s.split(e, 2, Tail::Mask);
        auto [io, rest] = s.split(i, 256, Tail::Mask);
        auto [rank, ii] = s.split(rest, 128);
        auto [qo, qi] = s.split(s.reduce(y), 32, Tail::Mask);
        s.order({eo, io, batch, rank, ii, qo, j, qi});
        s.bind(eo, grid.y);
        s.bind(io, grid.x);
        s.bind(batch, cluster);
        s.bind(rank, cluster);
        s.bind(ii, thread);
        Stage copy = s.stage(y, table, Memory::Shared, qo);
        s.pipeline(qo, {.stages = 3});
        s.roles({{"load", warps(1), {}, {copy}}, {"sum", warpgroups(1), {}, {y}}});
        std::string cuda = build(s).cuda(), ranks = own_tables ? ", 3, i_inner * 2);" : ", 15);";
        size_t load = cuda.find("tw::tma_load_multicast(");
        ASSERT_NE(load, std::string::npos) << cuda;
        std::string call = cuda.substr(load, cuda.find(";\n", load) + 1 - load);
        EXPECT_TRUE(std::regex_replace(call, std::regex("\\s+"), " ").ends_with(ranks)) << call;
        EXPECT_EQ(replay(s.save(), {y}, device_target()).to_string(), s.to_string());
        expect_declared(s, whole_numbers({y}, 1));
        expect_compiles(build(s));
    }
}

// What needs nothing of the kernel before is done before waiting for it; blocks that fill a multiprocessor let the next
// kernel's blocks in as they end.
TEST_P(Roles, WaitForTheKernelBeforeBehindTheirBarriers) {
    if (!device_target().has_programmatic_launch) GTEST_SKIP() << "kernels start one after another";
    for (bool large : {false, true}) {
        Product p({.m = 64, .n = 128, .k = 128, .block_n = 128, .stages = large ? 8 : 2, .persistent_blocks = 2},
                  device_target());
        std::string cuda = build(p.s).cuda();
        size_t made = cuda.find("tw::mbarrier_init("), near = cuda.find("tw::prefetch_tensor_map(a_shared_map)"),
               waits = cuda.find("tw::griddepcontrol_wait();"), loads = cuda.find("tw::tma_load(");
        EXPECT_TRUE(made < near && near < waits && waits < loads) << cuda;
        EXPECT_EQ(cuda.find("    tw::griddepcontrol_launch_dependents();") != std::string::npos, large) << cuda;
        Executable executable(build(p.s), device_);
        expect_declared(executable, {p.c}, whole_numbers({p.c}, 4));
        EXPECT_EQ(executable.launches()[0].shape().starts_early, large);
    }
}

// Tensors that only boxes reach live as long as the launches.
TEST_P(Roles, LaunchesKeepTensorsAlive) {
    Product p({.m = 64, .n = 64, .k = 64}, device_target());
    Executable executable(build(p.s), device_);
    Bindings bindings = whole_numbers({p.c}, 2);
    run_on(executable, bindings);
    std::vector<Buffer> others;
    for (int k = 0; k < 4; ++k) others.push_back(device_->allocate(1 << 14, "other"));
    executable.run();
    device_->synchronize();
}

// One operand by the other role, one by the role that computes.
TEST_P(Roles, ShareThePipeline) {
    for (int blocks : {0, 2}) {
        Product p({.stages = 3, .persistent_blocks = blocks, .load_both = false}, device_target());
        expect_declared(p.s, whole_numbers({p.c}, 3));
    }
}

// Readers that are no matrix instructions: squares of the rows of a table, each summed by a thread.
TEST_P(Roles, LoadForSimt) {
    constexpr int64_t Rows = 300, Columns = 136;
    Tensor x = input("x", f32, {Rows, Columns});
    Axis r = reduce_axis("r", Columns);
    Tensor y = compute("y", {Rows}, [&](Expr i) { return sum(x(i, r) * x(i, r), r); });
    for (int blocks : {0, 1, 2}) {
        Schedule s({y}, device_target());
        auto [i] = s.loops<1>(y);
        auto [io, ii] = s.split(i, 128, Tail::Mask);
        auto [ro, ri] = s.split(s.reduce(y), 32, Tail::Mask);
        s.order({io, ii, ro, ri});
        if (blocks)
            s.persistent({io}, {.blocks = blocks});
        else
            s.bind(io, grid.x);
        s.bind(ii, thread);
        Stage copy = s.stage(y, x, Memory::Shared, ro);
        s.pipeline(ro, {.stages = 2});
        int groups = std::max(blocks, 1);
        s.roles({{"load", warps(1), {}, {copy}}, {"sum", warpgroups(groups), {}, {y}, ping_pong(groups)}});
        SCOPED_TRACE(s.trace_as_cpp());
        EXPECT_EQ(replay(s.save(), {y}, device_target()).to_string(), s.to_string());
        expect_declared(s, whole_numbers({y}, blocks));
    }
}

/// The last segment of a loop that turns go through may have no iterations: who has the turn ends it all the same.
TEST_P(Roles, TurnsEndWithoutALastSegment) {
    Expr terms = size("terms", {.min = 64, .max = 1024, .multiple_of = 64});
    Tensor a = input("a", bf16, {512, terms}), b = input("b", bf16, {64, terms});
    Axis r = reduce_axis("r", terms);
    Tensor c = compute("c", {512, 64}, [&](Expr i, Expr j) { return sum(cast(f32, a(i, r)) * cast(f32, b(j, r)), r); });
    Schedule s({c}, device_target());
    auto [i, j] = s.loops<2>(c);
    auto [bi, mi] = s.split(i, 64);
    auto [ko, ki] = s.split(s.reduce(c), 64);
    s.order({bi, ko, mi, j, ki});
    s.persistent({bi}, {.blocks = 2});
    Stage as = s.stage(c, a, Memory::Shared, ko), bs = s.stage(c, b, Memory::Shared, ko);
    s.mma(c, wgmma, {.m = mi, .n = j, .k = ki});
    s.cut(ko, {1});
    s.pipeline(ko, {.stages = 3});
    s.roles({{"load", warps(1), {}, {as, bs}}, {"math", warpgroups(2), {}, {c}, ping_pong(2)}});
    for (int64_t count : {64, 256}) {
        Bindings bindings;
        bindings.sizes = {{"terms", count}};
        bindings.inputs["a"] = host_array(bf16, {512, count});
        bindings.inputs["b"] = host_array(bf16, {64, count});
        for (auto& [name, array] : bindings.inputs) fill_integers(array, -4, 4, static_cast<unsigned>(count));
        expect_declared(s, bindings);
    }
}

// Without roles: copies start anew for each tile, stages and phases count on.
TEST_P(Roles, PersistentBlocksOfOneRole) {
    constexpr int64_t Rows = 100, Columns = 512;
    Tensor x = input("x", f32, {Rows, Columns});
    Axis r = reduce_axis("r", Rows);
    Tensor y = compute("y", {Columns}, [&](Expr j) { return sum(x(r, j), r); });
    for (Copy how : {Copy::Tma, Copy::Async, Copy::Vector})
        for (int stages : {2, 3}) {
            Schedule s({y}, device_target());
            auto [j] = s.loops<1>(y);
            auto [jo, ji] = s.split(j, 64);
            auto [ro, ri] = s.split(s.reduce(y), 8, Tail::Mask);
            s.order({jo, ji, ro, ri});
            s.persistent({jo}, {.blocks = 3});
            s.bind(ji, thread);
            s.via(s.stage(y, x, Memory::Shared, ro), how);
            s.pipeline(ro, {.stages = stages});
            expect_declared(s, whole_numbers({y}, stages));
        }
}

/// Columns of c one tile after another, while the rows of a stay: copied once for a block, by the role that loads b, or
/// once for each that a persistent block takes, the next one's ahead.
Schedule rows_that_stay(const Tensor& c, const Tensor& a, const Tensor& b, const Target& target, int blocks, int stages,
                        int turns = 1) {
    Schedule s({c}, target);
    auto [i, j] = s.loops<2>(c);
    auto [bi, mi] = s.split(i, 64, Tail::Mask);
    auto [jo, nj] = s.split(j, 32, Tail::Mask);
    auto [ko, ki] = s.split(s.reduce(c), 64);
    s.order({bi, jo, ko, mi, nj, ki});
    if (blocks)
        s.persistent({bi}, {.blocks = blocks, .stages = stages});
    else
        s.bind(bi, grid.x);
    Stage as = s.stage(c, a, Memory::Shared, bi), bs = s.stage(c, b, Memory::Shared, jo);
    s.mma(c, wgmma, {.m = mi, .n = nj, .k = ki});
    s.pipeline(jo, {.stages = 2});
    s.roles({{"load", warps(1), {}, {as, bs}}, {"math", warpgroups(turns), {}, {c}, ping_pong(turns)}});
    return s;
}

TEST_P(Roles, CopyOnceForABlock) {
    for (int round = 0; round < 6; ++round) {
        const int64_t m = 64 * between(1, 4) - (chance() ? between(0, 9) : 0), n = 8 * between(1, 20);
        Tensor a = input("a", bf16, {m, 64}), b = input("b", bf16, {n, 64});
        Axis r = reduce_axis("r", 64);
        Tensor c =
            compute("c", {m, n}, [&](Expr i, Expr j) { return sum(cast(f32, a(i, r)) * cast(f32, b(j, r)), r); });
        const int blocks = round % 3;
        Schedule s = rows_that_stay(c, a, b, device_target(), blocks, blocks ? between(1, 3) : 1);
        SCOPED_TRACE(s.trace_as_cpp());
        EXPECT_THAT(build(s).cuda(), testing::HasSubstr("a_shared_full"));
        expect_declared(s, whole_numbers({c}, round));
        EXPECT_EQ(replay(s.save(), {c}, device_target()).to_string(), s.to_string());
    }
}

TEST(RoleErrors, OfCopiesForABlock) {
    Tensor a = input("a", bf16, {256, 64}), b = input("b", bf16, {64, 64});
    Axis r = reduce_axis("r", 64);
    Tensor c = compute("c", {256, 64}, [&](Expr i, Expr j) { return sum(cast(f32, a(i, r)) * cast(f32, b(j, r)), r); });
    EXPECT_ERROR(build(rows_that_stay(c, a, b, target("sm_90a"), 2, 2, 2)),
                 "it stands outside of pipelined loops, and groups that take turns have only those in common");
    EXPECT_ERROR(rows_that_stay(c, a, b, target("sm_90a"), 2, 17), "persistent: 17 stages; what a role copies");
}

TEST(RoleErrors, AreCaughtAtTheStep) {
    Product p({.registers = 232}, target("sm_90a"));
    std::vector<Stage> all = p.s.all_stages();
    Stage as = all[0], bs = all[1];
    auto roles = [&](const std::vector<Role>& list) { p.s.roles(list); };
    Role load{"load", warps(1), registers(40), {as, bs}}, math{"math", warpgroups(1), registers(232), {p.c}};
    roles({load, math});
    EXPECT_ERROR(roles({}), "there is none; list one that copies");
    EXPECT_ERROR(roles({math}), "only 'math' is there; give the copies that run beside it a role of their own");
    EXPECT_ERROR(roles({load}), "0 of them compute; one does, and the others copy");
    EXPECT_ERROR(roles({load, {"load", warpgroups(1), {}, {p.c}}}), "two are called 'load'");
    EXPECT_ERROR(roles({{"2nd", warps(1), {}, {as}}, math}), "\"2nd\" is no name of letters and digits");
    EXPECT_ERROR(roles({load, {"math", warpgroups(1), registers(232), {p.c, as}}}), "'a_shared' is named twice");
    EXPECT_ERROR(roles({load, {"math", warpgroups(1), registers(232), {}}}), "'math' has no stages");
    EXPECT_ERROR(roles({{"load", warps(5), registers(40), {as, bs}}, math}),
                 "copies with 5 warps; 1 to 4 are possible");
    EXPECT_ERROR(roles({load, {"math", warps(2), registers(232), {p.c}}}), "computes on 2 warps");
    EXPECT_ERROR(roles({load, {"math", warpgroups(1), {}, {p.c}}}), "some give registers; either all do or none");
    EXPECT_ERROR(roles({load, {"math", warpgroups(1), registers(230), {p.c}}}), "a multiple of 8 from 24 to 256");
    EXPECT_ERROR(roles({load, {"math", warpgroups(2), registers(240), {p.c}}}),
                 "256 x 240 + 128 x 40 = 66560 registers, but 384 threads start with 168 each, 64512 together");
    EXPECT_ERROR(p.s.persistent({}), "name the loops that blocks take in turn");
    EXPECT_ERROR(p.s.persistent({p.ko}), "runs along a reduction");
    EXPECT_ERROR(p.s.pipeline(p.ko, {.stages = 3, .in_flight = 3}),
                 "fewer iterations than stages can be in flight, as each keeps its buffers; give .stages = 4");
    EXPECT_ERROR(roles({{"load", warps(1), registers(40), {as, bs}, ping_pong(2)}, math}),
                 "only the role that computes plays ping-pong");
    EXPECT_ERROR(roles({load, {"math", warpgroups(3), registers(128), {p.c}, ping_pong(2)}}),
                 "ping_pong(2) with 12 warps");
    Product own({.m = 64, .n = 64, .k = 64}, target("sm_90a"));  // copies of the role that computes
    EXPECT_NE(own.s.to_string().find("role load: 1 warp\n"), std::string::npos) << own.s.to_string();
    roles({load, {"math", warpgroups(2), registers(168), {p.c}, ping_pong(2)}});
    EXPECT_NE(p.s.to_string().find("role math: 8 warps of 168 registers, ping-pong of 2\n"), std::string::npos);
    EXPECT_ERROR(build(p.s), "ping_pong(2), but each block has one tile; persistent(loops) gives it several");
    roles({load, {"math", warpgroups(2), registers(168), {p.c}}});
    EXPECT_ERROR(build(p.s),
                 "role 'math' has 256 threads, but the loops of its stages are bound to 128; give it 4 warps");
}

TEST(RoleErrors, OfClusters) {
    Tensor x = input("x", f32, {64, 64}), y = compute("y", {64, 64}, [&](Expr i, Expr j) { return x(i, j) + 1.0; });
    Schedule old({y}, target("sm_80"));
    EXPECT_ERROR(old.bind(old.split(old.loops<2>(y)[0], 2)[1], cluster), "needs sm_90, the target is sm_80");
    Schedule s({y}, target("sm_90a"));
    auto [i, j] = s.loops<2>(y);
    EXPECT_ERROR(s.bind(i, cluster), "a cluster has 2 to 8 blocks, the loop has 64 iterations; split it");
    auto [io, ii] = s.split(i, 2);
    auto [jo, ji] = s.split(j, 8);
    auto [jio, jii] = s.split(ji, 4);
    s.order({io, jo, ii, jii, jio});
    s.bind(io, grid.x);
    s.bind(jo, grid.y);
    s.bind(ii, cluster);
    s.bind(jii, cluster);
    EXPECT_ERROR(s.bind(jio, cluster),
                 "the loops of 'y' that are bound to cluster make clusters of 16 blocks, 8 at most");
}

// Whoever has a turn goes through the ring as often as the others can tell.
TEST(RoleErrors, OfTurnsThatNobodyCanCount) {
    auto attempt = [](const Expr& blocks, const std::function<Expr(Expr)>& count) {
        Tensor a = input("a", bf16, {512, blocks, 256}), b = input("b", bf16, {64, blocks, 256});
        Axis r = reduce_axis("r", 256);
        Tensor c = compute("c", {512, 64}, [&](Expr i, Expr j) {
            Axis q = reduce_axis("q", count(i));
            return sum(cast(f32, a(i, q, r)) * cast(f32, b(j, q, r)), {q, r});
        });
        Schedule s({c}, target("sm_90a"));
        auto [i, j] = s.loops<2>(c);
        auto [bi, mi] = s.split(i, 64);
        auto [ro, ri] = s.split(s.reduce(c, 1), 64);
        s.order({bi, s.reduce(c, 0), ro, mi, j, ri});
        s.persistent({bi});
        Stage as = s.stage(c, a, Memory::Shared, ro), bs = s.stage(c, b, Memory::Shared, ro);
        s.mma(c, wgmma, {.m = mi, .n = j, .k = ri});
        s.pipeline(ro, {.stages = 4});
        s.roles({{"load", warps(1), {}, {as, bs}}, {"math", warpgroups(2), {}, {c}, ping_pong(2)}});
        build(s);
    };
    attempt(Expr(4), [](const Expr&) { return Expr(4); });
    EXPECT_ERROR(attempt(Expr(8), [](const Expr& i) { return i / 64 + 1; }), "not always as many iterations");
    Expr blocks = size("blocks", {.min = 0, .max = 8});
    EXPECT_ERROR(attempt(blocks, [&](const Expr&) { return blocks; }),
                 "loop 'q' around may have no iterations, and then no group of its role tells the next one");
}

TEST(RoleErrors, NameTwoKernels) {
    Tensor x = input("x", f32, {64, 64}), y = compute("y", {64, 64}, [&](Expr i, Expr j) { return x(i, j) + 1.0; }),
           z = compute("z", {64, 64}, [&](Expr i, Expr j) { return y(j, i); });
    Schedule s({z}, target("sm_90a"));
    std::vector<Stage> all = s.all_stages();
    EXPECT_ERROR(s.roles({{"a", warpgroups(1), {}, {y}}, {"b", warpgroups(1), {}, {z}}}), "other stages in 'y'");
    EXPECT_ERROR(s.roles({{"a", warpgroups(1), {}, {z}}, {"b", warps(1), {}, {}}}), "'b' has no stages");
    EXPECT_ERROR(s.persistent({s.loops<2>(y)[0], s.loops<2>(z)[0]}), "belongs to another stage than");
    EXPECT_ERROR(s.persistent({s.loops<2>(y)[0]}, {.blocks = -1}), "-1 blocks; leave it open");
    s.bind(s.loops<2>(y)[0], thread);
    EXPECT_ERROR(s.persistent({s.loops<2>(y)[0]}), "is bound to thread, pipelined or cut already");
    s.bind(s.loops<2>(z)[0], grid.y);
    EXPECT_ERROR(s.persistent({s.loops<2>(z)[1]}), "but loop 'i' is bound to grid.y");
    s.inline_stage(y);
    EXPECT_ERROR(s.roles({{"a", warpgroups(1), {}, {all[0]}}, {"b", warps(1), {}, {z}}}), "is inlined");
    Schedule old({z}, target("sm_80"));
    EXPECT_ERROR(old.roles({{"a", warpgroups(1), {}, {z}}}), "they need sm_90, the target is sm_80");
}

TEST(RoleErrors, CitePromisesThatCannotHold) {
    auto attempt = [](int64_t columns, bool pipelined, Copy via = Copy::Automatic, int in_flight = 0,
                      Memory memory = Memory::Shared) {
        Tensor x = input("x", f32, {256, columns});
        Axis r = reduce_axis("r", columns);
        Tensor y = compute("y", {256}, [&](Expr i) { return sum(x(i, r), r); });
        Schedule s({y}, target("sm_90a"));
        auto [i] = s.loops<1>(y);
        auto [io, ii] = s.split(i, 128);
        auto [ro, ri] = s.split(s.reduce(y), 32, Tail::Mask);
        s.order({io, ii, ro, ri});
        s.bind(ii, thread);
        Stage copy = s.stage(y, x, Memory::Shared, ro);
        if (via != Copy::Automatic) s.via(copy, via);
        if (pipelined) s.pipeline(ro, {.stages = 2, .in_flight = in_flight});
        s.roles({{"load", warps(1), {}, {copy}}, {"sum", warpgroups(1), {}, {y}}});
        if (memory != Memory::Shared) s.set_memory(copy, memory);
        build(s);
    };
    attempt(64, true);
    EXPECT_ERROR(attempt(66, true),
                 "role 'load' cannot copy 'x_shared' by the tensor memory accelerator: rows of 'x' are 66");
    EXPECT_ERROR(attempt(64, false), "its loop is not pipelined");
    EXPECT_ERROR(attempt(64, true, Copy::Async), "via asks for async");
    EXPECT_ERROR(attempt(64, true, Copy::Automatic, 1), "the loop does not end with wgmma alone");
    EXPECT_ERROR(attempt(64, false, Copy::Automatic, 0, Memory::Registers), "is no copy into shared memory");
    EXPECT_ERROR(build(Product({.in_flight = 1, .load_both = false}, target("sm_90a")).s),
                 "this role's own copies would overwrite what is still read");
}

/// Windows of two sequences, whose rows the matrix unit takes in eights.
TEST(RoleErrors, TellHowManyRowsBoxesBring) {
    auto attempt = [](int64_t taps, int64_t channels) {
        const Tensor x = input("x", bf16, {4, 64 + taps - 1, channels}), w = input("w", bf16, {taps, channels, 64});
        const Axis k = reduce_axis("k", taps), c = reduce_axis("c", channels);
        const Tensor y = compute("y", {4, 64, 64}, [&](Expr n, Expr t, Expr f) {
            return sum(cast(f32, x(n, t + k, c)) * cast(f32, w(k, c, f)), {k, c});
        });
        Schedule s({y}, target("sm_90a"));
        auto [n, t, f] = s.loops<3>(y);
        auto [no, ni] = s.split(n, 2);
        auto [ch, kc] = s.split(s.reduce(y, 1), 64, Tail::Mask);
        s.order({no, ni, ch, s.reduce(y, 0), t, f, kc});
        s.bind(no, grid.x);
        s.bind(ni, warpgroup);
        const Stage xs = s.stage(y, x, Memory::Shared, ch), ws = s.stage(y, w, Memory::Shared, ch);
        s.mma(y, wgmma, {.m = t, .n = f, .k = kc});
        s.pipeline(ch, {.stages = 2});
        s.roles({{"load", warps(1), {}, {xs, ws}}, {"math", warpgroups(2), {}, {y}}});
        build(s);
    };
    attempt(9, 64);
    EXPECT_ERROR(attempt(4, 64),
                 "72 in the tile, whose rows come in whole units, and 67 that it brings; have it bring 72");
    EXPECT_ERROR(attempt(9, 90), "rows of 'x' are 90 elements apart, which is no multiple of 16 bytes");
}

}  // namespace
}  // namespace tw
