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

/// Of an unrolled loop over casts alone; undefined of others.
ThreadStmt in_pairs(const ThreadStmt& stmt) {
    const ThreadLoop* loop = stmt.as<ThreadLoop>();
    const std::optional<int64_t> extent = loop ? as_constant(loop->extent) : std::nullopt;
    if (!extent || !loop->unroll || loop->ends_at != 0 || *extent % 2 != 0) return {};
    const std::vector<ThreadStmt> body = statements(loop->body);
    const ThreadStore* store = body.size() == 1 ? body[0].as<ThreadStore>() : nullptr;
    const Cast* cast = store && !store->atomic ? store->value.as<Cast>() : nullptr;
    const Load* from = cast ? cast->a.as<Load>() : nullptr;
    const Type type = store ? store->to.buffer->type : f32;
    if (!from || cast->a.type() != f32 || (type != e4m3 && type != e5m2)) return {};
    const Expr pair = index_variable(loop->variable.as<Variable>()->name, 0, *extent / 2 - 1);
    const auto to = pair_of(store->to, loop->variable, pair),
               floats = pair_of({from->buffer, from->indices}, loop->variable, pair);
    if (!to || !floats) return {};
    const Substitution only{{pair, integer(0)}};
    NarrowPair narrow{{*to, 2}, {*floats, 2}};
    if (*extent == 2) {
        for (Access* access : {&narrow.to.place, &narrow.from.place})
            for (Expr& index : access->indices) index = simplify(substitute(index, only));
        return make_thread(Instruction(std::move(narrow)), stmt.step());
    }
    ThreadLoop pairs = *loop;
    pairs.variable = pair;
    pairs.extent = integer(*extent / 2);
    pairs.body = make_thread(Instruction(std::move(narrow)), body[0].step());
    return make_thread(std::move(pairs), stmt.step());
}

}  // namespace

ThreadKernel narrow_pairs(const ThreadKernel& kernel) {
    ThreadKernel result = kernel;
    result.body = transform(kernel.body, in_pairs);
    return result;
}

}  // namespace tw::codegen
