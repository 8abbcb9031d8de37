// Findings in words.
#include <algorithm>

#include <fmt/format.h>

#include "runtime/emulator/machine.h"

namespace tw::emulator {

std::string_view to_string(Finding::Kind kind) {
    switch (kind) {
        case Finding::Kind::Race: return "race";
        case Finding::Kind::Uninitialised: return "uninitialised read";
        case Finding::Kind::OutOfBounds: return "out of bounds";
        case Finding::Kind::ReadOnly: return "write to read-only memory";
        case Finding::Kind::InFlight: return "asynchronous copy not awaited";
        case Finding::Kind::Unfenced: return "missing proxy fence";
        case Finding::Kind::Deadlock: return "deadlock";
        case Finding::Kind::Divergence: return "divergence";
        case Finding::Kind::Overflow: return "integer overflow";
        case Finding::Kind::Misuse: return "misuse";
        case Finding::Kind::Misaligned: return "misaligned access";
        case Finding::Kind::StepLimit: return "limit reached";
        case Finding::Kind::Crash: return "crash";
    }
    return "unknown";
}

namespace {

struct Describer {
    const Incident& incident;
    const Machine& machine;

    std::string place(uint32_t site) const { return machine.core.module.locate(site).text(); }

    /// "block (0,1,0)": the block of a cluster's thread.
    std::string block(uint32_t cluster, uint32_t thread) const {
        auto [x, y, z] = machine.block_index(cluster, thread / machine.core.threads.per_block());
        return fmt::format("block ({},{},{})", x, y, z);
    }
    std::string block() const { return block(incident.block, incident.thread); }

    /// "thread (17,0,0)", and of which block if that is another than the finding's.
    std::string thread(uint32_t thread, bool same_cluster) const {
        const uint32_t per_block = machine.core.threads.per_block();
        const bool same_block = same_cluster && thread / per_block == incident.thread / per_block;
        return fmt::format("thread ({},0,0){}", thread % per_block,
                           same_block ? "" : " of " + block(incident.other->block, thread));
    }

    /// The other side of a race: a thread, or "the tma_load of thread (0,0,0)".
    std::string other() const {
        const Incident::Other& other = *incident.other;
        const bool same_cluster = other.block == incident.block;
        if (other.thread < FirstAgent) return thread(other.thread, same_cluster);
        const AsyncOperation* last = same_cluster ? machine.core.operations.in_slot(other.thread) : nullptr;
        if (last && last->site == other.site)
            return fmt::format("the {} of {}", last->name, thread(last->issuer, same_cluster));
        return fmt::format("an earlier {}", machine.core.operations.name_at(other.site));
    }

    std::string who() const {
        std::string of = incident.operation.empty() ? "" : fmt::format("the {} of ", incident.operation);
        return fmt::format("{}thread ({},0,0) of {}", of, incident.thread % machine.core.threads.per_block(), block());
    }

    /// "thread (17,0,0) of block (0,1,0) writes", or "a tma_store writes"
    std::string writing() const {
        const bool is_thread = incident.thread < FirstAgent;
        const std::string by = is_thread ? who() : fmt::format("a {}", machine.core.operations.name_at(incident.site));
        return fmt::format("{} {}", by, verb(incident.access));
    }

    static std::string_view verb(AccessKind kind) {
        return kind == AccessKind::Read ? "reads" : kind == AccessKind::Write ? "writes" : "atomically updates";
    }
    static std::string_view past_verb(AccessKind kind) {
        return kind == AccessKind::Read ? "read" : kind == AccessKind::Write ? "wrote" : "atomically updated";
    }

    std::string size() const { return fmt::format("{} byte{}", incident.bytes, incident.bytes == 1 ? "" : "s"); }
    std::string memory() const {
        return incident.memory->shared ? "shared memory" : fmt::format("'{}'", incident.memory->name);
    }

    /// "thread (17,0,0) of block (0,1,0) reads 4 bytes"
    std::string access() const { return fmt::format("{} {} {}", who(), verb(incident.access), size()); }

    std::string race() const {
        if (!incident.other)
            return fmt::format(
                "race on {} at byte {}: {} at {}, and nothing lies before that has passed griddepcontrol_wait: kernels "
                "launched before may still run",
                memory(), incident.offset, access(), place(incident.site));
        return fmt::format(
            "race on {} at byte {}: {} at {}, {} {} {} at {} {}", memory(), incident.offset, access(),
            place(incident.site), other(), past_verb(incident.other->access), incident.bytes == 1 ? "it" : "them",
            place(incident.other->site),
            incident.other->block == incident.block ? "with no barrier between" : "and nothing orders blocks");
    }

    std::string in_flight() const {
        std::string own =
            incident.other->thread == incident.thread ? "its own cp_async_wait" : "cp_async_wait of " + other();
        return fmt::format("{}: {} at byte {} of {} at {}, before {} has waited for the cp_async to them at {}",
                           to_string(incident.kind), access(), incident.offset, memory(), place(incident.site), own,
                           place(incident.other->site));
    }

