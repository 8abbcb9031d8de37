// Programs: headers, notes and citations of the printed kernels.
#include "ops/program.h"
#include "codegen/print/print_cuda.h"

#include <gmock/gmock.h>

#include "dsl/interpret.h"
#include "ops/check.h"
#include "ops/executable.h"
#include "runtime/compile/compile.h"
#include "schedules/calibrated_speeds.h"
#include "schedules/plain_schedule.h"
#include "tests/support/cache_folder.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

struct Product {
    Tensor a = input("a", f32, {64, 48}), b = input("b", f32, {48, 32});
    Axis k = reduce_axis("k", 48);
    Tensor c = compute("c", {64, 32}, [&](Expr i, Expr j) { return sum(a(i, k) * b(k, j), k); });
    Schedule s{{c}, target("sm_90a")};
};

TEST(Program, TheTextBeginsWithFormulaAndShapes) {
    Product p;
    std::string text = build(p.s).cuda();
    EXPECT_THAT(text, HasSubstr("c[i, j] = sum_k a[i, k] * b[k, j]")) << text;
    EXPECT_THAT(text, HasSubstr("inputs    a f32 [64, 48], b f32 [48, 32]")) << text;
}

TEST(Program, TheTextBeginsWithTheStepsOfTheSchedule) {
    Product p;
    p.s.bind(p.s.loops<2>(p.c)[0], grid.x);
    EXPECT_THAT(build(p.s).cuda(), HasSubstr("// schedule  [0] s.bind(i, grid.x);\n"));
}

TEST(Program, HasTheTimeThatIsPredictedOfItsKernels) {
    Product p;
    const Program program = build(p.s);
    ASSERT_EQ(program.predicted().kernels.size(), program.kernels().size());
    EXPECT_GT(program.predicted().seconds, 0);
    EXPECT_EQ(program.predicted().seconds, codegen::predict_time(program.tree(), program.target()).seconds);
}

/// A line for each kernel: as tw show has it, on a device as it was calibrated.
TEST(Program, ExplainsWhatItsKernelsTakeAndWhatBoundsThem) {
    const CacheFolder cache;
    const Tensor x = input("x", f32, {1 << 20}),
                 first = compute("first", {1 << 20}, [&](Expr i) { return x(i) * 2.0; });
    const Tensor y = compute("y", {1 << 20}, [&](Expr i) { return first(i) + first(1048575 - i); });
    const Program program = build(schedules::plain_schedule({y, first}, target("sm_90a")));
    ASSERT_EQ(program.kernels().size(), 2u);
    auto explains_all = [&] {
        const codegen::Prediction time =
            codegen::predict_time(program.tree(), program.target(), schedules::calibrated_speeds(program.target()));
        std::string lines;
        for (size_t k = 0; k < time.kernels.size(); ++k)
            lines += fmt::format("'{}': {:.4f} ms by the model of time, most of it {}\n", program.kernels()[k].name,
                                 time.kernels[k].seconds * 1e3, time.kernels[k].bound);
        EXPECT_EQ(program.explain(), program.notes() + lines);
        return lines;
    };
    EXPECT_THAT(explains_all(), HasSubstr("most of it blocks that begin"));
    schedules::keep_speeds(program.target(), {.launch = 1e-2});
    EXPECT_THAT(explains_all(), AllOf(HasSubstr("': 10.0"), HasSubstr("most of it launch")));

    const codegen::KernelText& kernel = program.kernels()[0];
    const std::string edited = program.with_cuda(kernel.name, kernel.cuda + "\n").explain();
    EXPECT_THAT(edited, Not(HasSubstr("'" + kernel.name + "': ")));
    EXPECT_THAT(edited, HasSubstr("'" + program.kernels()[1].name + "': "));
}

TEST(Program, SeveralOutputsHaveALineEach) {
    Product p;
    auto both = compute_tuple("both", {64}, [&](const std::vector<Expr>& i) {
        return std::vector<Expr>{p.a(i[0], 0) + 1.0, p.a(i[0], 0) * 2.0};
    });
    EXPECT_THAT(build(Schedule(both, target("sm_90a"))).cuda(),
                HasSubstr("// both.0[i] = a[i, 0] + 1.0\n// both.1[i] = a[i, 0] * 2.0\n// inputs"));
}

TEST(Program, LinesCiteStepsAndUserLines) {
    Product p;
    p.s.bind(p.s.loops<2>(p.c)[0], grid.x);
    p.s.stage(p.c, p.b, Memory::Registers, p.s.reduce(p.c));
    Program program = build(p.s);
    EXPECT_THAT(program.line_notes(0), testing::Contains(HasSubstr("(program_test.cpp:")));
}

/// Of lines that no step has asked for, the declaration.
TEST(Program, LinesCiteDeclarations) {
    Tensor x = input("x", f32, {64}), n = input("n", i32, {64});
    Tensor twice = compute("twice", {64}, [&](Expr i) { return x(i) * 2.0; });
    const unsigned line = __LINE__ + 1;
    Tensor y = compute("y", {64}, [&](Expr i) {
        Axis r = reduce_axis("r", n(i));
        return sum(twice(r), r);
    });
    Schedule s({y}, target("sm_90a"));
    s.bind(s.loops<1>(y)[0], thread);
    Program program = build(s);
    const std::string of_twice = fmt::format("of 'twice' (program_test.cpp:{})", line - 2),
                      of_y = fmt::format("of 'y' (program_test.cpp:{})", line);
    int seen = 0;
    for (size_t k = 0; k < program.kernels().size(); ++k) {
        std::istringstream lines(program.kernels()[k].cuda);
        std::vector<std::string> notes = program.line_notes(k);
        size_t number = 0;
        for (std::string text; std::getline(lines, text); ++number) {
            const bool stores_twice = text.find("store<4>(&twice[") != text.npos,
                       loops = text.find("for (int r = 0") != text.npos,
                       stores_y = text.find("    y[i] = y_sum") != text.npos;
            const bool is_twice = k == 0 && stores_twice, is_y = k == 1 && (loops || stores_y);
            if (is_twice || is_y) {
                EXPECT_EQ(notes.at(number), is_twice ? of_twice : of_y) << text;
            }
            seen += is_twice || is_y;
        }
        EXPECT_EQ(number, notes.size());
    }
    EXPECT_EQ(seen, 3) << program.cuda();
}

