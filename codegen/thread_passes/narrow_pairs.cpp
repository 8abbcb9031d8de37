// Casts to elements of 1 byte by the instruction that has two of them.
#include <optional>

#include "codegen/thread_ir/thread_walk.h"
#include "codegen/thread_passes/thread_passes.h"
#include "dsl/simplify.h"

namespace tw::codegen {
namespace {

/// The access at two iterations' elements, from an even one on, where these are neighbours in an array of registers.
std::optional<Access> pair_of(const Access& access, const Expr& variable, const Expr& pair) {
    if (access.buffer->memory != Memory::Registers || access.indices.empty()) return {};
    Access first = access;
    for (size_t d = 0; d < access.indices.size(); ++d) {
        const int64_t step = d + 1 == access.indices.size();
        if (coefficient(affine_of(access.indices[d]), variable) != step) return {};
        first.indices[d] = simplify(substitute(access.indices[d], {{variable, pair * 2}}));
    }
    if (divisor_of(first.indices.back()) % 2 != 0) return {};
    return first;
}

/// What the instruction makes an element of 1 byte of: an f32, which for an integer is rounded on the way.
std::optional<Expr> narrowed_by_instruction(const ThreadStore& store) {
    const Type type = store.to.buffer->type;
    const Cast* cast = store.atomic ? nullptr : store.value.as<Cast>();
    if (!cast || cast->a.type() != f32) return {};
    if (type == e4m3 || type == e5m2) return cast->a;
    const Unary* round = type == i8 || type == u8 ? cast->a.as<Unary>() : nullptr;
    return round && round->op == UnaryOp::Round ? std::optional(round->a) : std::nullopt;
}

ThreadStmt narrow(const ThreadLoop& loop, const Expr& pair, const Access& to, const Access& from, int step) {
    NarrowPair narrow{{to, 2}, {from, 2}};
    const int64_t pairs = require_constant(loop.extent) / 2;
    if (pairs == 1) {
        const Substitution only{{pair, integer(0)}};
        for (Access* access : {&narrow.to.place, &narrow.from.place})
            for (Expr& index : access->indices) index = simplify(substitute(index, only));
        return make_thread(Instruction(std::move(narrow)), step);
    }
    ThreadLoop in_pairs = loop;
    in_pairs.variable = pair;
    in_pairs.extent = integer(pairs);
    in_pairs.body = make_thread(Instruction(std::move(narrow)), step);
    return make_thread(std::move(in_pairs), step);
}

/// Of an unrolled loop over casts alone; undefined of others. What is no register yet becomes one first.
ThreadStmt in_pairs(const ThreadStmt& stmt) {
    const ThreadLoop* loop = stmt.as<ThreadLoop>();
    const std::optional<int64_t> extent = loop ? as_constant(loop->extent) : std::nullopt;
    if (!extent || !loop->unroll || loop->ends_at != 0 || *extent % 2 != 0) return {};
    const std::vector<ThreadStmt> body = statements(loop->body);
    const ThreadStore* store = body.size() == 1 ? body[0].as<ThreadStore>() : nullptr;
    const std::optional<Expr> wide = store ? narrowed_by_instruction(*store) : std::nullopt;
    if (!wide) return {};
    const Expr pair = index_variable(loop->variable.as<Variable>()->name, 0, *extent / 2 - 1);
    const auto to = pair_of(store->to, loop->variable, pair);
    if (!to) return {};
    const int step = body[0].step();
    const Load* load = wide->as<Load>();
    const auto floats = load ? pair_of({load->buffer, load->indices}, loop->variable, pair) : std::nullopt;
    if (floats) return narrow(*loop, pair, *to, *floats, step);
    const Buffer array = register_array(store->to.buffer->name + "_wide", f32, {*extent});
    ThreadLoop first = *loop;
    first.body = make_thread(ThreadStore{{array, {loop->variable}}, *wide}, step);
    return block_of({make_thread(ThreadDeclare{array}, step), make_thread(std::move(first), stmt.step()),
                     narrow(*loop, pair, *to, {array, {simplify(pair * 2)}}, step)});
}

}  // namespace

ThreadKernel narrow_pairs(const ThreadKernel& kernel) {
    ThreadKernel result = kernel;
    result.body = transform(kernel.body, in_pairs);
    return result;
}

}  // namespace tw::codegen
