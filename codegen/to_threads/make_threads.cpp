#include <algorithm>
#include <functional>
#include <set>

#include "codegen/thread_ir/thread_walk.h"
#include "codegen/to_threads/check_occupancy.h"
#include "codegen/to_threads/lower_op.h"
#include "codegen/to_threads/make_threads.h"
#include "dsl/simplify.h"

namespace tw::codegen {
namespace {

constexpr int most_registers_at_start = 248;  // 255, in eights

/// A comment that repeats the one before says nothing.
bool repeats(const std::vector<ThreadStmt>& list, const ThreadComment& comment) {
    for (size_t s = list.size(); s-- > 0;)
        if (const ThreadComment* last = list[s].as<ThreadComment>()) return last->text == comment.text;
    return false;
}

void append(std::vector<ThreadStmt>& list, const ThreadStmt& stmt) {
    if (!stmt.defined()) return;
    const ThreadBlock* block = stmt.as<ThreadBlock>();
    for (const ThreadStmt& kid : block ? block->stmts : std::vector<ThreadStmt>{stmt}) {
        const ThreadComment* comment = kid.as<ThreadComment>();
        if (!comment || !repeats(list, *comment)) list.push_back(kid);
    }
}

class ThreadMaker {
public:
    ThreadMaker(const TileKernel& kernel, const Target& target, std::vector<std::string>& notes)
        : kernel_(kernel), target_(target), placement_(kernel), notes_(notes), block_thread_(kernel.thread) {
        int turns = turns_of(kernel);
        if (turns > 1) block_thread_ = index_variable("block_thread", 0, kernel.threads * turns - 1);
    }

    ThreadKernel run() {
        ThreadKernel result;
        result.name = kernel_.name;
        result.arguments = kernel_.arguments;
        result.sizes = kernel_.sizes;
        result.scalars = kernel_.scalars;
        result.shared = placement_.shared();
        result.unions = placement_.unions();
        result.grid = kernel_.grid;
        if (kernel_.persistent && kernel_.persistent->tickets) result.tickets = kernel_.persistent->tiles;
        result.threads = kernel_.threads * turns_of(kernel_);
        result.cluster = kernel_.cluster;
        result.occupancy = kernel_.occupancy.blocks;
        result.producer_threads = all_threads(kernel_) - result.threads;
        result.thread = block_thread_;
        result.block = kernel_.block;
        result.written = written();
        result.body = body();
        result.maps = kernel_.maps;
        drop_mapped(result);
        return result;
    }

private:
    /// Tensors that are read through their maps alone need no pointer.
    static void drop_mapped(ThreadKernel& kernel) {
        std::set<const BufferNode*> touched;
        visit(kernel.body, [&](const ThreadStmt& stmt) {
            for (const MemoryAccess& access : memory_accesses(stmt)) touched.insert(access.place.buffer.get());
        });
        for (const TensorMapUse& use : kernel.maps) {
            auto found = std::find(kernel.arguments.begin(), kernel.arguments.end(), use.tensor);
            if (found == kernel.arguments.end() || touched.count(use.tensor.get())) continue;
            kernel.written.erase(kernel.written.begin() + (found - kernel.arguments.begin()));
            kernel.arguments.erase(found);
        }
    }

    std::vector<bool> written() const {
        std::vector<bool> result(kernel_.arguments.size());
        visit_ops(kernel_.body, [&](const TileOp& op) {
            for (const StoreTo& store : op.stores)
                for (size_t a = 0; a < result.size(); ++a)
                    result[a] = result[a] || kernel_.arguments[a] == store.buffer;
        });
        for (size_t a = 0; kernel_.persistent && a < result.size(); ++a)
            result[a] = result[a] || kernel_.arguments[a] == kernel_.persistent->tickets;
        return result;
    }

    ThreadStmt body() {
        std::vector<ThreadStmt> stmts;
        append(stmts, make_barriers());
        if (kernel_.roles.empty()) {
            append(stmts, work(kernel_.body, true));
            return block_of(stmts);
        }
        append(stmts, all_meet());
        int first = kernel_.threads * turns_of(kernel_);
        for (size_t r = 1; r < kernel_.roles.size(); ++r) {
            append(stmts, helper(static_cast<int>(r), first));
            first += threads_of(kernel_.roles[r]);
        }
        append(stmts, computing());
        if (meets_peers()) append(stmts, all_meet());  // none leaves while another may still signal it
        return block_of(stmts);
    }

    /// Blocks of a cluster write to each other's shared memory.
    bool meets_peers() const {
        bool found = false;
        visit_ops(kernel_.body, [&](const TileOp& op) { found = found || lone_instruction<MbarrierArriveAt>(op); });
        return found;
    }

