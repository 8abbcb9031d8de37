// What is found, as it is written down where it happens; told in words once the launch is over.
#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/emulator/host/launch.h"
#include "runtime/emulator/memory/history.h"

namespace tw::emulator {

/// A finding in the making.
struct Incident {
    Finding::Kind kind = Finding::Kind::Crash;
    uint32_t thread = 0, block = 0;  // of whom: in its cluster; clusters are numbered as they run, from 1
    std::string operation;           // of an asynchronous one: its name
    uint32_t site = 0;               // where in the module's code
    Memory* memory = nullptr;        // of an access, if it is in one
    uint64_t offset = 0;             // in the memory; without one, the address
    size_t bytes = 0;
    AccessKind access = AccessKind::Read;
    struct Other {  // of a race
        AccessKind access = AccessKind::Read;
        uint32_t thread = 0, block = 0, site = 0;
    };
    std::optional<Other> other;
    std::string text;                  // what is to say beyond that
    std::vector<uint32_t> more_sites;  // replace "{}" in the text, in order
};

/// What has been found so far: the first few different ones.
class Incidents {
public:
    /// Whether the launch must end: it may go on after races, uninitialised and misaligned accesses, up to a number.
    bool add(const Incident& incident);
    void add_last(Incident incident) { all_.push_back(std::move(incident)); }
    const std::vector<Incident>& all() const { return all_; }

private:
    std::vector<Incident> all_;
    size_t num_repeated_ = 0;
};

}  // namespace tw::emulator
