#include "runtime/emulator/threads/happens_before.h"

#include <fmt/format.h>

#include "runtime/emulator/threads/report.h"

namespace tw::emulator {

uint32_t HappensBefore::next_clock() {
    if (last_clock_ == LastClock) {
        Incident incident = incident_of(Finding::Kind::StepLimit, 0);
        incident.text = fmt::format("{} events of one block did not end it", last_clock_);
        report(incident);
    }
    return ++last_clock_;
}

std::shared_ptr<Knowledge> HappensBefore::release() {
    auto known = std::make_shared<Knowledge>(*threads_.current().knowledge);
    known->add(running.thread, threads_.current().clock, threads_.count());
    advance_clock();
    return known;
}

/// Lanes share a clock, so that the histories of words can tell many readers of a warp at once.
void HappensBefore::advance_clock() {
    const uint32_t clock = next_clock(), first = running.warp * WarpThreads;
    for (uint32_t t = first; t < first + threads_.lanes_of_warp(running.warp); ++t) threads_[t].clock = clock;
    threads_.become(running.thread);
}

void HappensBefore::learn(const KnowledgePointer& known) {
    learn(running.thread, known);
    threads_.become(running.thread);
}

void HappensBefore::learn(uint32_t thread, const KnowledgePointer& known) {
    threads_[thread].knowledge = joins_.join(threads_[thread].knowledge, known);
}

void HappensBefore::meet(const std::vector<uint32_t>& threads) {
    auto known = std::make_shared<Knowledge>();
    const Knowledge* last = nullptr;
    for (uint32_t t : threads) {
        if (threads_[t].knowledge.get() != last) known->join(*threads_[t].knowledge);
        last = threads_[t].knowledge.get();
    }
    if (threads.size() == threads_.count()) {
        known->writes.know_all_threads(last_clock_);
        known->reads.know_all_threads(last_clock_);
        if (tally_) tally_->flush();
    } else {
        for (uint32_t t : threads) known->add(t, threads_[t].clock, threads_.count());
    }
    const uint32_t clock = next_clock();
    for (uint32_t t : threads) {
        threads_[t].clock = clock;
        threads_[t].knowledge = known;
    }
}

void HappensBefore::fence_proxy_async() {
    Thread& self = threads_.current();
    auto known = std::make_shared<Knowledge>(*self.knowledge);
    known->writes.set(running.thread, self.clock, threads_.count());
    known->reads.set(running.thread, self.clock, threads_.count());
    known->fenced.join(known->writes);
    known->fenced_reads.set(running.thread, self.clock, threads_.count());
    self.knowledge = std::move(known);
    advance_clock();
}

void HappensBefore::griddepcontrol_wait() {
    if (threads_.current().knowledge->previous_is_over) return;
    if (!previous_over_) {
        auto over = std::make_shared<Knowledge>();
        over->previous_is_over = true;
        previous_over_ = std::move(over);
    }
    learn(previous_over_);
}

}  // namespace tw::emulator
