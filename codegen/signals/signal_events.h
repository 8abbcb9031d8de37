// What the threads of a kernel tell each other and wait for, written down for one after another: loops are run, indices
// are numbers, and whatever else they do is so many cycles of work.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "codegen/thread_ir/thread_ir.h"

namespace tw::codegen {

struct SignalEvent {
    enum class Kind : uint8_t {
        Work,           ///< `number` cycles of it
        Init,           ///< barrier `object` takes `number` arrivals a phase
        Arrive,         ///< at barrier `object` of block `rank` of the cluster; -1: the own
        Expect,         ///< arrives, and the phase takes `number` bytes too
        Wait,           ///< for the phase of parity `number`
        Meet,           ///< `number` threads of the block at the barrier with the id `object`
        Come,           ///< the same, without waiting for the others
        ClusterArrive,  ///< all threads of the cluster
        ClusterWait,
        Load,      ///< a box of `number` bytes comes to slot `object`, counted at `barrier`, in the blocks `ranks`
        Multiply,  ///< an asynchronous product of `number` cycles reads slot `object`, or -1, and `other`
        Commit,
        AwaitProducts,  ///< until the last `number` groups of products are under way
    } kind;
    int object = -1, other = -1, barrier = -1;
    int rank = -1;
    unsigned ranks = 0;  ///< 0: the own block
    int64_t number = 0;
};

struct ThreadEvents {
    std::vector<SignalEvent> events;
    bool whole = true;  ///< or only as many as were asked for
};

/// Events of one kernel, whose sizes are numbers. Barriers and slots (a stage of an array that boxes fill) are
/// numbered.
class SignalEvents {
public:
    /// Nothing if what threads tell each other depends on data or sizes, or if there are no barriers in shared memory.
    static std::optional<SignalEvents> of(const ThreadKernel& kernel);
    SignalEvents(SignalEvents&&) noexcept;
    ~SignalEvents();

    /// The events of a thread of block `rank` in the first cluster of x; at most `most`, and the one that goes beyond.
    ThreadEvents run(int rank, int thread, size_t most);

    /// "ko_full[2]", "a_shared[1]"
    std::string barrier_name(int barrier) const;
    std::string slot_name(int slot) const;

private:
    struct Code;
    explicit SignalEvents(std::unique_ptr<Code> code);
    std::unique_ptr<Code> code_;
};

}  // namespace tw::codegen
