#include <algorithm>
#include <functional>
#include <map>

#include <fmt/format.h>

#include "codegen/async_copy.h"
#include "codegen/preload.h"
#include "codegen/tma_copy.h"
#include "codegen/tile_passes.h"
#include "dsl/simplify.h"
#include "support/error.h"

namespace tw::codegen {
namespace {

constexpr int64_t least_async_bytes = 8;  // of a request; narrower ones take longer than loads and stores
constexpr int64_t widest_async_bytes = 16;

Expr integer(int64_t value) { return constant(Type::I64, value); }

bool stores_any_of(const TileStmt& stmt, const std::vector<Buffer>& buffers) {
    bool found = false;
    visit_ops(stmt, [&](const TileOp& op) {
        for (const StoreTo& store : op.stores)
            found = found || std::find(buffers.begin(), buffers.end(), store.buffer) != buffers.end();
    });
    return found;
}

using Versions = std::map<const BufferNode*, Buffer>;

/// What the op reads of buffers with versions, in the version that `which` tells.
TileOp with_version(const TileOp& op, const Versions& versions, const std::function<Expr(const Buffer&)>& which) {
    TileOp result = map_exprs(op, [&](const Expr& root) {
        return transform(root, [&](const Expr& e) -> Expr {
            const Load* load = e.as<Load>();
            auto found = load ? versions.find(load->buffer.get()) : versions.end();
            if (found == versions.end()) return {};
            std::vector<Expr> indices = load->indices;
            indices.insert(indices.begin(), which(found->second));
            return make_expr(e.type(), Load{found->second, indices});
        });
    });
    for (CallArgument& argument : result.call.arguments) {
        auto found = versions.find(argument.place.buffer.get());
        if (found == versions.end()) continue;
        argument.place.buffer = found->second;
        argument.place.indices.insert(argument.place.indices.begin(), which(found->second));
    }
    return result;
}

TileStmt call(const std::string& primitive, std::vector<int64_t> parameters) {
    TileOp op;
    op.kind = TileOp::Kind::Call;
    op.name = primitive;
    op.mask = op.active = all_of({});
    op.call = {primitive, std::move(parameters), {}};
    return make_tile(std::move(op));
}

/// How copies into a buffer move, and why.
struct Choice {
    bool async;
    int64_t bytes = 0;  // at once, asynchronously
    std::string reason = {};
};

/// For all segments of a loop alike. Throws Error if the schedule asked for what is not possible.
Choice choose(const TileKernel& kernel, const TileOp& copy, int stages, const CiteStep& cite) {
    if (copy.via.copy == Copy::Vector) return {.async = false, .reason = "asked for"};
    Placement placement(kernel);
    std::string obstacle;
    int64_t bytes = widest_async_bytes;
    visit_ops(kernel.body, [&](const TileOp& op) {
        if (op.stores.empty() || op.stores[0].buffer != copy.stores[0].buffer || !obstacle.empty()) return;
        obstacle = why_not_async(op, placement);
        if (obstacle.empty()) bytes = std::min(bytes, async_bytes(op, placement));
    });
    if (copy.via.copy == Copy::Async) {
        if (!obstacle.empty())
            throw_error(Error, "{}{} cannot be copied asynchronously: {}; leave the choice open, or change what it copies",
                        cite(copy.via.step), copy.name, obstacle);
        return {.async = true, .bytes = bytes};
    }
    if (stages <= 2) return {.async = false, .reason = "2 stages"};
    if (!obstacle.empty()) return {.async = false, .reason = obstacle};
    if (bytes < least_async_bytes)
        return {.async = false, .reason = fmt::format("asynchronously only {} bytes would move at once", bytes)};
    return {.async = true, .bytes = bytes};
}

/// One loop, whose fills of shared memory run ahead of it: through registers by one iteration, asynchronous ones by all
/// stages but one.
class Pipelined {
public:
    Pipelined(TileKernel& kernel, const TileLoop& loop, Versions& versions, const CiteStep& cite)
        : kernel_(kernel), loop_(loop), versions_(versions), cite_(cite) {}

