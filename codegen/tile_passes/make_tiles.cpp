#include "codegen/tile_passes/make_tiles.h"

#include <algorithm>
#include <limits>
#include <set>

#include "codegen/access/conditions.h"
#include "dsl/simplify.h"
#include "support/error.h"

namespace tw::codegen {
namespace {

constexpr int default_threads = 256;
constexpr int64_t most_tickets = std::numeric_limits<int32_t>::max();

decltype(TileOp::action) action_of(const Leaf& leaf) {
    switch (leaf.kind) {
        case Leaf::Kind::Init: return InitOp{};
        case Leaf::Kind::Update:
            return UpdateOp{leaf.atom, leaf.readers_mask.defined() ? all_of(conjuncts_of(leaf.readers_mask)) : Expr(),
                            leaf.reducer};
        case Leaf::Kind::Combine: return CombineOp{leaf.across};
        case Leaf::Kind::Finish: return MapOp{};
        case Leaf::Kind::Copy: return CopyOp{leaf.via};
    }
    return MapOp{};
}

Execution execution_of(Level level) {
    return level == Level::Unroll ? Execution::Unroll : level == Level::Vector ? Execution::Vector : Execution::Serial;
}

/// Whether lanes share the leaf's loops as fragments; those of accumulators with nothing to sum do, too.
bool shares_fragments(const LeafPath& path) {
    return std::any_of(path.loops.begin(), path.loops.end(),
                       [](const For* loop) { return loop->role != AtomRole::None; });
}

class TileMaker {
public:
    TileMaker(const Tree& tree, const Nest& nest, const Target& target, const CiteStep& cite)
        : tree_(tree), nest_(nest), target_(target), cite_(cite) {}

    TileKernel run() {
        std::vector<LeafPath> paths = leaf_paths(nest_.body);
        kernel_.name = nest_.name;
        kernel_.grid_coordinates = grid_coordinates(paths, cite_);
        kernel_.thread_coordinates = thread_coordinates(paths, target_, cite_);
        if (std::any_of(paths.begin(), paths.end(), shares_fragments)) add_lanes(paths);
        make_grid();
        make_cluster(paths);
        make_threads(paths);
        kernel_.roles = nest_.roles;
        kernel_.occupancy = nest_.occupancy;
        kernel_.exclusive = nest_.exclusive;
        check_roles();
        kernel_.body = convert(nest_.body);
        if (nest_.persistent_blocks > 0)
            make_persistent();
        else if (copies_for_block(kernel_.body))
            kernel_.body = make_tile(around_block(index_variable("once", 0, 0), integer(1), 1));
        collect_arguments();
        return std::move(kernel_);
    }

private:
    void make_grid() {
        static const char* const names[] = {"block_x", "block_y", "block_z"};
        for (int d = 0; d < 3; ++d) {
            Expr blocks = integer(1);
            for (const GridCoordinate& coordinate : kernel_.grid_coordinates)
                if (coordinate.dimension == d) blocks = blocks * coordinate.extent;
            kernel_.grid[d] = simplify(blocks);
            auto most = bounds_of(kernel_.grid[d]).max;
            kernel_.block[d] =
                index_variable(names[d], 0, most ? std::optional(std::max<int64_t>(*most - 1, 0)) : most);
        }
    }

    void check_roles() {
        if (turns_of(kernel_) > 1) kernel_.turn = index_variable("turn", 0, turns_of(kernel_) - 1);
        if (kernel_.roles.empty()) return;
        const RoleSpec& computing = kernel_.roles[0];
        int threads = computing.warps * target_.warp_size, bound = kernel_.threads * computing.ping_pong;
        if (threads != bound)
            throw_error(Error,
                        "{}role '{}' has {} threads, but the loops of its stages are bound to {}; give it {} warps",
                        cite_(computing.step), computing.name, threads, bound,
                        (bound + target_.warp_size - 1) / target_.warp_size);
        if (computing.ping_pong > 1 && nest_.persistent_blocks == 0)
            throw_error(Error,
                        "{}role '{}': ping_pong({}), but each block has one tile; persistent(loops) gives it several",
                        cite_(computing.step), computing.name, computing.ping_pong);
    }

    int role_of(int stage) const {
        for (size_t r = 1; r < kernel_.roles.size(); ++r) {
            const std::vector<int>& stages = kernel_.roles[r].stages;
            if (std::find(stages.begin(), stages.end(), stage) != stages.end()) return static_cast<int>(r);
        }
        return 0;
    }

