// What the front half of code generation refuses, on trees made by hand.
#include <gtest/gtest.h>

#include "codegen/lower.h"
#include "dsl/schedule.h"
#include "dsl/simplify.h"
#include "tests/support/expect_error.h"

namespace tw::codegen {
namespace {

Buffer buffer(const std::string& name, Memory memory, const std::vector<int64_t>& shape) {
    BufferNode node{.name = name, .type = f32, .memory = memory, .shape = {}, .strides = {}, .step = 3};
    for (int64_t extent : shape) node.shape.push_back(integer(extent));
    return std::make_shared<const BufferNode>(node);
}

Expr load(const Buffer& from, const std::vector<Expr>& indices) { return make_expr(from->type, Load{from, indices}); }

Stmt store(const Buffer& to, const std::vector<Expr>& indices, const Expr& value) {
    return make_stmt(Leaf{Leaf::Kind::Finish, 0, to->name, -1, {{to, indices, value}}, all_of({})});
}

struct TestLoop {
    Expr variable, extent;
    TestLoop(const std::string& name, int64_t extent)
        : variable(index_variable(name, 0, extent - 1)), extent(integer(extent)) {}

    Stmt operator()(Level level, Stmt body, int bind_step = 5) const {
        return make_stmt(For{variable, extent, level, bind_step, 0, false, std::move(body)});
    }
};

void lower_front(const Stmt& body, const std::vector<Buffer>& inputs, const std::vector<Buffer>& outputs) {
    Tree tree;
    tree.inputs = inputs;
    tree.outputs = outputs;
    tree.nests.push_back({"kernel", body});
    LowerOptions options;
    options.cite = [](int step) { return step < 0 ? "" : "step " + std::to_string(step) + ": "; };
    std::vector<std::string> notes;
    lower_to_threads(tree, tree.nests[0], target("sm_90a"), options, notes);
}

const Buffer x = buffer("x", Memory::Global, {64}), y = buffer("y", Memory::Global, {64});

TEST(FrontErrors, RegistersOfAnotherThread) {
    Buffer r = buffer("r", Memory::Registers, {64});
    TestLoop i("i", 64), j("j", 64);
    Stmt body = make_stmt(Allocate{r, sequence({i(tw::Level::Thread, store(r, {i.variable}, load(x, {i.variable}))),
                                                j(Level::Serial, store(y, {j.variable}, load(r, {j.variable})))})});
    EXPECT_ERROR(lower_front(body, {x}, {y}), "step 3: 'r' lives in registers, but an element that one thread writes");
}

// A fused loop on threads: each has the one element that it stored, and may read that one only.
TEST(FrontErrors, RegistersOfAThreadOfTwoDimensions) {
    Buffer r = buffer("r", Memory::Registers, {8, 8});
    TestLoop i("i", 64), j("j", 8), k("k", 8);
    std::vector<Expr> own{i.variable / 8, i.variable % 8};
    auto made = [&](const Stmt& reader) {
        return make_stmt(Allocate{r, sequence({i(tw::Level::Thread, store(r, own, load(x, {i.variable}))), reader})});
    };
    Stmt all =
        j(Level::Serial, k(Level::Serial, store(y, {j.variable * 8 + k.variable}, load(r, {j.variable, k.variable}))));
    EXPECT_ERROR(lower_front(made(all), {x}, {y}), "at [j, k] is read by another; set_memory(r, Memory::Shared)");
    EXPECT_NO_THROW(lower_front(made(i(tw::Level::Thread, store(y, {i.variable}, load(r, own)))), {x}, {y}));
}

TEST(FrontErrors, SharedMemory) {
    Buffer s = buffer("s", Memory::Shared, {300, 256});
    TestLoop i("i", 300), j("j", 256), t("t", 64);
    Stmt body = make_stmt(Allocate{
        s, sequence({i(Level::Serial, j(Level::Serial, store(s, {i.variable, j.variable}, load(x, {integer(0)})))),
                     t(Level::Thread, store(y, {t.variable}, load(s, {t.variable, t.variable})))})});
    EXPECT_ERROR(lower_front(body, {x}, {y}),
                 "step 3: kernel: shared memory of 307200 bytes (s 307200), a block of sm_90a has at most 232448");
}

TEST(FrontErrors, TooManyThreads) {
    Buffer big = buffer("big", Memory::Global, {64, 64});
    TestLoop i("i", 64), j("j", 64);
    Stmt body = i(Level::Thread, j(Level::Thread, store(big, {i.variable, j.variable}, load(x, {i.variable}))));
    EXPECT_ERROR(lower_front(body, {x}, {big}), "need 4096 threads, a block of sm_90a has at most 1024");
}

TEST(FrontErrors, TooManyLanes) {
    TestLoop i("i", 64);
    Stmt body = i(Level::Lane, store(y, {i.variable}, load(x, {i.variable})));
    EXPECT_ERROR(lower_front(body, {x}, {y}), "step 5: the lane loops around 'i' need 64 lanes, a warp has 32");
}

TEST(FrontErrors, SymbolicThreads) {
    Expr n = size("n", {1, 64, 1});
    Expr i = index_variable("i", 0, 63);
    Stmt body = make_stmt(For{i, n, Level::Thread, 5, 0, false, store(y, {i}, load(x, {i}))});
    EXPECT_ERROR(lower_front(body, {x}, {y}),
                 "step 5: the threads of a block are a constant number, but loop 'i' has n");
}

TEST(FrontErrors, StoreOutsideOfTheGrid) {
    Buffer z = buffer("z", Memory::Global, {1});
    TestLoop i("i", 64);
    Stmt body = sequence({store(z, {integer(0)}, load(x, {integer(0)})),
                          i(Level::GridX, store(y, {i.variable}, load(x, {i.variable})))});
    EXPECT_ERROR(lower_front(body, {x}, {y, z}), "step 5: loop 'i' is bound to grid.x but does not enclose 'z'");
}

TEST(FrontErrors, FillsInsideOfLoopsThatDifferBetweenThreads) {
    Buffer s = buffer("s", Memory::Shared, {64});
    TestLoop i("i", 64), q("q", 64);
    Expr j = index_variable("j", 0, 63);
    Stmt fill = q(Level::Serial, store(s, {q.variable}, load(x, {q.variable})));
    Stmt use = store(y, {i.variable}, load(s, {j}));
    Stmt body =
        i(Level::Thread,
          make_stmt(For{j, i.variable, Level::Serial, -1, 0, false, make_stmt(Allocate{s, sequence({fill, use})})}));
    EXPECT_ERROR(lower_front(body, {x}, {y}), "loop 'j' has i iterations, which differ between threads");
    // As many as each thread has in a register of its own.
    Buffer count = buffer("count", Memory::Registers, {1});
    const Expr own = cast(i64, load(count, {integer(0)}));
    Stmt counted = make_stmt(For{j, own, Level::Serial, -1, 0, false, make_stmt(Allocate{s, sequence({fill, use})})});
    body = i(Level::Thread,
             make_stmt(Allocate{count, sequence({store(count, {integer(0)}, load(x, {i.variable})), counted})}));
    EXPECT_ERROR(lower_front(body, {x}, {y}),
                 "loop 'j' has cast(i64, count[0]) iterations, which differ between threads");
}

TEST(FrontErrors, ManyPartsOfASum) {
    Axis k = reduce_axis("k", 99);
    Tensor a = input("a", f32, {4, 99});
    Tensor total = compute("total", {4}, [&](Expr i) { return sum(a(i, k), k); });
    Schedule s({total}, target("sm_90a"));
    s.bind(s.reduce(total), tw::thread);
    EXPECT_ERROR(lower(s.tree(), s.target(), {}), "the 99 threads of loop 'k' form 99 groups within warps");
}

// Segments whose borders differ between rows: nothing says that threads of two rows write different elements.
TEST(FrontErrors, NoRoomForABarrier) {
    Expr n = size("n", {.min = 1, .max = 40});
    Tensor x = input("x", f32, {n, 24});
    Axis r = reduce_axis("r", n);
    Tensor total = compute("total", {24}, [&](Expr i) { return sum(x(r, i), r); });
    Tensor y = compute("y", {n, 24}, [&](Expr i, Expr j) { return x(i, j) * 2.0 - total(j); });
    Schedule s({y}, target("sm_90a"));
    auto [i, j] = s.loops<2>(y);
    s.cut(j, {s.index(i) * -1 + 9});
    s.at(total, i);
    EXPECT_ERROR(lower(s.tree(), s.target()), "two threads may access an element of 'y' at one time");
}

}  // namespace
}  // namespace tw::codegen
