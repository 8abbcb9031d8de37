#include "runtime/emulator/memory/knowledge.h"

#include <algorithm>

namespace tw::emulator {

void Clocks::expand(size_t size) {
    if (!by_id_.empty() || size == 0) return;
    by_id_.assign(size, everyone);
    std::fill(by_id_.end() - NumAgents, by_id_.end(), 0);
}

void Clocks::set(uint32_t id, uint32_t clock, uint32_t num_threads) {
    expand(num_threads + NumAgents);
    uint32_t& known = by_id_[index(id)];
    known = std::max(known, clock);
}

void Clocks::join(const Clocks& other) {
    if (other.by_id_.empty() && by_id_.empty()) {
        everyone = std::max(everyone, other.everyone);
        return;
    }
    expand(other.by_id_.size());
    everyone = std::max(everyone, other.everyone);
    if (other.by_id_.empty()) {
        for (size_t i = 0; i < by_id_.size() - NumAgents; ++i) by_id_[i] = std::max(by_id_[i], other.everyone);
        return;
    }
    for (size_t i = 0; i < by_id_.size(); ++i) by_id_[i] = std::max(by_id_[i], other.by_id_[i]);
}

void Clocks::intersect(const Clocks& other) {
    if (other.by_id_.empty() && by_id_.empty()) {
        everyone = std::min(everyone, other.everyone);
        return;
    }
    Clocks theirs = other;
    theirs.expand(by_id_.size());
    expand(theirs.by_id_.size());
    everyone = std::min(everyone, theirs.everyone);
    for (size_t i = 0; i < by_id_.size(); ++i) by_id_[i] = std::min(by_id_[i], theirs.by_id_[i]);
}

void Clocks::know_all_threads(uint32_t clock) {
    everyone = clock;
    for (size_t i = 0; i + NumAgents < by_id_.size(); ++i) by_id_[i] = clock;
}

void Clocks::join_agents(const Clocks& other) {
    if (other.by_id_.empty()) return;
    expand(other.by_id_.size());
    for (size_t i = by_id_.size() - NumAgents; i < by_id_.size(); ++i) by_id_[i] = std::max(by_id_[i], other.by_id_[i]);
}

void Knowledge::join(const Knowledge& other) {
    writes.join(other.writes);
    reads.join(other.reads);
    fenced.join(other.fenced);
    fenced_reads.join(other.fenced_reads);
    previous_is_over |= other.previous_is_over;
}

void Knowledge::intersect(const Knowledge& other) {
    writes.intersect(other.writes);
    reads.intersect(other.reads);
    fenced.intersect(other.fenced);
    fenced_reads.intersect(other.fenced_reads);
    previous_is_over &= other.previous_is_over;
}

void Knowledge::add(uint32_t id, uint32_t clock, uint32_t num_threads) {
    writes.set(id, clock, num_threads);
    reads.set(id, clock, num_threads);
}

const KnowledgePointer& KnowledgeJoins::join(const KnowledgePointer& own, const KnowledgePointer& more) {
    for (const Entry& entry : last_)
        if (entry.result && entry.own == own && entry.more == more) return entry.result;
    auto result = std::make_shared<Knowledge>(*own);
    result->join(*more);
    Entry& entry = last_[next_++ % last_.size()];
    entry = {own, more, std::move(result)};
    return entry.result;
}

}  // namespace tw::emulator
