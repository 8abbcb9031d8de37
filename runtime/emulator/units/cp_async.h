// Asynchronous copies of one thread (cp.async), from their issue to the wait for their group.
#pragma once
#include <cstddef>
#include <deque>
#include <vector>

#include "runtime/emulator/threads/core.h"
#include "runtime/emulator/threads/report.h"

namespace tw::emulator {

struct AsyncCopy {
    void* to = nullptr;
    const void* from = nullptr;  // nullptr: zeros
    size_t bytes = 0;
    Stamp site = 0;
    bool moved = false;

    void move();
};

/// The bytes of a copy move at some time between its issue and the wait.
class CopyQueue {
public:
    void add(const AsyncCopy& copy);
    void commit();
    size_t num_groups() const { return groups_.size(); }
    std::vector<AsyncCopy>& oldest_group() { return groups_.front(); }
    void drop_oldest_group();
    void perhaps_move_one(Random& random);

private:
    std::vector<AsyncCopy> open_;
    std::deque<std::vector<AsyncCopy>> groups_;
    size_t num_copies_ = 0;
};

class CpAsync {
public:
    explicit CpAsync(Core& core) : core_(core) {}
    void begin() { queues_.assign(core_.threads.count(), {}); }  // a cluster

    // What hooks do for the running thread.
    void copy(void* to, const void* from, int bytes, bool there, Stamp site);
    void commit() { queues_[running.thread].commit(); }
    void wait(int pending);

    /// Bytes of a thread that is about to run.
    void perhaps_move_one(uint32_t thread) { queues_[thread].perhaps_move_one(core_.random); }

private:
    Core& core_;
    std::vector<CopyQueue> queues_;  // by thread
};

}  // namespace tw::emulator
