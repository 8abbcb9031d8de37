#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "codegen/thread_ir/thread_ir.h"

namespace tw::codegen {

/// A printed kernel.
struct KernelText {
    std::string name;
    std::string cuda;                      ///< self-contained source
    std::vector<int> line_steps;           ///< a line of `cuda` each: the schedule step it comes from, -1 if none
    std::vector<std::string> line_stages;  ///< likewise: the stage that it is a part of, empty if none
    std::array<Expr, 3> grid;
    Expr tickets = {};  ///< that blocks take in all, numbers of 32 bits; undefined: none
    int cluster = 1;    ///< blocks, neighbours in x, that run together
    int threads = 1;
    int64_t shared_bytes = 0;  ///< dynamic shared memory of a block
    std::vector<Buffer> arguments;
    std::vector<bool> written;
    std::vector<int> alignments;  ///< an argument each: bytes of which its address must be a multiple
    std::vector<TensorMapUse> maps;
    std::vector<Expr> sizes, scalars;
    bool starts_early = false;          ///< waits itself for the kernels before it: programmatic dependent launch
    int64_t overlaps_from = 0;          ///< blocks: launched while the kernel before ends if it has so many
    std::vector<bool Target::*> needs;  ///< what a machine must have to run it
    bool approximate = false;           ///< uses named approximations: results differ from the interpreter by ulps
};

/// The kernel as CUDA source.
KernelText print_cuda(const ThreadKernel& kernel);

}  // namespace tw::codegen
