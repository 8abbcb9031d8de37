#include "runtime/emulator/units/warp_matrix.h"

#include <cstring>

#include <fmt/format.h>

#include "runtime/emulator/units/fragments.h"
#include "runtime/emulator/units/tensor_core.h"

namespace tw::emulator {
namespace {

constexpr uint32_t RowBytes = 16;

/// The lane's operand `registers` as `bytes` bytes from `offset` on.
unsigned char* part(const void* registers, size_t offset) {
    return static_cast<unsigned char*>(const_cast<void*>(registers)) + offset;
}

uint32_t element(const void* registers, int e, size_t bytes) {
    uint32_t bits = 0;
    std::memcpy(&bits, part(registers, size_t(e) * bytes), bytes);
    return bits;
}

template <class D>
void multiply(const MatrixCall* lanes, const Factors& a, const Factors& b, bool is_fp8 = false) {
    D d[16 * 8];
    auto each = [&](auto action) {
        for (uint32_t lane = 0; lane < WarpThreads; ++lane)
            for (int e = 0; e < 4; ++e) {
                auto [row, column] = position_in_d(int(lane), e);
                action(d[row * 8 + column], static_cast<D*>(lanes[lane].registers)[e]);
            }
    };
    each([](D& whole, const D& own) { whole = own; });
    if constexpr (std::is_same_v<D, float>)
        is_fp8 ? multiply_add_fp8(d, a, b) : multiply_add(d, a, b, FractionBits);
    else
        multiply_add(d, a, b);
    each([](const D& whole, D& own) { own = whole; });
}

void multiply(const MatrixCall* lanes, const MatrixCall& call) {
    Factors a(16, call.k), b(8, call.k);
    const size_t a_bytes = bytes_of(call.a_type), b_bytes = bytes_of(call.b_type);
    for (uint32_t lane = 0; lane < WarpThreads; ++lane) {
        for (int e = 0; e < 16 * call.k / int(WarpThreads); ++e) {
            auto [row, column] = position_in_a(int(lane), e, int(a_bytes));
            a.set(row, column, call.a_type, element(lanes[lane].a, e, a_bytes));
        }
        for (int e = 0; e < 8 * call.k / int(WarpThreads); ++e) {
            auto [row, column] = position_in_b(int(lane), e, int(b_bytes));
            b.set(row, column, call.b_type, element(lanes[lane].b, e, b_bytes));
        }
    }
    if (call.negated) b.negate();
    if (call.a_type == MatrixType::s8)
        multiply<int32_t>(lanes, a, b);
    else
        multiply<float>(lanes, a, b, call.k == 32);
}

}  // namespace

const char* MatrixCall::name() const {
    switch (operation) {
        case Operation::Load: return transposed ? "ldmatrix_trans" : "ldmatrix";
        case Operation::Store: return transposed ? "stmatrix_trans" : "stmatrix";
        case Operation::Multiply: return "mma";
        case Operation::None: break;
    }
    return "nothing";
}

static AccessKind access_of(const MatrixCall& call) {
    return call.operation == MatrixCall::Operation::Load ? AccessKind::Read : AccessKind::Write;
}

/// By the lane that gives its address.
void WarpMatrix::check_row(const MatrixCall& call, Stamp site) {
    const auto address = reinterpret_cast<uintptr_t>(call.row);
    const uint32_t rank = core_.running_rank();
    if (!core_.memories.is_shared_of(rank, address))
        misuse(fmt::format("passes {} a row that is not in shared memory", call.name()), site);
    Memory& shared = core_.memories.shared(rank);
    if (core_.tally) core_.tally->add(shared, address, RowBytes, access_of(call), uint32_t(site), running.thread);
    check_bounds(shared, address, RowBytes, access_of(call), site);
}

/// Each lane accesses what it has in its registers, whoever gave the address.
void WarpMatrix::load_or_store(const MatrixCall* lanes, const MatrixCall& call, Stamp site) {
    const uint32_t self = running.thread;
    const bool loads = call.operation == MatrixCall::Operation::Load;
    auto move = [&](unsigned char* in_register, unsigned char* in_memory, size_t bytes) {
        if (core_.options.check) check_access(reinterpret_cast<uintptr_t>(in_memory), bytes, access_of(call), site);
        std::memcpy(loads ? in_register : in_memory, loads ? in_memory : in_register, bytes);
    };
    for (uint32_t lane = 0; lane < WarpThreads; ++lane) {
        threads_.become(running.warp * WarpThreads + lane);
        for (uint32_t matrix = 0; matrix < uint32_t(call.count); ++matrix) {
            auto row = [&](uint32_t r) { return lanes[8 * matrix + r].row; };
            unsigned char* own = part(lanes[lane].registers, 4 * matrix);
            if (loads && running.has_registers)
                wgmma_.touch_registers(reinterpret_cast<uintptr_t>(own), 4, AccessKind::Write, site);
            if (!call.transposed) {
                move(own, row(lane / 4) + 4 * (lane % 4), 4);
                continue;
            }
            for (uint32_t i = 0; i < 2; ++i) move(own + 2 * i, row(2 * (lane % 4) + i) + 2 * (lane / 4), 2);
        }
    }
    threads_.become(self);
}

void WarpMatrix::operate(const MatrixCall& call, Stamp site) {
    const unsigned num_lanes = threads_.lanes_of_warp(running.warp);
    if (num_lanes != WarpThreads)
        diverge(fmt::format("is at {} at {{}} in a warp of {} threads; it takes 32", call.name(), num_lanes), site,
                {uint32_t(site)});
    require_registers(call.registers, call.name(), site);
    if (call.operation == MatrixCall::Operation::Multiply) {
        require_registers(call.a, call.name(), site);
        require_registers(call.b, call.name(), site);
    } else if (running.lane < uint32_t(8 * call.count)) {
        check_row(call, site);
    }
    calls_[running.thread] = call;
    if (barriers_.arrive_at_warp(Wait::Matrix, site)) carry_out(call, site);
    threads_.let_others_run();
}

/// All lanes have come.
void WarpMatrix::carry_out(const MatrixCall& call, Stamp site) {
    const std::vector<uint32_t> all = threads_.of_warp(running.warp);
    MatrixCall* lanes = &calls_[all[0]];
    for (uint32_t lane = 0; lane < WarpThreads; ++lane)
        if (!lanes[lane].agrees_with(call))
            diverge(fmt::format("is at {} at {{}}, thread ({},0,0) of the same warp at another operation", call.name(),
                                threads_[all[lane]].state.thread.x),
                    site, {uint32_t(site)});
    if (call.operation == MatrixCall::Operation::Multiply)
        multiply(lanes, call);
    else
        load_or_store(lanes, call, site);
    for (uint32_t t : all) calls_[t] = {};
    threads_.wake(all);
}

}  // namespace tw::emulator