    /// A loop around all: the coordinates of the grid are those of the iteration that has its turn.
    void make_persistent() {
        Expr tiles = kernel_.grid[0], block = kernel_.block[0];
        int blocks = std::max(nest_.persistent_blocks / kernel_.cluster, 1) * kernel_.cluster;
        kernel_.grid[0] = simplify(min(tiles, integer(blocks)));
        kernel_.block[0] =
            index_variable("block_x", 0, std::min<int64_t>(bounds_of(tiles).max.value_or(blocks), blocks) - 1);
        auto most = bounds_of(tiles).max;
        auto last_round = most ? std::optional((*most + blocks - 1) / blocks - 1) : std::nullopt;
        auto last_tile = most ? std::optional(*most - 1) : std::nullopt;
        kernel_.persistent = {index_variable("round", 0, last_round), index_variable("tile", 0, last_tile), blocks,
                              tiles, nest_.longest_first};
        Expr rounds = simplify((tiles - kernel_.block[0] + (blocks - 1)) / blocks);
        if (nest_.tickets && prove(tiles <= blocks) != true) {
            take_by_tickets(blocks, last_tile);
            rounds = tiles;  // at most
        }
        kernel_.body = make_tile(around_block(kernel_.persistent->round, rounds, nest_.persistent_stages));
        for (SharedBuffer& shared : kernel_.shared) shared.around.push_back(kernel_.persistent->round);
    }

    /// One block may take all tiles but the first ones of the others.
    void take_by_tickets(int blocks, std::optional<int64_t> last_tile) {
        Persistence& persistent = *kernel_.persistent;
        persistent.round = index_variable("round", 0, last_tile);
        persistent.ticket = index_variable("ticket", 0, last_tile);
        persistent.tickets = nest_.tickets;
        BufferNode next = *register_array("next_ticket", Type::I32, {});
        next.below = last_tile && *last_tile < most_tickets - blocks ? *last_tile + 1 + blocks : most_tickets;
        persistent.next = std::make_shared<const BufferNode>(std::move(next));
        kernel_.notes.push_back(
            fmt::format("{}: blocks take iterations as they come, by tickets from '{}', which is zero before each "
                        "launch and behind "
                        "it",
                        nest_.name, nest_.tickets->name));
    }

    TileLoop around_block(const Expr& variable, const Expr& extent, int stages) const {
        TileLoop loop{variable, extent, false, false, kernel_.body, stages};
        loop.is_block = true;
        return loop;
    }

    /// Another role copies something once for the block.
    static bool copies_for_block(const TileStmt& stmt) {
        if (const TileOp* op = stmt.as<TileOp>()) return op->role > 0;
        return !stmt.as<TileLoop>() && std::ranges::any_of(children(stmt), copies_for_block);
    }

    /// The fastest coordinates of grid.x.
    void make_cluster(const std::vector<LeafPath>& paths) {
        auto is_of_cluster = [&](const GridCoordinate& coordinate) {
            return std::ranges::any_of(paths, [&](const LeafPath& path) {
                return std::ranges::any_of(path.loops, [&](const For* loop) {
                    return loop->level == Level::Cluster && loop->variable.same(coordinate.variable);
                });
            });
        };
        for (const GridCoordinate& coordinate : kernel_.grid_coordinates) {
            if (!is_of_cluster(coordinate)) continue;
            ClusterCoordinate own{coordinate.variable, require_constant(coordinate.stride),
                                  require_constant(coordinate.extent)};
            kernel_.cluster_coordinates.insert(kernel_.cluster_coordinates.begin(), own);
            kernel_.cluster *= static_cast<int>(own.extent);
        }
    }

    /// Adds the lane's coordinates in fragments of matrix instructions: lane = row * 4 + column of the pairs that it
    /// holds.
    void add_lanes(const std::vector<LeafPath>& paths) {
        const Atom* first = nullptr;
        for (const LeafPath& path : paths) {
            const Atom* atom = path.leaf->atom;
            if (atom && first && atom->unit != first->unit)
                throw_error(Error, "{}kernel {} uses both {} and {}; use one matrix unit in a kernel",
                            cite_(path.leaf->step), nest_.name, to_string(first->unit), to_string(atom->unit));
            if (atom) first = atom;
        }
        kernel_.fragment_row = index_variable("lane_row", 0, 7);
        kernel_.fragment_column = index_variable("lane_column", 0, 3);
        if (first && first->unit == MatrixUnit::Wgmma) {
            kernel_.fragment_warp = index_variable("warp", 0, 3);
            kernel_.thread_coordinates.push_back({kernel_.fragment_warp, target_.warp_size, 4});
        }
        kernel_.thread_coordinates.push_back({kernel_.fragment_row, 4, 8});
        kernel_.thread_coordinates.push_back({kernel_.fragment_column, 1, 4});
    }

