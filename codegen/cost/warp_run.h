// One warp of a kernel, run for what it does, not for what it computes.
#pragma once
#include <map>

#include "codegen/cost/block_work.h"
#include "codegen/cost/known_reads.h"
#include "codegen/thread_ir/thread_ir.h"
#include "dsl/simplify.h"
#include "dsl/target.h"

namespace tw::codegen {

/// Of what sizes decide: the largest.
inline int64_t most_of(const Expr& size) { return bounds_of(size).max.value_or(1); }

double bytes_of_array(const BufferNode& buffer);

/// What a warp has done so far.
struct WarpCounts {
    BlockWork work;
    std::map<const BufferNode*, double> sectors;  ///< of each global array
    double atomics = 0;

    WarpCounts& operator+=(const WarpCounts& other) {
        work += other.work;
        for (const auto& [array, count] : other.sectors) sectors[array] += count;
        atomics += other.atomics;
        return *this;
    }
    friend WarpCounts operator*(double times, WarpCounts counts) {
        counts.work = times * counts.work;
        for (auto& [array, count] : counts.sectors) count *= times;
        counts.atomics *= times;
        return counts;
    }
};

/// The warp of the middle block that has this number; so many share a multiprocessor.
WarpCounts run_warp(const ThreadKernel& kernel, const Target& target, int warp, double resident_warps);

}  // namespace tw::codegen
