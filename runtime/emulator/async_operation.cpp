#include "runtime/emulator/async_operation.h"

#include <algorithm>

#include "runtime/emulator/fiber_stacks.h"
#include "runtime/emulator/machine.h"

namespace tw::emulator {

void AsyncOperations::add(std::shared_ptr<AsyncOperation> operation) {
    while (slots_[next_] && !slots_[next_]->done) next_ = (next_ + 1) % NumAgents;
    operation->slot = FirstAgent + next_;
    names_[operation->site] = operation->name;
    slots_[next_] = operation;
    next_ = (next_ + 1) % NumAgents;
    running_.push_back(std::move(operation));
}

void AsyncOperations::remove(const AsyncOperation& operation) {
    running_.erase(
        std::find_if(running_.begin(), running_.end(), [&](auto& other) { return other.get() == &operation; }));
}

const char* AsyncOperations::name_at(Stamp site) const {
    auto found = names_.find(site);
    return found == names_.end() ? "asynchronous operation" : found->second;
}

void AsyncOperations::clear() {
    running_.clear();
    for (auto& operation : slots_) operation = nullptr;
    next_ = 0;
}

uint32_t Machine::next_clock() {
    if (last_clock_ == LastClock) {
        Incident incident = incident_of(Finding::Kind::StepLimit, 0);
        incident.text = fmt::format("{} events of one block did not end it", last_clock_);
        report(incident);
    }
    return ++last_clock_;
}

/// What the running thread passes on, itself included; what it does from now on is not in there.
std::shared_ptr<Knowledge> Machine::release() {
    auto known = std::make_shared<Knowledge>(*current_->knowledge);
    known->add(running.thread, current_->clock, num_threads());
    advance_clock();
    return known;
}

/// Lanes share a clock, so that the histories of words can tell many readers of a warp at once.
void Machine::advance_clock() {
    const uint32_t clock = next_clock();
    for (uint32_t t : lanes_of(running.warp)) threads_[t].clock = clock;
    become(running.thread);
}

void Machine::learn(const KnowledgePointer& known) {
    current_->knowledge = joins_.join(current_->knowledge, known);
    become(running.thread);
}

void Machine::start(std::shared_ptr<AsyncOperation> operation, KnowledgePointer knowledge, Stamp site) {
    if (operations_.is_full()) finish(operations_.oldest());
    operation->issuer = running.thread;
    operation->clock = AgentClock | next_clock();
    operation->site = site;
    operation->knowledge = std::move(knowledge);
    operations_.add(std::move(operation));
}

/// Whose accesses are checked from now on.
void Machine::become(const AsyncOperation& operation) {
    running.thread = operation.slot;
    running.clock = operation.clock;
    running.knowledge = operation.knowledge.get();
    running.stamp = make_stamp(operation.clock, operation.slot);
    running.ordered = 0;
    running.stack = 0;
    if (!running.knowledge->previous_is_over) running.region = {};
}

bool Machine::step(const std::shared_ptr<AsyncOperation>& operation) {
    if (operation->done) return false;
    if (operation->previous) {
        if (!operation->previous->done) return step(operation->previous);
        operation->previous = nullptr;
    }
    become(*operation);
    const bool goes_on = operation->step(random_);
    if (goes_on) return true;
    operation->done = true;
    operations_.remove(*operation);
    return false;
}

void Machine::finish(std::shared_ptr<AsyncOperation> operation) {
    const uint32_t self = running.thread;
    while (!operation->done) step(operation);
    if (self < FirstAgent) become(self);
}

/// On a fiber of its own, where a finding can end the launch.
void Machine::operations_main(boost::context::detail::transfer_t from) {
    Machine& m = *static_cast<Machine*>(from.data);
    m.scheduler_ = from.fctx;
    for (;;) {
        if (m.operations_.any()) m.step(m.operations_.any_one(m.random_));
        m.switch_to_scheduler();
    }
}

void Machine::perhaps_run_operations() {
    if (!operations_.any() || stopped_) return;
    if (num_ready_ > 0 && random_.next() % 16 != 0) return;
    resume_operations();
}

void Machine::resume_operations() {
    namespace fibers = boost::context::detail;
    if (!operations_fiber_) {
        auto stack = FiberStacks::get(num_threads() + 1).stack(num_threads());
        operations_fiber_ = fibers::make_fcontext(stack.top, stack.bytes, &operations_main);
    }
    static emulated::ThreadState nobody{};
    *module_.current() = &nobody;
    current_ = &threads_[0];  // in a thread, as far as reports are concerned
    operations_fiber_ = fibers::jump_fcontext(operations_fiber_, this).fctx;
    current_ = nullptr;
}

}  // namespace tw::emulator
