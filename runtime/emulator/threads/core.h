// A launch under way, as all units of the machine see it.
#pragma once
#include <functional>
#include <optional>

#include "runtime/emulator/memory/statistics.h"
#include "runtime/emulator/threads/async_operations.h"
#include "runtime/emulator/threads/incident.h"
#include "runtime/emulator/threads/limits.h"

namespace tw::emulator {

struct Core {
    /// `body` is what each thread does.
    Core(const Module& module, const Launch& launch, const Options& options, std::function<void()> body);
    ~Core();
    Core(const Core&) = delete;
    Core& operator=(const Core&) = delete;

    /// The rank of the block of who runs: a thread, or an asynchronous operation of one.
    uint32_t running_rank() const;

    /// Atomics and arrivals are where the order of threads shows: now and then another one comes first. Also lets
    /// spinning threads see what they wait for.
    void perhaps_let_others_run();

    const Module& module;
    const Launch& launch;
    const Options options;
    Random random;
    std::optional<Tally> counts;
    Tally* const tally;  // nullptr without statistics
    Memories memories;
    Threads threads;
    HappensBefore order;
    AsyncOperations operations;
    Limits limits;
    Incidents incidents;
};

/// The one that runs in this process, or nullptr.
extern Core* core;

/// An access that a primitive makes for the running thread, as if by its own instruction: counted and checked.
void access(const void* memory, size_t bytes, AccessKind kind, Stamp site);

}  // namespace tw::emulator
