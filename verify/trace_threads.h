// What each thread of a kernel does, written down one after another: loops unrolled, conditions decided, addresses and
// operands as numbers. Two kernels whose threads do the same are the same, whatever happens between threads.
#pragma once
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "codegen/thread_ir/thread_ir.h"
#include "dsl/interpret.h"
#include "verify/thread_values.h"

namespace tw::fuzz {

/// What a thread does to memory, to barriers or with the hardware, as a number; registers are its own affair.
struct TracedOperation {
    enum class Kind : int8_t {
        Other,
        Init,       ///< of the barrier at `place`
        Arrival,    ///< at the barrier at `place`: any thread of the warpgroup can do it for all
        Wait,       ///< for a phase of parity `number` of the barrier at `place`
        Products,   ///< a wait until at most `number` groups of products are under way
        Multiply,   ///< a product of a warpgroup, its fence or commit
        Barrier,    ///< of some threads, or all: `number` is its own
        Store,      ///< of `number` elements of shared memory from `place` on
        Matrices,   ///< a store by all lanes of a warp, of which each says where so many elements go
        Idle,       ///< without effect: a hint to the compiler, a count of registers, what normalise() finds
        Result,     ///< a store to global memory
        Multicast,  ///< a load of a box for several blocks of a cluster, which `operation` tells: any of them may ask
    };
    uint64_t operation = 0;
    Kind kind = Kind::Other;
    int number = 0;
    uint64_t place = 0;
    bool operator==(const TracedOperation&) const = default;
};

struct ThreadTrace {
    std::vector<TracedOperation> before = {};  ///< all threads of the block or cluster meet for the first time
    std::vector<TracedOperation> after = {};
    std::vector<TracedAccess> accesses = {};
    // How many barriers of all threads lay behind it:
    std::optional<int> waited = {};  ///< when it waited for the launches before
    std::optional<int> relied = {};  ///< when it first touched global memory, if it had not waited till then, nor at a
                                     ///< barrier of some threads
};
/// The traces of every thread of every block, in the order of their indices.
using Traces = std::vector<std::vector<ThreadTrace>>;

/// Undecided where control or addresses depend on data. Misuse: an index of registers or of shared memory that leaves
/// its array.
std::variant<Traces, Misuse, Undecided> trace_threads(Terms& terms, const codegen::ThreadKernel& kernel,
                                                      const Bindings& sizes);

/// Numbers of barriers that always the same threads use become those threads'. Idle are: stores to shared memory that
/// nobody reads before they are overwritten; barriers at which nobody waits for more than the phase before the first,
/// which has ended, and waits for that phase elsewhere; waits for products behind which nothing is told or
/// touched before another one for as many. Of one block.
void normalise(std::vector<ThreadTrace>& threads);

/// Why the kernel behind `mutant` is as good as the one behind `original`; no reason: it may not be.
struct Sameness {
    std::string reason = {};
    bool unless_it_hangs = false;
};
Sameness why_same(const Traces& original, const Traces& mutant);

/// Nobody touches global memory before a thread that has waited for the launches before has told so.
bool all_wait_for_previous(const Traces& traces);

}  // namespace tw::fuzz
