#include "codegen/to_threads/preload.h"
#include "codegen/access/access.h"

#include <algorithm>
#include <unordered_set>

#include "codegen/access/conditions.h"
#include "dsl/deep.h"
#include "dsl/simplify.h"

namespace tw::codegen {
namespace {

bool is_memory(const Buffer& buffer) { return buffer->memory != Memory::Registers; }

bool is_literal(const Expr& e) { return e.as<IntConstant>() || e.as<FloatConstant>(); }

struct Collector {
    const std::vector<ThreadStore>& stores;
    bool ahead;  // of choices
    std::vector<PreloadOperand> found;
    std::unordered_set<const ExprNode*> seen = {}, seen_inside = {};

    bool is_stored(const Buffer& buffer) const {
        return std::any_of(stores.begin(), stores.end(), [&](const ThreadStore& s) { return s.to.buffer == buffer; });
    }

    void add(const Expr& expr, const Load& load, const Expr& guard, const Expr& fallback) {
        if (!is_memory(load.buffer) || is_stored(load.buffer)) return;
        for (const PreloadOperand& known : found)
            if (equal(known.expr, expr)) return;
        found.push_back({expr, {load.buffer, load.indices}, guard, fallback});
    }

    void collect(const Expr& expr) {
        if (!seen.insert(expr.id()).second) return;
        if (const Load* load = expr.as<Load>()) {
            add(expr, *load, {}, {});
            for (const Expr& index : load->indices) collect(index);
            return;
        }
        if (const Select* choice = expr.as<Select>()) {
            const Load* load = choice->yes.as<Load>();
            if (load && is_literal(choice->no)) add(expr, *load, choice->condition, choice->no);
            if (ahead && !load) collect(choice->yes);
            return collect(choice->condition);  // else the sides are lazy
        }
        if (const Binary* both = expr.as<Binary>(); both && connects(*both)) {
            if (const Load* load = both->b.as<Load>(); load && both->op == BinaryOp::And)
                add(expr, *load, both->a, Expr(false));
            else
                collect_inside(both->b);
            return collect(both->a);
        }
        for (const Expr& kid : children(expr)) collect(kid);
    }

    static bool connects(const Binary& node) { return node.op == BinaryOp::And || node.op == BinaryOp::Or; }

    /// Adds the reads of elements that exist in any case, of an expression that may not be evaluated at all.
    void collect_inside(const Expr& expr) {
        if (expr.as<Select>() || !seen_inside.insert(expr.id()).second) return;
        if (const Load* load = expr.as<Load>(); load && is_inside(*load)) add(expr, *load, {}, {});
        for (const Expr& kid : children(expr)) collect_inside(kid);
    }

    static bool is_inside(const Load& load) {
        if (load.indices.size() != load.buffer->shape.size() || rank_of(*load.buffer) != load.indices.size())
            return false;
        for (size_t d = 0; d < load.indices.size(); ++d) {
            const Expr& index = load.indices[d];
            if (prove(index >= 0) != true || prove(index < load.buffer->shape[d]) != true) return false;
        }
        return true;
    }
};

/// Whether error functions of what registers hold take most of what is left: what is read in front of them all would
/// have no room.
bool fills_registers(const std::vector<ThreadStore>& stores) {
    constexpr int64_t most = 144;
    std::unordered_set<const BufferNode*> seen;
    int64_t held = 0;
    bool has_function = false;
    for (const ThreadStore& store : stores)
        visit(store.value, [&](const Expr& e) {
            const Unary* function = e.as<Unary>();
            has_function = has_function || (function && function->op == UnaryOp::Erf);
            const Load* load = e.as<Load>();
            if (!load || load->buffer->memory != Memory::Registers || !seen.insert(load->buffer.get()).second) return;
            int64_t elements = 1;
            for (const Expr& extent : load->buffer->shape) elements *= as_constant(extent).value_or(1);
            held += elements;
        });
    return has_function && held >= most;
}

Expr with_replaced(const Expr& expr, const Expr& from, const Expr& to) {
    return transform(expr, [&](const Expr& node) { return equal(node, from) ? to : Expr(); });
}

/// How an operand is read: the tile's loops that it depends on, the wide one last.
struct Plan {
    std::vector<OpLoop> loops;
    int64_t width = 1;
    int64_t elements = 1;
    bool saves = false;
};

Plan plan_of(const PreloadOperand& operand, const std::vector<OpLoop>& tile) {
    Plan plan;
    for (const OpLoop& loop : tile) {
        if (!operand.depends_on(loop.variable)) continue;
        plan.loops.push_back(loop);
        plan.elements *= require_constant(loop.extent);
    }
    size_t along = plan.loops.size();
    for (size_t l = 0; l < plan.loops.size(); ++l)
        if (int64_t width = operand.width_along(plan.loops[l]); width > plan.width) {
            plan.width = width;
            along = l;
        }
    if (along < plan.loops.size())
        std::rotate(plan.loops.begin() + along, plan.loops.begin() + along + 1, plan.loops.end());
    plan.saves = plan.loops.size() < tile.size() || plan.width > 1;
    return plan;
}

ThreadStmt loops_around(ThreadStmt body, const std::vector<OpLoop>& loops, int step) {
    for (auto loop = loops.rbegin(); loop != loops.rend(); ++loop)
        body = make_thread(ThreadLoop{loop->variable, loop->extent, true, body}, step);
    return body;
}

/// The loads of one operand into registers, `to` over the plan's loops.
struct Loader {
    const PreloadOperand& operand;
    const Plan& plan;
    const Access& to;
    int step;

