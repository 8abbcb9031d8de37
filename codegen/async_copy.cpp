#include "codegen/async_copy.h"

#include <algorithm>

#include <fmt/format.h>

#include "codegen/conditions.h"
#include "codegen/lower_op.h"
#include "dsl/simplify.h"
#include "support/error.h"

namespace tw::codegen {
namespace {

constexpr int64_t narrowest_bytes = 4;  // PTX ISA, cp.async: 4, 8 or 16 bytes

Expr integer(int64_t value) { return constant(Type::I64, value); }

bool is_zero(const Expr& e) {
    const FloatConstant* real = e.as<FloatConstant>();
    return real ? real->value == 0 : is_constant(e, 0);
}

/// One request of an asynchronous copy, and the loops around it.
class AsyncCopy {
public:
    AsyncCopy(const TileOp& op, const Placement& placement) : op_(op) {
        const Load* load = op.stores.size() == 1 ? op.stores[0].value.as<Load>() : nullptr;
        reason_ = why_not_moved(load);
        if (!reason_.empty()) return;
        to_ = placement.physical(op.stores[0].buffer, op.stores[0].indices);
        from_ = placement.checked(load->buffer, load->indices);
        active_ = conjuncts_of(placement.physical(op.active));
        there_ = conjuncts_of(placement.physical(op.mask));
        loops_ = op.loops;
        choose_width();
        if (bytes() < narrowest_bytes)
            reason_ = fmt::format(
                "only {} bytes lie side by side on both sides, and an asynchronous copy moves 4, 8 or 16", bytes());
        else
            split();
    }

    const std::string& reason() const { return reason_; }
    int64_t bytes() const { return width_ * bytes_of(to_.buffer->type); }

    ThreadStmt run() const {
        ThreadStmt body = request();
        std::vector<Expr> conditions = active_;
        if (!op_.otherwise.defined()) conditions.insert(conditions.end(), there_.begin(), there_.end());
        auto guarded = [&](const Expr* variable) {
            std::vector<Expr> here, elsewhere;
            for (const Expr& condition : conditions)
                (!variable || contains(condition, *variable) ? here : elsewhere).push_back(condition);
            conditions = elsewhere;
            if (!here.empty()) body = make_thread(ThreadIf{all_of(here), body}, op_.step);
        };
        for (size_t l = loops_.size(); l-- > 0;) {
            guarded(&loops_[l].variable);
            bool unroll = loops_[l].execution != Execution::Serial && as_constant(loops_[l].extent);
            body = make_thread(ThreadLoop{loops_[l].variable, loops_[l].extent, unroll, body}, op_.step);
        }
        guarded(nullptr);
        if (op_.kind == TileOp::Kind::Landing) return body;
        return make_thread(
            ThreadBlock{{make_thread(ThreadComment{op_.name + ": copy asynchronously", op_.name}, op_.step), body}});
    }

private:
    std::string why_not_moved(const Load* load) const {
        if (!load) return "its elements are computed, not only moved";
        const BufferNode &to = *op_.stores[0].buffer, &from = *load->buffer;
        if (from.memory != Memory::Global)
            return fmt::format("'{}' is in {} memory", from.name, to_string(from.memory));
        if (to.memory != Memory::Shared) return fmt::format("it goes to {} memory", to_string(to.memory));
        if (from.type != to.type)
            return fmt::format("it converts {} to {}", tw::name_of(from.type), tw::name_of(to.type));
        if (op_.otherwise.defined() && !is_zero(op_.otherwise)) return "it stores other values than zero at its edges";
        return {};
    }

    /// Along the loop and as wide as both sides and the conditions allow.
    void choose_width() {
        for (const OpLoop& loop : loops_) {
            auto extent = as_constant(loop.extent);
            if (!extent) continue;
            int64_t width =
                std::min(wide_elements(to_, loop.variable, *extent), wide_elements(from_, loop.variable, *extent));
            while (width > 1 && !decide_alike(loop.variable, width)) width /= 2;
            if (width <= width_) continue;
            width_ = width;
            along_ = loop.variable;
        }
    }

    bool decide_alike(const Expr& variable, int64_t width) const {
        Expr group = index_variable("g", 0, {}), lane = index_variable("q", 0, width - 1);
        auto alike = [&](const Expr& condition) {
            return uniform_over(simplify(substitute(condition, {{variable, group * width + lane}})), lane, width)
                .defined();
        };
        return std::all_of(active_.begin(), active_.end(), alike) && std::all_of(there_.begin(), there_.end(), alike);
    }

    /// The loop along memory becomes one over requests.
    void split() {
        if (width_ == 1) return;
        auto loop =
            std::find_if(loops_.begin(), loops_.end(), [&](const OpLoop& l) { return l.variable.same(along_); });
        int64_t requests = require_constant(loop->extent) / width_;
        Expr lane = index_variable("v", 0, width_ - 1), start = integer(0);
        if (requests > 1) {
            start = index_variable(along_.as<Variable>()->name + "_vector", 0, requests - 1);
            *loop = {start, integer(requests), Execution::Unroll, loop->reduces};
        } else {
            loops_.erase(loop);
        }
        auto at_first = [&](const Expr& e) { return simplify(substitute(e, {{along_, start * width_}})); };
        for (Access* access : {&to_, &from_})
            for (Expr& index : access->indices) index = at_first(index);
        for (auto* conditions : {&active_, &there_})
            for (Expr& condition : *conditions)
                condition =
                    uniform_over(simplify(substitute(condition, {{along_, start * width_ + lane}})), lane, width_);
    }

    ThreadStmt request() const {
        int width = static_cast<int>(width_);
        if (op_.kind == TileOp::Kind::Landing) return make_thread(ThreadMark{to_, width}, op_.step);
        ThreadCall call{
            "copy_async",
            {width_},
            {{CallArgument::Effect::Write, {}, to_, width}, {CallArgument::Effect::Read, {}, from_, width}}};
        Expr there = all_of(there_);
        call.arguments[1].place = checked_where(there);
        if (op_.otherwise.defined() && !is_constant(there, 1)) {
            call.primitive = "copy_async_or_zero";
            call.arguments.push_back({CallArgument::Effect::Value, there, {}, 1});
        }
        return make_thread(std::move(call), op_.step);
    }

    /// The address is computed where nothing is copied, too.
    Access checked_where(const Expr& there) const {
        std::vector<Expr> conditions = active_;
        conditions.insert(conditions.end(), there_.begin(), there_.end());
        std::vector<IndexCheck> checks = checks_of(without_implied_checks(from_, conditions));
        bool guarded = !op_.otherwise.defined() || is_constant(there, 1);
        for (IndexCheck& check : checks)
            if (!guarded) check.index = select_unchecked(there, check.index, integer(0));
        return with_checks(place_of(from_), checks);
    }

    const TileOp& op_;
    std::string reason_;
    Access to_, from_;
    std::vector<Expr> active_, there_;
    std::vector<OpLoop> loops_;
    int64_t width_ = 1;
    Expr along_;
};

}  // namespace

std::string why_not_async(const TileOp& copy, const Placement& placement) {
    return AsyncCopy(copy, placement).reason();
}

int64_t async_bytes(const TileOp& copy, const Placement& placement) { return AsyncCopy(copy, placement).bytes(); }

ThreadStmt lower_async_copy(const TileOp& op, const Placement& placement) {
    AsyncCopy copy(op, placement);
    internal_check(copy.reason().empty(), "an asynchronous copy of {}: {}", op.name, copy.reason());
    return copy.run();
}

}  // namespace tw::codegen