/// A row that there is not.
TEST(Program, FindingsQuoteTheStatementAndTheDeclaration) {
    Tensor table = input("table", f32, {8, 4}), id = input("id", i32, {32});
    const unsigned line = __LINE__ + 1;
    Tensor y = compute("y", {32, 4}, [&](Expr i, Expr j) { return table(id(i), j) * 2.0; });
    Schedule s({y}, target("sm_90a"));
    auto [i, j] = s.loops<2>(y);
    auto [io, ii] = s.split(i, 16);
    s.bind(io, grid.x);
    s.bind(ii, thread);
    s.bind(j, tw::vector);
    Bindings bindings = random_bindings({y}, 1);
    bindings.inputs["id"].set({17}, make_value(i32, int64_t{8}));
    Executable executable(build(s), open_device("emulated"));
    EXPECT_ERROR(run_on(executable, bindings), fmt::format(" of 'y' (program_test.cpp:{})", line));
    EXPECT_ERROR(run_on(executable, bindings), ": tw::load<4>(table_values, &table[");
}

TEST(Program, LimitsCiteTheStep) {
    Product p;
    p.s.stage(p.c, p.a, Memory::Shared, p.s.loops<2>(p.c)[0]);
    Target tiny = target("sm_90a");
    tiny.shared_bytes = 16;
    Schedule small({p.c}, tiny);
    small.stage(p.c, p.a, Memory::Shared, small.loops<2>(p.c)[0]);
    EXPECT_ERROR(build(small), "program_test.cpp:");
    EXPECT_ERROR(build(small), "shared memory of 192 bytes");
}

/// Sums that wait for each other, all in one thread.
TEST(Program, ArraysOfAThreadFitIntoLocalMemory) {
    auto sums = [](int64_t rows) {
        Tensor x = input("x", f32, {rows, 300, 2});
        Axis k = reduce_axis("k", 2);
        Tensor y = compute("y", {rows, 300}, [&](Expr i, Expr j) { return sum(x(i, j, k), k); });
        Schedule s({y}, target("sm_90a"));
        s.order({s.reduce(y), s.loops<2>(y)[0], s.loops<2>(y)[1]});
        return s;
    };
    EXPECT_ERROR(build(sums(500)),
                 "the arrays of a thread take 600000 bytes, 600000 of them 'y_sum', but local memory has 524288");
    Schedule s = sums(400);
    Executable executable(build(s), open_device("emulated"));
    Bindings bindings = random_bindings(s.outputs(), 1);
    EXPECT_FALSE(difference("y", run_on(executable, bindings)[0], interpret_plain(s.outputs(), bindings)[0], bitwise));
}

/// Each thread looks up 4 of 16 elements, whose table stands in registers for the whole kernel, or in shared memory.
Schedule lookup(Memory memory) {
    Tensor table = input("table", f32, {16}), at = input("at", i32, {256, 4});
    Tensor y = compute("y", {256, 4}, [&](Expr i, Expr j) { return table(at(i, j)) * 2.0; });
    Schedule s({y}, target("sm_90a"));
    auto [i, j] = s.loops<2>(y);
    s.bind(i, thread);
    s.stage(y, table, memory, i);
    return s;
}

/// A register array that is read at an index from memory has an address: explain() tells.
TEST(Program, RegistersThatWouldLandInLocalMemoryAreTold) {
    std::string told = build(lookup(Memory::Registers)).explain();
    EXPECT_THAT(told, HasSubstr("y: each thread holds all of 'table_registers' and reads it at [cast(i64, at[i, j])]"));
    EXPECT_THAT(told, HasSubstr("it lives in local memory; stage it in shared memory"));
    EXPECT_THAT(build(lookup(Memory::Shared)).explain(), testing::Not(HasSubstr("local memory")));
}

TEST(Program, TheNoteOnLocalMemoryIsTrue) {
    try {
        auto stack_of = [](Memory memory) {
            Program program = build(lookup(memory));
            const codegen::KernelText& kernel = program.kernels().at(0);
            return compile_kernel({.source = kernel.cuda}).of(kernel.name).stack_bytes;
        };
        EXPECT_EQ(stack_of(Memory::Registers), 16 * 4);
        EXPECT_EQ(stack_of(Memory::Shared), 0);
    } catch (const NvrtcMissing& missing) {
        GTEST_SKIP() << missing.what();
    }
}

TEST(Program, NamedApproximationsAreTold) {
    Product p;
    EXPECT_FALSE(build(p.s).approximate());
    Tensor e = compute("e", {64, 48}, [&](Expr i, Expr j) { return exp(p.a(i, j)); });
    EXPECT_TRUE(build(Schedule({e}, target("sm_90a"))).approximate());
}

}  // namespace
}  // namespace tw
