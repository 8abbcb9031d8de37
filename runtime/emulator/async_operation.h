// Asynchronous operations of the hardware's own: each does its work, piece by piece, at any time between its start and
// what waits for it.
#pragma once
#include <map>
#include <memory>
#include <vector>

#include "runtime/emulator/knowledge.h"
#include "runtime/emulator/random.h"

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

/// Those under way, and which had a slot last.
class AsyncOperations {
public:
    bool any() const { return !running_.empty(); }
    bool is_full() const { return running_.size() == NumAgents; }
    std::shared_ptr<AsyncOperation> oldest() const { return running_.front(); }
    std::shared_ptr<AsyncOperation> any_one(Random& random) const { return running_[random.below(running_.size())]; }

    /// Gives it a slot, the one that was free for longest.
    void add(std::shared_ptr<AsyncOperation> operation);
    void remove(const AsyncOperation& operation);
    const AsyncOperation* in_slot(uint32_t slot) const { return slots_[slot - FirstAgent].get(); }
    const char* name_at(Stamp site) const;  // of what was started there
    void clear();

private:
    std::vector<std::shared_ptr<AsyncOperation>> running_;
    std::shared_ptr<AsyncOperation> slots_[NumAgents];
    uint32_t next_ = 0;
    std::map<Stamp, const char*> names_;  // by sites
};

}  // namespace tw::emulator
