// What lies before what: clocks, and who learns of whom.
#pragma once
#include <memory>
#include <vector>

#include "runtime/emulator/memory/statistics.h"
#include "runtime/emulator/threads/threads.h"

namespace tw::emulator {

class HappensBefore {
public:
    HappensBefore(Threads& threads, Tally* tally) : threads_(threads), tally_(tally) {}

    void begin() { last_clock_ = 1; }  // of a cluster
    uint32_t next_clock();

    /// What the running thread passes on, itself included; what it does from now on is not in there.
    std::shared_ptr<Knowledge> release();

    /// What is passed on lies before what the running thread, or another one, does from now on.
    void learn(const KnowledgePointer& known);
    void learn(uint32_t thread, const KnowledgePointer& known);

    /// All that any of the threads has done or knows lies before what they do from now on.
    void meet(const std::vector<uint32_t>& threads);

    void fence_proxy_async();

    /// The running thread waits for the launches before; who meets it from now on need not.
    void griddepcontrol_wait();

private:
    void advance_clock();

    Threads& threads_;
    Tally* tally_;
    KnowledgeJoins joins_;
    KnowledgePointer previous_over_;  // what griddepcontrol_wait tells
    uint32_t last_clock_ = 1;
};

}  // namespace tw::emulator
