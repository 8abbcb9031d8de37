#include <gtest/gtest.h>

#include "codegen/thread_ir/thread_walk.h"
#include "codegen/thread_passes/thread_passes.h"
#include "thread_kernels.h"

namespace tw::codegen {
namespace {

struct Small {
    ThreadKernel kernel = empty_kernel("small", 64);
    Buffer a = make_buffer("a", f32, Memory::Global, {1024});
    Expr t = kernel.thread, i = index_variable("i"), j = index_variable("j"), k = index_variable("k", 0, 7);

    Small() { add_argument(kernel, a, true); }
    ThreadStmt put(const Expr& index) { return store(a, {index}, constant(f32, 1.0)); }
    std::string after(std::vector<ThreadStmt> body) {
        kernel.body = in_order(std::move(body));
        ThreadKernel dropped = drop_aliases(kernel);
        verify_thread_ir(dropped);
        return to_string(dropped.body);
    }
};

TEST(DropAliases, OfOneNameForAnother) {
    Small s;
    Expr l = index_variable("l");
    EXPECT_EQ(s.after({let(s.i, s.t % 32), let(s.j, s.i), let(l, s.j),
                       loop(s.k, 8, {only_if(s.j < 3, {s.put(l * 8 + s.k)})})}),
              "let i = thread % 32\n"
              "for k < 8\n"
              "  if i < 3\n"
              "    a[i * 8 + k] = 1.0\n");
}

TEST(DropAliases, NotOfWhatDiffersFromScopeToScope) {
    Small s;
    Expr one = index_variable("one"), two = index_variable("two");
    auto with = [&](const Expr& value) { return loop(s.k, 8, {let(s.j, value), s.put(s.j + s.k)}); };
    EXPECT_EQ(s.after({let(one, s.t + 1), let(two, s.t + 2), with(one), with(two)}),
              "let one = thread + 1\n"
              "let two = thread + 2\n"
              "for k < 8\n  let j = one\n  a[j + k] = 1.0\n"
              "for k < 8\n  let j = two\n  a[j + k] = 1.0\n");
    EXPECT_EQ(s.after({let(one, s.t + 1), with(one), with(one)}),
              "let one = thread + 1\n"
              "for k < 8\n  a[one + k] = 1.0\n"
              "for k < 8\n  a[one + k] = 1.0\n");
}

TEST(DropAliases, NotOfWhatIsALoopElsewhere) {
    Small s;
    Expr one = index_variable("one");
    EXPECT_EQ(s.after({let(one, s.t + 1), loop(s.k, 8, {s.put(s.k)}), only_if(s.t < 3, {let(s.k, one), s.put(s.k)})}),
              "let one = thread + 1\n"
              "for k < 8\n  a[k] = 1.0\n"
              "if thread < 3\n  let k = one\n  a[k] = 1.0\n");
}

}  // namespace
}  // namespace tw::codegen
