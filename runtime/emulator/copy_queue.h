// Asynchronous copies of one thread (cp.async), from their issue to the wait for their group.
#pragma once
#include <cstddef>
#include <deque>
#include <vector>

#include "runtime/emulator/clock.h"
#include "runtime/emulator/random.h"

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

}  // namespace tw::emulator
