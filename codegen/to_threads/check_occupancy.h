#pragma once
#include <string>
#include <vector>

#include "codegen/thread_ir/thread_ir.h"
#include "codegen/tile_ir/tile_ir.h"
#include "dsl/cite.h"
#include "dsl/target.h"

namespace tw::codegen {

/// Registers that each thread has when the kernel begins, in eights: its share of a multiprocessor's.
int registers_at_launch(const TileKernel& kernel, const Target& target);

/// Throws Error where a multiprocessor has no room for the blocks that were asked for: threads, shared memory (1 KiB
/// more for each block, which the driver takes), registers that roles give, or sums of matrix instructions. Else notes
/// what each block has.
void check_occupancy(const TileKernel& tiles, const ThreadKernel& threads, const Target& target, const CiteStep& cite,
                     std::vector<std::string>& notes);

}  // namespace tw::codegen