    ThreadStmt all_meet() const {
        if (!meets_peers()) return make_thread(ThreadBarrier{});
        return block_of({make_thread(Instruction(ClusterArrive{})), make_thread(Instruction(ClusterWait{}))});
    }

    /// By one thread, before all else. Tensor maps come near meanwhile.
    ThreadStmt make_barriers() const {
        std::vector<ThreadStmt> stmts;
        for (const BarrierArray& array : kernel_.barriers) {
            Expr count = array.buffer->shape[0], each = index_variable("stage", 0, require_constant(count) - 1);
            Instruction init =
                MbarrierInit{{placement_.physical(array.buffer, {each})}, constant(Type::I64, array.arrivals)};
            stmts.push_back(make_thread(ThreadLoop{each, count, false, make_thread(std::move(init))}));
        }
        if (stmts.empty()) return {};
        stmts.push_back(make_thread(Instruction(FenceMbarrierInit{})));
        for (const TensorMapUse& use : kernel_.maps)
            stmts.push_back(make_thread(Instruction(PrefetchTensorMap{{use.map}})));
        return make_thread(ThreadIf{simplify(block_thread_ == 0), block_of(stmts)});
    }

    ThreadStmt helper(int role, int first) {
        const RoleSpec& spec = kernel_.roles[role];
        TileStmt part = of_role(kernel_.body, role);
        int threads = threads_of(spec);
        Expr thread = index_variable(spec.name + "_thread", 0, threads - 1);
        std::vector<ThreadStmt> stmts{registers(spec)};
        if (part.defined()) stmts.push_back(make_thread(ThreadIf{simplify(thread == 0), work(part, false)}));
        return make_thread(ThreadRole{spec.name, thread, first, threads, block_of(stmts)}, spec.step);
    }

    ThreadStmt computing() {
        const RoleSpec& spec = kernel_.roles[0];
        std::vector<ThreadStmt> stmts{registers(spec), work(of_role(kernel_.body, 0), true)};
        ThreadRole role{spec.name, {}, 0, kernel_.threads * spec.ping_pong, block_of(stmts)};
        if (spec.ping_pong > 1) role.thread = kernel_.thread, role.turn = kernel_.turn, role.turns = spec.ping_pong;
        return make_thread(std::move(role), spec.step);
    }

    ThreadStmt registers(const RoleSpec& spec) const {
        const int at_start = std::min(registers_at_launch(kernel_, target_), most_registers_at_start);
        if (spec.registers == 0 || spec.registers == at_start) return make_thread(ThreadBlock{});
        return make_thread(Instruction(SetMaxNReg{spec.registers, spec.registers > at_start}));
    }

    /// What the role runs of a statement; undefined if that is nothing.
    static TileStmt of_role(const TileStmt& stmt, int role) {
        if (const TileOp* op = stmt.as<TileOp>()) return op->role == role ? stmt : TileStmt();
        if (const TileLoop* loop = stmt.as<TileLoop>()) {
            TileLoop copy = *loop;
            copy.body = of_role(loop->body, role);
            return copy.body.defined() ? make_tile(std::move(copy)) : TileStmt();
        }
        if (const TileAllocate* allocate = stmt.as<TileAllocate>()) {
            TileStmt body = of_role(allocate->body, role);
            return body.defined() && uses(body, allocate->buffer)
                       ? make_tile(TileAllocate{allocate->buffer, body, allocate->around})
                       : body;
        }
        TileBlock block;
        for (const TileStmt& kid : stmt.as<TileBlock>()->stmts)
            if (TileStmt part = of_role(kid, role); part.defined()) block.stmts.push_back(part);
        return block.stmts.empty() ? TileStmt() : make_tile(std::move(block));
    }

    static bool uses(const TileStmt& stmt, const Buffer& buffer) {
        bool found = false;
        visit_ops(stmt, [&](const TileOp& op) {
            visit_places(op, [&](const Buffer& place) { found = found || place == buffer; });
        });
        return found;
    }

    /// The values of bound loops, then the block's work.
    ThreadStmt work(const TileStmt& part, bool with_threads) {
        std::vector<ThreadStmt> stmts;
        with_threads_ = with_threads;
        if (!kernel_.persistent) append(stmts, grid_coordinates(part, kernel_.block));
        if (with_threads)
            for (const ThreadCoordinate& coordinate : kernel_.thread_coordinates)
                append(stmts, let(part, coordinate.variable, kernel_.thread / coordinate.stride % coordinate.extent));
        append(stmts, convert(part));
        return block_of(stmts);
    }

    ThreadStmt grid_coordinates(const TileStmt& part, const std::array<Expr, 3>& index) const {
        std::vector<ThreadStmt> stmts;
        for (const GridCoordinate& coordinate : kernel_.grid_coordinates) {
            Expr value = index[coordinate.dimension] / coordinate.stride;
            if (!is_slowest(coordinate)) value = value % coordinate.extent;
            append(stmts, let(part, coordinate.variable, value));
        }
        return block_of(stmts);
    }

