// Who waits for what when nobody goes on.
#include <algorithm>

#include <fmt/format.h>

#include "runtime/emulator/machine.h"

namespace tw::emulator {
namespace {

/// Threads that wait alike.
struct Group {
    const Thread* first;
    unsigned count;
};

bool waits_alike(const Thread& one, const Thread& other) {
    return one.wait == other.wait && one.site == other.site && one.barrier == other.barrier &&
           one.barrier_address == other.barrier_address && one.barrier_phase == other.barrier_phase;
}

std::vector<Group> groups_of(std::span<const Thread> threads) {
    std::vector<Group> groups;
    for (const Thread& thread : threads) {
        if (thread.wait == Wait::Gone) continue;
        auto same = std::find_if(groups.begin(), groups.end(),
                                 [&](const Group& group) { return waits_alike(*group.first, thread); });
        if (same == groups.end())
            groups.push_back({&thread, 1});
        else
            ++same->count;
    }
    return groups;
}

std::string text_of(const Group& group, const Machine& machine) {
    const Thread& first = *group.first;
    const std::string others = group.count == 1 ? "waits" : fmt::format("and {} more wait", group.count - 1);
    std::string expected;
    if (first.wait == Wait::Named)
        expected = fmt::format(" ({} threads)", machine.barriers.expected_at(first.state.cluster_rank, first.barrier));
    if (first.wait == Wait::Transactions) expected = " " + machine.mbarriers.waiting_text(first);
    return fmt::format("thread ({},0,0) {} in {}{} at {{}}", first.state.thread.x, others,
                       call_text(first.wait, first.barrier), expected);
}

}  // namespace

Incident deadlock_of(const Machine& machine) {
    Incident incident = incident_of(Finding::Kind::Deadlock, 0);
    for (const Group& group : groups_of(machine.core.threads.all())) {
        if (is_of_warp(group.first->wait)) incident.kind = Finding::Kind::Divergence;
        incident.text += (incident.text.empty() ? "" : "; ") + text_of(group, machine);
        incident.more_sites.push_back(group.first->site);
    }
    if (const unsigned gone = machine.core.threads.num_gone(); gone > 0)
        incident.text += fmt::format("; {} threads have returned", gone);
    return incident;
}

}  // namespace tw::emulator
