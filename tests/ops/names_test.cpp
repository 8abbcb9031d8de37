// Whatever users call their tensors, sizes, scalars and roles: kernels build, compile, run, and say what they are.
#include <algorithm>
#include <functional>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "codegen/print/names.h"
#include "dsl/interpret.h"
#include "ops/check.h"
#include "ops/executable.h"
#include "runtime/compile/errors.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

using testing::HasSubstr;
using Names = std::vector<std::string>;

/// Keywords, builtins and macros; what printed kernels declare themselves; what is no identifier at all.
Names nasty_names() {
    Names names = {"TW_x",
                   "TW_",
                   "TW_TSAN",
                   "TW_STATE",
                   "tw_sync_threads",
                   "tw_thread_index",
                   "tw",
                   "TW",
                   "_TW_y",
                   "__TW_z",
                   "TW_x_2",
                   "int",
                   "float",
                   "if",
                   "auto",
                   "__restrict__",
                   "restrict",
                   "long",
                   "half",
                   "bool",
                   "int64_t",
                   "uint32_t",
                   "size_t",
                   "ptrdiff_t",
                   "float4",
                   "dim3",
                   "threadIdx",
                   "blockIdx",
                   "warpSize",
                   "shared",
                   "Shared",
                   "stage",
                   "phase",
                   "role",
                   "rank",
                   "thread",
                   "block",
                   "warp",
                   "lane",
                   "round",
                   "barrier",
                   "Barrier",
                   "full",
                   "empty",
                   "bf16",
                   "f16",
                   "e4m3",
                   "TensorMap",
                   "Vector",
                   "min",
                   "max",
                   "exp",
                   "fma",
                   "load",
                   "store",
                   "memcpy",
                   "printf",
                   "assert",
                   "NULL",
                   "NAN",
                   "INFINITY",
                   "linux",
                   "unix",
                   "std",
                   "main",
                   "asm",
                   "volatile",
                   "register",
                   "i",
                   "j",
                   "k",
                   "accumulator",
                   "y_kernel",
                   "y_next",
                   "__CUDA_ARCH__",
                   "__launch_bounds__",
                   "_Bool",
                   "_",
                   "__",
                   "1",
                   "2x",
                   "-",
                   "",
                   " ",
                   "a b",
                   "a_b",
                   "a  b",
                   "a\tb",
                   "a\nb",
                   "*/ int z; /*",
                   "// x",
                   "\\",
                   "a\\",
                   "\"",
                   "{}",
                   "{0}",
                   "%s",
                   "%20",
                   "a%20b",
                   "größe",
                   "\xff\xfe",
                   "日本",
                   "x;",
                   "x[0]",
                   "x->y",
                   "#define y",
                   "?\?/",
                   "tw::load",
                   "$x",
                   "x$",
                   std::string(300, 'a'),
                   std::string(301, 'a'),
                   std::string(48, 'b'),
                   std::string(300, '_')};
    for (const char* keyword : {"constinit", "co_await", "concept", "requires", "alignas", "xor_eq", "thread_local"})
        names.emplace_back(keyword);
    return names;
}

/// y[i] = (x0[i] + x1[i] * s0 + ...) over n elements in a staged, split nest; `name` gives each its name.
struct Named {
    Named(const std::string& size_name, const std::string& output, const Names& inputs, const Names& scalars) {
        Expr n = size(size_name, {.min = 1, .max = 40});
        std::vector<Tensor> x;
        std::vector<Expr> factors;
        for (const std::string& name : inputs) x.push_back(input(name, f32, {n}));
        for (const std::string& name : scalars) factors.push_back(scalar(name, f32));
        y = compute(output, {n}, [&](Expr i) {
            Expr result = x[0](i);
            for (size_t k = 1; k < x.size(); ++k) result = result + x[k](i) * factors[k % factors.size()];
            return result;
        });
        Schedule s({y}, target("sm_90a"));
        auto [block, thread_loop] = s.split(s.loops<1>(y)[0], 32, Tail::Mask);
        s.bind(block, grid.x);
        s.bind(thread_loop, thread);
        s.stage(y, x[0], Memory::Shared, block);
        schedule = std::make_unique<Schedule>(s);
        first = x[0];
    }
    Tensor y, first;
    std::unique_ptr<Schedule> schedule;
};

