// What is counted of a kernel's threads.
#pragma once

namespace tw::codegen {

/// What a warp or a block does.
struct BlockWork {
    double instructions = 0;  ///< that warps issue
    double waits =
        0;  ///< of these, for a result of the warp's own before: less than one each where many are made at once
    double special = 0;      ///< of these, exponentials, roots, reciprocals and their like
    double doubles = 0;      ///< of these, arithmetic of f64
    double wavefronts = 0;   ///< of shared memory, and of the first cache
    double unit_cycles = 0;  ///< of tensor cores
    double round_trips = 0;  ///< to memory, one after the other, of the warp that makes most; to the second cache: part
    double barriers = 0;     ///< one after the other, of all threads

    BlockWork& operator+=(const BlockWork& other);
    friend BlockWork operator*(double times, BlockWork work);
};

}  // namespace tw::codegen
