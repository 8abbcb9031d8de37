// The rules of placement, nesting and levels that every schedule keeps, checked after each step.
#include <algorithm>
#include <limits>

#include "dsl/mma.h"
#include "dsl/remember_regions.h"
#include "dsl/running.h"
#include "dsl/simplify.h"
#include "dsl/stream.h"
#include "support/error.h"

namespace tw {
namespace {

using State = Schedule::State;

class Rules {
public:
    Rules(const State& state, std::source_location where) : state_(state), where_(where) {}

    void check() const {
        check_streams(state_, where_);
        for (size_t s = 0; s < state_.stages.size(); ++s) {
            if (state_.stages[s].inlined) continue;
            int stage = static_cast<int>(s);
            if (state_.stages[s].attach >= 0) check_placement(stage);
            check_grid(stage);
            check_grid_extents(stage);
            check_vector(stage);
            check_threads(stage);
            check_order_of_terms(stage);
            check_memory(stage);
            if (int target = target_of(state_, stage); target >= 0) check_updates(stage, target);
            check_deciding_data(stage);
            if (state_.stages[s].mma) matching_atom(state_, stage, where_);
        }
        for (size_t s = 0; s < state_.stages.size(); ++s)  // regions take all placements to be legal
            if (!state_.stages[s].inlined) check_chosen_extents(static_cast<int>(s));
        for (size_t s = 0; s < state_.stages.size(); ++s)
            if (state_.stages[s].scan && !state_.stages[s].inlined) check_scan(state_, static_cast<int>(s), where_);
    }

private:
    const std::string& name(int stage) const { return state_.stages[stage].definition.name; }
    const LoopRecord& loop(int id) const { return state_.loops[id]; }

    void check_placement(int stage) const {
        const StageRecord& record = state_.stages[stage];
        const LoopRecord& at = loop(record.attach);
        user_check(at.level != Level::Vector, where_,
                   "'{}' cannot stand under the vector loop '{}'; use a loop outside", name(stage), at.name);
        if (record.after) {
            const StageRecord& leader = state_.stages[at.stage];
            user_check(
                leader.attach < 0 || leader.after, where_,
                "'{}' cannot follow '{}', which itself is made for the stages that read it; place '{}' under a loop of "
                "one of those",
                name(stage), name(at.stage), name(stage));
            return;
        }
        user_check(!state_.is_result(stage), where_,
                   "'{}' is an output of the schedule and cannot move under its reader '{}'; stage a copy instead",
                   name(stage), name(at.stage));
        for (size_t s = 0; s < state_.stages.size(); ++s) {
            if (state_.stages[s].inlined) continue;
            for (const ReadSite& site : reads_of(state_.stages[s].definition))
                if (site.read->operation == record.definition.operation)
                    user_check(
                        stands_below(state_, static_cast<int>(s), site.in_update, record.attach), where_,
                        "'{}' stands under loop '{}' of '{}', but '{}' also reads it outside of that loop; place "
                        "it under a loop around all of its readers",
                        name(stage), at.name, name(at.stage), name(static_cast<int>(s)));
        }
    }

    /// Whether updates stand where their target lives, in shared memory: behind what fills it, in front of its readers.
    bool is_updated_in_place(const StageRecord& updates, int target) const {
        const StageRecord& updated = state_.stages[target];
        return updated.attach >= 0 && !updated.after && updates.attach == updated.attach && !updates.after &&
               resolved_memory(state_, target) == Memory::Shared;
    }

    /// A block's threads share its updates: under a loop that is bound to them each would make all.
    void check_made_once(const StageRecord& updates, int target) const {
        for (int id : enclosing_loops(state_, updates.attach))
            user_check(
                !is_thread(loop(id).level), where_,
                "'{}' is updated atomically in shared memory under loop '{}' of '{}', which is bound to {}: each "
                "thread would make all updates; place it, by at(), under a loop outside of those that are bound "
                "to threads",
                name(target), loop(id).name, name(loop(id).stage), to_string(loop(id).level));
    }

