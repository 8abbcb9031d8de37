// Findings of who runs, from wherever it is.
#pragma once
#include <string>
#include <vector>

#include "runtime/emulator/threads/incident.h"

namespace tw::emulator {

/// An incident of the running thread, here and now.
Incident incident_of(Finding::Kind kind, Stamp site);

/// Notes an incident. Does not return if it ends the launch: the fiber is left for good, and what its frames own is
/// never freed.
void report(const Incident& incident);

/// The primitive at `site` was given what it does not take: "copies to ...". Ends the launch.
[[noreturn]] void misuse(std::string text, Stamp site);

/// Threads that must meet do not: "{}" in the text stands for the lines of `sites`, in order. Ends the launch.
[[noreturn]] void diverge(std::string text, Stamp site, std::vector<uint32_t> sites);

/// An operand in registers is an array of the thread's own: what lies elsewhere would be memory that nobody checks.
void require_registers(const void* registers, const char* operation, Stamp site);

}  // namespace tw::emulator
