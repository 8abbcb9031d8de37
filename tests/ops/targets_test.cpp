// What a target takes, its compiler takes; what it lacks is refused by the step that asks for it.
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dsl/interpret.h"
#include "ops/backend.h"
#include "ops/check.h"
#include "ops/executable.h"
#include "runtime/compile/errors.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

constexpr const char* all_targets[] = {"sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100a", "sm_120a"};

/// c = a b' of 128 x 64 x 128, staged in shared memory and pipelined, by a matrix unit.
struct Product {
    Product(const std::string& arch, Type type)
        : a(input("a", type, {128, 128})), b(input("b", type, {64, 128})), s(schedule_of(arch, type)) {
        auto [i, j] = s.loops<2>(c);
        auto [bi, rows] = s.split(i, 64);
        auto [k_outer, k_inner] = s.split(s.reduce(c), 64);
        std::tie(block, m, n, ko, ki) = std::tie(bi, rows, j, k_outer, k_inner);
        s.order({bi, ko, rows, j, ki});
        s.bind(bi, grid.x);
        as = s.stage(c, a, Memory::Shared, ko);
        bs = s.stage(c, b, Memory::Shared, ko);
    }

    Schedule schedule_of(const std::string& arch, Type type) {
        Axis r = reduce_axis("r", 128);
        Type sum_type = type == i8 ? i32 : f32;
        c = compute("c", {128, 64},
                    [&](Expr i, Expr j) { return sum(cast(sum_type, a(i, r)) * cast(sum_type, b(j, r)), r); });
        return Schedule({c}, target(arch));
    }

    void multiply(MatrixUnit unit) { s.mma(c, unit, {.m = m, .n = n, .k = ki}); }
    void load_by_role(int load, int math) {
        s.pipeline(ko, {.stages = 2});
        s.roles({{"load", warps(1), registers(load), {as, bs}}, {"math", warpgroups(1), registers(math), {c}}});
    }

    Tensor a, b, c;
    Schedule s;
    Loop block, m, n, ko, ki;
    Stage as, bs;
};

/// Something that a target may have or not.
struct Feature {
    std::string name;
    std::function<Schedule(const std::string& arch)> make;
    std::vector<std::string> targets;  ///< that have it
    std::string refusal;               ///< part of the message elsewhere
};

Schedule product_by(const std::string& arch, MatrixUnit unit, Type type) {
    Product p(arch, type);
    p.multiply(unit);
    return p.s;
}

/// Elements of one type become another's.
Schedule conversion(const std::string& arch, Type from, Type to) {
    Tensor x = input("x", from, {1024});
    Tensor y = compute("y", {1024}, [&](Expr i) { return cast(to, cast(f32, x(i)) * 2.0); });
    Schedule s({y}, target(arch));
    auto [block, rest] = s.split(s.loops<1>(y)[0], 128);
    auto [each, four] = s.split(rest, 4);
    s.bind(block, grid.x);
    s.bind(each, thread);
    s.bind(four, vector);
    return s;
}

Schedule with_roles(const std::string& arch, MatrixUnit unit, int load, int math) {
    Product p(arch, bf16);
    if (unit == wgmma) {
        p.multiply(wgmma);
    } else {
        auto [w, rows] = p.s.split(p.m, 16);
        p.s.order({p.block, w, p.ko, rows, p.n, p.ki});
        p.s.bind(w, warp);
        p.s.mma(p.c, mma_sync, {.m = rows, .n = p.n, .k = p.ki});
    }
    p.load_by_role(load, math);
    return p.s;
}

Schedule with_boxes(const std::string& arch) {
    Product p(arch, bf16);
    p.s.pipeline(p.ko, {.stages = 2});
    p.s.via(p.as, Copy::Tma);
    p.multiply(mma_sync);
    return p.s;
}

Schedule with_async_copies(const std::string& arch) {
    Product p(arch, bf16);
    p.s.pipeline(p.ko, {.stages = 3});
    p.s.via(p.as, Copy::Async);
    p.multiply(mma_sync);
    return p.s;
}

