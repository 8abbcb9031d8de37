// Atomic updates as kernels on the emulator: each iteration counts once, whatever runs it, in every type.
#include <gtest/gtest.h>

#include "dsl/declare_scatter.h"
#include "dsl/interpret.h"
#include "dsl/schedule.h"
#include "ops/executable.h"
#include "tests/schedules/integers_for.h"

namespace tw {
namespace {

std::string expect_declared_values(const Schedule& s) {
    Bindings bindings = integers_for(s.outputs(), 9);
    Program program = build(s);
    Executable executable(program, open_device("emulated"));
    std::vector<HostArray> got = run_on(executable, bindings), wanted = interpret_plain(s.outputs(), bindings);
    for (size_t k = 0; k < got.size(); ++k) {
        auto differs = difference(s.outputs()[k].name(), got[k], wanted[k], equal_values);
        EXPECT_FALSE(differs) << *differs << "\n" << s.to_string() << program.cuda();
    }
    return program.cuda();
}

/// Neither the parts' values nor their places mention the loop.
TEST(Updates, CountOnceForEachIteration) {
    Tensor x = input("x", f32, {5});
    Axis k = reduce_axis("k", 40);
    Tensor y = compute("y", {5}, [&](Expr i) { return sum(x(i), k); });
    auto with_parts = [&](const std::function<void(Schedule&, Loop, Loop)>& bind) {
        Schedule s({y}, target("sm_90a"));
        auto [chunk, inside] = s.split(s.reduce(y), 6, Tail::Mask);
        Stage parts = s.rfactor(y, chunk, Combine::Atomic);
        bind(s, chunk, s.data_loops(parts)[1]);
        SCOPED_TRACE(s.to_string());
        std::string text = expect_declared_values(s);
        EXPECT_NE(text.find("tw::atomic_add(&y["), std::string::npos) << text;
        EXPECT_EQ(text.find("__syncthreads"), std::string::npos) << text;
    };
    with_parts([](Schedule&, Loop, Loop) {});
    for (Level level : {Level::Thread, Level::Warp, Level::Lane, Level::Unroll})
        with_parts([&](Schedule& s, Loop chunk, Loop) { s.bind(chunk, level); });
    for (Level level : {Level::Thread, Level::Warp, Level::GridX})
        with_parts([&](Schedule& s, Loop chunk, Loop row) {
            s.order({chunk, row});
            s.bind(chunk, level);
            s.bind(row, level == Level::Warp ? Level::Lane : Level::Thread);
        });
    with_parts([](Schedule& s, Loop chunk, Loop row) {
        s.order({chunk, row});
        s.bind(row, Level::Thread);  // one thread a row, serially
    });
}

TEST(Updates, InEveryType) {
    for (Type type : {f32, f64, i32, u32, i64}) {
        Tensor x = input("x", type, {3, 50});
        std::vector<Tensor> outputs;
        for (Reduction reduce : {Reduction(sum), Reduction(reduce_min), Reduction(reduce_max)}) {
            if (is_float(type) && reduce != Reduction(sum)) continue;
            // Of u32 the least starts at 0xffffffff, which the emulator takes for memory that was never written.
            if (type == u32 && reduce == Reduction(reduce_min)) continue;
            Axis k = reduce_axis("k", 50);
            outputs.push_back(
                compute("y" + std::to_string(outputs.size()), {3}, [&](Expr i) { return reduce(x(i, k), {k}); }));
        }
        Axis c = reduce_axis("c", 70);
        outputs.push_back(compute("ones", {3}, [&](Expr) { return sum(cast(type, 1), {c}); }));
        outputs.push_back(compute("indices", {3}, [&](Expr i) { return sum(cast(type, c + i), {c}); }));
        Schedule s(outputs, target("sm_90a"));
        for (const Tensor& y : outputs) {
            Stage parts = s.rfactor(y, s.split(s.reduce(y), 16, Tail::Mask)[0], Combine::Atomic);
            s.order({s.data_loops(parts)[0], s.data_loops(parts)[1]});
            s.bind(s.data_loops(parts)[0], thread);
        }
        expect_declared_values(s);
    }
}

/// Many to one: all threads of a block meet at one element.
TEST(Updates, OfOneElementByAll) {
    Tensor ids = input("ids", i32, {300}), x = input("x", f32, {300});
    Axis r = reduce_axis("r", 300);
    Tensor d = compute("d", {4}, [&](Expr i) { return sum(select(ids(r) / 8 == i, x(r), 0.0), r); });
    for (Combine combine : {Combine::Atomic, Combine::Workspace}) {
        Schedule s({d}, target("sm_90a"));
        Stage terms = s.scatter(d, combine);
        if (combine == Combine::Atomic) {
            auto [block, inside] = s.split(s.data_loops(terms)[0], 128, Tail::Mask);
            s.bind(block, grid.x);
            s.bind(inside, thread);
        } else {
            s.bind(s.data_loops(d)[0], grid.x);
            s.bind(s.split(s.reduce(d), 32, Tail::Mask)[1], thread);
        }
        expect_declared_values(s);
    }
}

/// Threads that have no term read no index either, however many terms there are.
TEST(Updates, OfTermsBoundToNoThreads) {
    for (int64_t terms : {1, 12, 31, 257})
        for (int64_t columns : {1, 12, 27}) {
            SCOPED_TRACE(std::to_string(terms) + " terms of " + std::to_string(columns) + " elements");
            Tensor ids = input("ids", i32, {terms}), x = input("x", f32, {terms, columns});
            Axis r = reduce_axis("r", terms);
            Tensor d =
                compute("d", {9, columns}, [&](Expr i, Expr j) { return sum(select(ids(r) == i, x(r, j), 0.0), r); });
            for (bool staged : {false, true}) {
                Schedule s({d}, target("sm_90a"));
                Stage updates = s.scatter(d, Combine::Atomic);
                if (staged) s.stage(updates, x, Memory::Registers, s.data_loops(updates)[1]);
                expect_declared_values(s);
            }
        }
}

}  // namespace
}  // namespace tw
