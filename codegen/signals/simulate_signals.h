// The threads of a block, or of a cluster, run against each other by what they tell: who waits for whom, and when.
#pragma once
#include <string>
#include <vector>

#include "codegen/thread_ir/thread_ir.h"

namespace tw::codegen {

/// How long boxes are under way, in cycles.
struct SignalSpeeds {
    int64_t load_latency = 700;
    int64_t bytes_per_cycle = 50;  ///< of a block's boxes; 0: no time
    int64_t late_groups = 0;       ///< each warpgroup starts so much later than the one before
};

struct SignalSpan {
    enum class Kind { Wait, Multiply, Load, Work } kind;
    int64_t from, to;
};
/// What a warpgroup, or a role's one thread, does; products and boxes overlap other spans.
struct SignalLane {
    std::string name;
    std::vector<SignalSpan> spans;
};
struct SignalSimulation {
    bool simulated = false;         ///< not if signals depend on data or sizes, or there are none
    bool whole = true;              ///< until the kernel's end, or only as far as asked
    std::string problem;            ///< empty: none was found
    int64_t cycles = 0;             ///< by a coarse model
    std::vector<SignalLane> lanes;  ///< of the first block
};

/// Runs the first block or cluster; each thread has at most `most_events`. Problems: threads that wait for what never
/// comes; a barrier left in the middle of a phase; boxes that overwrite what is still read, or what nobody has read;
/// products that read what has not arrived, or the same twice.
SignalSimulation simulate_signals(const ThreadKernel& kernel, size_t most_events, const SignalSpeeds& speeds = {});

/// The same at several speeds, for the start of the kernel. Throws InternalError that tells the first problem.
void verify_signals(const ThreadKernel& kernel);

}  // namespace tw::codegen