/// Results of 2 bytes go through shared memory, as matrices where the target stores such.
Schedule with_staged_results(const std::string& arch) {
    Tensor a = input("a", bf16, {64, 64}), b = input("b", bf16, {64, 64});
    Axis r = reduce_axis("r", 64);
    Tensor c = compute("c", {64, 64},
                       [&](Expr i, Expr j) { return cast(bf16, sum(cast(f32, a(i, r)) * cast(f32, b(j, r)), r)); });
    Schedule s({c}, target(arch));
    auto [i, j] = s.loops<2>(c);
    auto [bi, rows] = s.split(i, 32);
    auto [ko, ki] = s.split(s.reduce(c), 32);
    s.order({bi, ko, rows, j, ki});
    s.bind(bi, grid.x);
    s.stage(c, Memory::Shared, bi);
    s.stage(c, a, Memory::Shared, ko);
    s.stage(c, b, Memory::Shared, ko);
    s.mma(c, mma_sync, {.m = rows, .n = j, .k = ki});
    return s;
}

Schedule with_clusters(const std::string& arch) {
    Tensor x = input("x", f32, {1024});
    Tensor y = compute("y", {1024}, [&](Expr i) { return x(i) + 1.0; });
    Schedule s({y}, target(arch));
    auto [block, each] = s.split(s.loops<1>(y)[0], 128);
    auto [group, rank] = s.split(block, 2);
    s.bind(group, grid.x);
    s.bind(rank, cluster);
    s.bind(each, thread);
    return s;
}

Schedule with_atomics(const std::string& arch, Type type) {
    Tensor x = input("x", type, {64, 512});
    Axis k = reduce_axis("k", 512);
    Tensor y = compute("y", {64}, [&](Expr i) { return sum(x(i, k), k); });
    Schedule s({y}, target(arch));
    s.rfactor(y, s.split(s.reduce(y), 64)[0], Combine::Atomic);
    return s;
}

const std::vector<std::string> everywhere(std::begin(all_targets), std::end(all_targets));
const std::vector<std::string> from_89{"sm_89", "sm_90", "sm_90a", "sm_100a", "sm_120a"};
const std::vector<std::string> from_90{"sm_90", "sm_90a", "sm_100a", "sm_120a"};
const std::vector<std::string> own_sets{"sm_90a", "sm_100a"};

std::vector<Feature> features() {
    std::vector<Feature> all = {
        {"boxes", with_boxes, from_90, "via(a_shared, tma): needs sm_90, the target is sm_8"},
        {"async copies", with_async_copies, everywhere, ""},
        {"staged results", with_staged_results, everywhere, ""},
        {"clusters", with_clusters, from_90, "needs sm_90, the target is sm_8"},
        {"roles", [](const std::string& arch) { return with_roles(arch, mma_sync, 0, 0); }, from_90,
         "roles: they need sm_90, the target is sm_8"},
        {"registers of roles", [](const std::string& arch) { return with_roles(arch, mma_sync, 40, 232); }, own_sets,
         "roles: "},
        {"roles with wgmma",
         [](const std::string& arch) { return with_roles(arch, wgmma, 40, 232); },
         {"sm_90a"},
         "only sm_90a has it, the target is sm_"},
    };
    for (Type type : {bf16, f16, i8, e4m3, e5m2}) {
        bool fp8 = type == e4m3 || type == e5m2;
        std::string name(name_of(type));
        all.push_back({"mma_sync of " + name, [=](const std::string& arch) { return product_by(arch, mma_sync, type); },
                       fp8 ? from_89 : everywhere, "needs sm_89, the target is sm_8"});
        all.push_back({"wgmma of " + name,
                       [=](const std::string& arch) { return product_by(arch, wgmma, type); },
                       {"sm_90a"},
                       "only sm_90a has it, the target is sm_"});
    }
    for (Type type : {bf16, f16, e4m3, e5m2, tf32})
        for (bool back : {false, true})
            all.push_back({fmt::format("{} {}", back ? "from" : "to", name_of(type)),
                           [=](const std::string& arch) {
                               return back ? conversion(arch, type, f32) : conversion(arch, f32, type);
                           },
                           everywhere, ""});
    for (Type type : {f32, f64, i32, u32, i64})
        all.push_back({fmt::format("atomics of {}", name_of(type)),
                       [=](const std::string& arch) { return with_atomics(arch, type); }, everywhere, ""});
    return all;
}

