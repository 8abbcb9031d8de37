#include "codegen/lower.h"

#include <algorithm>
#include <deque>
#include <set>
#include <utility>

#include "codegen/async/async_passes.h"
#include "codegen/async/choose_tma.h"
#include "codegen/barriers/insert_barriers.h"
#include "codegen/mapping/bind_unbound.h"
#include "codegen/mapping/tidy_nest.h"
#include "codegen/signals/simulate_signals.h"
#include "codegen/thread_ir/check_arrays.h"
#include "codegen/thread_ir/thread_walk.h"
#include "codegen/thread_passes/thread_passes.h"
#include "codegen/tile_passes/check_limits.h"
#include "codegen/tile_passes/make_tiles.h"
#include "codegen/tile_passes/tile_passes.h"
#include "codegen/to_threads/check_occupancy.h"
#include "codegen/to_threads/make_threads.h"
#include "dsl/deep.h"
#include "support/error.h"

namespace tw::codegen {
namespace {

// ---- the passes, in their order -------------------------------------------------------------------------------------

/// What passes may ask beside the kernel.
struct Context {
    const Target& target;
    const CiteStep& cite;
};

struct TilePass {
    const char* name;
    TileKernel (*run)(const TileKernel& kernel, const Context& context);
};
using T = const TileKernel&;
using C = const Context&;
/// What a block does; make_tiles comes before them.
constexpr TilePass tile_passes[] = {
    {"apply_fragment_layouts", [](T kernel, C context) { return apply_fragment_layouts(kernel, context.cite); }},
    {"combine_lanes", [](T kernel, C) { return combine_lanes(kernel); }},
    {"privatize_registers", [](T kernel, C context) { return privatize_registers(kernel, context.cite); }},
    {"lower_thread_reductions", [](T kernel, C context) { return lower_thread_reductions(kernel, context.cite); }},
    {"mask_padding", [](T kernel, C) { return mask_padding(kernel); }},
    {"discharge_masks", [](T kernel, C) { return discharge_masks(kernel); }},
    {"join_registers", [](T kernel, C) { return join_registers(kernel); }},
    {"use_atoms", [](T kernel, C context) { return use_atoms(kernel, context.cite); }},
    {"gather_products", [](T kernel, C) { return gather_products(kernel); }},
    {"elide_zero_init", [](T kernel, C) { return elide_zero_init(kernel); }},
    {"choose_tma", [](T kernel, C context) { return choose_tma(kernel, context.target, context.cite); }},
    {"select_behind", [](T kernel, C) { return select_behind(kernel); }},
    {"distribute", [](T kernel, C) { return distribute(kernel); }},
    {"mark_unrolled", [](T kernel, C) { return mark_unrolled(kernel); }},
    {"choose_layouts", [](T kernel, C context) { return choose_layouts(kernel, context.target); }},
    {"defer_waits", [](T kernel, C) { return defer_waits(kernel); }},
    {"pipeline", [](T kernel, C context) { return pipeline(kernel, context.cite); }},
    {"fence_proxies", [](T kernel, C) { return fence_proxies(kernel); }},
    {"store_boxes", [](T kernel, C context) { return store_boxes(kernel, context.cite); }},
    {"take_tickets", [](T kernel, C) { return take_tickets(kernel); }},
    {"exclusive_sections", [](T kernel, C context) { return exclusive_sections(kernel, context.cite); }},
    {"reuse_shared", [](T kernel, C context) { return reuse_shared(kernel, context.target); }},
};

struct ThreadPass {
    const char* name;
    ThreadKernel (*run)(const ThreadKernel& kernel);
};
/// What a thread does; make_threads comes before them.
constexpr ThreadPass thread_passes[] = {
    {"drop_units", drop_units},                    //
    {"join_loops", join_loops},                    //
    {"narrow_pairs", narrow_pairs},                //
    {"name_thresholds", name_thresholds},          //
    {"split_casts", split_casts},                  //
    {"hoist_values", hoist_values},                //
    {"join_reads", join_reads},                    //
    {"name_values", name_values},                  //
    {"hoist_common", hoist_common},                //
    {"hoist_invariants", hoist_invariants},        //
    {"drop_aliases", drop_aliases},                //
    {"shift_registers", shift_registers},          //
    {"read_early", read_early},                    //
    {"insert_barriers", insert_barriers},          //
    {"narrow_accumulators", narrow_accumulators},  //
    {"narrow_indices", narrow_indices},            //
    {"read_ahead_of_masks", read_ahead_of_masks},  //
    {"choose_functions", choose_functions},        //
    {"share_divisors", share_divisors},            //
    {"keep_steps_apart", keep_steps_apart},        //
};
/// Behind verify_signals, which sees kernels that do not overlap.
constexpr ThreadPass last_pass = {"programmatic_launch", programmatic_launch};

// ---- running them ---------------------------------------------------------------------------------------------------

void collect_notes(const TileKernel& kernel, std::vector<std::string>& notes) {
    notes.insert(notes.end(), kernel.notes.begin(), kernel.notes.end());
    visit_ops(kernel.body, [&](const TileOp& op) { notes.insert(notes.end(), op.notes.begin(), op.notes.end()); });
}

/// Copies of one op, as in the prologue and the body of a loop, say the same.
void keep_first_of_each(std::vector<std::string>& notes) {
    std::set<std::string> told;
    std::erase_if(notes, [&](const std::string& note) { return !told.insert(note).second; });
}

/// Outputs that overwrite inputs share memory with them, whether threads reach it by a pointer or as boxes.
std::vector<std::pair<Buffer, Buffer>> aliases_among(const ThreadKernel& kernel, const Tree& tree) {
    auto listed = [&](const Buffer& b) { return is_argument(kernel, b); };
    std::vector<std::pair<Buffer, Buffer>> result;
    for (const auto& [out, in] : tree.in_place)
        if (listed(out) && listed(in)) result.emplace_back(out, in);
    return result;
}

/// Whether the pass made nothing anew that verification looks at.
bool is_unchanged(const ThreadKernel& a, const ThreadKernel& b) {
    auto are_same = [](const std::vector<Expr>& some, const std::vector<Expr>& others) {
        return std::ranges::equal(some, others, [](const Expr& x, const Expr& y) { return x.same(y); });
    };
    return a.body.same(b.body) && a.arguments == b.arguments && a.written == b.written && a.shared == b.shared &&
           a.aliases == b.aliases && are_same(a.sizes, b.sizes) && are_same(a.scalars, b.scalars);
}

TileKernel verified(const char* pass, TileKernel kernel, const LowerOptions& options) {
    verify_tile_ir(kernel, pass);
    if (options.dump) options.dump(pass, kernel.name, to_string(kernel));
    return kernel;
}

ThreadKernel verified(const char* pass, ThreadKernel kernel, const LowerOptions& options,
                      const ThreadKernel* before = nullptr) {
    if (!before || !is_unchanged(*before, kernel)) verify_thread_ir(kernel);
    if (options.dump) options.dump(pass, kernel.name, to_string(kernel));
    return kernel;
}

ThreadKernel tidied_to_threads(const Tree& tree, const Nest& tidy, const Target& target, const LowerOptions& options,
                               std::vector<std::string>& notes) {
    const CiteStep cite = options.cite ? options.cite : [](int) { return std::string(); };
    const Nest bound = has_atoms(tidy) ? tidy : bind_unbound(tidy, target, cite, notes);
    TileKernel tiles = verified("make_tiles", make_tiles(tree, bound, target, cite), options);
    for (const TilePass& pass : tile_passes) tiles = verified(pass.name, pass.run(tiles, {target, cite}), options);
    check_limits(tiles, target, cite);
    collect_notes(tiles, notes);
    ThreadKernel threads = make_threads(tiles, target, notes);
    threads.starts_early = target.has_programmatic_launch;
    threads.aliases = aliases_among(threads, tree);
    check_arrays(threads, cite);
    check_occupancy(tiles, threads, target, cite, notes);
    return threads;
}

/// Nodes on the longest way down an expression of the nest.
int depth_of(const Nest& nest) {
    int depth = 0;
    map_exprs(nest.body, [&](const Expr& expr) {
        depth = std::max(depth, tw::depth_of(expr));
        return expr;
    });
    return depth;
}

LoweredNest lowered(const Tree& tree, const Nest& nest, const Target& target, const LowerOptions& options) {
    LoweredNest result;
    const Nest tidy = tidied(nest);
    if (computes_nothing(tidy)) return result;
    ThreadKernel kernel = tidied_to_threads(tree, tidy, target, options, result.notes);
    kernel = verified("make_threads", std::move(kernel), options);
    for (const ThreadPass& pass : thread_passes) kernel = verified(pass.name, pass.run(kernel), options, &kernel);
    result.notes.insert(result.notes.end(), kernel.notes.begin(), kernel.notes.end());
    verify_signals(kernel);
    result.kernel = std::move(kernel);
    return result;
}

/// Whoever asks whether a schedule can be lowered, and then lowers it, has it done once: the last nests of this thread
/// are remembered. They are told apart by what they are made of, which does not change and is kept.
class Remembered {
public:
    const LoweredNest& of(const Tree& tree, size_t n, const Target& target, const LowerOptions& options) {
        for (const Entry& entry : last_)
            if (entry.target == target && is_same(entry, tree, tree.nests[n])) return entry.lowered;
        LoweredNest made = lowered(tree, tree.nests[n], target, options);
        constexpr size_t most = 16;
        if (last_.size() == most) last_.pop_front();
        return last_.emplace_back(Entry{tree, n, target, std::move(made)}).lowered;
    }

private:
    struct Entry {
        Tree tree;
        size_t nest;
        Target target;
        LoweredNest lowered;
    };
    /// Each step of a schedule makes all of its nests anew.
    static bool is_same(const Entry& entry, const Tree& tree, const Nest& nest) {
        const Nest& known = entry.tree.nests[entry.nest];
        return known.body.same(nest.body) && known.name == nest.name && entry.tree.in_place == tree.in_place &&
               entry.tree.outputs == tree.outputs && entry.tree.workspaces == tree.workspaces;
    }
    std::deque<Entry> last_;
};

LoweredNest lowered_once(const Tree& tree, size_t nest, const Target& target, const LowerOptions& options) {
    if (options.dump) return lowered(tree, tree.nests[nest], target, options);
    thread_local Remembered remembered;
    return remembered.of(tree, nest, target, options);
}

Lowered lower_all(const Tree& tree, const Target& target, const LowerOptions& options) {
    std::vector<LoweredNest> nests;
    for (size_t n = 0; n < tree.nests.size(); ++n) nests.push_back(lowered_once(tree, n, target, options));
    Lowered result;
    for (size_t n = 0; n < nests.size(); ++n) {
        result.notes.insert(result.notes.end(), nests[n].notes.begin(), nests[n].notes.end());
        if (!nests[n].kernel) continue;
        ThreadKernel kernel = std::move(*nests[n].kernel);
        if (n < options.headers.size()) kernel.header = options.headers[n];
        if (options.printed) options.printed(kernel);
        kernel = verified(last_pass.name, last_pass.run(kernel), options);
        result.kernels.push_back(print_cuda(kernel));
    }
    keep_first_of_each(result.notes);
    return result;
}

}  // namespace

std::vector<std::string> pass_names() {
    std::vector<std::string> names{"make_tiles"};
    for (const TilePass& pass : tile_passes) names.push_back(pass.name);
    names.push_back("make_threads");
    for (const ThreadPass& pass : thread_passes) names.push_back(pass.name);
    names.push_back(last_pass.name);
    return names;
}

ThreadKernel lower_to_threads(const Tree& tree, const Nest& nest, const Target& target, const LowerOptions& options,
                              std::vector<std::string>& notes) {
    return tidied_to_threads(tree, tidied(nest), target, options, notes);
}

LoweredNest lower_nest(const Tree& tree, size_t nest, const Target& target, const LowerOptions& options) {
    return with_room_for(depth_of(tree.nests[nest]), [&] { return lowered_once(tree, nest, target, options); });
}

Lowered lower(const Tree& tree, const Target& target, const LowerOptions& options) {
    int depth = 0;
    for (const Nest& nest : tree.nests) depth = std::max(depth, depth_of(nest));
    return with_room_for(depth, [&] { return lower_all(tree, target, options); });
}

}  // namespace tw::codegen
