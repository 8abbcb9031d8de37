// Products by warpgroups: asynchronous, in order, their operands in shared memory and registers.
#include <cstring>

#include "runtime/emulator/fragments.h"
#include "runtime/emulator/machine.h"
#include "runtime/emulator/matrix_descriptor.h"
#include "runtime/emulator/tensor_core.h"

namespace tw::emulator {

constexpr uint32_t WarpgroupThreads = 128, Rows = 64;
constexpr size_t UnitBytes = 16;

/// d of a chain of products that are under way: [64, n], floats or integers.
struct AccumulatorTile {
    std::vector<uint32_t> values;
};

class WarpgroupOperation final : public AsyncOperation {
public:
    WarpgroupOperation(const emulated::WgmmaCall& call, uintptr_t shared, std::shared_ptr<AccumulatorTile> tile)
        : AsyncOperation("wgmma"), tile(std::move(tile)), call_(call), shared_(shared), a_(int(Rows), call.k) {}

    /// Operands in registers are taken at once: to change them before the wait is a finding.
    void take_a(uint32_t thread, const void* registers) {
        const size_t bytes = bytes_of(call_.a_type);
        for (int e = 0; e < int(Rows) * call_.k / int(WarpgroupThreads); ++e) {
            auto [row, column] = position_in_a(int(thread), e, int(bytes));
            uint32_t bits = 0;
            std::memcpy(&bits, static_cast<const unsigned char*>(registers) + size_t(e) * bytes, bytes);
            a_.set(row, column, call_.a_type, bits);
        }
    }

    bool step(Random&) override {
        if (!call_.a_registers) load(a_, MatrixDescriptor(call_.a), call_.a_type, call_.transpose_a);
        Factors b(call_.n, call_.k);
        load(b, MatrixDescriptor(call_.b), call_.b_type, call_.transpose_b);
        if (!call_.accumulate) std::fill(tile->values.begin(), tile->values.end(), 0);
        const bool is_fp8 = call_.a_type == MatrixType::e4m3 || call_.a_type == MatrixType::e5m2;
        if (call_.a_type == MatrixType::s8)
            multiply_add(reinterpret_cast<int32_t*>(tile->values.data()), a_, b);
        else
            multiply_add(reinterpret_cast<float*>(tile->values.data()), a_, b,
                         is_fp8 ? Fp8WarpgroupFractionBits : FractionBits,
                         is_fp8 ? Fp8WarpgroupMantissaBits : MantissaBits);
        return false;
    }

    const emulated::WgmmaCall& call() const { return call_; }
    std::shared_ptr<AccumulatorTile> tile;
    KnowledgePointer outcome;  // what is known of it behind the wait

private:
    void load(Factors& factors, const MatrixDescriptor& from, MatrixType type, bool transposed) {
        const size_t bytes = bytes_of(type);
        for (int row = 0; row < factors.rows; ++row)
            for (int k = 0; k < factors.k; ++k) {
                const auto r = uint32_t(row), c = uint32_t(k);
                const uint64_t linear =
                    shared_ + (transposed ? from.mn_major(r, c) : from.k_major(r, c * uint32_t(bytes)));
                const uint64_t address = swizzled(linear, from.span);
                if (linear % UnitBytes == 0 && machine->options().check)
                    check_access(address, UnitBytes, AccessKind::Read, site);
                uint32_t bits = 0;
                std::memcpy(&bits, reinterpret_cast<const void*>(address), bytes);
                factors.set(row, k, type, bits);
            }
    }

