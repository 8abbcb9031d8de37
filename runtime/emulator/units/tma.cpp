#include "runtime/emulator/units/tma.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "runtime/emulator/units/reduce_add.h"
#include "runtime/emulator/units/tensor_box.h"

namespace tw::emulator {

constexpr uint64_t UnitBytes = TensorBox::UnitBytes, TileAlignment = 128;

namespace {

void check(const void* memory, size_t bytes, AccessKind kind, Stamp site) {
    if (core->options.check) check_run(reinterpret_cast<uintptr_t>(memory), bytes, kind, site);
}

/// All units in some order: from anywhere, forwards or backwards.
class Order {
public:
    Order(uint64_t count, Random& random) : count_(count), first_(random.below(count)), backwards_(random.next() & 1) {}
    bool at_end() const { return next_ == count_; }
    uint64_t next() {
        const uint64_t i = next_++;
        return (first_ + (backwards_ ? count_ - i : i)) % count_;
    }
    uint64_t some(Random& random) const { return random.next() % 2 ? count_ : 1 + random.below(count_); }

private:
    uint64_t count_, first_, next_ = 0;
    bool backwards_;
};

class TmaLoad final : public AsyncOperation {
public:
    TmaLoad(const char* name, const TensorBox& box, Mbarriers& mbarriers, uintptr_t barrier, Random& random)
        : AsyncOperation(name), box_(box), mbarriers_(mbarriers), barrier_(barrier), order_(box.num_units(), random) {}

    bool step(Random& random) override {
        for (uint64_t left = order_.some(random); left > 0 && !order_.at_end(); --left) move(order_.next());
        if (!order_.at_end()) return true;
        mbarriers_.complete_bytes(barrier_, box_.bytes());
        return false;
    }

private:
    void move(uint64_t unit) {
        unsigned char* to = box_.in_shared(unit);
        auto [from, bytes] = box_.in_global(unit);
        if (bytes) check(from, bytes, AccessKind::Read, site);
        check(to, UnitBytes, AccessKind::Write, site);
        std::memset(to, 0, UnitBytes);
        if (bytes) std::memcpy(to, from, bytes);
    }

    TensorBox box_;
    Mbarriers& mbarriers_;
    uintptr_t barrier_;
    Order order_;
};

}  // namespace

/// Reads all of its box, then writes: whole units, as an H200 does, also where the tensor's row ends within one.
class TmaStore final : public AsyncOperation {
public:
    TmaStore(const TensorBox& box, bool adds, Random& random)
        : AsyncOperation(adds ? "tma_reduce_add" : "tma_store"),
          box_(box),
          adds_(adds),
          reading_(box.num_units(), random),
          writing_(box.num_units(), random),
          contents_(size_t(box.bytes())) {}

    bool step(Random& random) override {
        if (!reading_.at_end()) {
            for (uint64_t left = reading_.some(random); left > 0 && !reading_.at_end(); --left) read(reading_.next());
            return true;
        }
        for (uint64_t left = writing_.some(random); left > 0 && !writing_.at_end(); --left) write(writing_.next());
        return !writing_.at_end();
    }

    bool has_read() const { return reading_.at_end(); }

private:
    void read(uint64_t unit) {
        const unsigned char* from = box_.in_shared(unit);
        if (!box_.in_global(unit).bytes) return;  // what lies outside is nowhere used
        check(from, UnitBytes, AccessKind::Read, site);
        std::memcpy(&contents_[unit * UnitBytes], from, UnitBytes);
    }
    void write(uint64_t unit) {
        auto [to, bytes] = box_.in_global(unit);
        if (!bytes) return;
        check(to, UnitBytes, adds_ ? AccessKind::Atomic : AccessKind::Write, site);
        const unsigned char* from = &contents_[unit * UnitBytes];
        if (adds_)
            reduce_add(box_.element(), to, from, UnitBytes);
        else
            std::memcpy(to, from, UnitBytes);
    }

