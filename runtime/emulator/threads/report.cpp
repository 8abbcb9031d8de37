#include "runtime/emulator/threads/report.h"

#include <cstdlib>

#include <fmt/format.h>

#include "runtime/emulator/memory/running.h"
#include "runtime/emulator/threads/core.h"

namespace tw::emulator {

Incident incident_of(Finding::Kind kind, Stamp site) {
    Incident incident;
    incident.kind = kind;
    incident.thread = running.thread;
    incident.block = running.blocks.write;
    if (running.thread >= FirstAgent)
        if (const AsyncOperation* operation = core->operations.in_slot(running.thread)) {
            incident.thread = operation->issuer;
            incident.operation = operation->name;
        }
    incident.site = uint32_t(site);
    return incident;
}

void report(const Incident& incident) {
    if (core->incidents.add(incident)) core->threads.stop();
}

void misuse(std::string text, Stamp site) {
    Incident incident = incident_of(Finding::Kind::Misuse, site);
    incident.text = std::move(text);
    report(incident);
    std::abort();  // a misuse ends the launch
}

void diverge(std::string text, Stamp site, std::vector<uint32_t> sites) {
    Incident incident = incident_of(Finding::Kind::Divergence, site);
    incident.text = std::move(text);
    incident.more_sites = std::move(sites);
    report(incident);
    std::abort();  // so does this
}

void require_registers(const void* registers, const char* operation, Stamp site) {
    if (!is_own_stack(reinterpret_cast<uintptr_t>(registers)))
        misuse(fmt::format("passes memory to {} where it takes registers", operation), site);
}

void look_at_limits() {
    const auto text = core->limits.look();
    if (!text) return;
    Incident incident = incident_of(Finding::Kind::StepLimit, 0);
    incident.text = *text;
    if (core->threads.any_runs()) report(incident);
    core->incidents.add_last(incident);
    core->threads.end();
}

}  // namespace tw::emulator