    /// What is left of the block's index is below the extent.
    bool is_slowest(const GridCoordinate& coordinate) const {
        const Expr all = simplify(coordinate.stride * coordinate.extent);
        return equal(all, kernel_.persistent ? kernel_.persistent->tiles : kernel_.grid[coordinate.dimension]);
    }

    static ThreadStmt let(const TileStmt& part, const Expr& variable, const Expr& value) {
        return used(part, variable) ? make_thread(ThreadLet{variable, simplify(value)}) : make_thread(ThreadBlock{});
    }

    /// Groups that take turns: each runs every so many rounds.
    ThreadStmt own_turns(const TileLoop& loop) {
        int turns = turns_of(kernel_);
        Variable known = *loop.variable.as<Variable>();
        Expr own = index_variable("own_round", 0, known.max ? std::optional(*known.max / turns) : std::nullopt);
        Expr rounds = (cast_unchecked(Type::I64, loop.extent) - kernel_.turn + (turns - 1)) / turns;
        ThreadLoop result{own, placement_.physical(simplify(rounds)), false, turn(loop, own * turns + kernel_.turn)};
        result.ends_at = last_tile();
        return make_thread(std::move(result));
    }

    /// Where rounds walk along the tiles, whose number is known; else 0.
    int64_t last_tile() const {
        return kernel_.persistent->longest_first || kernel_.persistent->tickets
                   ? 0
                   : as_constant(kernel_.persistent->tiles).value_or(0);
    }

    /// What the tile whose turn it is means for the loops of the grid, and what is done for it.
    ThreadStmt turn(const TileLoop& loop, const Expr& round) {
        const Expr& tile = kernel_.persistent->tile;
        std::vector<ThreadStmt> stmts;
        if (kernel_.persistent->tickets) stmts.push_back(own_ticket());
        stmts.push_back(make_thread(ThreadLet{tile, simplify(tile_of_round(kernel_, round))}));
        Expr counted = kernel_.persistent->longest_first ? round : tile / kernel_.persistent->blocks;
        if (!round.same(loop.variable)) append(stmts, let(loop.body, loop.variable, counted));
        append(stmts, grid_coordinates(loop.body, {tile, {}, {}}));
        append(stmts, convert(loop.body));
        return block_of(stmts);
    }

    ThreadStmt own_ticket() const {
        const Persistence& persistent = *kernel_.persistent;
        Expr next = make_expr(persistent.next->type, Load{persistent.next, {}});
        return make_thread(ThreadLet{persistent.ticket, cast_unchecked(Type::I64, next)});
    }

    static bool used(const TileStmt& root, const Expr& variable) {
        bool found = false;
        visit(root, [&](const TileStmt& stmt) {
            const TileOp* op = stmt.as<TileOp>();
            const TileLoop* loop = stmt.as<TileLoop>();
            found = found || (op && mentions(*op, variable)) || (loop && contains(loop->extent, variable));
        });
        return found;
    }

    ThreadStmt convert(const TileStmt& stmt) {
        if (const TileOp* op = stmt.as<TileOp>()) return lower_op(*op, placement_, target_, notes_);
        if (const TileLoop* loop = stmt.as<TileLoop>()) {
            bool takes_turns = kernel_.persistent && loop->variable.same(kernel_.persistent->round);
            if (takes_turns && kernel_.turn.defined() && with_threads_) return own_turns(*loop);
            ThreadStmt body = takes_turns ? turn(*loop, loop->variable) : convert(loop->body);
            ThreadLoop result{loop->variable, placement_.physical(loop->extent), loop->unroll, body};
            if (loop->rolled) result.unroll_by = 1;
            if (takes_turns) result.ends_at = last_tile();
            if (takes_turns) result.next = kernel_.persistent->next;
            return make_thread(std::move(result));
        }
        ThreadBlock block;
        if (const TileAllocate* allocate = stmt.as<TileAllocate>()) {
            block.stmts.push_back(make_thread(ThreadDeclare{allocate->buffer}, allocate->buffer->step));
            append(block.stmts, convert(allocate->body));
        } else {
            for (const TileStmt& kid : stmt.as<TileBlock>()->stmts) append(block.stmts, convert(kid));
        }
        return make_thread(std::move(block));
    }

    const TileKernel& kernel_;
    const Target& target_;
    Placement placement_;
    std::vector<std::string>& notes_;
    Expr block_thread_;         // of the whole block
    bool with_threads_ = true;  // what is being converted runs on all threads of the role that computes
};

}  // namespace

ThreadKernel make_threads(const TileKernel& kernel, const Target& target, std::vector<std::string>& notes) {
    return ThreadMaker(kernel, target, notes).run();
}

}  // namespace tw::codegen
