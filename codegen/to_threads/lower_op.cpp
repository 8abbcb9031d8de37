#include "codegen/to_threads/lower_op.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "codegen/access/conditions.h"
#include "codegen/async/async_copy.h"
#include "codegen/to_threads/load_fragment.h"
#include "codegen/to_threads/lower_async_copy.h"
#include "codegen/to_threads/op_tile.h"
#include "codegen/to_threads/shape_tile.h"
#include "codegen/to_threads/store_fragment.h"
#include "codegen/to_threads/store_lines.h"
#include "codegen/thread_ir/thread_walk.h"
#include "dsl/simplify.h"
#include "support/error.h"
#include "support/overloaded.h"

namespace tw::codegen {
namespace {

constexpr int64_t most_unrolled_work = 256;  // statements in an unrolled reduce loop, for the compile time
constexpr int64_t longest_partial_unroll = 8;
constexpr int64_t most_bytes_in_flight = 128;  // that unrolled copies load into a thread's registers at once

ThreadStmt block_behind(std::vector<ThreadStmt> stmts, ThreadStmt last) {
    stmts.push_back(std::move(last));
    return block_of(std::move(stmts));
}

class OpLowering {
public:
    OpLowering(const TileOp& op, const Placement& placement, const Target& target, std::vector<std::string>& notes)
        : op_(op), notes_(notes), t_(shape_tile(op, placement, target, notes)) {}

    ThreadStmt run() {
        bytes_loaded_ = bytes_loaded();
        ThreadStmt body = tile_body();
        int64_t work = static_cast<int64_t>(t_.stores.size());
        for (const OpLoop& loop : t_.tile) work *= require_constant(loop.extent);
        for (; !t_.outer.empty(); t_.outer.pop_back()) {
            const OpLoop& loop = t_.outer.back();
            const std::vector<ThreadStmt> ahead = loaded_ahead(loop);
            body = loop_around(loop, guarded(body, &loop.variable), work);
            if (!ahead.empty()) body = block_behind(ahead, body);
        }
        body = guarded(body, nullptr);
        if (op_.name.empty()) return body;
        return block_of({make_thread(ThreadComment{comment(), op_.name}, op_.step), body});
    }

private:
    std::string comment() const {
        const char* what = std::visit(
            Overloaded{[](const InitOp&) { return ": start"; }, [](const UpdateOp&) { return ": accumulate"; },
                       [](const CopyOp&) { return ": copy"; },
                       [](const OneOf<CombineOp, MapOp, AsyncCopyOp, AwaitedOp, TmaCopyOp, FragmentOp, AccessOp,
                                      CallOp> auto&) { return ""; }},
            op_.action);
        return op_.name + (op_.purpose.empty() ? what : ": " + op_.purpose);
    }

    /// Where a condition ends inside of a vector, its elements are taken one by one.
    ThreadStmt tile_body() {
        if (t_.ragged.empty()) return tile_of_vectors();
        const ThreadStmt elements = elements_of_vector();
        const Expr whole = all_of(t_.whole);
        return block_of({make_thread(ThreadIf{whole, tile_of_vectors()}, op_.step),
                         make_thread(ThreadIf{simplify(!whole), elements}, op_.step)});
    }

    ThreadStmt elements_of_vector() {
        const OpLoop& loop = t_.tile[0];
        const bool in_registers = std::ranges::any_of(
            t_.stores, [&](const ThreadStore& store) { return reads_registers_along(store.value, loop.variable); });
        const Expr element = index_variable(name_of(loop.variable), 0, require_constant(loop.extent) - 1);
        OpTile own = t_;
        own.replace(loop.variable, element);
        std::swap(own, t_);
        ThreadStmt stores = scalar_stores();
        std::swap(own, t_);
        std::vector<Expr> conditions;
        for (const Expr& condition : t_.ragged) conditions.push_back(substitute(condition, {{loop.variable, element}}));
        const ThreadStmt guarded_stores = make_thread(ThreadIf{all_of(conditions), std::move(stores)}, op_.step);
        return make_thread(ThreadLoop{element, loop.extent, in_registers, guarded_stores}, op_.step);
    }

