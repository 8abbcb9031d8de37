#include <gtest/gtest.h>

#include "codegen/thread_ir/thread_walk.h"
#include "codegen/thread_passes/thread_passes.h"
#include "thread_kernels.h"

namespace tw::codegen {
namespace {

struct Small {
    ThreadKernel kernel = empty_kernel("small", 64);
    Buffer a = make_buffer("a", f32, Memory::Global, {1024}), sum = make_buffer("sum", f32, Memory::Registers, {16});
    Expr i = index_variable("i", 0, 3), j = index_variable("j", 0, 1), k = index_variable("k", 0, 1);

    Small() { add_argument(kernel, a, true); }
    ThreadStmt put(const Expr& index) const { return store(sum, {index}, load(a, {index + kernel.thread * 16})); }
    std::string after(std::vector<ThreadStmt> body) {
        body.insert(body.begin(), declare(sum));
        kernel.body = in_order(std::move(body));
        verify_thread_ir(kernel);
        ThreadKernel joined = join_loops(kernel);
        verify_thread_ir(joined);
        std::string text = to_string(joined.body);
        return text.substr(text.find('\n') + 1);
    }
};

TEST(JoinLoops, WhoseBodyCountsByBoth) {
    Small s;
    EXPECT_EQ(s.after({unrolled(s.i, 4, {unrolled(s.j, 2, {unrolled(s.k, 2, {s.put(s.i * 4 + s.j * 2 + s.k)})})})}),
              "unroll element < 16\n"
              "  sum[element] = a[thread * 16 + element]\n");
}

TEST(JoinLoops, OnlyWhereNothingIsDivided) {
    Small s;
    // j and k change places: what they say together is no number that counts on.
    EXPECT_EQ(s.after({unrolled(s.i, 4, {unrolled(s.j, 2, {unrolled(s.k, 2, {s.put(s.i * 4 + s.k * 2 + s.j)})})})}),
              "unroll i < 4\n  unroll j < 2\n    unroll k < 2\n"
              "      sum[i * 4 + k * 2 + j] = a[i * 4 + k * 2 + j + thread * 16]\n");
    EXPECT_EQ(s.after({unrolled(s.j, 2, {unrolled(s.k, 2, {only_if(s.k < 1, {s.put(s.j * 2 + s.k)})})})}),
              "unroll j < 2\n  unroll k < 2\n    if k < 1\n      sum[j * 2 + k] = a[j * 2 + k + thread * 16]\n");
}

TEST(JoinLoops, OnlyOfUnrolledOnesWithNothingBetween) {
    Small s;
    EXPECT_EQ(s.after({loop(s.j, 2, {unrolled(s.k, 2, {s.put(s.j * 2 + s.k)})})}),
              "for j < 2\n  unroll k < 2\n    sum[j * 2 + k] = a[j * 2 + k + thread * 16]\n");
    EXPECT_EQ(s.after({unrolled(s.j, 2, {s.put(s.j), unrolled(s.k, 2, {s.put(s.j * 2 + s.k)})})}),
              "unroll j < 2\n  sum[j] = a[j + thread * 16]\n"
              "  unroll k < 2\n    sum[j * 2 + k] = a[j * 2 + k + thread * 16]\n");
    // The outer one only repeats.
    EXPECT_EQ(s.after({unrolled(s.j, 2, {unrolled(s.k, 2, {s.put(s.k)})})}),
              "unroll j < 2\n  unroll k < 2\n    sum[k] = a[k + thread * 16]\n");
}

}  // namespace
}  // namespace tw::codegen
