#include "verify/mutate_signals.h"

#include <array>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "codegen/thread_ir/thread_walk.h"
#include "support/overloaded.h"

namespace tw::fuzz {
namespace {

using namespace codegen;  // NOLINT: the thread IR is all that this file is about

constexpr int kRegisterStep = 8;
constexpr int kWarp = 32;
constexpr int kWarpgroup = 128;
constexpr int kDescriptorUnit = 16;

class SignalMutator {
public:
    explicit SignalMutator(const ThreadStmt& stmt) : stmt_(stmt) {}

    std::vector<AlteredStatement> run() {
        if (auto instruction = stmt_.as<Instruction>()) alter(*instruction);
        if (auto barrier = stmt_.as<ThreadBarrier>(); barrier && barrier->threads > 0) alter(*barrier);
        if (auto role = stmt_.as<ThreadRole>()) alter(*role);
        return std::move(found_);
    }

private:
    template <class Node>
    void add(MutationKind kind, const std::string& what, const Node& node) {
        found_.push_back({kind, fmt::format("{}: {}", head_of(stmt_), what), make_thread(node, stmt_.step())});
    }
    void leave_out(MutationKind kind) { found_.push_back({kind, head_of(stmt_) + ": left out", {}}); }

    void alter(const Instruction& instruction) {
        if (is_signal(instruction)) leave_out(MutationKind::Signal);
        for (int change : {1, -1}) alter_parameters(instruction, change);
        if (auto product = std::get_if<Wgmma>(&instruction)) alter(*product);
        if (auto load = std::get_if<TmaLoad>(&instruction)) alter(*load);
        const std::vector<codegen::Operand> all = operands(instruction);
        for (size_t o = 0; o < all.size(); ++o)
            if (std::holds_alternative<Expr>(all[o]) && is_signal(instruction)) number(instruction, all, o);
    }

    void alter_parameters(const Instruction& instruction, int change) {
        auto pending = [&](auto wait) {
            wait.pending += change;
            if (wait.pending < 0) return;
            add(MutationKind::Signal, fmt::format("parameter {}", wait.pending), Instruction(wait));
        };
        std::visit(Overloaded{[&](const OneOf<WgmmaWait, TmaStoreWaitRead> auto& wait) { pending(wait); },
                              [&](SetMaxNReg registers) {
                                  registers.count += change * kRegisterStep;
                                  add(MutationKind::Operand, fmt::format("parameter {}", registers.count),
                                      Instruction(registers));
                              },
                              [](const auto&) {}},
                   instruction);
    }

    /// The taps of a filter that lie along another dimension, and pixels that begin there.
    void alter(const TmaLoad& load) {
        for (size_t d = 1; d < load.offsets.size(); ++d) {
            TmaLoad taps = load, pixels = load;
            std::swap(taps.offsets[d - 1], taps.offsets[d]);
            std::swap(pixels.coordinates[d], pixels.coordinates[d + 1]);
            add(MutationKind::Operand, fmt::format("offsets {} and {} exchanged", d - 1, d), Instruction(taps));
            add(MutationKind::Operand, fmt::format("coordinates {} and {} exchanged", d, d + 1), Instruction(pixels));
        }
    }

    /// Transposed otherwise, and with other distances.
    void alter(const Wgmma& product) {
        for (size_t side : {0, 1}) {
            if (!product.transposed) break;
            Wgmma changed = product;
            bool& transposed = (*changed.transposed)[side];
            transposed = !transposed;
            add(MutationKind::Operand, fmt::format("parameter {}", int{transposed}), Instruction(changed));
        }
        if (std::holds_alternative<MatrixOperand>(product.a))
            alter_strides(product, "a", [](Wgmma& p) -> MatrixOperand& { return std::get<MatrixOperand>(p.a); });
        alter_strides(product, "b", [](Wgmma& p) -> MatrixOperand& { return p.b; });
    }

    template <class Of>
    void alter_strides(const Wgmma& product, const char* name, Of matrix_of) {
        for (int change : {kDescriptorUnit, -kDescriptorUnit}) {
            Wgmma strides = product, leading = product;
            matrix_of(strides).stride_bytes += change;
            matrix_of(leading).leading_bytes += change;
            add(MutationKind::Operand, fmt::format("{}, stride {}", name, matrix_of(strides).stride_bytes),
                Instruction(strides));
            add(MutationKind::Operand, fmt::format("{}, leading {}", name, matrix_of(leading).leading_bytes),
                Instruction(leading));
        }
    }

    void number(const Instruction& instruction, const std::vector<codegen::Operand>& all, size_t o) {
        const Expr& value = std::get<Expr>(all[o]);
        if (!is_integer(value.type())) return;
        const bool waits = std::holds_alternative<MbarrierWait>(instruction);
        const MutationKind kind =
            waits || std::holds_alternative<MbarrierInit>(instruction) ? MutationKind::Signal : MutationKind::Operand;
        auto with = [&](const Expr& other) {
            std::vector<codegen::Operand> changed = all;
            changed[o] = other;
            add(kind, fmt::format("{} -> {}", to_string(value), to_string(other)), with_operands(instruction, changed));
        };
        const Expr one = constant(value.type(), 1);
        if (waits) return with(binary(BinaryOp::Sub, one, value));  // the other phase
        auto known = as_constant(value);
        for (int change : {1, -1})
            with(known ? constant(value.type(), *known + change)
                       : binary(change > 0 ? BinaryOp::Add : BinaryOp::Sub, value, one));
        if (std::holds_alternative<MbarrierExpectTx>(instruction) && known) {
            with(constant(value.type(), *known / 2));
            with(constant(value.type(), *known * 2));
        }
    }

