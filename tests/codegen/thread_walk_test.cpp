// Walking, and the grammar check: what verify_thread_ir refuses.
#include <gtest/gtest.h>

#include "codegen/thread_ir/thread_walk.h"
#include "support/error.h"
#include "thread_kernels.h"

namespace tw::codegen {
namespace {

TEST(ThreadWalk, TransformKeepsWhatDoesNotChange) {
    ThreadKernel kernel = sgemm_kernel();
    ThreadStmt same = transform(kernel.body, [](const ThreadStmt&) { return ThreadStmt(); });
    EXPECT_EQ(&*same, &*kernel.body);
    ThreadStmt mapped = map_all_expressions(kernel.body, [](const Expr& e) { return e; });
    EXPECT_EQ(to_string(mapped), to_string(kernel.body));
}

TEST(ThreadWalk, BlocksAreFlat) {
    ThreadStmt a = comment("a"), b = comment("b");
    EXPECT_EQ(statements(in_order({in_order({a}), in_order({in_order({b})})})).size(), 2u);
    EXPECT_EQ(&*block_of({in_order({a})}), &*a);
    EXPECT_TRUE(statements(ThreadStmt()).empty());
}

TEST(ThreadWalk, TouchesOfEachStatement) {
    Buffer s = make_buffer("s", f32, Memory::Shared, {64});
    auto found = memory_accesses(store(s, {0}, load(s, {1}) + load(s, {2})));
    ASSERT_EQ(found.size(), 3u);
    EXPECT_EQ(found[0].writes + found[1].writes + found[2].writes, 1);
    EXPECT_EQ(memory_accesses(wide(4, {s, {0}}, {s, {4}}))[0].width, 4);
}

struct Grammar : testing::Test {
    ThreadKernel kernel = empty_kernel("grammar", 32);
    Buffer s = make_buffer("s", f32, Memory::Shared, {64}), r = make_buffer("r", f32, Memory::Registers, {4});
    Buffer in = make_buffer("in", f32, Memory::Global, {64});
    Expr t = kernel.thread, i = index_variable("i"), one = constant(f32, 1.0);

    Grammar() {
        kernel.shared = {s};
        add_argument(kernel, in, false);
    }
    /// What verify_thread_ir says, "" if it accepts.
    std::string refusal(std::vector<ThreadStmt> body) {
        kernel.body = in_order(std::move(body));
        try {
            verify_thread_ir(kernel);
        } catch (const InternalError& error) {
            return error.what();
        }
        return "";
    }
    void refused(std::vector<ThreadStmt> body, const std::string& why) {
        std::string message = refusal(std::move(body));
        EXPECT_NE(message.find(why), std::string::npos) << "says: " << message;
    }
};

TEST_F(Grammar, AcceptsWholeKernels) {
    for (const ThreadKernel& whole : {copy_kernel(1000), transpose_kernel(), sgemm_kernel(), softmax_kernel()})
        verify_thread_ir(whole);
}

TEST_F(Grammar, Scopes) {
    refused({store(s, {i}, one)}, "'i' is not defined");
    refused({loop(i, 4, {}), store(s, {i}, one)}, "'i' is not defined");
    refused({store(r, {0}, one)}, "'r' is not declared");
    refused({only_if(t < 1, {declare(r)}), store(r, {0}, one)}, "'r' is not declared");
    EXPECT_EQ(refusal({let(i, t + 1), store(s, {i}, one)}), "");
}

TEST_F(Grammar, Indices) {
    refused({store(s, {0, 1}, one)}, "'s' takes 1 indices");
    refused({store(s, {t + 64}, one)}, "index 0 of 's' is out of bounds");
    refused({store(s, {t - 40}, one)}, "index 0 of 's' is out of bounds");
    EXPECT_EQ(refusal({only_if(t < 0, {store(s, {t + 64}, one)})}), "") << "never executed";
    EXPECT_EQ(refusal({store(s, {t * 2}, one)}), "");
}

TEST_F(Grammar, UnrolledLoopsHaveConstantExtents) {
    EXPECT_EQ(refusal({declare(r), unrolled(i, 4, {store(r, {i}, one)})}), "");
    refused({unrolled(i, t, {})}, "an unrolled loop of unknown extent");
}

TEST_F(Grammar, WideAccesses) {
    EXPECT_EQ(refusal({wide(4, {s, {0}}, {in, {0}})}), "");
    refused({wide(3, {s, {0}}, {in, {0}})}, "an access of 12 bytes");
    refused({wide(8, {s, {0}}, {in, {0}})}, "an access of 32 bytes");
    refused({wide(4, {s, {62 + t}}, {in, {0}})}, "out of bounds");
}

TEST_F(Grammar, TypesAndArguments) {
    refused({store(s, {0}, constant(f64, 1.0))}, "f64 stored to f32");
    refused({store(in, {0}, one)}, "'in' is an argument that is not written");
    refused({only_if(t, {})}, "a condition that is not bool");
}

TEST_F(Grammar, AnArrayIsOverWhereAnotherBeginsInItsBytes) {
    const Buffer q = make_buffer("q", f32, Memory::Shared, {64});
    const ThreadStmt begin_s = make_thread(Instruction(BeginArray{{{s, {integer(0)}}}, integer(256)})),
                     begin_q = make_thread(Instruction(BeginArray{{{q, {integer(0)}}}, integer(256)})),
                     use_s = store(s, {t}, one), use_q = store(q, {t}, one);
    kernel.shared.push_back(q);
    kernel.unions = {{{{s}, {q}}}};
    EXPECT_EQ(refusal({use_s, begin_q, use_q}), "");
    EXPECT_EQ(refusal({loop(i, 2, {begin_s, use_s, begin_q, use_q})}), "");
    refused({use_s, begin_q, use_s}, "'s' is accessed where another array has its bytes");
    refused({use_s, use_q}, "'q' is accessed where another array has its bytes");
    refused({loop(i, 2, {use_s, begin_q, use_q})}, "'s' is accessed where another array has its bytes");
    kernel.unions = {{{{s}, {q, s}}}};
    refused({}, "'s' stands in a union twice");
}

TEST_F(Grammar, BarriersAreForAllThreads) {
    ThreadStmt barrier = make_thread(ThreadBarrier{});
    EXPECT_EQ(refusal({loop(i, 4, {barrier})}), "");
    EXPECT_EQ(refusal({only_if(kernel.block[0] < 1, {barrier})}), "");
    EXPECT_EQ(refusal({only_if(load(in, {0}) < 1.0, {barrier})}), "") << "all threads read the same";
    refused({only_if(t < 1, {barrier})}, "a barrier that not all threads reach");
    refused({let(i, t / 2), only_if(i < 1, {barrier})}, "a barrier that not all threads reach");
    refused({loop(i, t, {barrier})}, "a barrier that not all threads reach");
    refused({only_if(load(s, {0}) < 1.0, {barrier})}, "a barrier that not all threads reach");
}

}  // namespace
}  // namespace tw::codegen
