#include "codegen/lower.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "codegen/bind_unbound.h"
#include "codegen/bindings.h"
#include "codegen/drop_single_loops.h"
#include "codegen/passes.h"
#include "codegen/shorten_loops.h"
#include "codegen/simulate_signals.h"
#include "codegen/thread_walk.h"
#include "codegen/tile_passes.h"
#include "codegen/tma_copy.h"
#include "dsl/deep.h"
#include "support/error.h"

namespace tw::codegen {
namespace {

void collect_notes(const TileKernel& kernel, std::vector<std::string>& notes) {
    notes.insert(notes.end(), kernel.notes.begin(), kernel.notes.end());
    visit_ops(kernel.body, [&](const TileOp& op) { notes.insert(notes.end(), op.notes.begin(), op.notes.end()); });
}

/// Copies of one op, as in the prologue and the body of a loop, say the same.
void keep_first_of_each(std::vector<std::string>& notes) {
    std::set<std::string> told;
    std::erase_if(notes, [&](const std::string& note) { return !told.insert(note).second; });
}

/// The step of the last buffer or loop that can be blamed, for the citation.
int last_step(const std::vector<SharedBuffer>& shared) {
    int step = -1;
    for (const SharedBuffer& buffer : shared) step = std::max(step, buffer.buffer->step);
    return step;
}

void check_limits(const TileKernel& kernel, const Target& target, const CiteStep& cite) {
    if (all_threads(kernel) > target.max_threads)
        throw_error(Error,
                    "{}: its thread loops and roles need {} threads, a block of {} has at most {}; bind smaller loops",
                    kernel.name, all_threads(kernel), target.arch, target.max_threads);
    int64_t bytes = 0;
    std::string parts;
    for (const SharedBuffer& shared : kernel.shared) {
        int64_t own = shared.layout.elements() * bytes_of(shared.buffer->type);
        bytes += own;
        parts += fmt::format("{}{} {}", parts.empty() ? "" : " + ", shared.buffer->name, own);
    }
    if (bytes > target.shared_bytes)
        throw_error(Error,
                    "{}{}: shared memory of {} bytes ({}), a block of {} has at most {}; use smaller tiles or fewer "
                    "staged operands",
                    cite(last_step(kernel.shared)), kernel.name, bytes, parts, target.arch, target.shared_bytes);
}

/// What does not fit into registers lies in local memory, of which a thread of any GPU has so much.
void check_arrays(const ThreadKernel& kernel, const CiteStep& cite) {
    constexpr int64_t most_bytes = 512 * 1024;
    int64_t bytes = 0, largest = 0;
    Buffer most;
    int step = -1;
    visit(kernel.body, [&](const ThreadStmt& stmt) {
        auto declared = stmt.as<ThreadDeclare>();
        if (!declared) return;
        int64_t own = bytes_of(declared->buffer->type);
        for (const Expr& extent : declared->buffer->shape) own *= require_constant(extent);
        bytes += own;
        if (own <= largest) return;
        largest = own, most = declared->buffer, step = stmt.step();
    });
    if (bytes > most_bytes)
        throw_error(
            Error,
            "{}{}: the arrays of a thread take {} bytes, {} of them '{}', but local memory has {}; bind loops to "
            "threads or blocks, use smaller tiles, or stage it in shared memory",
            cite(step), kernel.name, bytes, largest, most->name, most_bytes);
}

/// Outputs that overwrite inputs share memory with them.
std::vector<std::pair<Buffer, Buffer>> aliases_among(const std::vector<Buffer>& arguments, const Tree& tree) {
    auto listed = [&](const Buffer& b) { return std::find(arguments.begin(), arguments.end(), b) != arguments.end(); };
    std::vector<std::pair<Buffer, Buffer>> result;
    for (const auto& [out, in] : tree.in_place)
        if (listed(out) && listed(in)) result.emplace_back(out, in);
    return result;
}

/// Matrix instructions work on whole tiles, so what is copied for them stays whole, and bring threads of their own.
bool has_atoms(const Nest& nest) {
    std::vector<LeafPath> paths = leaf_paths(nest.body);
    return std::any_of(paths.begin(), paths.end(), [](const LeafPath& path) { return path.leaf->atom; });
}

/// So do tiles that leave as boxes.
bool keeps_whole_tiles(const Nest& nest) {
    std::vector<LeafPath> paths = leaf_paths(nest.body);
    return has_atoms(nest) || std::any_of(paths.begin(), paths.end(), [](const LeafPath& path) {
               return path.leaf->via.copy == Copy::Tma && path.leaf->stores[0].buffer->memory == Memory::Global;
           });
}

Nest tidied(const Nest& nest) {
    Nest single = drop_single_loops(nest);
    return keeps_whole_tiles(nest) ? single : drop_single_loops(shorten_loops(single));
}

/// Every leaf that stores results stands in a loop without iterations: there is nothing to launch.
bool computes_nothing(const Nest& nest) {
    Nest remaining = tidied(nest);
    std::vector<LeafPath> paths = leaf_paths(remaining.body);
    return std::none_of(paths.begin(), paths.end(), [](const LeafPath& path) {
        return std::any_of(path.leaf->stores.begin(), path.leaf->stores.end(),
                           [](const StoreTo& store) { return store.buffer->memory == Memory::Global; });
    });
}

CiteStep cite_of(const LowerOptions& options) {
    return options.cite ? options.cite : [](int) { return std::string(); };
}

}  // namespace

ThreadKernel lower_to_threads(const Tree& tree, const Nest& nest, const Target& target, const LowerOptions& options,
                              std::vector<std::string>& notes) {
    CiteStep cite = cite_of(options);
    auto checked = [&](const char* pass, TileKernel kernel) {
        verify_tile_ir(kernel, pass);
        if (options.dump) options.dump(pass, kernel.name, to_string(kernel));
        return kernel;
    };
    Nest bound = tidied(nest);
    if (!has_atoms(nest)) bound = bind_unbound(bound, target, cite, notes);
    TileKernel tiles = checked("make_tiles", make_tiles(tree, bound, target, cite));
    tiles = checked("spread_fragments", spread_fragments(tiles, cite));
    tiles = checked("privatize_registers", privatize_registers(tiles, cite));
    tiles = checked("combine_across", combine_across(tiles, cite));
    tiles = checked("discharge_masks", discharge_masks(tiles));
    tiles = checked("use_atoms", use_atoms(tiles, cite));
    tiles = checked("start_sums", start_sums(tiles));
    tiles = checked("choose_tma", choose_tma(tiles, target, cite));
    tiles = checked("distribute", distribute(tiles));
    tiles = checked("mark_unrolled", mark_unrolled(tiles));
    tiles = checked("choose_layouts", choose_layouts(tiles, target));
    tiles = checked("pipeline", pipeline(tiles, cite));
    tiles = checked("fence_proxies", fence_proxies(tiles));
    tiles = checked("store_boxes", store_boxes(tiles));
    check_limits(tiles, target, cite);
    collect_notes(tiles, notes);
    ThreadKernel threads = make_threads(tiles, target, notes);
    threads.starts_early = target.has_programmatic_launch;
    threads.aliases = aliases_among(threads.arguments, tree);
    check_arrays(threads, cite);
    return threads;
}

namespace {

/// Nodes on the longest way down an expression of the tree.
int depth_of(const Tree& tree) {
    int depth = 0;
    for (const Nest& nest : tree.nests)
        map_exprs(nest.body, [&](const Expr& expr) {
            depth = std::max(depth, tw::depth_of(expr));
            return expr;
        });
    return depth;
}

Lowered lower_all(const Tree& tree, const Target& target, const LowerOptions& options) {
    Lowered result;
    for (size_t n = 0; n < tree.nests.size(); ++n) {
        auto checked = [&](const char* pass, ThreadKernel kernel) {
            verify_thread_ir(kernel);
            if (options.dump) options.dump(pass, kernel.name, to_string(kernel));
            return kernel;
        };
        if (computes_nothing(tree.nests[n])) continue;
        ThreadKernel kernel = lower_to_threads(tree, tree.nests[n], target, options, result.notes);
        if (n < options.headers.size()) kernel.header = options.headers[n];
        kernel = checked("make_threads", std::move(kernel));
        kernel = checked("name_values", name_values(kernel));
        kernel = checked("hoist_invariants", hoist_invariants(kernel));
        kernel = checked("insert_barriers", insert_barriers(kernel));
        kernel = checked("narrow_indices", narrow_indices(kernel));
        verify_signals(kernel);
        if (options.printed) options.printed(kernel);
        kernel = checked("start_early", start_early(kernel));
        result.kernels.push_back(print_cuda(kernel));
    }
    keep_first_of_each(result.notes);
    return result;
}

}  // namespace

Lowered lower(const Tree& tree, const Target& target, const LowerOptions& options) {
    return with_room_for(depth_of(tree), [&] { return lower_all(tree, target, options); });
}

}  // namespace tw::codegen