    TileStmt run() {
        TileStmt body = loop_.body;
        std::vector<TileAllocate> allocations;
        while (const TileAllocate* allocate = body.as<TileAllocate>()) {
            allocations.push_back(*allocate);
            body = allocate->body;
        }
        const TileBlock* block = body.as<TileBlock>();
        std::vector<TileStmt> stmts = block ? block->stmts : std::vector<TileStmt>{body}, rest;
        for (const TileStmt& stmt : stmts) {
            const TileOp* op = stmt.as<TileOp>();
            if (op && is_fill(*op))
                add_fill(*op);
            else
                rest.push_back(stmt);
        }
        if (fills_.empty() && async_.empty() && tma_.empty()) return make_tile(TileLoop(loop_));
        if (!tma_.empty()) make_barriers();
        TileLoop loop = loop_;
        loop.stages = 1;
        loop.body = steady_state(rest);
        for (auto allocation = allocations.rbegin(); allocation != allocations.rend(); ++allocation)
            loop.body = make_tile(TileAllocate{allocation->buffer, loop.body, allocation->around});
        return around(make_tile(std::move(loop)));
    }

private:
    struct Fill {
        TileOp op;
        Buffer registers;
    };

    /// Its source is there before the loop, and nobody else writes what it fills.
    bool is_fill(const TileOp& op) const {
        bool shared = std::all_of(op.stores.begin(), op.stores.end(),
                                  [](const StoreTo& store) { return store.buffer->memory == Memory::Shared; });
        bool constant_loops = std::all_of(op.loops.begin(), op.loops.end(), [](const OpLoop& loop) {
            return as_constant(loop.extent) && !loop.reduces;
        });
        if (op.stores.size() != 1 || !shared || !constant_loops) return false;
        int writers = 0;
        visit_ops(loop_.body, [&](const TileOp& other) {
            for (const StoreTo& store : other.stores) writers += store.buffer == op.stores[0].buffer;
        });
        return writers == 1 && !stores_any_of(loop_.body, loads_of(op));
    }

    void add_fill(const TileOp& op) {
        if (op.kind == TileOp::Kind::TmaCopy) {
            tma_.push_back(op);
            return add_versions(op.stores[0].buffer, loop_.stages);
        }
        Choice choice = choose(kernel_, op, loop_.stages, cite_);
        const std::string& name = op.stores[0].buffer->name;
        if (choice.async) {
            kernel_.notes.push_back(fmt::format("{}: {} stages, filled asynchronously, {} bytes at once, {} iterations ahead",
                                                name, loop_.stages, choice.bytes, loop_.stages - 1));
            async_.push_back(op);
            add_versions(op.stores[0].buffer, loop_.stages);
            return;
        }
        if (loop_.stages > 2)
            kernel_.notes.push_back(fmt::format("{}: filled through registers, one iteration ahead: {}", name, choice.reason));
        std::vector<int64_t> shape;
        int64_t count = 1;
        for (const OpLoop& loop : op.loops) {
            shape.push_back(require_constant(loop.extent));
            count *= shape.back();
        }
        const StoreTo& store = op.stores[0];
        fills_.push_back({op, register_array(store.buffer->name + "_next", store.value.type(), shape)});
        add_versions(store.buffer, 2);
        kernel_.notes.push_back(
            fmt::format("{}: 2 stages; {} elements of the next iteration wait in registers of each thread", name, count));
    }

    /// The buffer, once for each stage.
    void add_versions(const Buffer& buffer, int64_t stages) {
        if (versions_.count(buffer.get())) return;  // by another segment of the loop
        BufferNode node = *buffer;
        node.shape.insert(node.shape.begin(), integer(stages));
        Buffer versions = std::make_shared<const BufferNode>(std::move(node));
        for (SharedBuffer& shared : kernel_.shared) {
            if (shared.buffer != buffer) continue;
            shared.buffer = versions;
            for (LayoutDigit& digit : shared.layout.digits) ++digit.dimension;
            shared.layout.digits.insert(shared.layout.digits.begin(), {0, 1, stages});
        }
        versions_[buffer.get()] = versions;
    }

