#include "codegen/async/run_segments.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "codegen/async/async_copy.h"
#include "codegen/async/iterations.h"
#include "codegen/async/mbarrier_rings.h"
#include "codegen/async/products_in_flight.h"
#include "dsl/simplify.h"
#include "support/error.h"

namespace tw::codegen {
namespace {

/// Also by matrix instructions, whose sums are registers.
bool stores_any_of(const TileStmt& stmt, const std::vector<Buffer>& buffers) {
    bool found = false;
    auto see = [&](const Buffer& stored) { found = found || std::ranges::find(buffers, stored) != buffers.end(); };
    visit_ops(stmt, [&](const TileOp& op) {
        for (const StoreTo& store : op.stores) see(store.buffer);
        visit_places(op, [&](const Buffer& place) {
            if (place->memory == Memory::Registers) see(place);
        });
    });
    return found;
}

/// A segment of a loop, whose fills of shared memory run ahead of it: through registers by one iteration, asynchronous
/// ones by all stages but one. Most loops have one segment.
class Segment {
public:
    /// The `index`-th of the loop's. `from_inside`: what is left to do behind it for products of a loop in the body.
    Segment(TileKernel& kernel, const TileLoop& loop, const std::vector<TileStmt>& from_inside, size_t index,
            StagedBuffers& staged, MbarrierRings& boxes, const CiteStep& cite)
        : kernel_(kernel),
          loop_(loop),
          from_inside_(from_inside),
          index_(index),
          staged_(staged),
          boxes_(boxes),
          cite_(cite) {
        TileStmt body = loop_.body;
        while (const TileAllocate* allocate = body.as<TileAllocate>()) {
            allocations_.push_back(*allocate);
            body = allocate->body;
        }
        std::vector<TileStmt> stmts;
        flatten(body, stmts, allocations_);
        for (const TileStmt& stmt : stmts) {
            const TileOp* op = stmt.as<TileOp>();
            if (op && is_fill(*op))
                add_fill(*op);
            else
                body_.push_back(stmt);
        }
        if (loop_.in_flight == 0 || boxes_.runs_on()) return;
        for (const Buffer& buffer : made_for_products(kernel_, loop_)) {
            made_.insert(buffer.get());
            add_stages(buffer, loop_.in_flight + 1);
        }
    }

    /// Nothing runs ahead of it but boxes.
    bool has_no_fills() const { return fills_.empty() && async_.empty(); }
    /// What stands in an iteration but fills.
    const std::vector<TileStmt>& body() const { return body_; }

    /// Behind make_rings. To `left` it adds what is to be done behind the loop around, where products run on into its
    /// next iteration.
    void run(TileBlock& block, std::vector<TileStmt>& left) {
        check_in_flight();
        if (has_no_fills() && boxes_.empty()) return block.stmts.push_back(make_tile(TileLoop(loop_)));
        const std::vector<TileStmt> behind = let_run_on();
        turn_has_ended_ = end_turn_early();
        TileLoop loop = loop_;
        loop.stages = 1;
        loop.body = steady_state();
        for (auto allocation = allocations_.rbegin(); allocation != allocations_.rend(); ++allocation)
            loop.body = make_tile(TileAllocate{allocation->buffer, loop.body, allocation->around});
        TileBlock end{behind};
        if (boxes_.runs_on())
            boxes_.release_last_around(end);
        else
            boxes_.release_last(end, index_);
        surround(block, make_tile(std::move(loop)));
        std::vector<TileStmt>& there = boxes_.runs_on() ? left : block.stmts;
        there.insert(there.end(), end.stmts.begin(), end.stmts.end());
    }

    /// The registers that its fills go through, around all of the loop.
    TileStmt in_registers(TileStmt stmt) const {
        for (const Fill& fill : fills_) stmt = make_tile(TileAllocate{fill.registers, stmt});
        return stmt;
    }

private:
    struct Fill {
        TileOp op;
        Buffer registers;
    };

    /// What stands in an iteration, also where loops of one iteration have been. Registers around boxes live as long as
    /// the iteration.
    static void flatten(const TileStmt& body, std::vector<TileStmt>& stmts, std::vector<TileAllocate>& allocations) {
        const TileAllocate* allocate = body.as<TileAllocate>();
        if (allocate && asks_for_boxes(allocate->body)) {
            allocations.push_back(*allocate);
            return flatten(allocate->body, stmts, allocations);
        }
        const TileBlock* block = body.as<TileBlock>();
        if (!block) return stmts.push_back(body);
        for (const TileStmt& kid : block->stmts) flatten(kid, stmts, allocations);
    }