    void alter(const ThreadBarrier& barrier) {
        leave_out(MutationKind::Signal);
        for (int change : {1, -1}) {
            ThreadBarrier id = barrier, threads = barrier;
            id.id += change;
            threads.threads += change * kWarp;
            if (id.id >= 0) add(MutationKind::Signal, fmt::format("id {}", id.id), id);
            add(MutationKind::Signal, fmt::format("{} threads", threads.threads), threads);
        }
        if (barrier.turn.defined()) {
            ThreadBarrier same = barrier;
            same.turn = {};
            add(MutationKind::Signal, "the same for all turns", same);
        }
    }

    void alter(const ThreadRole& role) {
        leave_out(MutationKind::Role);
        for (int change : {kWarpgroup, -kWarpgroup}) {
            ThreadRole first = role, threads = role;
            first.first += change;
            threads.threads += change;
            if (first.first >= 0) add(MutationKind::Role, fmt::format("from thread {}", first.first), first);
            if (threads.threads > 0) add(MutationKind::Role, fmt::format("{} threads", threads.threads), threads);
        }
    }

    const ThreadStmt& stmt_;
    std::vector<AlteredStatement> found_;
};

}  // namespace

bool is_signal(const Instruction& instruction) {
    return std::visit(
        Overloaded{
            [](const OneOf<MbarrierInit, MbarrierExpectTx, MbarrierWait, MbarrierArrive, MbarrierArriveAt,
                           FenceMbarrierInit, FenceProxyAsync, BarrierSync, BarrierArrive, ClusterArrive, ClusterWait,
                           TmaLoad, TmaStore, TmaStoreCommit, TmaStoreWaitRead, WgmmaFence, WgmmaCommit, WgmmaWait,
                           SetMaxNReg> auto&) { return true; },
            [](const OneOf<PrefetchTensorMap, CpAsync, CpAsyncCommit, CpAsyncWait, LdMatrix, StMatrix, TransposeLanes,
                           Mma, PackRegisters, NarrowPair, Wgmma, WgmmaFenceOperand, LeaveUndefined, TakeTicket,
                           BeginArray, GriddepcontrolWait, GriddepcontrolLaunchDependents> auto&) { return false; }},
        instruction);
}

std::vector<AlteredStatement> altered_signals(const ThreadStmt& stmt) { return SignalMutator(stmt).run(); }

namespace {

/// A map with one of its numbers altered, and what that is called.
struct AlteredMap {
    std::string text;
    TensorMapUse use;
};

/// Of a walk over pixels: the corners of its bounding box, the steps, the pixels and the channels.
std::vector<AlteredMap> altered_walks(const TensorMapUse& use) {
    std::vector<AlteredMap> found;
    if (!use.im2col) return found;
    for (int change : {1, -1}) {
        auto number = [&](const std::string& name, auto&& of, int64_t least, int64_t by = 1) {
            TensorMapUse other = use;
            int64_t& altered = of(other);
            altered += change * by;
            if (altered >= least) found.push_back({fmt::format("{} {}", name, altered), other});
        };
        constexpr int64_t any = std::numeric_limits<int64_t>::min();
        for (size_t d = 0; d < use.im2col->lower.size(); ++d) {
            number(
                fmt::format("lower corner {}", d), [&](auto& map) -> auto& { return map.im2col->lower[d]; }, any);
            number(
                fmt::format("upper corner {}", d), [&](auto& map) -> auto& { return map.im2col->upper[d]; }, any);
            number(
                fmt::format("step {}", d), [&](auto& map) -> auto& { return map.traversal_strides[d + 1]; }, 1);
        }
        number(
            "pixels", [](auto& map) -> auto& { return map.im2col->pixels; }, 1);
        number(
            "channels", [](auto& map) -> auto& { return map.im2col->channels; }, 1,
            kDescriptorUnit / bytes_of(use.tensor->type));
    }
    return found;
}

std::vector<AlteredMap> altered_maps(const TensorMapUse& use) {
    std::vector<AlteredMap> found = altered_walks(use);
    for (size_t d = 0; d < use.box.size(); ++d)
        for (int change : {1, -1}) {
            TensorMapUse other = use;
            other.box[d] += change;
            if (other.box[d] > 0) found.push_back({fmt::format("side {} of the box {}", d, other.box[d]), other});
        }
    for (int swizzle : {0, 32, 64, 128}) {
        TensorMapUse other = use;
        other.swizzle = swizzle;
        if (swizzle != use.swizzle) found.push_back({fmt::format("swizzle {}", swizzle), other});
    }
    return found;
}

}  // namespace

std::vector<Mutant> altered_launches(const ThreadKernel& kernel) {
    std::vector<Mutant> found;
    auto add = [&](const std::string& text, const ThreadKernel& mutant) {
        found.push_back({MutationKind::Role, text, mutant});
    };
    const bool uses_boxes = !kernel.maps.empty();
    for (int change : {1, -1}) {
        ThreadKernel clusters = kernel, producers = kernel;
        clusters.cluster += change;
        producers.producer_threads += change * kWarpgroup;
        if (uses_boxes && clusters.cluster > 0) add(fmt::format("clusters of {}", clusters.cluster), clusters);
        if (kernel.producer_threads > 0 && producers.producer_threads >= 0)
            add(fmt::format("{} producer threads", producers.producer_threads), producers);
    }
    for (size_t m = 0; m < kernel.maps.size(); ++m)
        for (const AlteredMap& altered : altered_maps(kernel.maps[m])) {
            ThreadKernel mutant = kernel;
            mutant.maps[m] = altered.use;
            add(fmt::format("map of {}: {}", altered.use.tensor->name, altered.text), mutant);
        }
    return found;
}

}  // namespace tw::fuzz