    Expr stage_of(const Buffer& versions, const Expr& iteration) const {
        return simplify(iteration % require_constant(versions->shape[0]));
    }

    Expr at(const Expr& expr, const Expr& iteration) const {
        return simplify(substitute(expr, {{loop_.variable, iteration}}));
    }

    Expr exists(const Expr& iteration) const {
        Expr condition = simplify(iteration < cast_unchecked(Type::I64, loop_.extent));
        return iteration.same(loop_.variable) || prove(condition) == true ? all_of({}) : condition;
    }

    /// The op in another iteration, if there is that one.
    TileOp shifted(const TileOp& op, const Expr& iteration) const {
        TileOp result = map_exprs(op, [&](const Expr& e) { return at(e, iteration); });
        result.active = simplify(all_of({exists(iteration), result.active}));
        for (OpLoop& loop : result.loops)
            if (loop.execution == Execution::Serial) loop.execution = Execution::Unroll;
        return result;
    }

    std::vector<Expr> variables(const TileOp& op) const {
        std::vector<Expr> result;
        for (const OpLoop& loop : op.loops) result.push_back(loop.variable);
        return result;
    }

    TileStmt load(const Fill& fill, const Expr& iteration) const {
        TileOp op = shifted(fill.op, iteration);
        op.kind = TileOp::Kind::Map;
        op.name += ": load ahead";
        op.stores[0].buffer = fill.registers;
        op.stores[0].indices = variables(op);
        return make_tile(std::move(op));
    }

    TileStmt store(const Fill& fill, const Expr& iteration) const {
        TileOp op = shifted(fill.op, iteration);
        StoreTo& to = op.stores[0];
        to.value = make_expr(fill.registers->type, Load{fill.registers, variables(op)});
        to.buffer = versions_.at(to.buffer.get());
        to.indices.insert(to.indices.begin(), stage_of(to.buffer, iteration));
        if (op.otherwise.defined()) op.mask = all_of({});  // zeros came with the loads
        op.otherwise = {};
        return make_tile(std::move(op));
    }

    /// The elements of an iteration on their way into its stage, or there.
    TileStmt asynchronous(const TileOp& fill, const Expr& iteration, TileOp::Kind kind) const {
        TileOp op = map_exprs(fill, [&](const Expr& e) { return at(e, iteration); });
        op.active = simplify(all_of({exists(iteration), op.active}));
        op.kind = kind;
        StoreTo& to = op.stores[0];
        to.buffer = versions_.at(to.buffer.get());
        to.indices.insert(to.indices.begin(), stage_of(to.buffer, iteration));
        return make_tile(std::move(op));
    }

    void start_copies(TileBlock& block, const Expr& iteration) const {
        if (async_.empty()) return;
        for (const TileOp& fill : async_) block.stmts.push_back(asynchronous(fill, iteration, TileOp::Kind::AsyncCopy));
        block.stmts.push_back(call("commit_copies", {}));
    }

    /// Groups of copies are one an iteration, so all but those of the iterations ahead have landed.
    void await_copies(TileBlock& block) const {
        if (async_.empty()) return;
        block.stmts.push_back(call("wait_copies", {loop_.stages - 2}));
        for (const TileOp& fill : async_)
            block.stmts.push_back(asynchronous(fill, loop_.variable, TileOp::Kind::Landing));
    }

    // Boxes, by the tensor memory accelerator: one thread asks for them, and a barrier for each stage counts their bytes.

    void make_barriers() {
        barriers_ = std::make_shared<const BufferNode>(BufferNode{.name = loop_.variable.as<Variable>()->name + "_full",
                                                                  .type = Type::I64,
                                                                  .memory = Memory::Shared,
                                                                  .shape = {integer(loop_.stages)},
                                                                  .strides = {},
                                                                  .is_barrier = true});
        kernel_.shared.push_back({barriers_, row_major({loop_.stages}), true});
    }