    static bool reads_registers_along(const Expr& value, const Expr& variable) {
        bool found = false;
        visit(value, [&](const Expr& e) {
            const Load* load = e.as<Load>();
            if (!load || load->buffer->memory != Memory::Registers) return;
            for (const Expr& index : load->indices) found = found || contains(index, variable);
        });
        return found;
    }

    ThreadStmt tile_of_vectors() {
        std::vector<ThreadStmt> stmts;
        bool guarded_inside = t_.has_inner_conditions();
        if (t_.single() && !guarded_inside && load_directly(t_.stores[0], t_.tile, op_.step, stmts))
            return block_of(std::move(stmts));
        if (!t_.tile.empty() && !guarded_inside && !is_plain_copy())
            t_.stores = preload(t_.stores, t_.operands(), t_.tile, loop_to_load_ahead(), op_.step, ahead_, stmts);
        if (guarded_inside && !t_.operands().empty())
            notes_.push_back(
                fmt::format("{}: operands are read one by one inside of the unrolled loops, since their mask "
                            "depends on them",
                            op_.name));
        stmts.push_back(store_loops());
        return block_of(std::move(stmts));
    }

    /// The loop unrolled around the tile, if its iterations have conditions of their own and are made of memory alone:
    /// one after another, they would wait for each other's loads.
    std::optional<OpLoop> loop_to_load_ahead() const {
        if (t_.outer.empty() || t_.outer.back().execution == Execution::Serial) return {};
        const OpLoop& loop = t_.outer.back();
        const auto extent = as_constant(loop.extent);
        if (!extent || *extent == 1 || *extent * bytes_loaded_ > most_bytes_in_flight) return {};
        for (const ThreadStore& store : t_.stores)
            for (const OpLoop& each : t_.tile)
                if (reads_registers_along(store.value, each.variable) ||
                    reads_registers_along(store.value, loop.variable))
                    return {};
        const auto depends = [&](const Expr& condition) { return contains(condition, loop.variable); };
        const bool has_conditions =
            std::ranges::any_of(t_.conditions, depends) || std::ranges::any_of(t_.whole, depends);
        return has_conditions ? std::optional(loop) : std::nullopt;
    }

    /// The loads of all iterations of the loop around the tile, each under its conditions, if they come first.
    std::vector<ThreadStmt> loaded_ahead(const OpLoop& loop) {
        LoadedAhead ahead = std::exchange(ahead_, {});
        if (ahead.loads.empty()) return {};
        std::vector<Expr> conditions = t_.whole;
        for (const Expr& condition : t_.conditions)
            if (contains(condition, loop.variable)) conditions.push_back(condition);
        const ThreadStmt loads = make_thread(ThreadIf{all_of(conditions), block_of(std::move(ahead.loads))}, op_.step);
        ahead.arrays.push_back(make_thread(ThreadLoop{loop.variable, loop.extent, true, loads}, op_.step));
        return ahead.arrays;
    }

    /// Memory to memory, as wide on both sides.
    bool is_plain_copy() const {
        const Load* load = t_.stores[0].value.as<Load>();
        if (!t_.single() || t_.store_width == 1 || t_.tile.size() != 1 || !load) return false;
        if (require_constant(t_.tile[0].extent) != t_.store_width) return false;
        if (load->buffer->type != t_.stores[0].to.buffer->type) return false;
        return wide_elements({load->buffer, load->indices}, t_.wide_variable, t_.store_width) == t_.store_width;
    }

