#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "codegen/barriers/insert_barriers.h"
#include "codegen/print/print_cuda.h"
#include "codegen/thread_ir/thread_walk.h"
#include "codegen/thread_passes/thread_passes.h"
#include "thread_kernels.h"

namespace tw::codegen {
namespace {

using testing::HasSubstr;
using testing::Not;

struct Small {
    ThreadKernel kernel = empty_kernel("small", 64);
    Buffer a = make_buffer("a", f32, Memory::Global, {constant(i64, int64_t{1} << 24)});
    Buffer s = make_buffer("s", f32, Memory::Shared, {64, 64});
    Expr t = kernel.thread, block = kernel.block[0], i = index_variable("i", 0, 7), j = index_variable("j", 0, 7);

    Small() {
        kernel.grid[0] = 256;
        kernel.shared = {s};
        add_argument(kernel, a, true);
    }
    ThreadStmt put(const Expr& index) { return store(a, {index}, constant(f32, 1.0)); }
    std::string after(std::vector<ThreadStmt> body) {
        kernel.body = in_order(std::move(body));
        ThreadKernel hoisted = hoist_invariants(kernel);
        verify_thread_ir(hoisted);
        return to_string(hoisted.body);
    }
};

TEST(HoistInvariants, NamesOffsetsOutsideOfLoops) {
    Small k;
    EXPECT_EQ(k.after({loop(k.i, 8, {k.put(k.block * 4096 + k.t * 8 + k.i)})}),
              "let a_offset = block_x * 4096 + thread * 8\n"
              "for i < 8\n"
              "  a[a_offset + i] = 1.0\n");
}

TEST(HoistInvariants, LeavesConstantsOfUnrolledLoopsInside) {
    Small k;
    EXPECT_EQ(k.after({loop(k.i, 8, {unrolled(k.j, 8, {k.put(k.block * 4096 + k.t * 64 + k.i * 8 + k.j)})})}),
              "let a_offset = block_x * 4096 + thread * 64\n"
              "for i < 8\n"
              "  unroll j < 8\n"
              "    a[a_offset + i * 8 + j] = 1.0\n");
}

TEST(HoistInvariants, DividesASumWhereTheSumIsNamed) {
    Small k;
    Expr position = k.block * 32 + k.t, row = position / 5;
    EXPECT_EQ(k.after({only_if(position < 999,
                               {loop(k.i, 8, {store(k.a, {row + k.i * 512}, load(k.a, {row * 64 + k.i}))})})}),
              "if block_x * 32 + thread < 999\n"
              "  let a_offset = block_x * 32 + thread\n"
              "  let index = a_offset / 5\n"
              "  for i < 8\n"
              "    a[index + i * 512] = a[index * 64 + i]\n");
}

TEST(HoistInvariants, DividesTheThreadOnceAtTheTop) {
    Small k;
    EXPECT_EQ(k.after({loop(k.i, 8,
                            {store(k.s, {k.t / 8 + k.i, k.t % 8}, constant(f32, 1.0)),
                             k.put(k.t / 8 * 512 + k.t % 8 + k.i * 8)})}),
              "let s_row = thread / 8\n"
              "let s_column = thread % 8\n"
              "let a_offset = s_row * 512 + s_column\n"
              "for i < 8\n"
              "  s[s_row + i][s_column] = 1.0\n"
              "  a[a_offset + i * 8] = 1.0\n");
}

TEST(HoistInvariants, CallsWarpsAndLanesByTheirNames) {
    Small k;
    EXPECT_THAT(
        k.after({loop(k.i, 8,
                      {store(k.s, {k.t / 32, k.t % 32}, constant(f32, 1.0)), k.put(k.t / 32 + k.t % 32 * 8 + k.i)})}),
        HasSubstr("let warp = thread / 32\nlet lane = thread % 32\n"));
}

TEST(HoistInvariants, CallsPartsOfIndicesWhatTheyAre) {
    Small k;
    EXPECT_THAT(k.after({loop(k.i, 8,
                              {store(k.s, {k.t / 16 + k.i, k.t % 16 * 4}, constant(f32, 1.0)),
                               store(k.s, {k.t / 16 + k.i + 8, k.t % 16 * 4}, constant(f32, 1.0))})}),
                HasSubstr("let s_row = thread / 16\nlet s_vector = thread % 16\n"));
    EXPECT_THAT(k.after({loop(k.i, 8, {k.put(k.t / 4 % 8 + k.i), k.put(k.t / 4 % 8 + k.i + 8)})}),
                HasSubstr("let thread_digit = thread / 4 % 8\n"));
    EXPECT_THAT(k.after({loop(k.i, 8, {k.put(k.t / 4 + k.i), k.put(k.t / 4 + k.t % 4 + k.i + 8), k.put(k.t % 4)})}),
                HasSubstr("let thread_group = thread / 4\nlet thread_in_group = thread % 4\n"));
}

TEST(HoistInvariants, CallsTheSlotOfARingItsStage) {
    Small k;
    Buffer ring = make_buffer("ring", f32, Memory::Shared, {3, 64});
    k.kernel.shared.push_back(ring);
    Expr ko = index_variable("ko", 0, 99);
    auto use = [&](const Expr& iteration) {
        return unrolled(k.j, 8, {store(ring, {iteration % 3, k.j}, constant(f32, 1.0))});
    };
    EXPECT_THAT(k.after({loop(ko, 100, {use(ko), use(ko), use(ko + 2), use(ko + 2)})}),
                HasSubstr("  let stage = ko % 3\n  unroll j < 8\n    ring[stage][j] = 1.0\n"));
    EXPECT_THAT(to_string(hoist_invariants(k.kernel).body), HasSubstr("  let other_stage = (ko + 2) % 3\n"));
    EXPECT_THAT(k.after({loop(k.i, 8,
                              {store(ring, {k.t % 3, k.i}, constant(f32, 1.0)),
                               store(ring, {k.t % 3, k.i + 8}, constant(f32, 2.0))})}),
                HasSubstr("let ring_row = thread % 3\n"))
        << "threads differ";
}

TEST(HoistInvariants, LeavesTheQuotientOfADigitInside) {
    Small k;
    Expr tile = index_variable("tile"), m = index_variable("m"), n = index_variable("n");
    EXPECT_EQ(k.after({let(tile, k.block * 7 + k.t), let(m, tile / 4 % 8), let(n, tile / 32),
                       loop(k.i, 8, {k.put(m * 64 + n + k.i), k.put(tile / 4 % 8 + n + k.i)})}),
              "let tile = block_x * 7 + thread\n"
              "let m = tile / 4 % 8\n"
              "let n = tile / 32\n"
              "let a_offset = m * 64 + n\n"
              "let a_offset = n + m\n"
              "for i < 8\n"
              "  a[a_offset + i] = 1.0\n"
              "  a[a_offset + i] = 1.0\n");
}

TEST(HoistInvariants, NamesNothingBetweenRoles) {
    Small k;
    auto role = [&](int first) {
        ThreadStmt body = loop(k.i, 8, {k.put(k.t / 8 * 64 + k.i), k.put(k.t / 8 * 8 + k.i)});
        return make_thread(ThreadRole{"role", {}, first, 128, first ? body : k.put(0)});
    };
    EXPECT_THAT(k.after({role(0), role(128)}), testing::StartsWith("let thread_group = thread / 8\n"));
}

TEST(HoistInvariants, LeavesASingleUseInline) {
    Small k;
    EXPECT_EQ(k.after({k.put(k.block * 4096 + k.t / 8)}), "a[block_x * 4096 + thread / 8] = 1.0\n");
    EXPECT_EQ(k.after({loop(k.i, 8, {k.put(k.t * 8 + k.i)})}), "for i < 8\n  a[thread * 8 + i] = 1.0\n");
}

TEST(HoistInvariants, UsesTheNamesThatAreThere) {
    Small k;
    Expr row = index_variable("row");
    EXPECT_EQ(k.after({let(row, k.t / 8), loop(k.i, 8, {k.put(k.t / 8 * 8 + k.i)})}),
              "let row = thread / 8\n"
              "for i < 8\n"
              "  a[row * 8 + i] = 1.0\n");
}

TEST(HoistInvariants, GivesTheBlocksIndicesTheirLoopsNames) {
    Small k;
    Expr io = index_variable("io");
    EXPECT_EQ(k.after({let(io, k.block), k.put(io * 64 + k.t)}), "a[io * 64 + thread] = 1.0\n");
    EXPECT_THAT(print_cuda(hoist_invariants(k.kernel)).cuda, HasSubstr("io = blockIdx.x;"));
}

TEST(HoistInvariants, StaysBehindWhatItNeeds) {
    Small k;
    Expr base = index_variable("base", 0, 63);
    EXPECT_EQ(
        k.after({loop(k.i, 8, {let(base, k.i * 8), loop(k.j, 8, {k.put(k.block * 4096 + base * 64 + k.t + k.j)})})}),
        "let a_offset = block_x * 4096 + thread\n"
        "for i < 8\n"
        "  let base = i * 8\n"
        "  for j < 8\n"
        "    a[a_offset + base * 64 + j] = 1.0\n");
}

TEST(HoistInvariants, ReadsNothingAhead) {
    Small k;
    Buffer index = make_buffer("index", i64, Memory::Global, {64});
    add_argument(k.kernel, index, true);
    std::string text =
        k.after({loop(k.i, 8, {k.put(load(index, {k.t}) + k.block * 64 + k.t), store(index, {k.t}, cast(i64, k.i))})});
    EXPECT_THAT(text, HasSubstr("a[a_offset + index[thread]]"));
}

TEST(HoistInvariants, DividesByNothingThatMayBeZero) {
    Small k;
    Expr n = size("n", {0, 64, 1});
    k.kernel.sizes = {n};
    EXPECT_THAT(k.after({loop(k.i, n, {k.put(k.t / n + k.i + k.block)})}),
                HasSubstr("for i < n\n  a[thread / n + i + block_x] = 1.0"));
}

TEST(HoistInvariants, MovesConditionsOutOfLoops) {
    Small k;
    EXPECT_EQ(k.after({loop(k.i, 8, {only_if(k.t < 32 && k.i < 5, {k.put(k.t * 8 + k.i)})})}),
              "if thread < 32\n"
              "  for i < 8\n"
              "    if i < 5\n"
              "      a[thread * 8 + i] = 1.0\n");
    EXPECT_EQ(k.after({only_if(k.block < 3, {loop(k.i, 8, {only_if(k.t < 32, {k.put(k.t * 8 + k.i)})})})}),
              "if block_x < 3 && thread < 32\n"
              "  for i < 8\n"
              "    a[thread * 8 + i] = 1.0\n");
}

TEST(HoistInvariants, LeavesConditionsWhereBarriersMayComeBetween) {
    Small k;
    Buffer x = make_buffer("x", f32, Memory::Registers, {});
    std::string text = k.after({declare(x), loop(k.i, 8,
                                                 {only_if(k.t < 32, {store(k.s, {k.t, 0}, constant(f32, 1.0)),
                                                                     store(x, {}, load(k.s, {(k.t + 1) % 32, 0}))})})});
    EXPECT_THAT(text, HasSubstr("for i < 8\n  if thread < 32\n"));
    insert_barriers(hoist_invariants(k.kernel));  // would find no place otherwise
}

}  // namespace
}  // namespace tw::codegen