    void emit(std::vector<ThreadStmt>& stmts) const {
        if (plan.width == 1) return stmts.push_back(scalars());
        if (operand.guard.defined()) stmts.push_back(fallbacks());
        stmts.push_back(vectors());
    }

    ThreadStmt scalars() const {
        ThreadStmt load = make_thread(ThreadStore{to, operand.expr}, step);
        return loops_around(load, plan.loops, step);
    }

    ThreadStmt fallbacks() const {
        ThreadStmt fill = make_thread(ThreadStore{to, operand.fallback}, step);
        return loops_around(fill, plan.loops, step);
    }

    ThreadStmt vectors() const {
        std::vector<OpLoop> loops = plan.loops;
        OpLoop along = loops.back();
        loops.pop_back();
        int64_t groups = require_constant(along.extent) / plan.width;
        Expr group = integer(0), lane = index_variable("lane", 0, plan.width - 1);
        if (groups > 1) {
            group = index_variable(along.variable.as<Variable>()->name + "_vector", 0, groups - 1);
            loops.push_back({group, integer(groups), Execution::Unroll, false});
        }
        auto at_vector = [&](const Expr& e) {
            return simplify(substitute(e, {{along.variable, simplify(group * plan.width)}}));
        };
        Access from = operand.access, into = to;
        for (Expr& index : from.indices) index = at_vector(index);
        for (Expr& index : into.indices) index = at_vector(index);
        ThreadStmt wide = make_thread(ThreadWide{static_cast<int>(plan.width), into, from}, step);
        if (operand.guard.defined()) wide = make_thread(ThreadIf{at_vector(operand.guard), wide}, step);
        return loops_around(wide, loops, step);
    }
};

}  // namespace

int64_t PreloadOperand::width_along(const OpLoop& loop) const {
    auto extent = as_constant(loop.extent);
    if (!extent) return 1;
    int64_t width = wide_elements(access, loop.variable, *extent);
    if (!guard.defined()) return width;
    auto is_uniform = [&](int64_t w) {
        Expr group = index_variable("g", 0, *extent / w - 1), lane = index_variable("q", 0, w - 1);
        for (const Expr& part : conjuncts_of(guard))
            if (!uniform_over(simplify(substitute(part, {{loop.variable, group * w + lane}})), lane, w).defined())
                return false;
        return true;
    };
    while (width > 1 && !is_uniform(width)) width /= 2;
    return width;
}

std::vector<PreloadOperand> preload_operands(const std::vector<ThreadStore>& stores, bool ahead) {
    Collector collector{stores, ahead, {}};
    for (const ThreadStore& store : stores) with_room_for(store.value, [&] { collector.collect(store.value); });
    return collector.found;
}

bool load_directly(const ThreadStore& store, const std::vector<OpLoop>& tile, int step,
                   std::vector<ThreadStmt>& stmts) {
    std::vector<PreloadOperand> operands = preload_operands({store});
    if (store.to.buffer->memory != Memory::Registers || store.to.indices.empty() || operands.size() != 1) return false;
    if (!equal(store.value, operands[0].expr)) return false;
    Plan plan = plan_of(operands[0], tile);
    if (plan.width == 1 || plan.loops.size() != tile.size()) return false;
    if (!store.to.indices.back().same(plan.loops.back().variable)) return false;
    for (size_t d = 0; d + 1 < store.to.indices.size(); ++d)
        if (contains(store.to.indices[d], plan.loops.back().variable)) return false;
    Loader{operands[0], plan, store.to, step}.emit(stmts);
    return true;
}

std::vector<ThreadStore> preload(const std::vector<ThreadStore>& stores, const std::vector<PreloadOperand>& operands,
                                 const std::vector<OpLoop>& tile, const std::optional<OpLoop>& ahead, int step,
                                 LoadedAhead& early, std::vector<ThreadStmt>& stmts) {
    std::vector<ThreadStore> result = stores;
    int64_t room = most_preloaded_elements;
    const bool is_full = fills_registers(stores);
    for (const PreloadOperand& operand : operands) {
        Plan plan = plan_of(operand, tile);
        if (!plan.saves || plan.elements > room || (is_full && operand.access.buffer->memory == Memory::Shared))
            continue;
        room -= plan.elements;
        std::vector<int64_t> shape;
        std::vector<Expr> indices;
        auto along = [&](const OpLoop& loop) {
            shape.push_back(require_constant(loop.extent));
            indices.push_back(loop.variable);
        };
        const bool is_early = ahead && operand.depends_on(ahead->variable);
        if (is_early) along(*ahead);
        for (const OpLoop& loop : plan.loops) along(loop);
        Buffer array = register_array(operand.access.buffer->name + "_values", operand.access.buffer->type, shape);
        (is_early ? early.arrays : stmts).push_back(make_thread(ThreadDeclare{array}, step));
        Loader{operand, plan, {array, indices}, step}.emit(is_early ? early.loads : stmts);
        Expr value = make_expr(operand.expr.type(), Load{array, indices});
        for (ThreadStore& store : result) store.value = with_replaced(store.value, operand.expr, value);
    }
    return result;
}

}  // namespace tw::codegen
