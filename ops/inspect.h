// What a schedule makes of its computation, before anything is compiled or run: what `tw show` prints.
//
//   fmt::print("{}", to_string(inspect(s)));
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "dsl/schedule.h"
#include "ops/nest_costs.h"

namespace tw {

/// An array of a block's shared memory.
struct SharedArray {
    std::string name;
    std::string type;                 ///< "bf16", or "barriers"
    std::vector<int64_t> shape = {};  ///< as it lies in memory
    int64_t bytes = 0;
    int swizzle_bytes = 0;  ///< of a line; 0: not swizzled
};

struct KernelInspection {
    std::string name;
    double seconds = 0;          ///< by the model of time, codegen/cost/predict_time.h
    std::string bound = {};      ///< what takes longest, by that: "memory", "instructions", ..
    int threads = 1;             ///< in a block, with those of producers
    int64_t shared_bytes = 0;    ///< in a block
    int64_t register_bytes = 0;  ///< of the arrays that a thread holds in registers, each role's counted
    std::vector<SharedArray> shared_arrays = {};
    std::string shared_memory = {};  ///< its arrays, a line each, and their swizzles; empty without shared memory
    std::string timeline = {};       ///< what roles do when, a line each; empty where nobody signals
    int64_t timeline_cycles = 0;     ///< by a coarse model
    bool timeline_is_whole = true;   ///< false: it shows the first tiles
};

struct Inspection {
    std::string formulas;                   ///< of every operation, a line each
    std::string nest;                       ///< the loop nest
    std::vector<LoopCost> costs;            ///< each kernel followed by its loops
    std::vector<KernelInspection> kernels;  ///< in launch order
    std::string steps;                      ///< of the schedule, as C++
    std::string notes;                      ///< defaults taken by the schedule and by codegen, in plain words
};

/// Throws Error as build() does.
Inspection inspect(const Schedule& schedule);
/// Everything, under headings.
std::string to_string(const Inspection& inspection);

}  // namespace tw
