// Who knows what of whom: clocks of threads and of asynchronous operations.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/emulator/memory/clock.h"

namespace tw::emulator {

/// For each thread, and each slot of asynchronous operations: what it did up to this clock lies before.
class Clocks {
public:
    uint32_t everyone = 0;  // of every thread at least this; says nothing of asynchronous operations

    uint32_t of(uint32_t id) const {
        if (by_id_.empty()) return id < FirstAgent ? everyone : 0;
        return by_id_[index(id)];
    }
    void set(uint32_t id, uint32_t clock, uint32_t num_threads);  // if it is later
    void join(const Clocks& other);                               // what either knows
    void intersect(const Clocks& other);                          // what both know
    void know_all_threads(uint32_t clock);                        // up to this clock
    void join_agents(const Clocks& other);                        // only of asynchronous operations

private:
    size_t index(uint32_t id) const { return id < FirstAgent ? id : by_id_.size() - (LastId + 1 - id); }
    void expand(size_t size);
    std::vector<uint32_t> by_id_;  // threads, then agents; empty: of nobody more
};

/// What threads that met know; they share one object. New clocks are drawn from one counter, so that behind a barrier
/// of all threads one number says it all.
struct Knowledge {
    Clocks writes;        // whose writes lie before
    Clocks reads;         // whose reads do; at least the same
    Clocks fenced;        // whose writes lie before and behind a proxy fence: what asynchronous operations rely on
    Clocks fenced_reads;  // whose reads lie before a proxy fence of the reader's own: what they may overwrite

    bool previous_is_over = false;  // somebody who has waited for the launches before lies before

    void join(const Knowledge& other);
    void intersect(const Knowledge& other);
    void add(uint32_t id, uint32_t clock, uint32_t num_threads);  // reads and writes
};

using KnowledgePointer = std::shared_ptr<const Knowledge>;

/// Joins, of which the last ones are kept: threads that knew the same and learn the same go on sharing one object.
class KnowledgeJoins {
public:
    const KnowledgePointer& join(const KnowledgePointer& own, const KnowledgePointer& more);

private:
    struct Entry {
        KnowledgePointer own, more, result;
    };
    std::array<Entry, 16> last_;
    size_t next_ = 0;
};

}  // namespace tw::emulator