    emulated::WgmmaCall call_;
    uintptr_t shared_;
    Factors a_;
};

namespace {

size_t bytes_of_registers(const emulated::WgmmaCall& call) { return size_t(call.n) / 2 * 4; }

bool is_same_instruction(const emulated::WgmmaCall& x, const emulated::WgmmaCall& y) {
    return x.n == y.n && x.k == y.k && x.a_type == y.a_type && x.b_type == y.b_type && x.a == y.a && x.b == y.b &&
           x.accumulate == y.accumulate && x.transpose_a == y.transpose_a && x.transpose_b == y.transpose_b &&
           !x.a_registers == !y.a_registers;
}

/// Moves the tile from or to what a thread holds of it.
void exchange(AccumulatorTile& tile, uint32_t thread, void* registers, int n, bool to_registers) {
    for (int e = 0; e < n / 2; ++e) {
        auto [row, column] = position_in_d(int(thread), e);
        uint32_t& whole = tile.values[size_t(row * n + column)];
        auto* own = static_cast<unsigned char*>(registers) + 4 * e;
        std::memcpy(to_registers ? own : static_cast<void*>(&whole), to_registers ? &whole : static_cast<void*>(own),
                    4);
    }
}

}  // namespace

/// All 128 threads have come to the same instruction. The last one is told so.
bool Machine::arrive_at_warpgroup(const char* name, Stamp site) {
    const uint32_t first = running.thread / WarpgroupThreads * WarpgroupThreads;
    if (launch_.threads % WarpgroupThreads != 0)
        diverge(fmt::format("is at {} at {{}} in a block of {} threads; it takes whole warpgroups of 128", name,
                            launch_.threads),
                site, {uint32_t(site)});
    uint32_t num_arrived = 1;
    for (uint32_t t = first; t < first + WarpgroupThreads; ++t) {
        const Thread& other = threads_[t];
        if (other.wait == Wait::Gone)
            diverge(fmt::format("waits in {} at {{}}, but thread ({},0,0) of the same warpgroup has returned from the "
                                "kernel",
                                name, other.state.thread.x),
                    site, {uint32_t(site)});
        if (other.wait != Wait::Warpgroup) continue;
        require_same_place(other, site);
        ++num_arrived;
    }
    wait(Wait::Warpgroup, site);
    return num_arrived == WarpgroupThreads;
}

/// The lanes of the warp are all here.
void Machine::converge(Stamp site) {
    current_->matrix = {};
    if (arrive_at_warp(Wait::Matrix, site)) wake(lanes_of(running.warp));
    switch_to_scheduler();
}

void Machine::require_descriptor(uint64_t bits, const char* operand, bool transposed, Stamp site) {
    const MatrixDescriptor descriptor(bits);
    if (!descriptor.begins_pattern())
        misuse(
            fmt::format("passes wgmma a descriptor of {} that begins at byte {} of shared memory, within the pattern "
                        "of its swizzle of {} bytes",
                        operand, descriptor.start, descriptor.span),
            site);
    if (!transposed && descriptor.span > 16 && descriptor.start % descriptor.span + 32 > descriptor.span)
        misuse(fmt::format("passes wgmma a descriptor of {} whose 32 bytes of k go beyond a line of {} bytes", operand,
                           descriptor.span),
               site);
}

Registers* Machine::find_registers(const void* begin) {
    for (Registers& known : current_->registers)
        if (known.begin == reinterpret_cast<uintptr_t>(begin)) return &known;
    return nullptr;
}

/// The registers of an operand are as the last wgmma_fence, or the last wgmma on them, left them.
void Machine::require_fenced_registers(const void* begin, bool may_be_in_flight, Stamp site) {
    Registers* known = find_registers(begin);
    if (!known && current_->num_wgmma_fences > 0) return;
    if (known && known->last && !may_be_in_flight)
        misuse("passes wgmma registers in another way than the wgmma before, which wgmma_wait has not waited for",
               site);
    if (known && !known->touched) return;
    misuse("calls wgmma without wgmma_fence since its registers were used otherwise", site);
}

void Machine::wgmma(const emulated::WgmmaCall& call, Stamp site) {
    require_registers(call.d, "wgmma", site);
    if (call.a_registers) require_registers(call.a_registers, "wgmma", site);
    if (!call.a_registers) require_descriptor(call.a, "a", call.transpose_a, site);
    require_descriptor(call.b, "b", call.transpose_b, site);
    if (options_.check) {
        const Registers* known = find_registers(call.d);
        require_fenced_registers(call.d, known && known->bytes == bytes_of_registers(call) && known->is_result, site);
        if (call.a_registers) {
            const Registers* a = find_registers(call.a_registers);
            require_fenced_registers(call.a_registers, a && !a->is_result, site);
        }
    }
    current_->wgmma = call;
    if (arrive_at_warpgroup("wgmma", site)) start_wgmma(site);
    switch_to_scheduler();
}

/// By the last thread of the warpgroup, for all.
void Machine::start_wgmma(Stamp site) {
    const uint32_t first = running.thread / WarpgroupThreads * WarpgroupThreads, self = running.thread;
    const emulated::WgmmaCall call = current_->wgmma;
    require_product_fits(call, site);
    Thread* threads = &threads_[first];
    auto known = std::make_shared<Knowledge>(*current_->knowledge);
    const Knowledge* last_known = current_->knowledge.get();
    for (uint32_t t = 0; t < WarpgroupThreads; ++t) {
        if (!is_same_instruction(threads[t].wgmma, call))
            diverge(fmt::format("is at wgmma at {{}} with other operands than thread ({},0,0) of the same warpgroup",
                                threads[t].state.thread.x),
                    site, {uint32_t(site)});
        const Knowledge* own = threads[t].knowledge.get();
        if (own != last_known) known->intersect(*own);  // each must have waited, or been told by who has
        last_known = own;
    }
    const Registers* in_flight = find_registers(call.d);
    const bool is_chained = in_flight && in_flight->last;
    auto tile =
        is_chained
            ? in_flight->last->tile
            : std::make_shared<AccumulatorTile>(AccumulatorTile{std::vector<uint32_t>(size_t(Rows) * size_t(call.n))});
    auto operation = std::make_shared<WarpgroupOperation>(call, memories_[block_of(self)].base, tile);
    auto& last = last_wgmma_[first / WarpgroupThreads];
    operation->previous = last;
    last = operation;
    for (uint32_t t = 0; t < WarpgroupThreads; ++t) {
        become(first + t);
        void* d = threads[t].wgmma.d;
        if (!is_chained) exchange(*tile, t, d, call.n, false);
        if (call.a_registers) operation->take_a(t, threads[t].wgmma.a_registers);
        hold_registers(d, bytes_of_registers(call), true, operation);
        std::memset(d, 0xff, bytes_of_registers(call));  // NaN until the wait
        if (call.a_registers)
            hold_registers(threads[t].wgmma.a_registers,
                           size_t(Rows) * size_t(call.k) / WarpgroupThreads * bytes_of(call.a_type), false, operation);
        threads[t].products.open.push_back(operation);
    }
    become(self);
    start(operation, known, site);
    auto outcome = std::make_shared<Knowledge>();
    outcome->add(operation->slot, operation->clock, num_threads());
    operation->outcome = std::move(outcome);
    std::vector<uint32_t> all;
    for (uint32_t t = first; t < first + WarpgroupThreads; ++t) all.push_back(t);
    wake(all);
    if (tally_) tally_->count_warp_operation();
}

void Machine::hold_registers(const void* begin, size_t bytes, bool is_result,
                             std::shared_ptr<WarpgroupOperation> operation) {
    Registers* known = find_registers(begin);
    if (!known) known = &current_->registers.emplace_back();
    *known = {.begin = reinterpret_cast<uintptr_t>(begin),
              .bytes = bytes,
              .is_result = is_result,
              .touched = false,
              .last = std::move(operation)};
    running.has_registers = true;
}

/// The kernel's own use of registers that the running thread has passed to wgmma.
void Machine::touch_registers(uintptr_t address, size_t bytes, AccessKind kind, Stamp site) {
    for (Registers& known : current_->registers) {
        if (address >= known.begin + known.bytes || known.begin >= address + bytes) continue;
        if (known.last && (known.is_result || kind != AccessKind::Read)) {
            Incident incident = incident_of(Finding::Kind::Misuse, site);
            incident.text = fmt::format("{} registers of the wgmma at {{}} before wgmma_wait has waited for it,",
                                        kind == AccessKind::Read ? "reads" : "writes");
            incident.more_sites = {uint32_t(known.last->site)};
            report(incident);
        }
        known.touched = true;
    }
}

void Machine::wgmma_fence(Stamp site) {
    ++current_->num_wgmma_fences;
    for (Registers& known : current_->registers) known.touched = false;
    converge(site);
}

void Machine::wgmma_commit(Stamp site) {
    current_->products.groups.push_back(std::exchange(current_->products.open, {}));
    converge(site);
}

void Machine::wgmma_wait(int pending, Stamp site) {
    auto& groups = current_->products.groups;
    const uint32_t self = running.thread;
    const size_t count = groups.size() > size_t(pending) ? groups.size() - size_t(pending) : 0;
    if (count > 0) {
        for (size_t g = 0; g < count; ++g)
            for (auto& operation : groups[g]) {
                finish(operation);
                threads_[self].knowledge = joins_.join(threads_[self].knowledge, operation->outcome);
                for (Registers& registers : threads_[self].registers) {
                    if (registers.last != operation) continue;
                    registers.last = nullptr;
                    if (registers.is_result)
                        exchange(*operation->tile, self % WarpgroupThreads, reinterpret_cast<void*>(registers.begin),
                                 operation->call().n, true);
                }
            }
        groups.erase(groups.begin(), groups.begin() + ptrdiff_t(count));
        become(self);
    }
    converge(site);
}

}  // namespace tw::emulator