    ThreadStmt store_loops() {
        std::vector<OpLoop> loops = t_.tile;
        ThreadStmt body;
        if (t_.taken_over() > 0) {
            loops.resize(loops.size() - t_.taken_over());
            body = t_.matrices ? store_fragment(t_, op_.step) : store_lines(t_, op_.step);
        } else if (t_.store_width > 1) {
            auto wide = std::find_if(loops.begin(), loops.end(),
                                     [&](const OpLoop& loop) { return loop.variable.same(t_.wide_variable); });
            OpLoop along = *wide;
            loops.erase(wide);
            body = wide_store(along, loops);
        } else {
            body = scalar_stores();
        }
        while (!loops.empty()) {
            OpLoop loop = loops.back();
            loops.pop_back();
            body = make_thread(ThreadLoop{loop.variable, loop.extent, true, guarded(body, &loop.variable)}, op_.step);
        }
        return body;
    }

    /// Whether a value is the same behind the stores: it reads registers at most, and none that they write.
    bool survives_stores(const Expr& value) const {
        bool same = true;
        visit(value, [&](const Expr& e) {
            const Load* load = e.as<Load>();
            if (!load) return;
            const bool is_stored = std::ranges::any_of(
                t_.stores, [&](const ThreadStore& store) { return store.to.buffer == load->buffer; });
            same = same && load->buffer->memory == Memory::Registers && !is_stored;
        });
        return same;
    }

    ThreadStmt scalar_stores() {
        std::vector<ThreadStmt> stmts;
        if (t_.single()) return make_thread(t_.stores[0], op_.step);
        std::vector<ThreadStmt> lets, stores;
        if (std::ranges::all_of(t_.stores, [&](const ThreadStore& store) { return survives_stores(store.value); })) {
            for (const ThreadStore& store : t_.stores) stores.push_back(make_thread(store, op_.step));
            return make_thread(ThreadBlock{std::move(stores)}, op_.step);
        }
        // All values are computed before the first is stored.
        for (const ThreadStore& store : t_.stores) {
            Variable node{.name = store.to.buffer->name + "_new", .kind = VariableKind::Index, .min = {}, .max = {}};
            Expr variable = make_expr(store.value.type(), std::move(node));
            lets.push_back(make_thread(ThreadLet{variable, store.value}, op_.step));
            stores.push_back(make_thread(ThreadStore{store.to, variable, store.atomic}, op_.step));
        }
        lets.insert(lets.end(), stores.begin(), stores.end());
        return make_thread(ThreadBlock{std::move(lets)}, op_.step);
    }

    /// The store of `along`, a vector at a time; adds a loop over the vectors to `loops`.
    ThreadStmt wide_store(const OpLoop& along, std::vector<OpLoop>& loops) {
        int64_t extent = require_constant(along.extent);
        Expr lane = index_variable(name_of(along.variable), 0, t_.store_width - 1), value = lane;
        if (extent > t_.store_width) {
            Expr group = index_variable(name_of(along.variable) + "_vector", 0, extent / t_.store_width - 1);
            loops.push_back({group, integer(extent / t_.store_width), Execution::Unroll, false});
            value = group * t_.store_width + lane;
        }
        t_.replace(along.variable, value);
        for (Expr& condition : t_.conditions) condition = uniform_over(condition, lane, t_.store_width);
        if (ThreadStmt moved = moved_whole(lane); moved.defined()) return moved;
        return computed_then_stored(lane);
    }

    /// The vector as one access on both sides, if it is only moved.
    ThreadStmt moved_whole(const Expr& lane) const {
        const Load* load = t_.stores[0].value.as<Load>();
        if (!t_.single() || !load || load->buffer->type != t_.stores[0].to.buffer->type) return {};
        Access from{load->buffer, load->indices};
        if (wide_elements(from, lane, t_.store_width) != t_.store_width) return {};
        return wide(at_start(t_.stores[0].to, lane), at_start(from, lane));
    }

