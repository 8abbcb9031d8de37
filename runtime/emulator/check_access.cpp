// The checks of an access in full: where it lies, then each word or byte of it.
#include "runtime/emulator/machine.h"
#include "runtime/emulator/memory/running.h"

namespace tw::emulator {

Running running;

namespace {

struct Place {
    Memory& memory;
    size_t offset;
    uint32_t bytes;
    Cell& cell;
    ReaderRow* rows;  // the first warp's
    size_t count;     // of cells: so far apart lie the rows of one warp and the next

    ReaderRow& row(uint32_t warp) const { return rows[warp * count]; }
};

Place place_in(Cells& all, Memory& memory, int level, size_t offset) {
    const size_t bytes = bytes_at(level), index = offset / bytes;
    return {memory, index * bytes, uint32_t(bytes), all.cells.data()[index], all.rows.data() + index, all.count};
}

Place place_at(Memory& memory, int level, size_t offset) {
    return place_in(memory.levels[level], memory, level, offset);
}

/// The atomics on a place: the readers in there.
Place atomics_at(const Place& place) {
    const int level = level_for(place.bytes);
    return place_in(place.memory.atomics[level], place.memory, level, place.offset);
}

uint32_t block_of_write(const Cell& cell) { return cell.blocks.write & ~HasAtomics; }
bool has_atomics(const Cell& cell) { return cell.blocks.write & HasAtomics; }

bool knows(const Clocks& clocks, uint32_t clock, uint32_t thread) {
    return clock <= clocks.everyone || thread == running.thread || clock <= clocks.of(thread);
}

bool is_write_before(const Cell& cell, const Clocks& clocks) {
    if (cell.write == 0) return true;
    return block_of_write(cell) == running.blocks.write && knows(clocks, clock_of(cell.write), thread_of(cell.write));
}

/// Whether the last write lies before the running thread.
bool is_write_ordered(const Cell& cell) { return is_write_before(cell, running.knowledge->writes); }

/// Whether an asynchronous operation, which runs now, sees the ordered write of a thread: another proxy's.
bool is_write_fenced(const Cell& cell) {
    if (running.thread < FirstAgent || thread_of(cell.write) >= FirstAgent) return true;
    return is_write_before(cell, running.knowledge->fenced);
}

uint32_t num_rows() { return running.num_warps + NumAgents; }
uint32_t row_of(uint32_t thread) {
    return thread < FirstAgent ? thread / 32 : running.num_warps + (thread - FirstAgent);
}
uint32_t thread_of_row(uint32_t row, uint32_t lane) {
    return row < running.num_warps ? row * 32 + lane : FirstAgent + (row - running.num_warps);
}
uint32_t lane_of(uint32_t thread) { return thread < FirstAgent ? thread % 32 : 0; }

template <class Action>
void for_each_row(uint64_t readers, Action action) {
    for (; readers; readers &= readers - 1)
        for (uint32_t row = uint32_t(__builtin_ctzll(readers)); row < num_rows(); row += 64) action(row);
}

constexpr int None = -1;

/// A thread or asynchronous operation whose read is not among those known, or None.
int reader_beyond(const Place& place, const Clocks& known) {
    Stamp read = place.cell.read;
    if (read == 0) return None;
    if (place.cell.blocks.read != running.blocks.read) return int(thread_of(read));
    if (clock_of(read) <= known.everyone) return None;
    if (!(read & Several)) return knows(known, clock_of(read), thread_of(read)) ? None : int(thread_of(read));
    int beyond = None;
    for_each_row(place.cell.readers, [&](uint32_t row) {
        for (uint32_t lanes = place.row(row).lanes; lanes && beyond == None; lanes &= lanes - 1) {
            uint32_t thread = thread_of_row(row, uint32_t(__builtin_ctz(lanes)));
            if (!knows(known, place.row(row).clock, thread)) beyond = int(thread);
        }
    });
    return beyond;
}

/// A thread whose read does not lie before the running thread, or None.
int unordered_reader(const Place& place) { return reader_beyond(place, running.knowledge->reads); }

/// A thread whose ordered read an asynchronous operation, which writes now, may overtake: another proxy's.
int unfenced_reader(const Place& place) {
    if (running.thread < FirstAgent) return None;
    int reader = reader_beyond(place, running.knowledge->fenced_reads);
    return reader == None || uint32_t(reader) >= FirstAgent ? None : reader;
}

void add_reader(const Place& place, uint32_t clock, uint32_t thread) {
    const uint32_t number = row_of(thread);
    const uint64_t bit = uint64_t(1) << number % 64;
    if (!(place.cell.readers & bit)) {
        place.cell.readers |= bit;
        for_each_row(bit, [&](uint32_t row) { place.row(row) = {}; });
    }
    ReaderRow& row = place.row(number);
    if (row.clock != clock) row = {clock, 0};
    row.lanes |= 1u << lane_of(thread);
}

void note_read(const Place& place, Stamp site) {
    Cell& cell = place.cell;
    // A reader of an earlier block stays: whoever writes in a later one races with it, and that is all there is to
    // know.
    if (cell.read && cell.blocks.read != running.blocks.read) return;
    cell.blocks.read = running.blocks.read;
    if (unordered_reader(place) == None) {
        cell.read = running.stamp | site;
        return;
    }
    if (!(cell.read & Several)) {
        cell.readers = 0;
        add_reader(place, clock_of(cell.read), thread_of(cell.read));
    }
    add_reader(place, running.clock, running.thread);
    cell.read = std::max(cell.read & ~(Several | SiteMask), running.stamp) | Several | site;
}

/// The first touch in this launch, or by this block in shared memory, whose content ends with the block.
void begin_history(const Place& place) {
    Cell& cell = place.cell;
    bool is_old = place.memory.shared ? block_of_write(cell) != running.blocks.write : cell.blocks.write == 0;
    if (is_old) cell = {place.memory.initialised ? 0 : NeverWritten, 0, {running.blocks.write, 0}, 0};
}

Incident incident_at(const Place& place, Finding::Kind kind, AccessKind access, Stamp site) {
    Incident incident = incident_of(kind, site);
    incident.memory = &place.memory;
    incident.offset = place.offset;
    incident.bytes = place.bytes;
    incident.access = access;
    return incident;
}

void report_race(const Place& place, AccessKind access, Stamp site, const Incident::Other& other) {
    Incident incident = incident_at(place, Finding::Kind::Race, access, site);
    incident.other = other;
    report(incident);
}

/// What came before is ordered, but of another proxy.
void report_unfenced(const Place& place, AccessKind access, Stamp site, const Incident::Other& other) {
    Incident incident = incident_at(place, Finding::Kind::Unfenced, access, site);
    incident.other = other;
    report(incident);
}

/// Reads and atomics are no conflict among themselves.
void check_races(const Place& place, AccessKind kind, Stamp site) {
    const Cell& cell = place.cell;
    auto race_with = [&](AccessKind other, uint32_t thread, uint32_t block, Stamp stamp) {
        report_race(place, kind, site, {.access = other, .thread = thread, .block = block, .site = site_of(stamp)});
    };
    if (cell.write != NeverWritten && !is_write_ordered(cell))
        return race_with(AccessKind::Write, thread_of(cell.write), block_of_write(cell), cell.write);
    if (cell.write != NeverWritten && !is_write_fenced(cell))
        return report_unfenced(place, kind, site,
                               {.access = AccessKind::Write,
                                .thread = thread_of(cell.write),
                                .block = block_of_write(cell),
                                .site = site_of(cell.write)});
    if (kind != AccessKind::Read) {
        int reader = unordered_reader(place);
        if (reader != None) return race_with(AccessKind::Read, uint32_t(reader), cell.blocks.read, cell.read);
        if (reader = unfenced_reader(place); reader != None)
            return report_unfenced(place, kind, site,
                                   {.access = AccessKind::Read,
                                    .thread = uint32_t(reader),
                                    .block = cell.blocks.read,
                                    .site = site_of(cell.read)});
    }
    if (kind != AccessKind::Atomic && has_atomics(cell)) {
        Place atomics = atomics_at(place);
        int changer = unordered_reader(atomics);
        if (changer != None)
            race_with(AccessKind::Atomic, uint32_t(changer), atomics.cell.blocks.read, atomics.cell.read);
    }
}

/// Nobody may touch what is on its way, whatever is ordered.
void report_in_flight(const Place& place, AccessKind kind, Stamp site) {
    const Cell& cell = place.cell;
    Incident incident = incident_at(place, Finding::Kind::InFlight, kind, site);
    incident.other = {.access = AccessKind::Write,
                      .thread = thread_of(cell.write),
                      .block = block_of_write(cell),
                      .site = site_of(cell.write)};
    report(incident);
}

void note_write(Cell& cell, Stamp site) {
    cell.write = running.stamp | site;
    cell.read = 0;
    cell.blocks = running.blocks;
}

/// An atomic operation stands neither for the write nor for the reads before it: others may conflict with those alone.
void note_atomic(const Place& place, Stamp site) {
    Place atomics = atomics_at(place);
    if (!has_atomics(place.cell)) atomics.cell = {};
    place.cell.blocks.write |= HasAtomics;
    note_read(atomics, site);
}

void check_cell(const Place& place, AccessKind kind, Stamp site) {
    begin_history(place);
    Cell& cell = place.cell;
    if (is_in_flight(cell.write)) return report_in_flight(place, kind, site);
    if (kind != AccessKind::Write && cell.write == NeverWritten) {
        report(incident_at(place, Finding::Kind::Uninitialised, kind, site));
        cell.write = 0;  // once is enough
    }
    check_races(place, kind, site);
    if (kind == AccessKind::Read) note_read(place, site);
    if (kind == AccessKind::Write) note_write(cell, site);
    if (kind == AccessKind::Atomic) note_atomic(place, site);
}

/// From now on the word's history is kept at a finer level, where it begins as it is.
void refine(const Place& word, int level) {
    const int coarse = level_of(word.cell);
    auto copy = [](const Place& from, const Place& to) {
        to.cell = from.cell;
        for_each_row(from.cell.readers, [&](uint32_t row) { to.row(row) = from.row(row); });
    };
    for (size_t at = word.offset; at < word.offset + 4; at += bytes_at(level)) {
        Place from = place_at(word.memory, coarse, at), to = place_at(word.memory, level, at);
        copy(from, to);
        if (has_atomics(from.cell)) copy(atomics_at(from), atomics_at(to));
    }
    word.cell.write = mark_of(level);
}

}  // namespace

void check_bounds(Memory& memory, uintptr_t address, size_t bytes, AccessKind kind, Stamp site, bool aligned) {
    size_t offset = address - memory.base;
    auto incident = [&](Finding::Kind finding) {
        Incident result = incident_of(finding, site);
        result.memory = &memory;
        result.offset = offset;
        result.bytes = bytes;
        result.access = kind;
        return result;
    };
    if (offset + bytes > memory.bytes) report(incident(Finding::Kind::OutOfBounds));
    if (kind != AccessKind::Read && !memory.writable) report(incident(Finding::Kind::ReadOnly));
    // Copies of structs come with their own sizes; what is wider than an instruction is aligned as its parts.
    bool is_instruction = bytes <= 16 && (bytes & (bytes - 1)) == 0;
    if (aligned && is_instruction && address % bytes != 0) report(incident(Finding::Kind::Misaligned));
}

void check_part(Memory& memory, size_t offset, size_t bytes, AccessKind kind, Stamp site) {
    Place word = place_at(memory, 0, offset);
    begin_history(word);
    if (level_of(word.cell) < level_for(bytes)) refine(word, level_for(bytes));
    const int level = level_of(word.cell);
    for (size_t at = offset; at < offset + bytes; at += bytes_at(level))
        check_cell(place_at(memory, level, at), kind, site);
    if (level == 0) return;
    if (bytes == 4 && kind == AccessKind::Write)
        word.cell = place_at(memory, level, offset).cell;  // alike again
    else
        word.cell.blocks.write = running.blocks.write;  // only says that the parts are worth a glance
}

/// Outside of all memories: fine in the module's constants, else out of bounds.
static void check_elsewhere(uintptr_t address, size_t bytes, AccessKind kind, Stamp site) {
    if (kind == AccessKind::Read && core->module.contains(address)) return;
    Incident incident = incident_of(Finding::Kind::OutOfBounds, site);
    incident.offset = address;
    incident.bytes = bytes;
    incident.access = kind;
    report(incident);
}

static void check_all_parts(Memory& memory, uintptr_t address, size_t bytes, AccessKind kind, Stamp site);

/// What kernels launched before may still use is touched only by who has waited for them.
static void check_previous(Memory& memory, uintptr_t address, size_t bytes, AccessKind kind, Stamp site) {
    if (memory.shared || running.knowledge->previous_is_over) return;
    Incident incident = incident_of(Finding::Kind::Race, site);
    incident.memory = &memory;
    incident.offset = address - memory.base;
    incident.bytes = bytes;
    incident.access = kind;
    report(incident);
}

void check_access(uintptr_t address, size_t bytes, AccessKind kind, Stamp site) {
    if (is_own_stack(address)) {
        if (running.has_registers) machine->wgmma.touch_registers(address, bytes, kind, site);
        return;
    }
    Memory* memory = core->memories.find(address);
    if (!memory) return check_elsewhere(address, bytes, kind, site);
    if (memory->shared) machine->cluster.note_use(*memory, site);
    check_previous(*memory, address, bytes, kind, site);
    check_bounds(*memory, address, bytes, kind, site);
    if (memory->is_tracked()) check_all_parts(*memory, address, bytes, kind, site);
}

void check_run(uintptr_t address, size_t bytes, AccessKind kind, Stamp site) {
    Memory* memory = core->memories.find(address);
    if (!memory) return check_elsewhere(address, bytes, kind, site);
    if (memory->shared) machine->cluster.note_use(*memory, site);
    check_previous(*memory, address, bytes, kind, site);
    check_bounds(*memory, address, bytes, kind, site, false);
    if (memory->is_tracked()) check_all_parts(*memory, address, bytes, kind, site);
}

void check_all_parts(Memory& memory, uintptr_t address, size_t bytes, AccessKind kind, Stamp site) {
    for (size_t offset = address - memory.base, end = offset + bytes; offset < end;) {
        size_t part = 4;
        while (offset % part != 0 || offset + part > end) part /= 2;
        check_part(memory, offset, part, kind, site);
        offset += part;
    }
}

void mark_in_flight(uintptr_t address, size_t bytes, Stamp site) {
    if (address % 4 != 0) return;  // reported
    Memory* memory = core->memories.find(address);
    for (size_t offset = address - memory->base, end = offset + bytes; offset < end; offset += 4)
        place_at(*memory, 0, offset).cell.write = in_flight(running.stamp | site);
}

void mark_landed(uintptr_t address, size_t bytes, Stamp site) {
    if (address % 4 != 0) return;
    Memory* memory = core->memories.find(address);
    for (size_t offset = address - memory->base, end = offset + bytes; offset < end; offset += 4)
        note_write(place_at(*memory, 0, offset).cell, site);
}

void forget_written(uintptr_t address, size_t bytes) {
    Memory* memory = core->memories.find(address);
    for (size_t offset = address - memory->base, end = offset + bytes; offset < end; offset += 4)
        place_at(*memory, 0, offset).cell = {NeverWritten, 0, {running.blocks.write, 0}, 0};
}

}  // namespace tw::emulator
