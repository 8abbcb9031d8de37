#include "runtime/emulator/units/cp_async.h"

#include <cstring>
#include <utility>

namespace tw::emulator {

void AsyncCopy::move() {
    if (std::exchange(moved, true)) return;
    if (from)
        std::memcpy(to, from, bytes);
    else
        std::memset(to, 0, bytes);
}

void CopyQueue::add(const AsyncCopy& copy) {
    open_.push_back(copy);
    ++num_copies_;
}

void CopyQueue::commit() { groups_.push_back(std::exchange(open_, {})); }

void CopyQueue::drop_oldest_group() {
    num_copies_ -= groups_.front().size();
    groups_.pop_front();
}

void CopyQueue::perhaps_move_one(Random& random) {
    if (num_copies_ == 0 || random.next() % 2 == 0) return;
    size_t group = random.below(groups_.size() + 1);
    auto& copies = group < groups_.size() ? groups_[group] : open_;
    if (!copies.empty()) copies[random.below(copies.size())].move();
}

void CpAsync::copy(void* to, const void* from, int bytes, bool there, Stamp site) {
    const auto address = reinterpret_cast<uintptr_t>(to);
    if (!core_.memories.is_shared_of(core_.running_rank(), address))
        misuse("copies asynchronously to what is no shared memory", site);
    if (there) {
        if (core_.memories.is_shared(reinterpret_cast<uintptr_t>(from)))
            misuse("copies asynchronously from shared memory: cp_async reads global memory", site);
        access(from, size_t(bytes), AccessKind::Read, site);
    }
    access(to, size_t(bytes), AccessKind::Write, site);
    if (core_.options.check) mark_in_flight(address, size_t(bytes), site);
    AsyncCopy copy{.to = to, .from = there ? from : nullptr, .bytes = size_t(bytes), .site = site};
    if (core_.random.next() % 4 == 0) copy.move();
    queues_[running.thread].add(copy);
}

void CpAsync::wait(int pending) {
    CopyQueue& queue = queues_[running.thread];
    while (queue.num_groups() > size_t(pending)) {
        for (AsyncCopy& copy : queue.oldest_group()) {
            copy.move();
            if (!core_.options.check) continue;
            if (copy.from)
                check_access(reinterpret_cast<uintptr_t>(copy.from), copy.bytes, AccessKind::Read, copy.site);
            mark_landed(reinterpret_cast<uintptr_t>(copy.to), copy.bytes, copy.site);
        }
        queue.drop_oldest_group();
    }
}

}  // namespace tw::emulator
