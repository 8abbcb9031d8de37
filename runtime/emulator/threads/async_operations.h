// Asynchronous operations of the hardware's own: each does its work, piece by piece, at any time between its start and
// what waits for it.
#pragma once
#include <map>
#include <memory>
#include <vector>

#include "runtime/emulator/threads/happens_before.h"
#include "runtime/emulator/threads/random.h"

namespace tw::emulator {

class AsyncOperation {
public:
    explicit AsyncOperation(const char* name) : name(name) {}
    virtual ~AsyncOperation() = default;

    /// Does a random part of what is left, checked as this operation's accesses; false once nothing is.
    virtual bool step(Random& random) = 0;

    const char* name;
    uint32_t issuer = 0, slot = 0, clock = 0;
    Stamp site = 0;
    KnowledgePointer knowledge;                // of who started it, then
    std::shared_ptr<AsyncOperation> previous;  // that must have ended before
    bool done = false;
};

/// The operations under way, each in a slot with a clock like a thread's.
class AsyncOperations {
public:
    AsyncOperations(Threads& threads, HappensBefore& order, Random& random)
        : threads_(threads), order_(order), random_(random) {}

    void begin();  // a cluster: none is left

    /// By the running thread, relying on what is known. Ends the oldest if there are too many.
    void start(std::shared_ptr<AsyncOperation> operation, KnowledgePointer knowledge, Stamp site);

    /// A piece of the operation, or of those that must have ended before it. Who runs next becomes itself again.
    void step(const std::shared_ptr<AsyncOperation>& operation);
    void finish(std::shared_ptr<AsyncOperation> operation);  // the running thread goes on

    /// From the scheduler: a piece of any one of them.
    void resume();

    bool any() const { return !running_.empty(); }
    const AsyncOperation* in_slot(uint32_t slot) const { return slots_[slot - FirstAgent].get(); }
    const char* name_at(Stamp site) const;  // of what was started there

private:
    void add(std::shared_ptr<AsyncOperation> operation);
    void remove(const AsyncOperation& operation);

    Threads& threads_;
    HappensBefore& order_;
    Random& random_;
    std::vector<std::shared_ptr<AsyncOperation>> running_;
    std::shared_ptr<AsyncOperation> slots_[NumAgents];
    uint32_t next_ = 0;                   // slot, the one that was free for longest
    std::map<Stamp, const char*> names_;  // by sites
};

}  // namespace tw::emulator