    static bool asks_for_boxes(const TileStmt& stmt) {
        if (const TileOp* op = stmt.as<TileOp>()) return op->is<TmaCopyOp>();
        return !stmt.as<TileLoop>() && std::ranges::any_of(children(stmt), asks_for_boxes);
    }

    /// Its source is there before the loop, nobody else writes what it fills, and no box leaves that: see store_boxes.
    bool is_fill(const TileOp& op) const {
        // A round makes its own, and so does an iteration whose products are in flight: see made_for_products.
        if ((loop_.is_block || loop_.in_flight > 0) && !op.is<TmaCopyOp>()) return false;
        bool constant_loops = std::all_of(op.loops.begin(), op.loops.end(),
                                          [](const OpLoop& loop) { return as_constant(loop.extent) && !loop.reduces; });
        if (op.stores.size() != 1 || op.stores[0].buffer->memory != Memory::Shared || !constant_loops) return false;
        int writers = 0, leaves = 0;
        visit_ops(loop_.body, [&](const TileOp& other) {
            for (const StoreTo& store : other.stores) writers += store.buffer == op.stores[0].buffer;
            leaves +=
                other.is<TmaCopyOp>() && stores_to(other, Memory::Global) && loads_of(other)[0] == op.stores[0].buffer;
        });
        return writers == 1 && leaves == 0 && !stores_any_of(loop_.body, loads_of(op));
    }

    void add_fill(const TileOp& op) {
        if (op.is<TmaCopyOp>()) {
            boxes_.add(index_, op);
            return add_stages(op.stores[0].buffer, is_resident(kernel_, loop_, op) ? 1 : loop_.stages);
        }
        FillChoice choice = choose_fill(kernel_, op, loop_.stages, cite_);
        const std::string& name = op.stores[0].buffer->name;
        if (choice.async) {
            kernel_.notes.push_back(
                fmt::format("{}: {} stages, filled asynchronously, {} bytes at once, {} iterations ahead", name,
                            loop_.stages, choice.bytes, loop_.stages - 1));
            async_.push_back(op);
            add_stages(op.stores[0].buffer, loop_.stages);
            return;
        }
        if (loop_.stages > 2)
            kernel_.notes.push_back(
                fmt::format("{}: filled through registers, one iteration ahead: {}", name, choice.reason));
        std::vector<int64_t> shape;
        int64_t count = 1;
        for (const OpLoop& loop : op.loops) {
            shape.push_back(require_constant(loop.extent));
            count *= shape.back();
        }
        const StoreTo& store = op.stores[0];
        fills_.push_back({op, register_array(store.buffer->name + "_next", store.value.type(), shape)});
        add_stages(store.buffer, 2);
        kernel_.notes.push_back(fmt::format(
            "{}: 2 stages; {} elements of the next iteration wait in registers of each thread", name, count));
    }

    /// The buffer, once for each stage.
    void add_stages(const Buffer& buffer, int64_t stages) {
        if (staged_.count(buffer.get())) return;  // by another segment of the loop
        staged_[buffer.get()] = repeated(kernel_, buffer, stages);
    }

    Expr stage_of(const Buffer& staged, const Expr& iteration) const {
        return boxes_.stage_of(index_, staged, iteration);
    }

    /// In another iteration, if there is that one.
    TileOp shifted(const TileOp& op, const Expr& iteration) const {
        TileOp result = map_exprs(op, [&](const Expr& e) { return in_iteration(loop_, e, iteration); });
        result.active = simplify(all_of({iteration_exists(loop_, iteration), result.active}));
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
        op.action = MapOp{};
        op.name += ": load ahead";
        op.stores[0].buffer = fill.registers;
        op.stores[0].indices = variables(op);
        return make_tile(std::move(op));
    }

    TileStmt store(const Fill& fill, const Expr& iteration) const {
        TileOp op = shifted(fill.op, iteration);
        StoreTo& to = op.stores[0];
        to.value = make_expr(fill.registers->type, Load{fill.registers, variables(op)});
        to.buffer = staged_.at(to.buffer.get());
        to.indices.insert(to.indices.begin(), stage_of(to.buffer, iteration));
        if (op.otherwise.defined()) op.mask = all_of({});  // zeros came with the loads
        op.otherwise = {};
        return make_tile(std::move(op));
    }