/// Runs of `count` names that differ, from the k-th on.
Names some(const Names& all, size_t from, size_t count) {
    Names found;
    for (size_t k = 0; k < count; ++k) found.push_back(all[(from + k) % all.size()]);
    return found;
}

TEST(Names, AnyNameBuildsCompilesAndRuns) {
    const Names all = nasty_names();
    auto device = open_device("emulated");
    constexpr size_t inputs = 12, scalars = 6, step = inputs + scalars + 2;
    for (size_t from = 0; from < all.size(); from += step) {
        Names mine = some(all, from, step);
        Named named(mine[0], mine[1], Names(mine.begin() + 2, mine.begin() + 2 + inputs),
                    Names(mine.begin() + 2 + inputs, mine.end()));
        Program program = build(*named.schedule);
        Bindings bindings = random_bindings({named.y}, from);
        Executable executable(program, device);
        auto got = run_on(executable, bindings), expected = interpret_tree(program.tree(), bindings);
        auto differs = difference("y", got[0], expected[0], bitwise);
        EXPECT_FALSE(differs) << *differs << program.cuda();
        Schedule again = replay(named.schedule->save(), {named.y}, target("sm_90a"));
        EXPECT_EQ(again.to_string(), named.schedule->to_string());
        EXPECT_EQ(again.save(), named.schedule->save());
        try {
            Executable(program, open_device("null:sm_90a"));
        } catch (const NvrtcMissing&) {
        }
    }
}

/// A product in tiles, its loops called as `name` says.
Schedule named_product(const Tensor& c, const Tensor& a, const std::function<std::string()>& name) {
    Schedule s({c}, target("sm_90a"));
    auto [i, j] = s.loops<2>(c);
    auto [bi, it] = s.split(i, 8, Tail::Mask, {name(), name()});
    auto [bj, jt] = s.split(j, 8, Tail::Mask, {name(), name()});
    auto [ti, ri] = s.split(it, 2, {name(), name()});
    auto [tj, rj] = s.split(jt, 4, {name(), name()});
    auto [ko, ki] = s.split(s.reduce(c), 6, Tail::Mask, {name(), name()});
    s.order({bi, bj, ti, tj, ko, ki, ri, rj});
    s.bind(s.fuse(bi, bj, name()), grid.x);
    s.bind(ti, thread);
    s.bind(tj, thread);
    Stage copy = s.stage(c, a, Memory::Shared, ko);
    s.split(s.loops<2>(copy)[1], 2, {name(), name()});
    s.stage(c, Memory::Shared, tj);
    return s;
}

TEST(Names, AnyNameServesForLoops) {
    Tensor a = input("a", f32, {21, 14}), b = input("b", f32, {14, 19});
    Axis k = reduce_axis("k", 14);
    Tensor c = compute("c", {21, 19}, [&](Expr i, Expr j) { return sum(a(i, k) * b(k, j), k); });
    auto device = open_device("emulated");
    Bindings bindings = random_bindings({c}, 1);
    Names all = nasty_names();
    for (const char* taken : {"a", "b", "c", "c_sum", "a_shared", "k_outer", "s", "lane", "thread"})
        all.emplace_back(taken);
    std::mt19937 random(1);
    for (int trial = 0; trial < 8; ++trial) {
        // Some of few names, so that several loops have one; or of all.
        Names mine = all;
        std::shuffle(mine.begin(), mine.end(), random);
        mine.resize(trial % 2 ? 3 : 17);
        Schedule s = named_product(c, a, [&] { return mine[random() % mine.size()]; });
        SCOPED_TRACE(s.trace_as_cpp());
        Program program = build(s);
        Executable executable(program, device);
        auto got = run_on(executable, bindings), expected = interpret_tree(s.tree(), bindings);
        auto differs = difference("c", got[0], expected[0], bitwise);
        EXPECT_FALSE(differs) << *differs << program.cuda();
        Schedule again = replay(s.save(), {c}, target("sm_90a"));
        EXPECT_EQ(again.to_string(), s.to_string());
        EXPECT_EQ(again.save(), s.save());
        EXPECT_EQ(build(again).cuda(), program.cuda());
    }
}

