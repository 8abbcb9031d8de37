#include "codegen/mapping/bindings.h"

#include <algorithm>
#include <array>
#include <map>

#include "dsl/simplify.h"
#include "support/error.h"

namespace tw::codegen {
namespace {

void collect_paths(const Stmt& stmt, std::vector<const For*>& loops, std::vector<LeafPath>& paths) {
    if (const Leaf* leaf = stmt.as<Leaf>()) return paths.push_back({leaf, loops});
    if (const Allocate* allocate = stmt.as<Allocate>()) return collect_paths(allocate->body, loops, paths);
    if (const For* loop = stmt.as<For>()) {
        loops.push_back(loop);
        collect_paths(loop->body, loops, paths);
        loops.pop_back();
        return;
    }
    for (const Stmt& kid : stmt.as<Sequence>()->stmts) collect_paths(kid, loops, paths);
}

bool leaf_mentions(const LeafPath& path, const Expr& variable) {
    bool found = contains(path.leaf->mask, variable);
    for (const StoreTo& store : path.leaf->stores) {
        found = found || contains(store.value, variable);
        for (const Expr& index : store.indices) found = found || contains(index, variable);
    }
    for (const For* loop : path.loops) found = found || contains(loop->extent, variable);
    return found;
}

/// What threads share, each makes for all of the loops around, also where only values in its registers tell them apart;
/// an atomic update counts once for each iteration.
bool shares_terms(const LeafPath& path) {
    const auto& stores = path.leaf->stores;
    return path.leaf->kind == Leaf::Kind::Combine ||
           std::any_of(stores.begin(), stores.end(), [](const StoreTo& store) { return store.atomic; }) ||
           std::any_of(path.loops.begin(), path.loops.end(),
                       [](const For* loop) { return loop->reduces && is_thread(loop->level); });
}

/// Fastest first.
constexpr std::array kThreadLevels = {Level::Lane, Level::Thread, Level::Warp, Level::Warpgroup};

/// All loops over a block's threads, outer ones first: as they stand around updates, where those around what begins and
/// ends a reduction, which are there for the threads' own parts, stand otherwise.
std::vector<const ExprNode*> thread_loops(const std::vector<LeafPath>& paths) {
    std::vector<const ExprNode*> loops;
    for (const bool are_updates : {true, false})
        for (const LeafPath& path : paths) {
            if ((path.leaf->kind == Leaf::Kind::Update) != are_updates) continue;
            std::ptrdiff_t place = 0;
            for (const For* loop : path.loops) {
                if (!is_thread(loop->level)) continue;
                auto known = std::find(loops.begin(), loops.end(), loop->variable.id());
                if (known == loops.end()) known = loops.insert(loops.begin() + place, loop->variable.id());
                place = std::max(place, known - loops.begin() + 1);
            }
        }
    return loops;
}

/// The leaf's loops over a block's threads, fastest first: by level, within one the last bound, the innermost of those
/// bound together.
std::vector<const For*> radix_of(const LeafPath& path, const std::vector<const ExprNode*>& outer_first) {
    const auto place = [&](const For* loop) {
        return std::pair(loop->bind_step,
                         std::find(outer_first.begin(), outer_first.end(), loop->variable.id()) - outer_first.begin());
    };
    std::vector<const For*> radix;
    for (Level level : kThreadLevels) {
        const auto begin = static_cast<std::ptrdiff_t>(radix.size());
        for (const For* loop : path.loops)
            if (loop->level == level && (shares_terms(path) || leaf_mentions(path, loop->variable)))
                radix.push_back(loop);
        std::stable_sort(radix.begin() + begin, radix.end(),
                         [&](const For* a, const For* b) { return place(a) < place(b); });
        std::reverse(radix.begin() + begin, radix.end());
    }
    return radix;
}

/// Strides of a level's loops are its multiples. Threads that have lanes of their own are warps.
int64_t unit_of(Level level, const std::vector<const For*>& radix, const Target& target) {
    if (level == Level::Warpgroup) return 4 * target.warp_size;
    if (level == Level::Warp) return target.warp_size;
    bool has_lanes = !radix.empty() && radix.front()->level == Level::Lane;
    return level == Level::Thread && has_lanes ? target.warp_size : 1;
}

int64_t constant_extent(const For& loop, const CiteStep& cite) {
    auto extent = as_constant(loop.extent);
    if (!extent)
        throw_error(Error,
                    "{}the threads of a block are a constant number, but loop '{}' has {} iterations; split it and "
                    "bind the inner part",
                    cite(loop.bind_step), to_string(loop.variable), to_string(loop.extent));
    return *extent;
}

/// The blocks of a cluster are neighbours; else the first bound is the slowest.
bool is_slower(const For* a, const For* b) {
    bool a_inside = a->level == Level::Cluster, b_inside = b->level == Level::Cluster;
    return a_inside != b_inside ? b_inside : a->bind_step < b->bind_step;
}

std::vector<const For*> grid_loops(const LeafPath& path, int dimension) {
    Level level = dimension == 0 ? Level::GridX : dimension == 1 ? Level::GridY : Level::GridZ;
    std::vector<const For*> loops;
    for (const For* loop : path.loops)
        if (loop->level == level || (dimension == 0 && loop->level == Level::Cluster)) loops.push_back(loop);
    std::stable_sort(loops.begin(), loops.end(), is_slower);
    return loops;
}

/// What stands outside a grid loop is done again by each of its blocks: harmless for their own memory only.
void check_stores(const LeafPath& path, const std::vector<const For*>& grid, const CiteStep& cite) {
    bool stores_global = std::any_of(path.leaf->stores.begin(), path.leaf->stores.end(),
                                     [](const StoreTo& store) { return store.buffer->memory == Memory::Global; });
    if (!stores_global) return;
    for (const For* loop : grid) {
        bool inside = std::any_of(path.loops.begin(), path.loops.end(),
                                  [&](const For* own) { return own->variable.same(loop->variable); });
        if (!inside)
            throw_error(Error,
                        "{}loop '{}' is bound to {} but does not enclose '{}', which stores to global memory; order "
                        "it outermost",
                        cite(loop->bind_step), to_string(loop->variable), to_string(loop->level), path.leaf->name);
    }
}

/// The loops of one dimension of the grid, first bound first.
std::vector<const For*> grid_loops(const std::vector<LeafPath>& paths, int dimension, const CiteStep& cite) {
    std::vector<const For*> grid;
    for (const LeafPath& path : paths)
        for (const For* loop : grid_loops(path, dimension)) {
            bool known = std::any_of(grid.begin(), grid.end(),
                                     [&](const For* other) { return other->variable.same(loop->variable); });
            if (!known) grid.push_back(loop);
        }
    std::stable_sort(grid.begin(), grid.end(), is_slower);
    for (const LeafPath& path : paths) check_stores(path, grid, cite);
    return grid;
}

}  // namespace

std::vector<LeafPath> leaf_paths(const Stmt& root) {
    std::vector<LeafPath> paths;
    std::vector<const For*> loops;
    collect_paths(root, loops, paths);
    return paths;
}

std::vector<GridCoordinate> grid_coordinates(const std::vector<LeafPath>& paths, const CiteStep& cite) {
    std::vector<GridCoordinate> coordinates;
    for (int dimension = 0; dimension < 3; ++dimension) {
        auto loops = grid_loops(paths, dimension, cite);
        Expr stride = integer(1);
        for (auto loop = loops.rbegin(); loop != loops.rend(); ++loop) {
            Expr extent = cast_unchecked(Type::I64, (*loop)->extent);
            coordinates.push_back({(*loop)->variable, dimension, stride, extent});
            stride = simplify(stride * extent);
        }
    }
    return coordinates;
}

std::vector<ThreadCoordinate> thread_coordinates(const std::vector<LeafPath>& paths, const Target& target,
                                                 const CiteStep& cite) {
    std::vector<const For*> loops;  // each once, in the order of the leaves: equal programs print equal text
    std::vector<std::vector<const For*>> radices;
    const std::vector<const ExprNode*> outer_first = thread_loops(paths);
    for (const LeafPath& path : paths) {
        radices.push_back(radix_of(path, outer_first));
        for (const For* loop : radices.back())
            if (std::none_of(loops.begin(), loops.end(),
                             [&](const For* seen) { return seen->variable.id() == loop->variable.id(); }))
                loops.push_back(loop);
    }
    // A loop's stride is the least that leaves room for the faster coordinates of every leaf.
    std::map<const ExprNode*, int64_t> strides;
    bool changed = true;
    for (size_t round = 0; changed && round <= loops.size(); ++round) {
        changed = false;
        for (const auto& radix : radices) {
            int64_t least = 1;
            for (const For* loop : radix) {
                int64_t &stride = strides[loop->variable.id()], unit = unit_of(loop->level, radix, target);
                least = (least + unit - 1) / unit * unit;
                changed = changed || stride < least;
                stride = std::max(stride, least);
                least = stride * constant_extent(*loop, cite);
            }
        }
    }
    std::vector<ThreadCoordinate> coordinates;
    for (const For* loop : loops) {
        int64_t stride = strides[loop->variable.id()], extent = constant_extent(*loop, cite);
        if (loop->level == Level::Lane && stride * extent > target.warp_size)
            throw_error(Error,
                        "{}the lane loops around '{}' need {} lanes, a warp has {}; split them and bind the inner "
                        "part",
                        cite(loop->bind_step), to_string(loop->variable), stride * extent, target.warp_size);
        coordinates.push_back({loop->variable, stride, extent, loop->reduces});
    }
    std::stable_sort(coordinates.begin(), coordinates.end(),
                     [](const ThreadCoordinate& a, const ThreadCoordinate& b) { return a.stride > b.stride; });
    return coordinates;
}

int threads_of(const std::vector<ThreadCoordinate>& coordinates) {
    int64_t threads = 1;
    for (const ThreadCoordinate& coordinate : coordinates)
        threads = std::max(threads, coordinate.stride * coordinate.extent);
    return static_cast<int>(threads);
}

Expr one_thread_each(std::vector<ThreadCoordinate> coordinates, const Expr& thread, int threads) {
    std::stable_sort(coordinates.begin(), coordinates.end(),
                     [](const ThreadCoordinate& a, const ThreadCoordinate& b) { return a.stride > b.stride; });
    std::vector<Expr> conditions;
    int64_t room = threads;  // of the coordinates from here on
    for (const ThreadCoordinate& coordinate : coordinates) {
        if (coordinate.stride * coordinate.extent < room) {
            Expr rest = room < threads ? thread % room : thread;
            conditions.push_back(simplify(rest < coordinate.stride * coordinate.extent));
        }
        room = coordinate.stride;
    }
    if (room > 1) conditions.push_back(simplify((room < threads ? thread % room : thread) == 0));
    return all_of(conditions);
}

}  // namespace tw::codegen