    /// The elements of an iteration on their way into its stage, or there.
    template <class Action>
    TileStmt asynchronous(const TileOp& fill, const Expr& iteration) const {
        TileOp op = map_exprs(fill, [&](const Expr& e) { return in_iteration(loop_, e, iteration); });
        op.active = simplify(all_of({iteration_exists(loop_, iteration), op.active}));
        op.action = Action{};
        StoreTo& to = op.stores[0];
        to.buffer = staged_.at(to.buffer.get());
        to.indices.insert(to.indices.begin(), stage_of(to.buffer, iteration));
        return make_tile(std::move(op));
    }

    void start_copies(TileBlock& block, const Expr& iteration) const {
        if (async_.empty()) return;
        for (const TileOp& fill : async_) block.stmts.push_back(asynchronous<AsyncCopyOp>(fill, iteration));
        block.stmts.push_back(make_tile(call_op({CpAsyncCommit{}})));
    }

    /// Groups of copies are one an iteration, so all but those of the iterations ahead have landed.
    void await_copies(TileBlock& block) const {
        if (async_.empty()) return;
        block.stmts.push_back(make_tile(call_op({CpAsyncWait{loop_.stages - 2}})));
        for (const TileOp& fill : async_) block.stmts.push_back(asynchronous<AwaitedOp>(fill, loop_.variable));
    }

    // Asynchronous matrix instructions that the next iteration does not wait for.

    void check_in_flight() const {
        if (loop_.in_flight == 0) return;
        if (boxes_.empty() || !has_no_fills() || boxes_.fills_itself())
            refuse_in_flight(
                "this role's own copies would overwrite what is still read; have another role make all copies under "
                "the loop: roles(...)");
        if (boxes_.runs_on() && prove(cast_unchecked(Type::I64, loop_.extent) >= loop_.in_flight) != true)
            refuse_in_flight(
                "its products run on into the next iteration of the loop around, but it may have fewer iterations than "
                "are in flight");
    }
    [[noreturn]] void refuse_in_flight(const std::string& reason) const {
        throw_error(Error, "{}{}: pipeline({}, {{.in_flight = {}}}): {}", cite_(loop_.pipeline_step), kernel_.name,
                    loop_.variable.as<Variable>()->name, loop_.in_flight, reason);
    }

    /// Has the instructions at the end of the body run on, and returns what waits for them behind the loop.
    std::vector<TileStmt> let_run_on() {
        if (loop_.in_flight == 0) return {};
        if (!from_inside_.empty()) return let_run_on_from_inside();
        auto products = keep_in_flight(body_, loop_.in_flight, made_);
        if (const auto made = made_for_products(kernel_, loop_); !products && boxes_.runs_on() && !made.empty())
            refuse_in_flight(fmt::format(
                "'{}' is made in each of its iterations, while its products run on into the next iteration of the loop "
                "around; make it there, s.at(...), or give that loop none in flight",
                made[0]->name));
        if (!products)
            refuse_in_flight(
                "the loop does not end with wgmma alone; what stands beside it needs its sums or stores what it still "
                "reads, so none can be in flight");
        body_ = products->kept;
        for (const TileOp& read : products->reads) {
            body_.push_back(make_tile(in_earlier(with_stage(read), loop_.variable - loop_.in_flight)));
            for (int last = loop_.in_flight; last > 0; --last)
                products->behind.push_back(
                    make_tile(in_earlier(with_stage(read), cast_unchecked(Type::I64, loop_.extent) - last)));
        }
        return products->behind;
    }

    /// The same of the last iterations of a loop in the body.
    std::vector<TileStmt> let_run_on_from_inside() {
        if (loop_.in_flight > 1 || boxes_.runs_on())
            refuse_in_flight(
                "products of a loop in it run on into the next iteration, and no further: 1 can be in flight, and none "
                "of a loop around");
        TileBlock over;
        boxes_.release(index_, over, simplify(loop_.variable - 1));
        for (const TileOp& read : last_reads(body_, made_))
            over.stmts.push_back(make_tile(in_earlier(with_stage(read), loop_.variable - 1)));
        auto told = tell_when_earlier_are_over(body_, over.stmts, made_);
        if (!told)
            refuse_in_flight(
                "something but a loop's products alone needs their sums in an iteration, or stores what they still "
                "read");
        std::vector<TileStmt> behind = from_inside_;
        for (const TileOp& read : last_reads(body_, made_))
            behind.push_back(make_tile(in_earlier(with_stage(read), cast_unchecked(Type::I64, loop_.extent) - 1)));
        body_ = *told;
        return behind;
    }

