#include "runtime/emulator/units/wgmma.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "runtime/emulator/units/fragments.h"
#include "runtime/emulator/units/matrix_descriptor.h"
#include "runtime/emulator/units/swizzle.h"
#include "runtime/emulator/units/tensor_core.h"

namespace tw::emulator {

constexpr uint32_t Rows = 64;
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
        if (call_.negated) b.negate();
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
                if (linear % UnitBytes == 0 && core->options.check)
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

size_t bytes_of_d(const emulated::WgmmaCall& call) { return size_t(call.n) / 2 * 4; }
size_t bytes_of_a(const emulated::WgmmaCall& call) {
    return size_t(Rows) * size_t(call.k) / WarpgroupThreads * bytes_of(call.a_type);
}

/// Registers of a thread that a product holds.
int num_registers(const emulated::WgmmaCall& call) {
    return int(bytes_of_d(call) + (call.a_registers ? bytes_of_a(call) : 0)) / 4;
}

bool is_same_instruction(const emulated::WgmmaCall& x, const emulated::WgmmaCall& y) {
    return x.n == y.n && x.k == y.k && x.a_type == y.a_type && x.b_type == y.b_type && x.a == y.a && x.b == y.b &&
           x.accumulate == y.accumulate && x.transpose_a == y.transpose_a && x.transpose_b == y.transpose_b &&
           x.negated == y.negated && !x.a_registers == !y.a_registers;
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

void Wgmma::begin() {
    of_thread_.assign(threads_.count(), {});
    last_.clear();
}

/// An operand may begin at any unit of 16 bytes: the swizzle is a function of addresses. A base offset would shift its
/// pattern.
void Wgmma::require_descriptor(uint64_t bits, const char* operand, Stamp site) {
    const MatrixDescriptor descriptor(bits);
    if (descriptor.base_offset != 0)
        misuse(fmt::format("passes wgmma a descriptor of {} with base offset {}; it takes 0, as operands may begin in "
                           "any line of a swizzle's pattern",
                           operand, descriptor.base_offset),
               site);
}

Wgmma::Registers* Wgmma::find_registers(const void* begin) {
    for (Registers& known : own().registers)
        if (known.begin == reinterpret_cast<uintptr_t>(begin)) return &known;
    return nullptr;
}

/// The registers of an operand are as the last wgmma_fence, or the last wgmma on them, left them.
void Wgmma::require_fenced(const void* begin, bool may_be_in_flight, Stamp site) {
    Registers* known = find_registers(begin);
    if (!known && own().num_fences > 0) return;
    if (known && known->last && !may_be_in_flight)
        misuse("passes wgmma registers in another way than the wgmma before, which wgmma_wait has not waited for",
               site);
    if (known && !known->touched) return;
    misuse("calls wgmma without wgmma_fence since its registers were used otherwise", site);
}

void Wgmma::issue(const emulated::WgmmaCall& call, Stamp site) {
    require_registers(call.d, "wgmma", site);
    if (call.a_registers) require_registers(call.a_registers, "wgmma", site);
    if (!call.a_registers) require_descriptor(call.a, "a", site);
    require_descriptor(call.b, "b", site);
    if (core_.options.check) {
        const Registers* known = find_registers(call.d);
        require_fenced(call.d, known && known->bytes == bytes_of_d(call) && known->is_result, site);
        if (call.a_registers) {
            const Registers* a = find_registers(call.a_registers);
            require_fenced(call.a_registers, a && !a->is_result, site);
        }
    }
    own().call = call;
    if (barriers_.arrive_at_warpgroup("wgmma", site)) start(site);
    threads_.let_others_run();
}

/// Accumulators and operands in registers, of this product and of those under way, fit in what setmaxnreg has left,
/// beside what any code needs.
void Wgmma::require_fits(const emulated::WgmmaCall& call, Stamp site) {
    const int registers = pool_.of_warpgroup(running.thread / WarpgroupThreads);
    int held = num_registers(call);
    for (const Registers& others : own().registers) {
        const bool is_own = others.begin == reinterpret_cast<uintptr_t>(call.d) ||
                            others.begin == reinterpret_cast<uintptr_t>(call.a_registers);
        if (others.last && !is_own) held += int(others.bytes) / 4;
    }
    if (registers >= pool_.at_entry() || held + LeastRegisters <= registers) return;
    misuse(fmt::format(
               "multiplies with {} registers a thread, of which products hold {}; other values, addresses and counters "
               "need {}, the least that setmaxnreg leaves",
               registers, held, LeastRegisters),
           site);
}

/// What each thread of the warpgroup knows, as each must have waited, or been told by who has. All are at the same
/// instruction.
std::shared_ptr<Knowledge> Wgmma::known_by_all(const emulated::WgmmaCall& call, Stamp site) {
    auto known = std::make_shared<Knowledge>(*threads_.current().knowledge);
    const Knowledge* last_known = threads_.current().knowledge.get();
    for (uint32_t t : threads_.of_warpgroup(running.thread / WarpgroupThreads)) {
        if (!is_same_instruction(of_thread_[t].call, call))
            diverge(fmt::format("is at wgmma at {{}} with other operands than thread ({},0,0) of the same warpgroup",
                                threads_[t].state.thread.x),
                    site, {uint32_t(site)});
        const Knowledge* theirs = threads_[t].knowledge.get();
        if (theirs != last_known) known->intersect(*theirs);
        last_known = theirs;
    }
    return known;
}

/// By the last thread of the warpgroup, for all.
void Wgmma::start(Stamp site) {
    const uint32_t self = running.thread, group = self / WarpgroupThreads;
    const std::vector<uint32_t> all = threads_.of_warpgroup(group);
    const emulated::WgmmaCall call = own().call;
    require_fits(call, site);
    auto known = known_by_all(call, site);
    const Registers* in_flight = find_registers(call.d);
    const bool is_chained = in_flight && in_flight->last;
    auto tile =
        is_chained
            ? in_flight->last->tile
            : std::make_shared<AccumulatorTile>(AccumulatorTile{std::vector<uint32_t>(size_t(Rows) * size_t(call.n))});
    auto operation = std::make_shared<WarpgroupOperation>(call, core_.memories.shared(core_.running_rank()).base, tile);
    operation->previous = std::exchange(last_[group], operation);
    for (uint32_t t : all) {
        threads_.become(t);
        const emulated::WgmmaCall& theirs = own().call;
        if (!is_chained) exchange(*tile, t % WarpgroupThreads, theirs.d, call.n, false);
        if (call.a_registers) operation->take_a(t % WarpgroupThreads, theirs.a_registers);
        hold_registers(theirs.d, bytes_of_d(call), true, operation);
        std::memset(theirs.d, 0xff, bytes_of_d(call));  // NaN until the wait
        if (call.a_registers) hold_registers(theirs.a_registers, bytes_of_a(call), false, operation);
        own().open.push_back(operation);
    }
    threads_.become(self);
    core_.operations.start(operation, known, site);
    auto outcome = std::make_shared<Knowledge>();
    outcome->add(operation->slot, operation->clock, threads_.count());
    operation->outcome = std::move(outcome);
    threads_.wake(all);
    if (core_.tally) core_.tally->count_warp_operation();
}

void Wgmma::hold_registers(const void* begin, size_t bytes, bool is_result,
                           std::shared_ptr<WarpgroupOperation> operation) {
    Registers* known = find_registers(begin);
    if (!known) known = &own().registers.emplace_back();
    *known = {.begin = reinterpret_cast<uintptr_t>(begin),
              .bytes = bytes,
              .is_result = is_result,
              .touched = false,
              .last = std::move(operation)};
    running.has_registers = threads_.current().has_registers = true;
}

void Wgmma::touch_registers(uintptr_t address, size_t bytes, AccessKind kind, Stamp site) {
    for (Registers& known : own().registers) {
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

void Wgmma::fence(Stamp site) {
    ++own().num_fences;
    for (Registers& known : own().registers) known.touched = false;
    barriers_.converge(site);
}

void Wgmma::commit(Stamp site) {
    own().groups.push_back(std::exchange(own().open, {}));
    barriers_.converge(site);
}

void Wgmma::wait(int pending, Stamp site) {
    auto& groups = own().groups;
    const size_t count = groups.size() > size_t(pending) ? groups.size() - size_t(pending) : 0;
    for (size_t g = 0; g < count; ++g)
        for (auto& operation : groups[g]) finish(operation);
    groups.erase(groups.begin(), groups.begin() + ptrdiff_t(count));
    barriers_.converge(site);
}

/// The running thread has its part of the result.
void Wgmma::finish(const std::shared_ptr<WarpgroupOperation>& operation) {
    core_.operations.finish(operation);
    core_.order.learn(operation->outcome);
    for (Registers& registers : own().registers) {
        if (registers.last != operation) continue;
        registers.last = nullptr;
        if (registers.is_result)
            exchange(*operation->tile, running.thread % WarpgroupThreads, reinterpret_cast<void*>(registers.begin),
                     operation->call().n, true);
    }
}

}  // namespace tw::emulator
