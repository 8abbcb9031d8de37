#pragma once
#include "codegen/mapping/bindings.h"
#include "codegen/tile_ir/tile_ir.h"

namespace tw::codegen {

/// One kernel of the schedule tree as tile IR: grid and thread loops become coordinates of the block's and the thread's
/// index, shared memory is hoisted to the kernel, a loop nest around one leaf becomes an op.
///
///     for bi (grid.y)                    blocks (1, 8, 1), 128 threads, bi = block_y, ti = thread
///       for ti (thread)                  copy c
///         for v                            for v
///           c[...] = a[...]                c[...] = a[...]
///
/// Sequentially, the body is executed once for each thread; a shared fill that mentions no thread loop is executed once
/// for all of them, which changes nothing, because fills are idempotent.
TileKernel make_tiles(const Tree& tree, const Nest& nest, const Target& target, const CiteStep& cite);

}  // namespace tw::codegen
