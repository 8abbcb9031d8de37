#include "codegen/async/async_copy.h"

#include <algorithm>

#include <fmt/format.h>

#include "codegen/access/conditions.h"
#include "dsl/simplify.h"
#include "support/error.h"

namespace tw::codegen {
namespace {

constexpr int64_t narrowest_bytes = 4;  // PTX ISA, cp.async: 4, 8 or 16 bytes
constexpr int64_t widest_async_bytes = 16;

/// That are worth a request. Elements of 4 bytes one by one take longer than by loads and stores, which registers hold
/// meanwhile; of narrower ones as many more wait there, each vector of them behind a mask, and one iteration ahead.
int64_t least_async_bytes(Type type) { return bytes_of(type) < narrowest_bytes ? narrowest_bytes : 8; }

class RequestMaker {
public:
    explicit RequestMaker(const TileOp& op) : op_(op) {}

    AsyncRequest run(const Placement& placement) {
        const Load* load = op_.stores.size() == 1 ? op_.stores[0].value.as<Load>() : nullptr;
        request_.reason = why_not_moved(load);
        if (!request_.reason.empty()) return request_;
        request_.to = placement.physical(op_.stores[0].buffer, op_.stores[0].indices);
        request_.from = placement.checked(load->buffer, load->indices);
        request_.active = conjuncts_of(placement.physical(op_.active));
        request_.there = conjuncts_of(placement.physical(op_.mask));
        request_.loops = op_.loops;
        choose_width();
        if (request_.bytes() < narrowest_bytes)
            request_.reason =
                fmt::format("only {} bytes lie side by side on both sides, and an asynchronous copy moves 4, 8 or 16",
                            request_.bytes());
        else
            split();
        return request_;
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
        for (const OpLoop& loop : request_.loops) {
            auto extent = as_constant(loop.extent);
            if (!extent) continue;
            int64_t width = std::min(wide_elements(request_.to, loop.variable, *extent),
                                     wide_elements(request_.from, loop.variable, *extent));
            while (width > 1 && !decide_alike(loop.variable, width)) width /= 2;
            if (width <= request_.width) continue;
            request_.width = width;
            along_ = loop.variable;
        }
    }

    bool decide_alike(const Expr& variable, int64_t width) const {
        Expr group = index_variable("g", 0, {}), lane = index_variable("q", 0, width - 1);
        auto alike = [&](const Expr& condition) {
            return uniform_over(simplify(substitute(condition, {{variable, group * width + lane}})), lane, width)
                .defined();
        };
        return std::all_of(request_.active.begin(), request_.active.end(), alike) &&
               std::all_of(request_.there.begin(), request_.there.end(), alike);
    }

    /// The loop along memory becomes one over requests.
    void split() {
        if (request_.width == 1) return;
        auto loop = std::find_if(request_.loops.begin(), request_.loops.end(),
                                 [&](const OpLoop& l) { return l.variable.same(along_); });
        int64_t requests = require_constant(loop->extent) / request_.width;
        Expr lane = index_variable("v", 0, request_.width - 1), start = integer(0);
        if (requests > 1) {
            start = index_variable(along_.as<Variable>()->name + "_vector", 0, requests - 1);
            *loop = {start, integer(requests), Execution::Unroll, loop->reduces};
        } else {
            request_.loops.erase(loop);
        }
        auto at_first = [&](const Expr& e) { return simplify(substitute(e, {{along_, start * request_.width}})); };
        for (Access* access : {&request_.to, &request_.from})
            for (Expr& index : access->indices) index = at_first(index);
        for (auto* conditions : {&request_.active, &request_.there})
            for (Expr& condition : *conditions)
                condition = uniform_over(simplify(substitute(condition, {{along_, start * request_.width + lane}})),
                                         lane, request_.width);
    }

    const TileOp& op_;
    AsyncRequest request_;
    Expr along_;
};

}  // namespace

int64_t AsyncRequest::bytes() const { return width * bytes_of(to.buffer->type); }

AsyncRequest async_request(const TileOp& copy, const Placement& placement) { return RequestMaker(copy).run(placement); }

Via via_of(const TileOp& op) {
    const CopyOp* copy = op.as<CopyOp>();
    return copy ? copy->via : Via{};
}

FillChoice choose_fill(const TileKernel& kernel, const TileOp& copy, int stages, const CiteStep& cite) {
    const Via via = via_of(copy);
    if (via.copy == Copy::Vector) return {.async = false, .reason = "asked for"};
    Placement placement(kernel);
    std::string obstacle;
    int64_t bytes = widest_async_bytes;
    visit_ops(kernel.body, [&](const TileOp& op) {
        if (op.stores.empty() || op.stores[0].buffer != copy.stores[0].buffer || !obstacle.empty()) return;
        AsyncRequest request = async_request(op, placement);
        obstacle = request.reason;
        if (obstacle.empty()) bytes = std::min(bytes, request.bytes());
    });
    if (via.copy == Copy::Async) {
        if (!obstacle.empty())
            throw_error(Error,
                        "{}{} cannot be copied asynchronously: {}; leave the choice open, or change what it copies",
                        cite(via.step), copy.name, obstacle);
        return {.async = true, .bytes = bytes};
    }
    if (stages <= 2) return {.async = false, .reason = "2 stages"};
    if (!obstacle.empty()) return {.async = false, .reason = obstacle};
    if (bytes < least_async_bytes(copy.stores[0].buffer->type))
        return {.async = false, .reason = fmt::format("asynchronously only {} bytes would move at once", bytes)};
    return {.async = true, .bytes = bytes};
}

TileStmt awaited_at_once(const TileKernel& kernel, const TileOp& op, const CiteStep& cite) {
    if (via_of(op).copy != Copy::Async) return make_tile(TileOp(op));
    choose_fill(kernel, op, 1, cite);
    TileOp start = op, awaited = op;
    start.action = AsyncCopyOp{};
    awaited.action = AwaitedOp{};
    return make_tile(TileBlock{{make_tile(std::move(start)), make_tile(call_op({CpAsyncCommit{}})),
                                make_tile(call_op({CpAsyncWait{}})), make_tile(std::move(awaited))}});
}

}  // namespace tw::codegen