    void make_threads(const std::vector<LeafPath>& paths) {
        kernel_.threads = threads_of(kernel_.thread_coordinates);
        if (kernel_.fragment_row.defined()) {  // whole groups run matrix instructions, whatever else threads do
            int group = kernel_.fragment_warp.defined() ? 4 * target_.warp_size : target_.warp_size;
            kernel_.threads = (kernel_.threads + group - 1) / group * group;
        }
        if (kernel_.thread_coordinates.empty()) {
            kernel_.threads = threads_for(paths);
            if (kernel_.threads > 1)
                kernel_.notes.push_back(
                    fmt::format("{}: no loop is bound to threads: {} threads", nest_.name, kernel_.threads));
        }
        kernel_.thread = index_variable("thread", 0, kernel_.threads - 1);
    }

    /// For a kernel without thread loops: as many as its widest leaf can use, up to a common choice.
    int threads_for(const std::vector<LeafPath>& paths) const {
        int64_t most = 1;
        for (const LeafPath& path : paths) {
            bool in_registers =
                std::any_of(path.leaf->stores.begin(), path.leaf->stores.end(),
                            [](const StoreTo& store) { return store.buffer->memory == Memory::Registers; });
            if (!in_registers) most = std::max(most, parallel_iterations(path, paths));
        }
        if (most == 1) return 1;
        int64_t warps = (most + target_.warp_size - 1) / target_.warp_size;
        return static_cast<int>(std::min<int64_t>(warps * target_.warp_size, default_threads));
    }

    /// Iterations of the loops that stand around this leaf only.
    static int64_t parallel_iterations(const LeafPath& path, const std::vector<LeafPath>& paths) {
        int64_t count = 1;
        for (const For* loop : path.loops) {
            auto around = [&](const LeafPath& other) {
                return std::find(other.loops.begin(), other.loops.end(), loop) != other.loops.end();
            };
            bool alone = std::count_if(paths.begin(), paths.end(), around) == 1;
            if (alone && !loop->reduces && !is_grid(loop->level))
                count =
                    std::min<int64_t>(count * as_constant(loop->extent).value_or(default_threads), int64_t{1} << 20);
        }
        return count;
    }

    TileStmt convert(const Stmt& stmt) {
        return std::visit([&](const auto& node) { return (*this)(node); }, (*stmt).kind);
    }

public:
    TileStmt operator()(const For& loop) {
        std::vector<Expr>& around = is_thread(loop.level) ? around_ : repeating_;
        around.push_back(loop.variable);
        TileStmt body = convert(loop.body);
        around.pop_back();
        if (is_grid(loop.level) || is_thread(loop.level)) return body;
        if (const TileOp* op = body.as<TileOp>()) {
            TileOp around = *op;
            around.loops.insert(around.loops.begin(),
                                {loop.variable, loop.extent, execution_of(loop.level), loop.reduces, loop.role});
            return make_tile(std::move(around));
        }
        check_uniform(loop, body);
        return make_tile(TileLoop{loop.variable, loop.extent, loop.level == Level::Unroll, loop.reduces,
                                  std::move(body), loop.stages, loop.in_flight, false, loop.pipeline_step, loop.loop});
    }

    TileStmt operator()(const Sequence& sequence) {
        TileBlock block;
        for (const Stmt& stmt : sequence.stmts) block.stmts.push_back(convert(stmt));
        return make_tile(std::move(block));
    }

    TileStmt operator()(const Allocate& allocate) {
        const Buffer& buffer = allocate.buffer;
        internal_check(buffer->memory == Memory::Shared || buffer->memory == Memory::Registers,
                       "{} is allocated in {} inside a kernel", buffer->name, to_string(buffer->memory));
        if (buffer->memory == Memory::Registers)
            return make_tile(TileAllocate{buffer, convert(allocate.body), around_});
        auto found = std::ranges::find(kernel_.shared, buffer, &SharedBuffer::buffer);
        if (found == kernel_.shared.end()) {
            kernel_.shared.push_back({buffer, row_major(constant_shape(buffer))});
            kernel_.shared.back().around = repeating_;
        } else {  // segments of a loop share it
            std::erase_if(found->around, [&](const Expr& loop) {
                return std::ranges::none_of(repeating_, [&](const Expr& other) { return other.same(loop); });
            });
        }
        return convert(allocate.body);
    }