    /// Elements are updated by one kernel, between one that fills them and those that read them.
    void check_updates(int stage, int target) const {
        int updating = state_.kernel_of(stage);
        const StageRecord& updates = state_.stages[stage];
        if (is_updated_in_place(updates, target)) return check_made_once(updates, target);  // readers stand there, too
        const bool follows = updates.attach >= 0 && updates.after && updating != state_.kernel_of(target);
        for (int kernel : {target, stage})
            user_check((state_.stages[kernel].attach < 0 || (kernel == stage && follows)) &&
                           resolved_memory(state_, kernel) == Memory::Global,
                       where_,
                       "'{}' cannot stand under a loop or leave global memory: '{}' updates the elements of '{}' "
                       "atomically, which takes a kernel before and one behind",
                       name(kernel), name(stage), name(target));
        for (size_t s = 0; s < state_.stages.size(); ++s) {
            const StageRecord& reader = state_.stages[s];
            if (reader.inlined || !reads_stage(reader.definition, state_.stages[target].definition)) continue;
            int root = state_.kernel_of(static_cast<int>(s));
            user_check(root != updating && root != target, where_,
                       "'{}' reads '{}', whose elements are complete only behind the kernel '{}' that updates them; it "
                       "cannot stand in the kernel '{}'",
                       reader.definition.name, name(target), name(updating), name(root));
        }
    }

    /// Data that decide how long loops are come from kernels before, or stand in the registers of each thread that runs
    /// them; such loops stay as they are.
    void check_deciding_data(int stage) const {
        const StageRecord& record = state_.stages[stage];
        for (int id : record.order)
            visit(loop(id).extent, [&](const Expr& e) {
                const Read* read = e.as<Read>();
                int source = read ? state_.stage_of(read->operation.get()) : -1;
                const Memory memory = source >= 0 ? resolved_memory(state_, source) : Memory::Global;
                user_check(
                    !read || read->operation->is_input() || (source >= 0 && memory == Memory::Global) ||
                        (memory == Memory::Registers && stands_around(state_.stages[source].attach, id)),
                    where_,
                    "'{}' must stay a kernel of its own, or stand in registers under a loop around loop '{}' of '{}': "
                    "its elements decide how long that is",
                    read ? read->operation->name : "", loop(id).name, name(stage));
            });
        for (const Relation& relation : record.relations)
            user_check(
                relation.kind != Relation::Kind::Fuse || !depends_on_element(loop(relation.whole).extent), where_,
                "loops '{}' and '{}' of '{}' cannot be fused: the element decides how many iterations one of them has",
                loop(relation.outer).name, loop(relation.inner).name, name(stage));
    }

    /// Whether a loop is around another one.
    bool stands_around(int outer, int inner) const {
        const std::vector<int> around = enclosing_loops(state_, inner);
        return outer >= 0 && outer != inner && std::ranges::find(around, outer) != around.end();
    }

    /// Loops as long as elements say stand inside of what chooses the elements, run by each thread for itself.
    void check_chosen_extents(int stage) const {
        const StageRecord& record = state_.stages[stage];
        if (std::ranges::none_of(record.order, [&](int l) { return depends_on_element(loop(l).extent); })) return;
        Region region = region_of(state_, stage, where_);
        Substitution element;
        for (size_t d = 0; d < record.definition.axes.size(); ++d)
            element.emplace_back(record.definition.axes[d], region.lo[d] + loop_value(state_, record.roots[d]));
        for (size_t r = 0; r < record.definition.reduce_axes.size(); ++r)
            element.emplace_back(record.definition.reduce_axes[r], reduce_value(state_, stage, r, where_));
        for (size_t p = 0; p < record.order.size(); ++p) {
            const LoopRecord& own = loop(record.order[p]);
            if (!depends_on_element(own.extent)) continue;
            Expr chosen = simplify(substitute(own.extent, element));
            for (size_t inside = p + 1; inside < record.order.size(); ++inside) {
                const LoopRecord& other = loop(record.order[inside]);
                user_check(is_constant(other.extent, 1) || !contains(chosen, other.variable), where_,
                           "loop '{}' of '{}' must stand inside of '{}', which decides how many iterations it has; "
                           "order them so",
                           own.name, name(stage), other.name);
            }
        }
    }

    void check_grid(int stage) const {
        const StageRecord& record = state_.stages[stage];
        bool inside = false;
        int64_t cluster_blocks = 1;
        for (int id : record.order) {
            if (!is_grid(loop(id).level)) {
                inside = true;
                continue;
            }
            user_check(
                record.attach < 0, where_,
                "loop '{}' of '{}' is bound to {}, but '{}' stands inside another kernel; bind the loops of that "
                "kernel's own stage",
                loop(id).name, name(stage), to_string(loop(id).level), name(stage));
            user_check(!inside, where_,
                       "loop '{}' is bound to {} but stands inside a loop that is not; order the grid loops outermost",
                       loop(id).name, to_string(loop(id).level));
            if (loop(id).level == Level::Cluster) {
                cluster_blocks *= as_constant(loop(id).extent).value_or(1);
                user_check(cluster_blocks <= most_cluster_blocks, where_,
                           "the loops of '{}' that are bound to cluster make clusters of {} blocks, {} at most; split "
                           "them",
                           name(stage), cluster_blocks, most_cluster_blocks);
                continue;
            }
            user_check(!record.persistent_blocks || loop(id).level == Level::GridX, where_,
                       "'{}' is persistent: its blocks take iterations of grid.x in turn, but loop '{}' is bound to "
                       "{}; name it "
                       "in persistent as well",
                       name(stage), loop(id).name, to_string(loop(id).level));
        }
        if (record.persistent_dynamic) check_tickets(stage, cluster_blocks);
    }