    /// All elements of all stores are computed before the first is stored.
    ThreadStmt computed_then_stored(const Expr& lane) const {
        std::vector<ThreadStmt> stmts, compute, stores;
        for (const ThreadStore& store : t_.stores) {
            Buffer out = register_array(store.to.buffer->name + "_out", store.to.buffer->type, {t_.store_width});
            stmts.push_back(make_thread(ThreadDeclare{out}, op_.step));
            compute.push_back(make_thread(ThreadStore{{out, {lane}}, store.value}, op_.step));
            stores.push_back(wide(at_start(store.to, lane), {out, {integer(0)}}));
        }
        stmts.push_back(make_thread(ThreadLoop{lane, integer(t_.store_width), true, block_of(compute)}, op_.step));
        stmts.insert(stmts.end(), stores.begin(), stores.end());
        return block_of(std::move(stmts));
    }

    ThreadStmt wide(const Access& to, const Access& from) const {
        return make_thread(ThreadWide{static_cast<int>(t_.store_width), to, from}, op_.step);
    }

    /// `body` under the conditions that mention `variable`, which then count as met; all that are left for nullptr.
    ThreadStmt guarded(ThreadStmt body, const Expr* variable) {
        std::vector<Expr> here, elsewhere;
        for (const Expr& condition : t_.conditions)
            (!variable || contains(condition, *variable) ? here : elsewhere).push_back(condition);
        t_.conditions = elsewhere;
        if (here.empty()) return body;
        return make_thread(ThreadIf{all_of(here), body}, op_.step);
    }

    ThreadStmt loop_around(const OpLoop& loop, ThreadStmt body, int64_t& work) {
        auto extent = as_constant(loop.extent);
        if (loop.execution != Execution::Serial) {
            work *= extent.value_or(1);
            bytes_loaded_ *= extent.value_or(1);
            return make_thread(ThreadLoop{loop.variable, loop.extent, extent.has_value(), body}, op_.step);
        }
        int64_t times = partial_unroll(extent, work);
        work = most_unrolled_work + 1;  // outer loops stay loops
        if (times == 1) return make_thread(ThreadLoop{loop.variable, loop.extent, false, body}, op_.step);
        if (times == extent) return make_thread(ThreadLoop{loop.variable, loop.extent, true, body}, op_.step);
        std::string name = name_of(loop.variable);
        Expr outer = index_variable(name + "_outer", 0, *extent / times - 1),
             inner = index_variable(name + "_inner", 0, times - 1);
        ThreadStmt let = make_thread(ThreadLet{loop.variable, outer * times + inner}, op_.step);
        ThreadStmt copies = make_thread(ThreadLoop{inner, integer(times), true, block_of({let, body})}, op_.step);
        return make_thread(ThreadLoop{outer, integer(*extent / times), false, copies, bytes_loaded_ > 0}, op_.step);
    }

    /// How many iterations of the innermost serial loop stand side by side: a divisor of its extent.
    int64_t partial_unroll(std::optional<int64_t> extent, int64_t work) const {
        if (!extent) return 1;
        if (*extent * work <= 64 && *extent <= longest_partial_unroll) return *extent;
        for (int64_t times = longest_partial_unroll; times > 1; --times) {
            bool fits = times * work <= most_unrolled_work && times * bytes_loaded_ <= most_bytes_in_flight;
            if (*extent % times == 0 && fits) return times;
        }
        return 1;
    }

    /// From global memory by one execution of the tile.
    int64_t bytes_loaded() const {
        int64_t bytes = 0;
        for (const PreloadOperand& operand : t_.operands()) {
            if (operand.access.buffer->memory != Memory::Global) continue;
            int64_t own = bytes_of(operand.access.buffer->type);
            for (const OpLoop& loop : t_.tile)
                if (operand.depends_on(loop.variable)) own *= require_constant(loop.extent);
            bytes += own;
        }
        return bytes;
    }

