// When an access was: a thread's clock moves on when it meets others or passes something on; what a thread knows of the
// clocks of the others says which of their accesses lie before its own. As in FastTrack (Flanagan and Freund, 2009).
#pragma once
#include <cstdint>

namespace tw::emulator {

/// An access in a word, most significant first: clock 22 | id 12 | flags 4 | site 26, where the id is that of a thread
/// or of a slot for asynchronous operations, and the site the place in the kernel's code. "Before this thread, whoever
/// it was" is one comparison of words. 0: before the launch.
using Stamp = uint64_t;

constexpr int ClockShift = 42, ThreadShift = 30;
constexpr uint32_t LastId = (1u << 12) - 1;
constexpr Stamp SiteMask = (Stamp(1) << 26) - 1;

/// Slots for asynchronous operations have the last ids. Their clocks have a bit that those of threads never reach: what
/// they do is never before a thread at a glance, but only if it has waited for them.
constexpr uint32_t NumAgents = 64, FirstAgent = LastId + 1 - NumAgents;
constexpr uint32_t AgentClock = 1u << 21;
constexpr uint32_t LastClock = AgentClock - 2;

// A flag of read words: there are other readers unordered with this one, see ReaderRow.
constexpr Stamp Several = Stamp(1) << 27;

constexpr Stamp NeverWritten = Stamp((1u << 22) - 1) << ClockShift;
constexpr Stamp InHalves = NeverWritten | Several;        // of a word: its halves have cells of their own
constexpr Stamp InBytes = NeverWritten | Stamp(1) << 28;  // its four bytes have
constexpr Stamp Landing = Stamp(1) << 29;

/// The stamp of a written word: an asynchronous copy of this thread is on its way there.
constexpr Stamp in_flight(Stamp thread_and_site) {
    return NeverWritten | Landing | (thread_and_site & ((Stamp(1) << ClockShift) - 1));
}
constexpr bool is_in_flight(Stamp write) { return write >= NeverWritten && (write & Landing); }

constexpr Stamp make_stamp(uint32_t clock, uint32_t thread) {
    return Stamp(clock) << ClockShift | Stamp(thread) << ThreadShift;
}
constexpr uint32_t clock_of(Stamp stamp) { return uint32_t(stamp >> ClockShift); }
constexpr uint32_t thread_of(Stamp stamp) { return uint32_t(stamp >> ThreadShift) & LastId; }
constexpr uint32_t site_of(Stamp stamp) { return uint32_t(stamp & SiteMask); }

}  // namespace tw::emulator
