#include <gtest/gtest.h>

#include "codegen/tile_passes/tile_passes.h"
#include "dsl/simplify.h"
#include "thread_kernels.h"

namespace tw::codegen {
namespace {

struct Small {
    TileKernel kernel;
    Buffer y = make_buffer("y", f32, Memory::Global, {4}), total = make_buffer("total", f32, Memory::Registers, {4}),
           sum = make_buffer("sum", f32, Memory::Registers, {4}),
           other = make_buffer("other", f32, Memory::Registers, {4});
    Expr i = index_variable("i", 0, 3);

    Small() {
        kernel.name = "small";
        kernel.arguments = {y};
        for (int d = 0; d < 3; ++d) {
            kernel.grid[d] = 1;
            kernel.block[d] = index_variable("block", 0, 0);
        }
        kernel.thread = index_variable("thread", 0, 0);
    }

    TileStmt put(const Buffer& to, const Expr& index, const Expr& value, const Expr& mask = all_of({})) const {
        TileOp op{MapOp{}, "step"};
        op.loops = {{i, 4, Execution::Unroll}};
        op.stores = {{to, {index}, value}};
        op.mask = mask;
        return make_tile(std::move(op));
    }
    TileStmt copy(const Buffer& to, const Buffer& from) const { return put(to, i, load(from, {i})); }
    TileStmt start(const Buffer& to) const { return put(to, i, constant(f32, 1.0)); }
    static TileStmt block(std::vector<TileStmt> stmts) { return make_tile(TileBlock{std::move(stmts)}); }
    static TileStmt live(const Buffer& buffer, std::vector<TileStmt> stmts) {
        return make_tile(TileAllocate{buffer, block(std::move(stmts))});
    }

    /// Whether `sum` has gone from the registers that `total` lives with.
    bool joins(std::vector<TileStmt> stmts) {
        stmts.push_back(copy(y, total));
        kernel.body = live(total, std::move(stmts));
        verify_tile_ir(kernel, "the test");
        TileKernel joined = join_registers(kernel);
        verify_tile_ir(joined, "join_registers");
        bool gone = to_string(joined).find("sum[") == std::string::npos;
        EXPECT_TRUE(gone || to_string(joined) == to_string(kernel));
        int copies = 0;
        visit_ops(joined.body, [&](const TileOp& op) { copies += op.stores[0].value.as<Load>() != nullptr; });
        EXPECT_EQ(gone, copies == 1) << to_string(joined);
        return gone;
    }
};

TEST(JoinRegisters, ThatEndAsACopy) {
    Small s;
    EXPECT_TRUE(s.joins({Small::live(s.sum, {s.start(s.sum), s.copy(s.total, s.sum)})}));
    EXPECT_TRUE(s.joins({Small::live(s.sum, {s.start(s.sum), Small::block({s.copy(s.total, s.sum)})})}));
}

TEST(JoinRegisters, NotWhatIsNeededFurtherOn) {
    Small s;
    EXPECT_FALSE(s.joins({Small::live(s.sum, {s.start(s.sum), s.copy(s.total, s.sum), s.copy(s.y, s.sum)})}));
    TileStmt round = Small::live(s.sum, {s.start(s.sum), s.copy(s.total, s.sum)});
    EXPECT_FALSE(s.joins({make_tile(TileLoop{index_variable("k", 0, 7), 8, false, false, round})}))
        << "the total of the iteration before is there";
}

TEST(JoinRegisters, NotWhatIsCopiedOtherwise) {
    Small s;
    Expr mirrored = constant(i64, int64_t{3}) - s.i;
    EXPECT_FALSE(s.joins({Small::live(s.sum, {s.start(s.sum), s.put(s.total, mirrored, load(s.sum, {s.i}))})}));
    EXPECT_FALSE(s.joins({Small::live(s.sum, {s.start(s.sum), s.put(s.total, s.i, load(s.sum, {s.i}), s.i < 3)})}));
    EXPECT_FALSE(s.joins({s.start(s.total), Small::live(s.sum, {s.start(s.sum), s.copy(s.total, s.sum)})}));
}

TEST(JoinRegisters, OneBehindAnother) {
    Small s;
    EXPECT_TRUE(s.joins({Small::live(
        s.other, {Small::live(s.sum, {s.start(s.sum), s.copy(s.other, s.sum)}), s.copy(s.total, s.other)})}));
}

}  // namespace
}  // namespace tw::codegen