    TileStmt operator()(const Leaf& leaf) {
        TileOp op;
        op.action = action_of(leaf);
        op.name = leaf.name;
        op.purpose = leaf.purpose;
        op.iteration = leaf.iteration;
        op.stage = leaf.stage;
        op.step = leaf.step;
        op.role = role_of(leaf.stage);
        op.stores = leaf.stores;
        op.mask = all_of(conjuncts_of(leaf.mask));
        bool runs_in_all = op.is<CombineOp>() || is_atomic(op);
        for (const ThreadCoordinate& coordinate : kernel_.thread_coordinates)
            if (mentions(op, coordinate.variable) || (runs_in_all && stands_in(coordinate.variable)))
                op.threads.push_back(coordinate);
        if (UpdateOp* update = std::get_if<UpdateOp>(&op.action))
            for (const ThreadCoordinate& coordinate : kernel_.thread_coordinates)
                if (stands_in(coordinate.variable)) update->around.push_back(coordinate);
        bool replicated = stores_to(op, Memory::Registers);  // each thread has its own
        if (!replicated && !op.threads.empty()) {
            op.active = one_thread_each(op.threads, kernel_.thread, kernel_.threads);
            if (!is_constant(op.active, 1))
                op.notes.push_back(
                    fmt::format("{}: stored by threads with {} of {}", op.name, to_string(op.active), kernel_.threads));
        }
        return make_tile(std::move(op));
    }

private:
    bool stands_in(const Expr& variable) const {
        return std::any_of(around_.begin(), around_.end(), [&](const Expr& v) { return v.same(variable); });
    }

    /// What is in registers may differ between threads that a loop around it tells apart.
    bool differs_between(const Expr& extent, const Expr& thread) const {
        bool own = false;
        visit(extent, [&](const Expr& e) {
            const Load* load = e.as<Load>();
            own = own || (load && load->buffer->memory != Memory::Global);
        });
        return contains(extent, thread) || (own && stands_in(thread));
    }

    /// Threads that leave a loop early would miss its barriers, and exchanges of lanes.
    void check_uniform(const For& loop, const TileStmt& body) const {
        bool shares = false;
        visit_ops(body, [&](const TileOp& op) {
            shares = shares || !stores_to(op, Memory::Registers) || op.is<CombineOp>();
        });
        for (const ThreadCoordinate& coordinate : kernel_.thread_coordinates)
            if (shares && differs_between(loop.extent, coordinate.variable))
                throw_error(Error,
                            "{}loop '{}' has {} iterations, which differ between threads, but the threads fill memory "
                            "together inside of it; order it outside the thread loop '{}', or stage outside of it",
                            cite_(step_in(body)), to_string(loop.variable), to_string(loop.extent),
                            to_string(coordinate.variable));
    }

    /// A step of what stands there; -1 if none has one.
    static int step_in(const TileStmt& body) {
        int step = -1;
        visit_ops(body, [&](const TileOp& op) { step = std::max(step, op.step); });
        return step;
    }

    void collect_arguments() {
        std::set<const BufferNode*> used;
        std::set<const ExprNode*> parameters;
        auto see = [&](const Expr& root) {
            visit(root, [&](const Expr& e) {
                if (e.as<Variable>()) parameters.insert(e.id());
                if (const Load* load = e.as<Load>()) used.insert(load->buffer.get());
            });
        };
        visit(kernel_.body, [&](const TileStmt& stmt) {
            if (const TileLoop* loop = stmt.as<TileLoop>()) see(loop->extent);
        });
        visit_ops(kernel_.body, [&](const TileOp& op) {
            visit_exprs(op, see);
            for (const StoreTo& store : op.stores) used.insert(store.buffer.get());
        });
        for (const GridCoordinate& coordinate : kernel_.grid_coordinates) see(coordinate.extent);
        if (kernel_.persistent) used.insert(kernel_.persistent->tickets.get());
        for (const auto* list : {&tree_.inputs, &tree_.outputs, &tree_.workspaces})
            for (const Buffer& buffer : *list) {
                bool listed =
                    std::find(kernel_.arguments.begin(), kernel_.arguments.end(), buffer) != kernel_.arguments.end();
                if (!used.count(buffer.get()) || listed) continue;
                kernel_.arguments.push_back(buffer);
                for (const auto* exprs : {&buffer->shape, &buffer->strides})
                    for (const Expr& e : *exprs) see(e);
            }
        for (const Expr& size : tree_.sizes)
            if (parameters.count(size.id())) kernel_.sizes.push_back(size);
        for (const Expr& scalar : tree_.scalars)
            if (parameters.count(scalar.id())) kernel_.scalars.push_back(scalar);
    }

    const Tree& tree_;
    const Nest& nest_;
    const Target& target_;
    const CiteStep& cite_;
    TileKernel kernel_;
    std::vector<Expr> around_;     // the thread loops around what is being converted,
    std::vector<Expr> repeating_;  // and all others
};

}  // namespace

TileKernel make_tiles(const Tree& tree, const Nest& nest, const Target& target, const CiteStep& cite) {
    return TileMaker(tree, nest, target, cite).run();
}

}  // namespace tw::codegen