    /// What has been done for an earlier iteration, if there was that one.
    TileOp in_earlier(const TileOp& op, const Expr& iteration) const {
        TileOp result = map_exprs(op, [&](const Expr& e) { return in_iteration(loop_, e, iteration); });
        result.active = simplify(all_of({iteration >= 0, result.active}));
        return result;
    }

    /// The next group goes on as soon as all that this one reads has come, and only its last products are still to be
    /// asked for: they run while the next one begins.
    bool end_turn_early() {
        if (!boxes_.is_last(index_) || !boxes_.can_end_turn_early(loop_)) return false;
        auto told = tell_before_last_products(body_, boxes_.end_turn_in(loop_));
        if (told) body_ = *told;
        return told.has_value();
    }

    TileStmt steady_state() const {
        TileBlock body;
        Expr next = loop_.variable + 1;
        boxes_.start_others(index_, body, body_);
        boxes_.await(index_, body);
        await_copies(body);
        boxes_.start_own(body, simplify(loop_.variable + (loop_.stages - 1)));
        start_copies(body, simplify(loop_.variable + (loop_.stages - 1)));
        for (const Fill& fill : fills_) body.stmts.push_back(load(fill, next));
        boxes_.run_readers(index_, body, body_, [&](const TileStmt& stmt) {
            return map_ops(stmt, [&](const TileOp& op) { return with_stage(op); });
        });
        for (const Fill& fill : fills_) body.stmts.push_back(store(fill, next));
        boxes_.fence_readers(body);
        if (from_inside_.empty()) boxes_.release(index_, body, simplify(loop_.variable - loop_.in_flight));
        return make_tile(std::move(body));
    }

    /// Reads of filled buffers, in the stage of this iteration.
    TileOp with_stage(const TileOp& op) const {
        return in_stage(op, staged_, [&](const Buffer& buffer) { return stage_of(buffer, loop_.variable); });
    }

    void surround(TileBlock& block, TileStmt loop) const {
        boxes_.run_others(index_, block, body_);
        boxes_.start_first(block);
        if (!async_.empty()) block.stmts.push_back(first_copies());
        for (const Fill& fill : fills_) block.stmts.push_back(load(fill, integer(0)));
        for (const Fill& fill : fills_) block.stmts.push_back(store(fill, integer(0)));
        if (index_ == 0) boxes_.await_turn(block);
        block.stmts.push_back(std::move(loop));
        if (boxes_.is_last(index_) && !turn_has_ended_) boxes_.end_turn(block);
    }

    TileStmt first_copies() const {
        Expr ahead = index_variable("ahead", 0, loop_.stages - 2);
        TileBlock body;
        start_copies(body, loop_.stages > 2 ? ahead : integer(0));
        if (loop_.stages == 2) return make_tile(std::move(body));
        return make_tile(TileLoop{ahead, integer(loop_.stages - 1), false, false, make_tile(std::move(body))});
    }

    TileKernel& kernel_;
    const TileLoop& loop_;
    const std::vector<TileStmt>& from_inside_;
    size_t index_;
    std::vector<TileAllocate> allocations_;
    std::vector<TileStmt> body_;
    std::vector<Fill> fills_;
    std::vector<TileOp> async_;         // as they are in the loop
    std::set<const BufferNode*> made_;  // several times: products in flight read it, and the next iteration makes it
    bool turn_has_ended_ = false;
    StagedBuffers& staged_;
    MbarrierRings& boxes_;
    const CiteStep& cite_;
};

}  // namespace

TileStmt run_segments(TileKernel& kernel, const std::vector<TileLoop>& loops,
                      const std::vector<std::vector<TileStmt>>& from_inside, const std::vector<TileLoop>& around,
                      StagedBuffers& staged, Left& left, const CiteStep& cite) {
    MbarrierRings boxes(kernel, loops, around, staged);
    std::vector<Segment> segments;
    for (size_t s = 0; s < loops.size(); ++s)
        segments.emplace_back(kernel, loops[s], from_inside[s], s, staged, boxes, cite);
    std::vector<std::vector<TileStmt>> bodies;
    for (const Segment& segment : segments) bodies.push_back(segment.body());
    boxes.make_rings(bodies);
    TileBlock block;
    for (Segment& segment : segments) segment.run(block, left.behind);
    boxes.count_on(block);
    for (TileOp& counter : boxes.counters()) left.counters.push_back(std::move(counter));
    TileStmt result = make_tile(std::move(block));
    for (const Segment& segment : segments) result = segment.in_registers(result);
    return result;
}

}  // namespace tw::codegen