    /// Who takes tickets hands them on to the threads of its own block, each of which needs all of them.
    void check_tickets(int stage, int64_t cluster_blocks) const {
        user_check(
            cluster_blocks == 1, where_,
            "'{}' is persistent with .dynamic: each block takes tickets of its own, but {} blocks are a cluster, "
            "which has its iterations together; leave .dynamic out, or bind no loop to cluster",
            name(stage), cluster_blocks);
        auto roles = state_.roles.find(stage);
        const int groups = roles == state_.roles.end() ? 1 : roles->second[0].ping_pong;
        user_check(groups == 1, where_,
                   "'{}' is persistent with .dynamic: what its next ticket is nobody knows before it is taken, but "
                   "role '{}' has {} groups, each of which counts what the others do; leave .dynamic or ping_pong out",
                   name(stage), groups > 1 ? roles->second[0].name : "", groups);
    }

    /// However large named sizes are; what they can become is checked at launch.
    void check_grid_extents(int stage) const {
        struct Dimension {
            Level level;
            int64_t limit;
        };
        const Target& target = state_.target;
        for (const auto& [level, limit] :
             {Dimension{Level::GridX, target.max_grid_x}, Dimension{Level::GridY, target.max_grid_yz},
              Dimension{Level::GridZ, target.max_grid_yz}}) {
            int64_t blocks = 1;
            std::vector<std::string> names;
            for (int id : state_.stages[stage].order) {
                if (loop(id).level != level) continue;
                int64_t extent = bounds_of(loop(id).extent).min.value_or(0);
                if (__builtin_mul_overflow(blocks, std::max<int64_t>(extent, 1), &blocks))
                    blocks = std::numeric_limits<int64_t>::max();
                names.push_back("'" + loop(id).name + "'");
            }
            user_check(blocks <= limit || state_.stages[stage].persistent_blocks, where_,
                       "'{}': what is bound to {} ({}) has {} iterations, {} at most are possible; {}", name(stage),
                       to_string(level), fmt::join(names, ", "), blocks, limit,
                       level == Level::GridX ? "leave the inner part of a split serial, or use persistent"
                                             : fmt::format("bind them to grid.x, which takes {}", target.max_grid_x));
        }
    }

    void check_vector(int stage) const {
        const StageRecord& record = state_.stages[stage];
        for (size_t p = 0; p < record.order.size(); ++p) {
            const LoopRecord& l = loop(record.order[p]);
            user_check(l.level != Level::Vector || p + 1 == record.order.size(), where_,
                       "the vector loop '{}' of '{}' is not innermost; order it last", l.name, name(stage));
        }
    }

    /// The loops around the stage whose iterations a thread runs for itself. What fills shared memory is made by all
    /// threads of the block together, whichever loops stand around it.
    std::vector<int> loops_of_one_thread(int stage) const {
        std::vector<int> loops = state_.stages[stage].order;
        for (;;) {
            bool together = storage_loop(state_, stage) >= 0 && resolved_memory(state_, stage) == Memory::Shared;
            int under = state_.stages[stage].attach;
            if (under < 0 || together) return loops;
            stage = loop(under).stage;
            const auto& order = state_.stages[stage].order;
            loops.insert(loops.end(), order.begin(), order.begin() + state_.position(under) + 1);
        }
    }

    void check_threads(int stage) const {
        std::vector<int> loops = loops_of_one_thread(stage);
        int64_t threads = 1, warpgroups = 1, warps = 1, lanes = 1;
        for (int id : loops) {
            if (!is_thread(loop(id).level)) continue;
            int64_t extent = as_constant(loop(id).extent).value_or(0);
            (loop(id).level == Level::Thread      ? threads
             : loop(id).level == Level::Warpgroup ? warpgroups
             : loop(id).level == Level::Warp      ? warps
                                                  : lanes) *= std::max<int64_t>(extent, 1);
        }
        user_check(threads == 1 || warpgroups * warps * lanes == 1, where_,
                   "'{}' has loops bound to thread and loops bound to warp or lane; use one of the two ways",
                   name(stage));
        user_check(warpgroups == 1 || warps <= 4, where_,
                   "'{}': its warp loops multiply to {}, a warpgroup has 4 warps; bind them to warp alone", name(stage),
                   warps);
        user_check(lanes <= state_.target.warp_size, where_,
                   "'{}': its lane loops multiply to {}, a warp has {} lanes; split them", name(stage), lanes,
                   state_.target.warp_size);
        int64_t total = warpgroups > 1           ? warpgroups * 4 * state_.target.warp_size
                        : warps > 1 || lanes > 1 ? warps * state_.target.warp_size
                                                 : threads;
        user_check(total <= state_.target.max_threads, where_,
                   "'{}': its thread loops multiply to {} threads, a block of {} has at most {}; split them and bind "
                   "the inner part only",
                   name(stage), total, state_.target.arch, state_.target.max_threads);
    }

