// What a kernel does, counted: one warp of each kind runs, some iterations of each loop, and the rest is multiplied.
//
//   KernelWork work = count_work(kernel, target("sm_90a"));
//   work.memory_bytes / 4e12   // seconds at least
//
// Counts are of the threads' program, before a compiler makes instructions of it: of arithmetic about as many as there
// are operations. Where data decide, conditions hold, and places are random.
#pragma once
#include "codegen/cost/block_work.h"
#include "codegen/thread_ir/thread_ir.h"
#include "dsl/target.h"

namespace tw::codegen {

struct KernelWork {
    double blocks = 1;
    double resident = 1;    ///< blocks that a multiprocessor runs at once: about, as registers are guessed
    int warps = 1;          ///< of a block
    double registers = 0;   ///< of a thread, that its arrays take, and what it has beside them: about
    double statements = 0;  ///< of its text, where loops that are unrolled are written out
    BlockWork of_block;
    double of_busiest_warp = 0;  ///< waits of the warp that has most
    int turns = 0;               ///< groups of warps that make results of tensor cores in turn; 0: no roles
    double l2_bytes = 0;         ///< sectors that pass the second cache, read and written, of all blocks
    double memory_bytes = 0;     ///< the same, of each array at most its size
    double atomics = 0;          ///< sectors combined in the second cache
};

/// Named sizes are at their largest.
KernelWork count_work(const ThreadKernel& kernel, const Target& target);

}  // namespace tw::codegen