    ThreadCall barrier_call(const std::string& primitive, const Expr& stage, std::vector<Expr> values,
                            CallArgument::Effect effect = CallArgument::Effect::Read) const {
        ThreadCall result{primitive, {}, {{effect, {}, {barriers_, {stage}}}}};
        for (Expr& value : values) result.arguments.push_back({CallArgument::Effect::Value, std::move(value), {}});
        return result;
    }

    TileOp call_op(ThreadCall call, const Expr& active) const {
        TileOp op;
        op.kind = TileOp::Kind::Call;
        op.name = call.primitive;
        op.mask = all_of({});
        op.active = active;
        op.call = std::move(call);
        return op;
    }

    Expr one_thread() const { return simplify(kernel_.thread == 0); }

    void start_boxes(TileBlock& block, const Expr& iteration) const {
        if (tma_.empty()) return;
        int64_t bytes = 0;
        for (const TileOp& copy : tma_) bytes += tma_bytes(copy);
        Expr active = simplify(all_of({exists(iteration), one_thread()})), stage = simplify(iteration % loop_.stages);
        TileOp request = call_op(barrier_call("barrier_expect", stage, {integer(bytes)}), active);
        std::vector<TileOp> marks;
        for (const TileOp& copy : tma_) {
            TileOp moved = map_exprs(copy, [&](const Expr& e) { return at(e, iteration); });
            TmaRequest one = tma_request(kernel_, moved, versions_.at(copy.stores[0].buffer.get()), barriers_, stage);
            request.then.insert(request.then.end(), one.calls.begin(), one.calls.end());
            one.mark.active = active;
            marks.push_back(one.mark);
        }
        block.stmts.push_back(make_tile(std::move(request)));
        for (TileOp& mark : marks) block.stmts.push_back(make_tile(std::move(mark)));
    }

    void await_boxes(TileBlock& block) const {
        if (tma_.empty()) return;
        Expr phase = simplify(loop_.variable / loop_.stages % 2);
        block.stmts.push_back(make_tile(call_op(
            barrier_call("barrier_wait", simplify(loop_.variable % loop_.stages), {phase}), all_of({}))));
    }

    /// The barriers of all stages, and the boxes of the first iterations.
    void first_boxes(TileBlock& block) const {
        if (tma_.empty()) return;
        Expr stage = index_variable("stage", 0, loop_.stages - 1);
        TileOp init = call_op(barrier_call("barrier_init", stage, {integer(1)}, CallArgument::Effect::Write), one_thread());
        init.loops = {{stage, integer(loop_.stages)}};
        block.stmts.push_back(make_tile(std::move(init)));
        block.stmts.push_back(make_tile(call_op({"fence_barrier_init", {}, {}}, one_thread())));
        Expr ahead = index_variable("stage", 0, std::max(loop_.stages - 2, 0));
        TileBlock body;
        start_boxes(body, loop_.stages > 2 ? ahead : integer(0));
        block.stmts.push_back(loop_.stages > 2
                                  ? make_tile(TileLoop{ahead, integer(loop_.stages - 1), false, false, make_tile(std::move(body))})
                                  : make_tile(std::move(body)));
    }

    TileStmt steady_state(const std::vector<TileStmt>& rest) const {
        TileBlock body;
        Expr next = loop_.variable + 1;
        await_boxes(body);
        await_copies(body);
        start_boxes(body, simplify(loop_.variable + (loop_.stages - 1)));
        start_copies(body, simplify(loop_.variable + (loop_.stages - 1)));
        for (const Fill& fill : fills_) body.stmts.push_back(load(fill, next));
        for (const TileStmt& stmt : rest)
            body.stmts.push_back(map_ops(stmt, [&](const TileOp& op) { return with_stage(op); }));
        for (const Fill& fill : fills_) body.stmts.push_back(store(fill, next));
        return make_tile(std::move(body));
    }