    /// Each thread combines its own terms first: those of one come before those of the next only if its loop is
    /// outermost.
    void check_order_of_terms(int stage) const {
        const StageRecord& record = state_.stages[stage];
        if (!record.definition.reducer || record.definition.reducer->commutative || record.scan) return;
        bool inside = false;
        for (int id : record.order) {
            if (!loop(id).reduces) continue;
            user_check(
                !inside || !is_thread(loop(id).level), where_,
                "the reducer '{}' of '{}' is not commutative: of its reduce loops only the outermost can be bound to "
                "threads, not '{}'",
                record.definition.reducer->name, name(stage), loop(id).name);
            inside = true;
        }
    }

    void check_memory(int stage) const {
        const StageRecord& record = state_.stages[stage];
        if (record.memory == Memory::Auto) return;
        int storage = storage_loop(state_, stage);
        user_check(storage >= 0 || record.memory == Memory::Global, where_,
                   "'{}' cannot live in {}: it is a kernel of its own or read by other kernels; place it with at(...)",
                   name(stage), to_string(record.memory));
        user_check(storage < 0 || record.memory != Memory::Global, where_,
                   "'{}' cannot live in global memory under loop '{}'; a copy in global memory is a kernel of its own: "
                   "stage(consumer, operand, Memory::Global)",
                   name(stage), loop(storage).name);
    }

    const State& state_;
    std::source_location where_;
};

}  // namespace

void check_rules(const State& state, std::source_location where) { Rules(state, where).check(); }

namespace {

void replace_variable(State& state, LoopRecord& loop, const Expr& variable) {
    for (LoopRecord& other : state.loops) {
        for (Expr& position : other.cuts) position = substitute(position, {{loop.variable, variable}});
        for (Expr* end : {&other.kept.first, &other.kept.behind})
            if (end->defined()) *end = substitute(*end, {{loop.variable, variable}});
    }
    loop.variable = variable;
}

}  // namespace

bool is_settled(const State& state, const StageRecord& record) {
    return !record.relations.empty() ||
           std::ranges::all_of(record.roots, [&](int root) { return state.loops[root].level != Level::Serial; });
}

void refresh_regions(State& state, const std::set<int>& kernels, Refreshed which, std::source_location where) {
    RememberRegions regions(state);
    for (size_t pass = 0; pass <= state.stages.size(); ++pass) {
        bool changed = false;
        for (size_t s = 0; s < state.stages.size(); ++s) {
            StageRecord& record = state.stages[s];
            if (record.attach < 0 || record.inlined || !kernels.contains(state.kernel_of(static_cast<int>(s))))
                continue;
            if (which == Refreshed::Unsettled && is_settled(state, record)) continue;
            Region region = region_of(state, static_cast<int>(s), where);
            if (record.streams >= 0)
                for (const Expr& extent : shared_terms(state, static_cast<int>(s), where).extent)
                    region.extent.push_back(extent);
            for (size_t d = 0; d < region.extent.size(); ++d) {
                LoopRecord& root = state.loops[record.roots[d]];
                if (equal(root.extent, region.extent[d])) continue;
                user_check(record.relations.empty() && root.level == Level::Serial, where,
                           "this step changes what '{}' computes under its loop: {} instead of {} along dimension {}, "
                           "whose loops were already split or bound; do this step before",
                           record.definition.name, to_string(region.extent[d]), to_string(root.extent), d);
                root.extent = region.extent[d];
                Variable variable{.name = root.name, .min = 0, .extent = root.extent};
                if (auto most = bounds_of(root.extent).max) variable.max = std::max<int64_t>(*most - 1, 0);
                replace_variable(state, root, make_expr(Type::I64, variable));
                regions.forget();
                changed = true;
            }
        }
        if (!changed) return;
    }
    internal_check(false, "the regions of the stages do not settle");
}

}  // namespace tw
