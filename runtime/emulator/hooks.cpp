// What compiled kernels call. Thread by thread, all of a launch's time is spent here and in the kernel.
#include <fmt/format.h>

#include "runtime/emulator/machine.h"

namespace tw::emulator {
namespace {

uintptr_t address_of(const void* memory) { return reinterpret_cast<uintptr_t>(memory); }

#define TW_HOT inline __attribute__((always_inline))

template <bool writes>
TW_HOT bool is_clear(const NearMemory::Level& level, size_t index, Stamp site) {
    return writes ? write_at_a_glance(level, index, site) : read_at_a_glance(level, index, site);
}

template <bool writes>
constexpr AccessKind Kind = writes ? AccessKind::Write : AccessKind::Read;

/// From the first word that is no clear case.
template <bool writes>
__attribute__((noinline)) void check_words(NearMemory& memory, size_t index, size_t end, Stamp site) {
    for (; index < end; ++index)
        if (!is_clear<writes>(memory.levels[0], index, site))
            check_part(*memory.memory, index * 4, 4, Kind<writes>, site);
}

template <size_t bytes, bool writes>
TW_HOT void check_whole_words(NearMemory& memory, size_t offset, Stamp site) {
    const size_t begin = offset / 4, end = begin + bytes / 4;
    for (size_t index = begin; index < end; ++index)
        if (!is_clear<writes>(memory.levels[0], index, site)) [[unlikely]]
            return check_words<writes>(memory, index, end, site);
}

template <size_t bytes, bool writes>
TW_HOT void check_less_than_word(NearMemory& memory, size_t offset, Stamp site) {
    constexpr int level = level_for(bytes);
    const Cell& word = memory.levels[0].cells[offset / 4];
    bool is_kept_so = word.write == mark_of(level) && word.blocks.write == running.blocks.write;
    if (is_kept_so && is_clear<writes>(memory.levels[level], offset / bytes, site)) [[likely]]
        return;
    check_part(*memory.memory, offset, bytes, Kind<writes>, site);
}

/// Whether the memory is where the access goes, which then has been checked.
template <size_t bytes, bool writes>
TW_HOT bool check_in(NearMemory& memory, uintptr_t address, Stamp site) {
    const uintptr_t offset = address - memory.base;
    if (offset >= memory.word_bytes || memory.word_bytes - offset < bytes) return false;
    if (!memory.tracked) return !writes;
    if constexpr (bytes >= 4)
        check_whole_words<bytes, writes>(memory, offset, site);
    else
        check_less_than_word<bytes, writes>(memory, offset, site);
    return true;
}

template <size_t bytes, bool writes>
void on_access(const void* memory, const void* caller) {
    if (--running.steps_left < 0) [[unlikely]]
        look_at_limits();
    const uintptr_t address = address_of(memory);
    const Stamp site = site_at(caller);
    if (address % bytes == 0) [[likely]] {
        if (check_in<bytes, writes>(running.shared, address, site)) return;
        if (check_in<bytes, writes>(running.region, address, site)) return;
    }
    check_access(address, bytes, Kind<writes>, site);
}

void on_range(const void* memory, unsigned long bytes, bool writes, const void* caller) {
    if (--running.steps_left < 0) look_at_limits();
    if (bytes == 0) return;
    check_access(address_of(memory), bytes, writes ? AccessKind::Write : AccessKind::Read, site_at(caller));
}

void on_atomic(const void* memory, int bytes, const void* caller) {
    core->perhaps_let_others_run();
    if (--running.steps_left < 0) look_at_limits();
    check_access(address_of(memory), size_t(bytes), AccessKind::Atomic, site_at(caller));
}

/// An index that data decide is outside of its dimension.
void on_outside(long long index, long long extent, const char* tensor, int dimension, const void* caller) {
    Incident incident = incident_of(Finding::Kind::OutOfBounds, site_at(caller));
    incident.text =
        fmt::format("uses index {} of dimension {} of '{}', whose extent is {},", index, dimension, tensor, extent);
    report(incident);
}

void on_begin_array(const void* array, int bytes, const void* caller) {
    machine->array_lives.begin_array(const_cast<void*>(array), size_t(bytes), site_at(caller));
}
void ignore_begin_array(const void*, int, const void*) {}

// With statistics: first counted, then as without.

void count(const void* memory, size_t bytes, AccessKind kind, const void* caller) {
    const Memory* found = core->memories.find(address_of(memory));
    if (found) core->tally->add(*found, address_of(memory), bytes, kind, uint32_t(site_at(caller)), running.thread);
}

template <size_t bytes, bool writes, bool checks>
void count_access(const void* memory, const void* caller) {
    count(memory, bytes, Kind<writes>, caller);
    if (checks) on_access<bytes, writes>(memory, caller);
}

template <bool checks>
void count_range(const void* memory, unsigned long bytes, bool writes, const void* caller) {
    count(memory, bytes, writes ? AccessKind::Write : AccessKind::Read, caller);
    if (checks) on_range(memory, bytes, writes, caller);
}

template <bool checks>
void count_atomic(const void* memory, int bytes, const void* caller) {
    if (checks)
        on_atomic(memory, bytes, caller);
    else
        core->perhaps_let_others_run();
    count(memory, size_t(bytes), AccessKind::Atomic, caller);
}

// Without checks.

void ignore_access(const void*, const void*) {}
void ignore_range(const void*, unsigned long, bool, const void*) {}
void ignore_outside(long long, long long, const char*, int, const void*) {}
void ignore_atomic(const void*, int, const void*) { core->perhaps_let_others_run(); }

void on_sync_threads(const void* caller) { machine->barriers.sync_threads(site_at(caller)); }
void on_sync_warp(const void* caller) { machine->barriers.sync_warp(site_at(caller)); }
void on_sync_named(int id, int threads, const void* caller) {
    machine->barriers.sync_named(id, threads, site_at(caller));
}
void on_arrive_named(int id, int threads, const void* caller) {
    machine->barriers.arrive_named(id, threads, site_at(caller));
}
unsigned long on_shuffle(unsigned long value, int source_lane, const void* caller) {
    return machine->barriers.shuffle(value, source_lane, site_at(caller));
}

void on_copy_async(void* to, const void* from, int bytes, bool there, const void* caller) {
    machine->cp_async.copy(to, from, bytes, there, site_at(caller));
}
void on_commit_copies() { machine->cp_async.commit(); }
void on_wait_copies(int pending, const void*) { machine->cp_async.wait(pending); }

void on_ldmatrix(void* registers, const void* row, int count, bool transposed, const void* caller) {
    MatrixCall call{.operation = MatrixCall::Operation::Load, .count = count, .transposed = transposed};
    call.row = static_cast<unsigned char*>(const_cast<void*>(row));
    call.registers = registers;
    machine->warp_matrix.operate(call, site_at(caller));
}
void on_stmatrix(void* row, const void* registers, int count, bool transposed, const void* caller) {
    MatrixCall call{.operation = MatrixCall::Operation::Store, .count = count, .transposed = transposed};
    call.row = static_cast<unsigned char*>(row);
    call.registers = const_cast<void*>(registers);
    machine->warp_matrix.operate(call, site_at(caller));
}
void on_mma(void* d, const void* a, const void* b, int k, emulated::MatrixType a_type, emulated::MatrixType b_type,
            bool negated, const void* caller) {
    MatrixCall call{
        .operation = MatrixCall::Operation::Multiply, .k = k, .negated = negated, .a_type = a_type, .b_type = b_type};
    call.registers = d;
    call.a = a;
    call.b = b;
    machine->warp_matrix.operate(call, site_at(caller));
}

/// What is the same whatever is looked at.
emulated::Hooks common_hooks() {
    emulated::Hooks hooks{};
    hooks.sync_threads = on_sync_threads;
    hooks.sync_warp = on_sync_warp;
    hooks.sync_named = on_sync_named;
    hooks.arrive_named = on_arrive_named;
    hooks.shuffle = on_shuffle;
    hooks.cp_async = on_copy_async;
    hooks.cp_async_commit = on_commit_copies;
    hooks.cp_async_wait = on_wait_copies;
    hooks.mbarrier_init = [](void* barrier, int arrivals, const void* caller) {
        machine->mbarriers.init(barrier, arrivals, site_at(caller));
    };
    hooks.fence_mbarrier_init = [] { machine->mbarriers.fence_init(); };
    hooks.mbarrier_arrive = [](void* barrier, int rank, const void* caller) {
        machine->mbarriers.arrive(barrier, rank, site_at(caller));
    };
    hooks.mbarrier_expect_tx = [](void* barrier, unsigned bytes, const void* caller) {
        machine->mbarriers.expect_tx(barrier, bytes, site_at(caller));
    };
    hooks.mbarrier_wait = [](void* barrier, unsigned phase, const void* caller) {
        machine->mbarriers.wait(barrier, phase, site_at(caller));
    };
    hooks.tma = [](const emulated::TmaCall& call, const void* caller) { machine->tma.issue(call, site_at(caller)); };
    hooks.tma_store_commit = [] { machine->tma.store_commit(); };
    hooks.tma_store_wait = [](int pending, bool only_read, const void*) {
        machine->tma.store_wait(pending, only_read);
    };
    hooks.fence_proxy_async = [] { core->order.fence_proxy_async(); };
    hooks.cluster_arrive = [](const void* caller) { machine->cluster.arrive(site_at(caller)); };
    hooks.cluster_wait = [](const void* caller) { machine->cluster.wait(site_at(caller)); };
    hooks.peer_shared = [](void* own, unsigned rank, const void* caller) {
        return machine->cluster.peer_shared(own, rank, site_at(caller));
    };
    hooks.wgmma = [](const emulated::WgmmaCall& call, const void* caller) {
        machine->wgmma.issue(call, site_at(caller));
    };
    hooks.wgmma_fence = [](const void* caller) { machine->wgmma.fence(site_at(caller)); };
    hooks.wgmma_commit = [](const void* caller) { machine->wgmma.commit(site_at(caller)); };
    hooks.wgmma_wait = [](int pending, const void* caller) { machine->wgmma.wait(pending, site_at(caller)); };
    hooks.set_registers = [](int count, bool grows, const void* caller) {
        machine->registers.set(count, grows, site_at(caller));
    };
    hooks.elect_one = [](const void* caller) { return machine->barriers.elect_one(site_at(caller)); };
    hooks.griddepcontrol_wait = [] { core->order.griddepcontrol_wait(); };
    hooks.ldmatrix = on_ldmatrix;
    hooks.stmatrix = on_stmatrix;
    hooks.mma = on_mma;
    return hooks;
}

/// One function for each size.
#define TW_SET_SIZES(slots, function, ...) \
    slots[0] = function<1, __VA_ARGS__>;   \
    slots[1] = function<2, __VA_ARGS__>;   \
    slots[2] = function<4, __VA_ARGS__>;   \
    slots[3] = function<8, __VA_ARGS__>;   \
    slots[4] = function<16, __VA_ARGS__>;

template <bool checks>
emulated::Hooks counting_hooks() {
    emulated::Hooks hooks = common_hooks();
    TW_SET_SIZES(hooks.read, count_access, false, checks)
    TW_SET_SIZES(hooks.write, count_access, true, checks)
    hooks.range = count_range<checks>;
    hooks.outside = checks ? on_outside : ignore_outside;
    hooks.begin_array = checks ? on_begin_array : ignore_begin_array;
    hooks.atomic = count_atomic<checks>;
    return hooks;
}

emulated::Hooks checking_hooks() {
    emulated::Hooks hooks = common_hooks();
    TW_SET_SIZES(hooks.read, on_access, false)
    TW_SET_SIZES(hooks.write, on_access, true)
    hooks.range = on_range;
    hooks.outside = on_outside;
    hooks.begin_array = on_begin_array;
    hooks.atomic = on_atomic;
    return hooks;
}

emulated::Hooks ignoring_hooks() {
    emulated::Hooks hooks = common_hooks();
    for (auto& read : hooks.read) read = ignore_access;
    for (auto& write : hooks.write) write = ignore_access;
    hooks.range = ignore_range;
    hooks.outside = ignore_outside;
    hooks.begin_array = ignore_begin_array;
    hooks.atomic = ignore_atomic;
    return hooks;
}

}  // namespace

void access(const void* memory, size_t bytes, AccessKind kind, Stamp site) {
    if (--running.steps_left < 0) look_at_limits();
    if (core->tally)
        if (const Memory* found = core->memories.find(address_of(memory)))
            core->tally->add(*found, address_of(memory), bytes, kind, uint32_t(site), running.thread);
    if (core->options.check) check_access(address_of(memory), bytes, kind, site);
}

emulated::Hooks hooks_for(const Options& options) {
    if (options.statistics) return options.check ? counting_hooks<true>() : counting_hooks<false>();
    return options.check ? checking_hooks() : ignoring_hooks();
}

}  // namespace tw::emulator
