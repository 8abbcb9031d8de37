#include <gtest/gtest.h>

#include "codegen/thread_ir/thread_walk.h"
#include "codegen/thread_passes/thread_passes.h"
#include "thread_kernels.h"

namespace tw::codegen {
namespace {

struct Small {
    ThreadKernel kernel = empty_kernel("small", 64);
    Buffer a = make_buffer("a", f32, Memory::Global, {1024}), ids = make_buffer("ids", i64, Memory::Global, {64}),
           x = make_buffer("x", f32, Memory::Registers, {16});
    Expr i = index_variable("i", 0, 3), j = index_variable("j", 0, 1), step = index_variable("step", 0, 7);

    Small() {
        add_argument(kernel, a, true);
        add_argument(kernel, ids, false);
    }
    ThreadStmt choose(const Expr& where) const {
        return store(x, {i * 2 + j}, select(where, load(a, {i * 2 + j}), constant(f32, 0.0)));
    }
    ThreadStmt in_loops(const ThreadStmt& stmt) const {
        return loop(step, 8, {unrolled(i, 4, {unrolled(j, 2, {stmt})})});
    }
    std::string after(const ThreadStmt& stmt) {
        kernel.body = in_order({declare(x), stmt});
        verify_thread_ir(kernel);
        ThreadKernel named = name_thresholds(kernel);
        verify_thread_ir(named);
        std::string text = to_string(named.body);
        return text.substr(text.find('\n') + 1);
    }
    bool stays(const ThreadStmt& stmt) {
        const std::string text = after(stmt), before = to_string(kernel.body);
        return before.substr(before.find('\n') + 1) == text;
    }
};

TEST(NameThresholds, OfTwoPlaces) {
    Small s;
    EXPECT_EQ(s.after(s.in_loops(s.choose(s.step * 8 + s.i * 2 <= s.kernel.thread + s.j * 4 + 3))),
              "for step < 8\n"
              "  let threshold = thread - step * 8 + 3\n"
              "  unroll i < 4\n"
              "    unroll j < 2\n"
              "      x[i * 2 + j] = select(i * 2 - j * 4 <= threshold, a[i * 2 + j], 0.0)\n");
    // Each part of a condition, and each threshold once.
    const Expr row = s.kernel.thread, key = s.step * 8 + s.i;
    EXPECT_EQ(s.after(s.in_loops(in_order({s.choose(key <= row && row < key + 5), s.choose(key < row)}))),
              "for step < 8\n"
              "  let threshold = thread - step * 8\n"
              "  let threshold_2 = step * 8 - thread + 5\n"
              "  unroll i < 4\n"
              "    unroll j < 2\n"
              "      x[i * 2 + j] = select(i <= threshold && -i < threshold_2, a[i * 2 + j], 0.0)\n"
              "      x[i * 2 + j] = select(i < threshold, a[i * 2 + j], 0.0)\n");
}

TEST(NameThresholds, OnlyWhereItSpares) {
    Small s;
    const Expr row = s.kernel.thread;
    EXPECT_TRUE(s.stays(s.in_loops(s.choose(row + s.i < 40))));     // of one place
    EXPECT_TRUE(s.stays(s.in_loops(s.choose(s.step * 8 <= row))));  // the same in all
    EXPECT_TRUE(
        s.stays(loop(s.step, 8, {loop(s.i, 4, {loop(s.j, 2, {s.choose(s.step * 8 + s.i <= row)})})})));  // rolled
    EXPECT_TRUE(s.stays(s.in_loops(s.choose(s.step + s.i <= row + load(s.ids, {row})))));                // reads
    EXPECT_TRUE(s.stays(s.in_loops(only_if(s.step * 8 + s.i <= row, {s.choose(s.j < 1)}))));             // no choice
    const Expr cutoff = scalar("cutoff", i64);  // what it and a place are apart may leave 64 bits
    s.kernel.scalars = {cutoff};
    EXPECT_TRUE(s.stays(s.in_loops(s.choose(cutoff < s.step * 8 + s.i))));
    EXPECT_TRUE(s.stays(unrolled(s.i, 4, {loop(s.step, 8, {unrolled(s.j, 2, {s.choose(s.step * 8 + s.i <= row)})})})));
}

}  // namespace
}  // namespace tw::codegen