TEST(Names, OfLoopsStandInNestKernelTraceAndErrors) {
    Tensor x = input("x", f32, {64, 64});
    Tensor y = compute("y", {64, 64}, [&](Expr i, Expr j) { return x(i, j) * 2.0; });
    Schedule s({y}, target("sm_90a"));
    auto [i, j] = s.loops<2>(y);
    auto [block_row, row] = s.split(i, 16, {"block_row", "row_in_block"});
    auto [step, column] = s.split(j, 32, {"step", "column"});
    s.bind(block_row, grid.x);
    s.bind(column, thread);
    EXPECT_THAT(s.to_string(), HasSubstr("for row_in_block in 0..16"));
    EXPECT_THAT(s.trace_as_cpp(), HasSubstr("s.split(i, 16, {\"block_row\", \"row_in_block\"});"));
    Program program = build(s);
    for (const char* text : {"row_in_block = 0; row_in_block < 16;", "step = 0; step < 2;"})
        EXPECT_THAT(program.cuda(), HasSubstr(text));
    EXPECT_ERROR(s.bind(row, cluster), "bind(row_in_block, cluster): a cluster has 2 to 8 blocks, the loop has 16");
    EXPECT_ERROR(s.split(column, 3), "loop 'column' is bound to thread");
}

TEST(Names, EachNameServesForEachThing) {
    for (const std::string& name : nasty_names()) {
        EXPECT_NO_THROW(build(*Named(name, "y", {"a", "b"}, {"s"}).schedule)) << name;
        EXPECT_NO_THROW(build(*Named("n", name, {"first", "second"}, {"s"}).schedule)) << name;
        EXPECT_NO_THROW(build(*Named("n", "out", {name, "second"}, {"s"}).schedule)) << name;
        EXPECT_NO_THROW(build(*Named("n", "out", {"first", "second"}, {name}).schedule)) << name;
        std::string identifier = codegen::sanitize(name);
        EXPECT_FALSE(identifier.empty());
        EXPECT_LE(identifier.size(), 49u);
        EXPECT_EQ(identifier.find("__"), identifier.npos) << identifier;
        EXPECT_THAT(identifier, testing::Not(testing::StartsWith("TW_")));
        EXPECT_THAT(identifier, testing::Not(testing::StartsWith("_")));
    }
}

TEST(Names, OutputsOfATupleAreBuffersOfTheirNames) {
    Tensor x = input("x", f32, {8, 16});
    Axis k = reduce_axis("k", 16);
    auto best = compute_tuple("best", {"value", "place"}, {8},
                              [&](const std::vector<Expr>& i) { return argmax(x(i[0], k), k); });
    Schedule s(best, target("sm_90a"));
    s.stage(best[0], x, Memory::Registers, s.loops<1>(best[0])[0]);
    Program program = build(s);
    EXPECT_EQ(program.tree().outputs[0]->name, "value");
    EXPECT_EQ(program.tree().outputs[1]->name, "place");
    EXPECT_THAT(program.cuda(), HasSubstr("value["));
    EXPECT_THAT(program.cuda(), HasSubstr("// value[i] = "));
    Executable executable(program, open_device("emulated"));
    Bindings bindings = random_bindings(best, 3);
    auto got = run_on(executable, bindings), expected = interpret_plain(best, bindings);
    for (size_t o = 0; o < 2; ++o) EXPECT_FALSE(difference(best[o].name(), got[o], expected[o], bitwise));
    EXPECT_EQ(replay(s.save(), best, target("sm_90a")).to_string(), s.to_string());
    Tensor value = compute("value", {8}, [&](Expr i) { return best[0](i) * 2.0; });
    EXPECT_ERROR(Schedule({value}, target("sm_90a")), "two tensors are named 'value'");
    Tensor twice = compute("twice", {8}, [&](Expr i) { return best[0](i) * 2.0; });
    EXPECT_THAT(to_string(*twice.operation()), HasSubstr("twice[i] = value[i] * 2"));
}

}  // namespace
}  // namespace tw