    const TileOp& op_;
    std::vector<std::string>& notes_;
    OpTile t_;
    int64_t bytes_loaded_ = 0;
    LoadedAhead ahead_;
};

Instruction physical(const Instruction& instruction, const Placement& placement) {
    Instruction numbers = map_operands(instruction, [&](const Operand& operand) -> Operand {
        if (auto number = std::get_if<Expr>(&operand)) return placement.physical(*number);
        auto matrix = std::get_if<MatrixOperand>(&operand);
        if (!matrix || !matrix->further.defined()) return operand;
        MatrixOperand result = *matrix;
        result.further = placement.physical(matrix->further);
        return result;
    });
    return map_places(numbers, [&](const Access& place) { return placement.physical(place.buffer, place.indices); });
}

/// `body` in each iteration of the op's loops, in the threads that run it.
ThreadStmt in_loops(const TileOp& op, ThreadStmt body, const Placement& placement) {
    for (auto loop = op.loops.rbegin(); loop != op.loops.rend(); ++loop) {
        bool unroll = loop->execution != Execution::Serial && as_constant(loop->extent);
        body = make_thread(ThreadLoop{loop->variable, placement.physical(loop->extent), unroll, body}, op.step);
    }
    return is_constant(op.active, 1) ? body : make_thread(ThreadIf{placement.physical(op.active), body}, op.step);
}

ThreadStmt lower_access(const TileOp& op, const AccessOp& access, const Placement& placement) {
    Access place = placement.physical(access.place.buffer, access.place.indices);
    return in_loops(op, make_thread(ThreadAccess{place, access.elements, access.writes}, op.step), placement);
}

/// Says what instructions that move or compute something do; "" of those that only wait or tell.
std::string comment_of(const TileOp& op, const CallOp& call) {
    std::string loaded;
    for (const Instruction& instruction : call.instructions) {
        if (std::get_if<Mma>(&instruction) || std::get_if<Wgmma>(&instruction)) return op.name + ": multiply";
        if (auto store = std::get_if<TmaStore>(&instruction)) return op.name + (store->adds ? ": add" : ": store");
        if (auto load = std::get_if<TmaLoad>(&instruction))
            loaded += (loaded.empty() ? "" : ", ") + load->to.place.buffer->name;
    }
    return loaded.empty() ? "" : loaded + ": load";
}

ThreadStmt lower_call(const TileOp& op, const CallOp& call, const Placement& placement) {
    std::vector<ThreadStmt> stmts;
    for (const Instruction& i : call.instructions) stmts.push_back(make_thread(physical(i, placement), op.step));
    ThreadStmt body = in_loops(op, block_of(std::move(stmts)), placement);
    const std::string comment = comment_of(op, call);
    if (op.name.empty() || comment.empty()) return body;
    return block_of({make_thread(ThreadComment{comment, op.name}, op.step), body});
}

/// Why no instruction loads the fragment's matrices.
std::string why_plain(const TileOp& op) {
    const BufferNode& from = *op.stores[0].value.as<Load>()->buffer;
    if (from.memory == Memory::Shared) return "16 bytes of a row do not lie side by side";
    return fmt::format("'{}' is in {}, and matrices are loaded from shared memory; stage it there", from.name,
                       from.memory == Memory::Global ? "global memory" : to_string(from.memory));
}

}  // namespace

ThreadStmt lower_op(const TileOp& op, const Placement& placement, const Target& target,
                    std::vector<std::string>& notes) {
    auto by_threads = [&] { return OpLowering(op, placement, target, notes).run(); };
    return std::visit(
        Overloaded{[&](const AccessOp& access) { return lower_access(op, access, placement); },
                   [&](const CallOp& call) { return lower_call(op, call, placement); },
                   [&](const OneOf<AsyncCopyOp, AwaitedOp> auto&) { return lower_async_copy(op, placement); },
                   [&](const TmaCopyOp&) {
                       internal_check(false, "{}: boxes that nobody asks for", op.name);
                       return ThreadStmt();
                   },
                   [&](const FragmentOp&) {
                       if (ThreadStmt loaded = load_fragment(op, placement); loaded.defined()) return loaded;
                       notes.push_back(fmt::format("{}: by plain loads: {}", op.name, why_plain(op)));
                       return by_threads();
                   },
                   [&](const OneOf<InitOp, UpdateOp, CombineOp, MapOp, CopyOp> auto&) { return by_threads(); }},
        op.action);
}

}  // namespace tw::codegen
