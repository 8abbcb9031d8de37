// What bound loops become: coordinates of the block's and the thread's index.
#pragma once
#include <functional>
#include <vector>

#include "codegen/tile_ir/tile_ir.h"
#include "dsl/cite.h"
#include "dsl/target.h"

namespace tw::codegen {

/// A leaf and the loops around it, outermost first.
struct LeafPath {
    const Leaf* leaf;
    std::vector<const For*> loops;
};
std::vector<LeafPath> leaf_paths(const Stmt& root);

/// Blocks: loops bound to one dimension form a mixed radix, first bound slowest. A leaf outside of
/// some of them is executed by all of their blocks; it may not store to global memory.
std::vector<GridCoordinate> grid_coordinates(const std::vector<LeafPath>& paths, const CiteStep& cite);

/// Threads: the loops that one leaf mentions form a mixed radix, first bound slowest; lane loops within a warp. A loop
/// has one stride for all leaves, so that registers indexed by its variable stay with their thread.
std::vector<ThreadCoordinate> thread_coordinates(const std::vector<LeafPath>& paths, const Target& target,
                                                 const CiteStep& cite);

/// Threads of a block: enough for every coordinate.
int threads_of(const std::vector<ThreadCoordinate>& coordinates);

/// The condition on `thread` that picks one thread for each value of the coordinates.
Expr one_thread_each(std::vector<ThreadCoordinate> coordinates, const Expr& thread, int threads);

}  // namespace tw::codegen