    TensorBox box_;
    bool adds_;
    Order reading_, writing_;
    std::vector<unsigned char> contents_;
};

namespace {

const char* name_of(const emulated::TmaCall& call) {
    switch (call.kind) {
        case emulated::TmaCall::Load: return call.ranks ? "tma_load_multicast" : "tma_load";
        case emulated::TmaCall::LoadIm2col: return call.ranks ? "tma_load_im2col_multicast" : "tma_load_im2col";
        case emulated::TmaCall::Store: return "tma_store";
        case emulated::TmaCall::ReduceAdd: break;
    }
    return "tma_reduce_add";
}

TensorMapBits map_of(const emulated::TmaCall& call, Stamp site) {
    TensorMapBits map;
    std::memcpy(static_cast<void*>(&map), call.map, sizeof map);
    if (map.magic != TensorMapBits::Magic)
        misuse(fmt::format("passes {} what is no tensor map of this device", name_of(call)), site);
    if (map.rank != call.rank)
        misuse(
            fmt::format("passes {} {} coordinates for a tensor of {} dimensions", name_of(call), call.rank, map.rank),
            site);
    if (map.is_im2col != (call.kind == emulated::TmaCall::LoadIm2col))
        misuse(map.is_im2col ? fmt::format("passes {} an im2col map, which tma_load_im2col alone takes", name_of(call))
                             : fmt::format("passes {} a map of boxes; it takes an im2col map", name_of(call)),
               site);
    return map;
}

constexpr const char* DimensionNames[] = {"c", "w", "h", "d"};

/// An H200 ends the kernel with "illegal instruction" where the first base pixel lies outside of the bounding box.
void require_base_pixel(const emulated::TmaCall& call, const TensorMapBits& map, Stamp site) {
    for (int d = 1; d < map.rank - 1; ++d) {
        const PixelRange range = base_pixels(map, d);
        if (call.coordinates[d] < range.first || call.coordinates[d] >= range.end)
            misuse(fmt::format("passes {} {} = {}, outside of the bounding box, which has [{}, {})", name_of(call),
                               DimensionNames[d], call.coordinates[d], range.first, range.end),
                   site);
    }
}

/// The instruction has 16 bits for the offsets together.
void require_offsets(const emulated::TmaCall& call, const TensorMapBits& map, Stamp site) {
    const int offsets[] = {call.offsets.w, call.offsets.h, call.offsets.d};
    const int most = (1 << 16 / (map.rank - 2)) - 1;  // 65535, 255, 31
    for (int d = 1; d < map.rank - 1; ++d)
        if (offsets[d - 1] < 0 || offsets[d - 1] > most)
            misuse(fmt::format("passes {} an offset of {} in {}; with {} dimensions it takes 0 to {}", name_of(call),
                               offsets[d - 1], DimensionNames[d], map.rank, most),
                   site);
}

TensorBox box_of(const emulated::TmaCall& call, const TensorMapBits& map, uintptr_t shared) {
    const int offsets[] = {call.offsets.w, call.offsets.h, call.offsets.d};
    return TensorBox(map, call.coordinates, offsets, shared);
}

}  // namespace

/// Tiles begin at multiples of 128 bytes, whatever the swizzle: it is a function of addresses.
void Tma::require_tile_place(const void* shared, const char* name, Stamp site) {
    const auto address = reinterpret_cast<uintptr_t>(shared);
    if (!core_.memories.is_shared_of(core_.running_rank(), address))
        misuse(fmt::format("passes {} what is not in its shared memory", name), site);
    const uintptr_t offset = core_.memories.offset_in_block(address);
    if (offset % TileAlignment != 0)
        misuse(fmt::format("passes {} byte {} of shared memory; it takes multiples of {}", name, offset, TileAlignment),
               site);
}

void Tma::issue(const emulated::TmaCall& call, Stamp site) {
    const TensorMapBits map = map_of(call, site);
    const char* name = name_of(call);
    require_tile_place(call.shared, name, site);
    if (int64_t first = int64_t{call.coordinates[0]} * int64_t(bytes_of(map.element)); first % int64_t(UnitBytes) != 0)
        misuse(fmt::format("passes {} an innermost coordinate of {}, byte {} of a row; it takes multiples of {} bytes",
                           name, call.coordinates[0], first, UnitBytes),
               site);
    if (map.is_im2col) {
        require_base_pixel(call, map, site);
        require_offsets(call, map, site);
    }
    if (call.kind == emulated::TmaCall::Load || call.kind == emulated::TmaCall::LoadIm2col)
        load(call, map, site);
    else
        store(call, map, site);
}

void Tma::load(const emulated::TmaCall& call, const TensorMapBits& map, Stamp site) {
    const auto barrier = reinterpret_cast<uintptr_t>(call.barrier), shared = reinterpret_cast<uintptr_t>(call.shared);
    const uint32_t own = core_.running_rank(), num_blocks = core_.memories.num_blocks();
    const KnowledgePointer known = core_.order.release();
    for (uint32_t rank = 0; rank < 16; ++rank) {
        if (!(call.ranks ? call.ranks >> rank & 1 : rank == own)) continue;
        if (rank >= num_blocks)
            misuse(fmt::format("passes {} rank {} of a cluster of {} blocks", name_of(call), rank, num_blocks), site);
        const uintptr_t shift = core_.memories.shared(rank).base - core_.memories.shared(own).base;
        mbarriers_.require_fenced(barrier + shift, "loads for", site);
        const TensorBox box = box_of(call, map, shared + shift);
        if (core_.tally) core_.tally->count_box(uint64_t(box.bytes()));
        core_.operations.start(std::make_shared<TmaLoad>(map.is_im2col ? "tma_load_im2col" : "tma_load", box,
                                                         mbarriers_, barrier + shift, core_.random),
                               known, site);
    }
    core_.perhaps_let_others_run();
}

void Tma::store(const emulated::TmaCall& call, const TensorMapBits& map, Stamp site) {
    // An H200 loads from there and fills with zeros, but ends the kernel with "illegal instruction" at such a store.
    for (int d = 0; d < call.rank && call.kind == emulated::TmaCall::Store; ++d)
        if (call.coordinates[d] < 0)
            misuse(fmt::format("passes tma_store coordinate {}; boxes to be stored begin inside the tensor",
                               call.coordinates[d]),
                   site);
    const TensorBox box = box_of(call, map, reinterpret_cast<uintptr_t>(call.shared));
    auto store = std::make_shared<TmaStore>(box, call.kind == emulated::TmaCall::ReduceAdd, core_.random);
    stores_[running.thread].open.push_back(store);
    core_.operations.start(store, core_.order.release(), site);
}

void Tma::store_commit() {
    StoreQueue& own = stores_[running.thread];
    own.groups.push_back(std::exchange(own.open, {}));
}

/// All stores but those of the last `pending` groups have ended, or have at least read their tiles.
void Tma::store_wait(int pending, bool only_read) {
    const uint32_t self = running.thread, num_threads = core_.threads.count();
    auto& [open, groups, num_read] = stores_[self];
    auto known = std::make_shared<Knowledge>(*core_.threads[self].knowledge);
    const size_t count = groups.size() > size_t(pending) ? groups.size() - size_t(pending) : 0;
    for (size_t g = 0; g < count; ++g)
        for (auto& store : groups[g]) {
            while (!store->done && !(only_read && store->has_read())) core_.operations.step(store);
            core_.threads.become(self);
            known->reads.set(store->slot, store->clock, num_threads);
            if (!only_read) known->writes.set(store->slot, store->clock, num_threads);
        }
    core_.threads[self].knowledge = std::move(known);
    core_.threads.become(self);
    if (only_read) {
        num_read = std::max(num_read, count);
    } else {
        groups.erase(groups.begin(), groups.begin() + ptrdiff_t(count));
        num_read -= std::min(num_read, count);
    }
}

void Tma::require_stores_read() {
    const StoreQueue& stores = stores_[running.thread];
    const TmaStore* left = nullptr;
    if (!stores.open.empty()) left = stores.open[0].get();
    for (size_t g = stores.num_read; g < stores.groups.size() && !left; ++g)
        if (!stores.groups[g].empty()) left = stores.groups[g][0].get();
    if (left)
        misuse(
            fmt::format("returns from the kernel without tma_store_wait or tma_store_wait_read for its {}", left->name),
            left->site);
}

}  // namespace tw::emulator