    /// Reads of filled buffers, in the stage of this iteration.
    TileOp with_stage(const TileOp& op) const {
        return with_version(op, versions_, [&](const Buffer& buffer) { return stage_of(buffer, loop_.variable); });
    }

    TileStmt around(TileStmt loop) const {
        TileBlock block;
        first_boxes(block);
        if (!async_.empty()) block.stmts.push_back(first_copies());
        for (const Fill& fill : fills_) block.stmts.push_back(load(fill, integer(0)));
        for (const Fill& fill : fills_) block.stmts.push_back(store(fill, integer(0)));
        block.stmts.push_back(std::move(loop));
        TileStmt result = make_tile(std::move(block));
        for (const Fill& fill : fills_) result = make_tile(TileAllocate{fill.registers, result});
        return result;
    }

    TileStmt first_copies() const {
        Expr stage = index_variable("stage", 0, loop_.stages - 2);
        TileBlock body;
        start_copies(body, loop_.stages > 2 ? stage : integer(0));
        if (loop_.stages == 2) return make_tile(std::move(body));
        return make_tile(TileLoop{stage, integer(loop_.stages - 1), false, false, make_tile(std::move(body))});
    }

    TileKernel& kernel_;
    const TileLoop& loop_;
    std::vector<Fill> fills_;
    std::vector<TileOp> async_, tma_;  // as they are in the loop
    Buffer barriers_;
    Versions& versions_;
    const CiteStep& cite_;
};

/// Copies that shall be asynchronous where nothing overlaps them.
TileStmt awaited_at_once(const TileKernel& kernel, const TileOp& op, const CiteStep& cite) {
    if (op.kind != TileOp::Kind::Copy || op.via.copy != Copy::Async) return make_tile(TileOp(op));
    choose(kernel, op, 1, cite);
    TileOp start = op, landing = op;
    start.kind = TileOp::Kind::AsyncCopy;
    landing.kind = TileOp::Kind::Landing;
    return make_tile(TileBlock{{make_tile(std::move(start)), call("commit_copies", {}), call("wait_copies", {0}),
                                make_tile(std::move(landing))}});
}

TileStmt rewrite(TileKernel& kernel, const TileStmt& stmt, Versions& versions, const CiteStep& cite) {
    if (const TileLoop* loop = stmt.as<TileLoop>()) {
        TileLoop copy = *loop;
        copy.body = rewrite(kernel, loop->body, versions, cite);
        return copy.stages > 1 ? Pipelined(kernel, copy, versions, cite).run() : make_tile(std::move(copy));
    }
    if (const TileAllocate* allocate = stmt.as<TileAllocate>())
        return make_tile(
            TileAllocate{allocate->buffer, rewrite(kernel, allocate->body, versions, cite), allocate->around});
    const TileBlock* block = stmt.as<TileBlock>();
    if (!block) return stmt;
    TileBlock result;
    for (const TileStmt& kid : block->stmts) result.stmts.push_back(rewrite(kernel, kid, versions, cite));
    return make_tile(std::move(result));
}

/// A segment that runs once is no loop any more: what it fills and reads is the first of the buffers.
TileOp in_first_version(const TileOp& op, const Versions& versions) {
    auto first = [](const Buffer&) { return integer(0); };
    TileOp result = with_version(op, versions, first);
    for (StoreTo& store : result.stores) {
        auto found = versions.find(store.buffer.get());
        if (found == versions.end()) continue;
        store.buffer = found->second;
        store.indices.insert(store.indices.begin(), integer(0));
    }
    return result;
}

}  // namespace

TileKernel pipeline(const TileKernel& kernel, const CiteStep& cite) {
    TileKernel result = kernel;
    Versions versions;
    result.body = rewrite(result, kernel.body, versions, cite);
    result.body = replace_ops(result.body, [&](const TileOp& op) { return awaited_at_once(result, op, cite); });
    result.body = map_ops(result.body, [&](const TileOp& op) { return in_first_version(op, versions); });
    return result;
}

}  // namespace tw::codegen
