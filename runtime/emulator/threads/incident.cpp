#include "runtime/emulator/threads/incident.h"

#include <algorithm>

namespace tw::emulator {
namespace {

constexpr size_t MaxDifferent = 4, MaxRepeated = 1000;

bool may_go_on(Finding::Kind kind) {
    return kind == Finding::Kind::Race || kind == Finding::Kind::Uninitialised || kind == Finding::Kind::Misaligned ||
           kind == Finding::Kind::InFlight || kind == Finding::Kind::Unfenced;
}

bool is_same(const Incident& a, const Incident& b) {
    return a.kind == b.kind && a.site == b.site && a.other.has_value() == b.other.has_value() &&
           (!a.other || a.other->site == b.other->site);
}

}  // namespace

bool Incidents::add(const Incident& incident) {
    const bool is_known = std::any_of(all_.begin(), all_.end(), [&](auto& one) { return is_same(one, incident); });
    if (!is_known) all_.push_back(incident);
    return !may_go_on(incident.kind) || all_.size() == MaxDifferent || ++num_repeated_ == MaxRepeated;
}

}  // namespace tw::emulator
