#include "runtime/emulator/threads/async_operations.h"

#include <algorithm>

namespace tw::emulator {
namespace {

/// Whose accesses are checked from now on.
void become(const AsyncOperation& operation) {
    running.thread = operation.slot;
    running.clock = operation.clock;
    running.knowledge = operation.knowledge.get();
    running.stamp = make_stamp(operation.clock, operation.slot);
    running.ordered = 0;
    running.stack = 0;
    if (!running.knowledge->previous_is_over) running.region = {};
}

}  // namespace

void AsyncOperations::begin() {
    running_.clear();
    for (auto& operation : slots_) operation = nullptr;
    next_ = 0;
}

void AsyncOperations::start(std::shared_ptr<AsyncOperation> operation, KnowledgePointer knowledge, Stamp site) {
    if (running_.size() == NumAgents) finish(running_.front());
    operation->issuer = running.thread;
    operation->clock = AgentClock | order_.next_clock();
    operation->site = site;
    operation->knowledge = std::move(knowledge);
    add(std::move(operation));
}

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

void AsyncOperations::step(const std::shared_ptr<AsyncOperation>& operation) {
    if (operation->done) return;
    if (operation->previous) {
        if (!operation->previous->done) return step(operation->previous);
        operation->previous = nullptr;
    }
    become(*operation);
    if (operation->step(random_)) return;
    operation->done = true;
    remove(*operation);
}

void AsyncOperations::finish(std::shared_ptr<AsyncOperation> operation) {
    const uint32_t self = running.thread;
    while (!operation->done) step(operation);
    if (self < FirstAgent) threads_.become(self);
}

void AsyncOperations::resume() {
    threads_.resume_beside([this] {
        if (!any()) return;
        const std::shared_ptr<AsyncOperation> one = running_[random_.below(running_.size())];  // step may remove it
        step(one);
    });
}

const char* AsyncOperations::name_at(Stamp site) const {
    auto found = names_.find(site);
    return found == names_.end() ? "asynchronous operation" : found->second;
}

}  // namespace tw::emulator
