// The running thread as the checks of its accesses see it, and the checks' fast path.
#pragma once
#include "runtime/emulator/memory/history.h"
#include "runtime/emulator/memory/knowledge.h"

namespace tw::emulator {

constexpr size_t StackBytes = 576 * 1024;  // 512 KiB of local memory, as on a GPU, and the rest of a frame

/// A memory whose cells are found without any search: 4-byte aligned.
struct NearMemory {
    uintptr_t base = 0;
    size_t word_bytes = 0;  // a multiple of 4; 0: nothing is near
    Memory* memory = nullptr;
    bool tracked = false;  // false: only bounds matter, and only to readers
    struct Level {
        Cell* cells;
        ReaderRow* rows;
        size_t count;
    } levels[NumLevels] = {};

    NearMemory() = default;
    explicit NearMemory(Memory& far)
        : base(far.base), word_bytes(far.bytes / 4 * 4), memory(&far), tracked(far.is_tracked()) {
        for (int i = 0; tracked && i < NumLevels; ++i)
            levels[i] = {far.levels[i].cells.data(), far.levels[i].rows.data(), far.levels[i].count};
    }
};

struct Running {
    Stamp stamp = 0;      // of accesses now, without the site
    Stamp ordered = 0;    // stamps of this cluster that are less lie before this thread
    Cell::Blocks blocks;  // of cells that only this cluster has touched
    uint32_t thread = 0;  // in its cluster, or the slot of an asynchronous operation
    uint32_t clock = 0, warp = 0, lane = 0;
    uint32_t num_warps = 1;      // of the cluster
    bool has_registers = false;  // that wgmma knows
    const Knowledge* knowledge = nullptr;
    int64_t steps_left = 0;     // until limits are looked at
    uintptr_t code = 0;         // where the module's code begins; sites are distances from here
    uintptr_t stack = 0;        // the thread's own
    NearMemory shared, region;  // the region is the last that was accessed
};

/// One launch runs at a time in a process. Hidden: reached without the global offset table.
extern Running running __attribute__((visibility("hidden")));

inline bool is_own_stack(uintptr_t address) { return address - running.stack < StackBytes; }

inline Stamp site_at(const void* caller) { return (reinterpret_cast<uintptr_t>(caller) - running.code) & SiteMask; }

/// Notes a read of a cell, if it is clear at a glance that nothing is wrong with it.
inline bool read_at_a_glance(const NearMemory::Level& level, size_t index, Stamp site) {
    Cell& cell = level.cells[index];
    if (cell.write >= running.ordered || cell.blocks != running.blocks) return false;
    if (cell.read < running.ordered) {
        cell.read = running.stamp | site;
        return true;
    }
    if (cell.read >> ThreadShift == running.stamp >> ThreadShift) return true;  // noted already
    if (!(cell.read & Several) || clock_of(cell.read) != running.clock) return false;
    if (!(cell.readers >> running.warp % 64 & 1)) return false;
    ReaderRow& row = level.rows[running.warp * level.count + index];
    if (row.clock != running.clock) {
        if (row.clock != 0) return false;
        row.clock = running.clock;
    }
    row.lanes |= 1u << running.lane;
    return true;
}

/// Notes a write, likewise.
inline bool write_at_a_glance(const NearMemory::Level& level, size_t index, Stamp site) {
    Cell& cell = level.cells[index];
    if (cell.write >= running.ordered || cell.read >= running.ordered || cell.blocks != running.blocks) return false;
    cell.write = running.stamp | site;
    cell.read = 0;
    return true;
}

/// The whole check of an access of `bytes` bytes at an address that may be anywhere. Does not return from a finding
/// that stops the launch.
void check_access(uintptr_t address, size_t bytes, AccessKind kind, Stamp site);

/// The same check of bytes in a row, which need not be aligned.
void check_run(uintptr_t address, size_t bytes, AccessKind kind, Stamp site);

/// Only whether the access may go there at all, and is aligned if it must be.
void check_bounds(Memory& memory, uintptr_t address, size_t bytes, AccessKind kind, Stamp site, bool aligned = true);

/// The check of 1, 2 or 4 bytes of a tracked memory, aligned to their size.
void check_part(Memory& memory, size_t offset, size_t bytes, AccessKind kind, Stamp site);

/// From now on, whoever touches the words, reads or writes before they have landed. They were checked as written.
void mark_in_flight(uintptr_t address, size_t bytes, Stamp site);

/// The running thread has waited for them: a write of its own, now.
void mark_landed(uintptr_t address, size_t bytes, Stamp site);

/// Whole words of shared memory that the running thread has just been checked to write: nobody has written them.
void forget_written(uintptr_t address, size_t bytes);

/// Called when steps_left has become negative.
void look_at_limits();

}  // namespace tw::emulator
