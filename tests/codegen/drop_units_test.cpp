#include <gtest/gtest.h>

#include "codegen/print/print_cuda.h"
#include "codegen/thread_ir/thread_walk.h"
#include "codegen/thread_passes/thread_passes.h"
#include "thread_kernels.h"

namespace tw::codegen {
namespace {

struct Small {
    ThreadKernel kernel = empty_kernel("small", 64);
    Buffer a = make_buffer("a", f32, Memory::Global, {1024});
    Expr i = index_variable("i", 0, 0), j = index_variable("j", 0, 7), k = index_variable("k", 0, 0);

    Small() { add_argument(kernel, a, true); }
    ThreadStmt put(const Expr& index) { return store(a, {index}, constant(f32, 1.0)); }
    std::string after(std::vector<ThreadStmt> body) {
        kernel.body = in_order(std::move(body));
        ThreadKernel dropped = drop_units(kernel);
        verify_thread_ir(dropped);
        return to_string(dropped.body);
    }
};

TEST(DropUnits, LoopsOfOneIteration) {
    Small s;
    EXPECT_EQ(s.after({loop(s.i, 1, {loop(s.j, 8, {unrolled(s.k, 1, {s.put(s.i * 8 + s.j + s.k * 64)})})})}),
              "for j < 8\n"
              "  a[j] = 1.0\n");
}

TEST(DropUnits, ConditionsThatAreConstants) {
    Small s;
    EXPECT_EQ(s.after({only_if(Expr(true), {s.put(1)}), comment("of nothing"), only_if(Expr(false), {s.put(2)}),
                       comment("of something"), only_if(s.kernel.thread < 3, {s.put(3)})}),
              "a[1] = 1.0\n"
              "# of something\n"
              "if thread < 3\n"
              "  a[3] = 1.0\n");
}

/// What other statements define again, as of copies of a loop, becomes one's own.
TEST(DropUnits, DefinitionsOfOneScopeAreApart) {
    Small s;
    Expr x = index_variable("x"), y = index_variable("y");
    auto uses = [&](const Expr& v, int64_t value) { return std::vector{let(v, s.kernel.thread + value), s.put(v)}; };
    EXPECT_EQ(s.after({loop(s.i, 1, uses(x, 1)), loop(s.k, 1, uses(x, 2))}),
              "let x = thread + 1\na[x] = 1.0\n"
              "let x = thread + 2\na[x] = 1.0\n");
    EXPECT_NE(s.kernel.body.as<ThreadBlock>(), nullptr);
    std::string cuda = print_cuda(drop_units(s.kernel)).cuda;
    EXPECT_NE(cuda.find("x_2 = thread + 2;"), std::string::npos) << cuda;
    Buffer value = make_buffer("value", f32, Memory::Registers, {});
    auto declares = [&] { return std::vector{declare(value), store(value, {}, load(s.a, {0}))}; };
    EXPECT_EQ(s.after({loop(s.i, 1, declares()), loop(s.k, 1, declares())}),
              "for i < 1\n  declare f32 value\n  value = a[0]\n"
              "for k < 1\n  declare f32 value\n  value = a[0]\n");
    EXPECT_EQ(s.after({loop(s.i, 1, uses(x, 1)), loop(s.k, 1, uses(y, 2))}),
              "let x = thread + 1\na[x] = 1.0\n"
              "let y = thread + 2\na[y] = 1.0\n");
}

TEST(DropUnits, DimensionsOfOneElement) {
    Small s;
    Buffer one = make_buffer("one", f32, Memory::Registers, {1}),
           sums = make_buffer("sums", f32, Memory::Registers, {8, 1});
    EXPECT_EQ(s.after({declare(one), declare(sums), store(one, {s.i * 0}, load(s.a, {s.kernel.thread})),
                       unrolled(s.j, 8, {store(sums, {s.j, 0}, load(one, {0}) + load(s.a, {s.j}))}),
                       unrolled(s.j, 8, {store(s.a, {s.j}, load(sums, {s.j, 0}))})}),
              "declare f32 one\n"
              "declare f32 sums[8]\n"
              "one = a[thread]\n"
              "unroll j < 8\n"
              "  sums[j] = one[] + a[j]\n"
              "unroll j < 8\n"
              "  a[j] = sums[j]\n");
}

TEST(DropUnits, NeighboursThatMoveTogetherStayAnArray) {
    Small s;
    Buffer values = make_buffer("values", f32, Memory::Registers, {1, 4}),
           single = make_buffer("single", f32, Memory::Registers, {1, 4, 1});
    std::string text =
        s.after({declare(values), declare(single), wide(4, {values, {0, 0}}, {s.a, {s.kernel.thread * 4}}),
                 make_thread(Instruction(WgmmaFenceOperand{{{single, {0, 0, 0}}, 4}}))});
    EXPECT_NE(text.find("declare f32 values[4]\n"), std::string::npos) << text;
    EXPECT_NE(text.find("declare f32 single[4][1]\n"), std::string::npos) << text;
}

}  // namespace
}  // namespace tw::codegen