TEST(Targets, TakeWhatTheirCompilerTakes) {
    bool compiles = true;
    for (const Feature& feature : features())
        for (const char* arch : all_targets) {
            SCOPED_TRACE(fmt::format("{} for {}", feature.name, arch));
            bool has = std::ranges::find(feature.targets, arch) != feature.targets.end();
            if (!has) {
                EXPECT_ERROR(feature.make(arch), feature.refusal);
                continue;
            }
            Program program = build(feature.make(arch));
            try {
                if (compiles) Executable(program, open_device(std::string("null:") + arch));
            } catch (const NvrtcMissing&) {
                compiles = false;
            }
        }
    if (!compiles) GTEST_SKIP() << "NVRTC is not on this machine: what is accepted was built only";
}

TEST(Targets, RegistersOfRolesNeedTheirInstruction) {
    EXPECT_ERROR(
        with_roles("sm_90", mma_sync, 40, 232),
        "roles: registers are given, but only sm_90a and sm_100a move them, the target is sm_90; leave them out");
}

TEST(UndefinedHandles, AreRefused) {
    Tensor x = input("x", f32, {4});
    Tensor y = compute("y", {4}, [&](Expr i) { return x(i); });
    Program program = build(Schedule({y}, target("sm_90a")));
    EXPECT_ERROR(Executable(program, nullptr), "Executable: the device is a null pointer; open one");
    EXPECT_ERROR(nn::Backend(nullptr), "Backend: the device is a null pointer; open one");
    EXPECT_ERROR(check_output(Tensor(), {}, {}), "check_output: the output is an undefined tensor");
    EXPECT_ERROR(interpret_plain({Tensor()}, {}), "one of the outputs is an undefined tensor");
    EXPECT_ERROR(random_bindings({y, Tensor()}, 1), "one of the outputs is an undefined tensor");
}

TEST(ScatterTwice, IsRefused) {
    Tensor ids = input("ids", i32, {20}), x = input("x", f32, {20});
    Axis r = reduce_axis("r", 20);
    Tensor d = compute("d", {6}, [&](Expr i) { return sum(select(ids(r) == i, x(r), 0.0), r); });
    Schedule s({d}, target("sm_90a"));
    s.scatter(d);
    EXPECT_ERROR(s.scatter(d), "scatter(d): its terms are sorted by element already");
}

TEST(Targets, EachHasADevice) {
    for (const char* arch : all_targets) EXPECT_EQ(open_device(std::string("null:") + arch)->arch(), arch);
}

/// The emulator could run them, and compilers would say so in words of their own.
TEST(Targets, DevicesThatLackWhatKernelsUseAreRefused) {
    Product product("sm_90a", bf16);
    product.multiply(wgmma);
    const Program program = build(product.s);
    EXPECT_NO_THROW(Executable(program, open_device("emulated:sm_90a")));
    EXPECT_ERROR(Executable(program, open_device("emulated:sm_100a")),
                 "c_kernel: scheduled for sm_90a, it uses wgmma, which sm_100a does not have; schedule it for "
                 "target(\"sm_100a\"), or open another device");
    EXPECT_ERROR(Executable(program, open_device("emulated:sm_80")), "which sm_80 does not have");
    Product older("sm_80", bf16);
    older.multiply(mma_sync);
    EXPECT_NO_THROW(Executable(build(older.s), open_device("emulated:sm_90a")));
}

}  // namespace
}  // namespace tw
