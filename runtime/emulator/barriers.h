// Barriers in shared memory that count arrivals and bytes (mbarrier).
#pragma once
#include "runtime/emulator/knowledge.h"

namespace tw::emulator {

struct TransactionBarrier {
    int count = 0;        // arrivals of a phase
    int pending = 0;      // that are missing
    int64_t bytes = 0;    // expected and not yet come; negative while more has come than was expected
    uint32_t phase = 0;   // the number of those that are complete
    uint32_t seen = 0;    // of them, up to the last that a thread has waited for
    bool fenced = false;  // asynchronous operations and other blocks may use it
    uint32_t initialised_by = 0;
    Knowledge arrived = {};           // of the threads that have, in this phase
    KnowledgePointer completed = {};  // of those in the last phase

    bool is_complete(unsigned parity) const { return (phase & 1) != parity; }
};

constexpr int MaxArrivals = (1 << 20) - 1;
constexpr int64_t MaxBytes = (1 << 20) - 1;

}  // namespace tw::emulator
