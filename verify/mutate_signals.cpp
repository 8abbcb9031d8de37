#include "verify/mutate_signals.h"

#include <array>

#include <fmt/format.h>

#include "codegen/thread_ir/thread_walk.h"

namespace tw::fuzz {
namespace {

using namespace codegen;  // NOLINT: the thread IR is all that this file is about
using Effect = CallArgument::Effect;

constexpr int kRegisterStep = 8, kWarp = 32, kWarpgroup = 128, kDescriptorUnit = 16;

std::string head_of(const ThreadStmt& stmt) {
    std::string text = to_string(stmt);
    return text.substr(0, text.find('\n'));
}

class SignalMutator {
public:
    explicit SignalMutator(const ThreadStmt& stmt) : stmt_(stmt) {}

    std::vector<AlteredStatement> run() {
        if (auto call = stmt_.as<ThreadCall>()) alter(*call);
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

    void alter(const ThreadCall& call) {
        if (is_signal(call.primitive)) leave_out(MutationKind::Signal);
        const bool of_registers = call.primitive == "shrink_registers" || call.primitive == "grow_registers";
        for (size_t p = 0; p < call.parameters.size(); ++p) {
            const bool of_wait = call.primitive == "wgmma_wait" || call.primitive.starts_with("wait_stores");
            if (!of_registers && !of_wait && !call.primitive.starts_with("wgmma_m")) continue;
            const bool is_flag = call.primitive.starts_with("wgmma_m");
            for (int change : {1, -1}) {
                ThreadCall changed = call;
                changed.parameters[p] += change * (of_registers ? kRegisterStep : 1);
                if (is_flag) changed.parameters[p] = 1 - call.parameters[p];
                if (changed.parameters[p] < 0 || (is_flag && change < 0)) continue;
                add(is_flag || of_registers ? MutationKind::Operand : MutationKind::Signal,
                    fmt::format("parameter {}", changed.parameters[p]), changed);
            }
        }
        for (size_t a = 0; a < call.arguments.size(); ++a) {
            if (call.arguments[a].effect == Effect::Value && is_signal(call.primitive)) number(call, a);
            if (call.arguments[a].effect == Effect::Matrix) descriptor(call, a);
        }
    }

    void number(const ThreadCall& call, size_t a) {
        const Expr& value = call.arguments[a].value;
        if (!is_integer(value.type())) return;
        const MutationKind kind = call.primitive == "barrier_wait" || call.primitive == "barrier_init"
                                      ? MutationKind::Signal
                                      : MutationKind::Operand;
        auto with = [&](const Expr& other) {
            ThreadCall changed = call;
            changed.arguments[a].value = other;
            add(kind, fmt::format("{} -> {}", to_string(value), to_string(other)), changed);
        };
        const Expr one = constant(value.type(), 1);
        if (call.primitive == "barrier_wait") return with(binary(BinaryOp::Sub, one, value));  // the other phase
        auto known = as_constant(value);
        for (int change : {1, -1})
            with(known ? constant(value.type(), *known + change)
                       : binary(change > 0 ? BinaryOp::Add : BinaryOp::Sub, value, one));
        if (call.primitive == "barrier_expect" && known) {
            with(constant(value.type(), *known / 2));
            with(constant(value.type(), *known * 2));
        }
    }

    void descriptor(const ThreadCall& call, size_t a) {
        for (int change : {kDescriptorUnit, -kDescriptorUnit}) {
            ThreadCall strides = call, leading = call;
            strides.arguments[a].stride_bytes += change;
            leading.arguments[a].leading_bytes += change;
            add(MutationKind::Operand, fmt::format("operand {}, stride {}", a, strides.arguments[a].stride_bytes),
                strides);
            add(MutationKind::Operand, fmt::format("operand {}, leading {}", a, leading.arguments[a].leading_bytes),
                leading);
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

bool is_signal(const std::string& primitive) {
    for (const char* start : {"barrier_", "cluster_", "fence_", "wgmma_fence", "wgmma_commit", "wgmma_wait", "tma_",
                              "commit_stores", "wait_stores", "shrink_registers", "grow_registers"})
        if (primitive.starts_with(start)) return true;
    return false;
}

std::vector<AlteredStatement> altered_signals(const ThreadStmt& stmt) { return SignalMutator(stmt).run(); }

std::vector<Mutant> altered_launches(const ThreadKernel& kernel) {
    std::vector<Mutant> found;
    auto add = [&](const std::string& text, const ThreadKernel& mutant) {
        found.push_back({MutationKind::Role, text, mutant});
    };
    const bool uses_boxes = !kernel.maps.empty();
    for (int change : {1, -1}) {
        ThreadKernel clusters = kernel, helpers = kernel;
        clusters.cluster += change;
        helpers.helpers += change * kWarpgroup;
        if (uses_boxes && clusters.cluster > 0) add(fmt::format("clusters of {}", clusters.cluster), clusters);
        if (kernel.helpers > 0 && helpers.helpers >= 0) add(fmt::format("{} helpers", helpers.helpers), helpers);
    }
    for (size_t m = 0; m < kernel.maps.size(); ++m) {
        const TensorMapUse& use = kernel.maps[m];
        auto with = [&](const std::string& what, const TensorMapUse& other) {
            ThreadKernel mutant = kernel;
            mutant.maps[m] = other;
            add(fmt::format("map of {}: {}", use.tensor->name, what), mutant);
        };
        for (size_t d = 0; d < use.box.size(); ++d)
            for (int change : {1, -1}) {
                TensorMapUse other = use;
                other.box[d] += change;
                if (other.box[d] > 0) with(fmt::format("side {} of the box {}", d, other.box[d]), other);
            }
        for (int swizzle : {0, 32, 64, 128}) {
            TensorMapUse other = use;
            other.swizzle = swizzle;
            if (swizzle != use.swizzle) with(fmt::format("swizzle {}", swizzle), other);
        }
    }
    return found;
}

}  // namespace tw::fuzz