    std::string unfenced() const {
        return fmt::format("{}: {} at byte {} of {} at {}, which {} {} at {}; fence_proxy_async must come between",
                           to_string(incident.kind), access(), incident.offset, memory(), place(incident.site), other(),
                           incident.other->access == AccessKind::Read ? "read" : "wrote", place(incident.other->site));
    }

    std::string in_memory(std::string_view what) const {
        return fmt::format("{}: {} at byte {} of {}{} at {}", to_string(incident.kind), access(), incident.offset,
                           memory(), what, place(incident.site));
    }

    /// How far an address in no memory is from which one.
    std::string nearest() const {
        const uint64_t address = incident.offset;
        uint64_t best = UINT64_MAX;
        std::string text = fmt::format("address {:#x}", address);
        for (const Memory& memory : machine.core.memories.all()) {
            if (memory.shared) continue;
            bool is_before = address < memory.base;
            uint64_t distance = is_before ? memory.base - address : address - (memory.base + memory.bytes);
            if (distance >= best || distance > (1u << 30)) continue;
            best = distance;
            text = fmt::format("{} bytes {} '{}' of {} bytes", distance, is_before ? "before" : "past the end of",
                               memory.name, memory.bytes);
        }
        return text;
    }

    std::string uninitialised() const {
        if (incident.access == AccessKind::Read) return in_memory(", where nothing was written before,");
        return fmt::format("{}: what {} at byte {} of {} at {} comes of a register to which nothing was written before",
                           to_string(incident.kind), writing(), incident.offset, memory(), place(incident.site));
    }

    std::string out_of_bounds() const {
        if (!incident.text.empty())
            return fmt::format("out of bounds: {} {} at {}", who(), incident.text, place(incident.site));
        if (incident.memory) return in_memory(fmt::format(", which has {} bytes,", incident.memory->bytes));
        return fmt::format("out of bounds: {} at {}, at {}", access(), nearest(), place(incident.site));
    }

    std::string text_with_places() const {
        std::string text = incident.text;
        for (uint32_t site : incident.more_sites) {
            size_t at = text.find("{}");
            if (at != std::string::npos) text.replace(at, 2, place(site));
        }
        return text;
    }

    std::string message() const {
        switch (incident.kind) {
            case Finding::Kind::Race: return race();
            case Finding::Kind::Uninitialised: return uninitialised();
            case Finding::Kind::OutOfBounds: return out_of_bounds();
            case Finding::Kind::ReadOnly: return in_memory("");
            case Finding::Kind::Misaligned: return in_memory(fmt::format(", no multiple of {},", incident.bytes));
            case Finding::Kind::InFlight: return in_flight();
            case Finding::Kind::Unfenced: return unfenced();
            case Finding::Kind::Misuse:
                return fmt::format("misuse: {} {}{}", who(), text_with_places(),
                                   incident.site ? " at " + place(incident.site) : "");
            case Finding::Kind::Overflow:
                return fmt::format(
                    "integer overflow: {} computes an integer beyond its type, or shifts by its width or more, at {}",
                    who(), place(incident.site));
            case Finding::Kind::Deadlock:
            case Finding::Kind::StepLimit:
                return fmt::format("{} in {}: {}{}{}", to_string(incident.kind), block(), text_with_places(),
                                   incident.site ? " at " : "", incident.site ? place(incident.site) : "");
            case Finding::Kind::Divergence:
                if (incident.site == 0 && !incident.more_sites.empty() && incident.text.starts_with("thread"))
                    return fmt::format("divergence in {}: {}", block(), text_with_places());
                return fmt::format("divergence: {} {}", who(), text_with_places());
            case Finding::Kind::Crash:
                return fmt::format("crash: {} {} at {}", who(), text_with_places(), place(incident.site));
        }
        return "";
    }
};

/// "\n    sgemm.cu:41: shared.a[t] = a[t];" for each line that the message names.
std::string statements(const Incident& incident, const Machine& machine) {
    std::vector<uint32_t> sites{incident.site};
    if (incident.other) sites.push_back(incident.other->site);
    sites.insert(sites.end(), incident.more_sites.begin(), incident.more_sites.end());
    std::vector<Location> seen;
    std::string text;
    for (uint32_t site : sites) {
        const Location& place = machine.core.module.locate(site);
        const bool known =
            std::any_of(seen.begin(), seen.end(), [&](auto& other) { return other.is_same_line(place); });
        if (place.line == 0 || known) continue;
        seen.push_back(place);
        text += fmt::format("\n    {}.cu:{}: {}", place.source, place.line, place.statement);
    }
    return text;
}

}  // namespace

Finding describe(const Incident& incident, const Machine& machine) {
    uint32_t site = incident.site;
    if (site == 0 && !incident.more_sites.empty()) site = incident.more_sites[0];
    const Location& where = machine.core.module.locate(site);
    return {.kind = incident.kind,
            .message = Describer{incident, machine}.message() + statements(incident, machine),
            .source = where.source,
            .line = where.line};
}

}  // namespace tw::emulator
