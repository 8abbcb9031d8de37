// What is known of every word of a memory: its last write, and the reads and atomic operations since.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "runtime/emulator/memory/clock.h"

namespace tw::emulator {

/// What is known of 4 bytes of memory, or of 2 or 1 where threads access less than words. Blocks are numbered from 1 in
/// the order in which they run; of the blocks before, only the numbers in here remain. Zero: not touched since the
/// launch began.
struct Cell {
    Stamp write = 0, read = 0;
    struct Blocks {
        uint32_t write = 0, read = 0;
        bool operator==(const Blocks&) const = default;
    } blocks;
    uint64_t readers = 0;  // where there are several: in which rows, by their numbers modulo 64
};

/// In Cell::Blocks::write: atomics have changed the cell since the write, see Memory::atomics. Such a cell is never
/// clear at a glance.
constexpr uint32_t HasAtomics = 1u << 31;

/// Readers of a cell within one warp, or in one slot of asynchronous operations, where readers unordered with each
/// other exist. Lanes that read under an older clock than `clock` are forgotten, which loses a race only where lanes of
/// one warp have passed different barriers.
struct ReaderRow {
    uint32_t clock = 0, lanes = 0;
};

/// Zeroed pages of the operating system, present once touched.
template <class T>
class Pages {
public:
    Pages() = default;
    explicit Pages(size_t count) : count_(count) {}
    Pages(Pages&& other) noexcept : data_(other.data_), count_(other.count_) { other.data_ = nullptr; }
    Pages& operator=(Pages&&) = delete;
    ~Pages() { unmap(data_, count_ * sizeof(T)); }

    /// Maps at the first call.
    T* data() {
        if (!data_ && count_) data_ = static_cast<T*>(map(count_ * sizeof(T)));
        return data_;
    }

private:
    friend struct Memory;
    static void* map(size_t bytes);
    static void unmap(void* pages, size_t bytes);
    T* data_ = nullptr;
    size_t count_ = 0;
};

/// Cells in a row, and for each cell rows: first one for each warp, then one for each slot of asynchronous operations.
/// Those of one warp lie together, as its lanes read neighbours.
struct Cells {
    size_t count;
    Pages<Cell> cells;
    Pages<ReaderRow> rows;
    Cells(size_t count, unsigned num_rows) : count(count), cells(count), rows(count * num_rows) {}
};

/// Histories are kept by words; by halves or bytes only of the words that were accessed so. Level 0 has cells of 4
/// bytes, level 1 of 2, level 2 of 1.
constexpr int NumLevels = 3;
constexpr size_t bytes_at(int level) { return size_t(4) >> level; }
constexpr int level_for(size_t bytes) { return bytes >= 4 ? 0 : bytes == 2 ? 1 : 2; }
constexpr Stamp mark_of(int level) { return level == 1 ? InHalves : InBytes; }  // of a word that is kept at this level
constexpr int level_of(const Cell& word) { return word.write == InHalves ? 1 : word.write == InBytes ? 2 : 0; }

/// Shared memory or a region, with its history.
struct Memory {
    uintptr_t base;
    size_t bytes;
    std::string name;
    bool shared, writable, initialised;
    Cells levels[NumLevels];
    Cells atomics[NumLevels];  // who has changed a cell atomically since its last write, as if those were its readers

    Memory(uintptr_t base, size_t bytes, std::string name, bool shared, bool writable, bool initialised,
           unsigned num_rows)
        : base(base),
          bytes(bytes),
          name(std::move(name)),
          shared(shared),
          writable(writable),
          initialised(initialised),
          levels{{bytes / 4 + 1, num_rows}, {bytes / 2 + 2, num_rows}, {bytes + 4, num_rows}},
          atomics{{bytes / 4 + 1, num_rows}, {bytes / 2 + 2, num_rows}, {bytes + 4, num_rows}} {}

    /// Whether there is more to check than bounds.
    bool is_tracked() const { return writable || !initialised; }
};

enum class AccessKind { Read, Write, Atomic };

}  // namespace tw::emulator
