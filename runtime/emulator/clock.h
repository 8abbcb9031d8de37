// Who comes before whom. A thread's clock moves on when it meets others at a barrier; what a thread then knows of the
// clocks of the others says which of their accesses lie before its own. As in FastTrack (Flanagan and Freund, 2009).
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

namespace tw::emulator {

/// What the threads that met at a barrier know: all accesses of thread t up to clock of(t) lie before. They share one
/// object. New clocks are drawn from one counter of the block, so that behind a barrier of the whole block one number
/// says it all.
struct Knowledge {
    uint32_t everyone = 0;            // of every thread at least this
    std::vector<uint32_t> by_thread;  // empty: of nobody more

    uint32_t of(uint32_t thread) const { return by_thread.empty() ? everyone : by_thread[thread]; }
};

using KnowledgePointer = std::shared_ptr<const Knowledge>;

/// An access in a word, most significant first: clock 22 | thread 10 | flags 4 | site 28, where the site is the place
/// in the kernel's code. "Before this thread, whoever it was" is one comparison of words. 0: before the launch.
using Stamp = uint64_t;

constexpr int ClockShift = 42, ThreadShift = 32;
constexpr uint32_t LastClock = (1u << 22) - 2;  // with the next one, words are no stamps
constexpr Stamp SiteMask = (Stamp(1) << 28) - 1;

// Of a read word: there are other readers unordered with this one, see ReaderRow.
constexpr Stamp Several = Stamp(1) << 29;

constexpr Stamp NeverWritten = Stamp(LastClock + 1) << ClockShift;
constexpr Stamp InHalves = NeverWritten | Several;        // of a word: its halves have cells of their own
constexpr Stamp InBytes = NeverWritten | Stamp(1) << 30;  // its four bytes have

constexpr Stamp Landing = Stamp(1) << 31;

/// Of a written word: an asynchronous copy of this thread is on its way there.
constexpr Stamp in_flight(Stamp thread_and_site) {
    return NeverWritten | Landing | (thread_and_site & ((Stamp(1) << ClockShift) - 1));
}
constexpr bool is_in_flight(Stamp write) { return write >= NeverWritten && (write & Landing); }

constexpr Stamp make_stamp(uint32_t clock, uint32_t thread) {
    return Stamp(clock) << ClockShift | Stamp(thread) << ThreadShift;
}
constexpr uint32_t clock_of(Stamp stamp) { return uint32_t(stamp >> ClockShift); }
constexpr uint32_t thread_of(Stamp stamp) { return uint32_t(stamp >> ThreadShift) & 1023; }
constexpr uint32_t site_of(Stamp stamp) { return uint32_t(stamp & SiteMask); }

}  // namespace tw::emulator
