#include "dsl/cut.h"

#include <algorithm>

#include "dsl/edit.h"
#include "dsl/simplify.h"
#include "support/error.h"

namespace tw {

Expr smaller(const Expr& a, const Expr& b) {
    if (prove(a <= b) == true) return a;
    return prove(b <= a) == true ? b : simplify(min(a, b));
}
Expr larger(const Expr& a, const Expr& b) {
    if (prove(a >= b) == true) return a;
    return prove(b >= a) == true ? b : simplify(max(a, b));
}

namespace {

using State = Schedule::State;

/// The loop whose iteration the variable is, or -1.
int loop_of(const State& state, const Expr& variable) {
    for (size_t l = 0; l < state.loops.size(); ++l)
        if (state.loops[l].variable.same(variable)) return static_cast<int>(l);
    return -1;
}

bool is_index(const Expr& variable) { return variable.as<Variable>()->kind == VariableKind::Index; }

/// In terms of loops that were not split or fused since.
Expr current(const State& state, const Expr& position) {
    Substitution values;
    for (const Expr& variable : variables_of(position))
        if (int loop = loop_of(state, variable); loop >= 0) values.emplace_back(variable, loop_value(state, loop));
    return simplify(substitute(position, values));
}

Expr position(const State& state, int loop, const Expr& cut, const std::vector<Expr>& around,
              std::source_location where) {
    const LoopRecord& record = state.loops[loop];
    Expr value = current(state, cut);
    for (const Expr& variable : variables_of(value)) {
        auto same = [&](const Expr& other) { return other.same(variable); };
        user_check(!is_index(variable) || std::ranges::any_of(around, same), where,
                   "loop '{}' of '{}' is cut at {}, but '{}' would not stand around it; cut it after this step, or "
                   "join its segments first: cut({}, {{}})",
                   record.name, state.stages[record.stage].definition.name, to_string(cut), to_string(variable),
                   record.name);
    }
    return value;
}

/// The expression, and what is not less because it stands for a minimum in it.
std::vector<Expr> upper_bounds(const Expr& expr) {
    std::vector<Expr> bounds{expr};
    const Affine affine = affine_of(expr);
    for (size_t t = 0; t < affine.terms.size(); ++t) {
        const auto& [atom, factor] = affine.terms[t];
        const Binary* minimum = atom.as<Binary>();
        if (factor <= 0 || !minimum || minimum->op != BinaryOp::Min) continue;
        Affine rest = affine;
        rest.terms.erase(rest.terms.begin() + static_cast<std::ptrdiff_t>(t));
        for (const Expr& side : {minimum->a, minimum->b})
            for (const Expr& bound : upper_bounds(simplify(to_expr(rest) + side * factor))) bounds.push_back(bound);
        break;
    }
    return bounds;
}

/// The comparison's value, if it has the same for all numbers up to each of `last`; undefined otherwise. Those that
/// hold, or fail, from 0 on are left to bounds.
Expr value_up_to(const Binary& comparison, const Expr& number, const std::vector<Expr>& last) {
    const Affine slack = affine_of(comparison.b) - affine_of(comparison.a);
    const int64_t step = coefficient(slack, number).value_or(0);
    const int least = comparison.op == BinaryOp::Less ? 1 : 0;
    for (const Expr& bound : step == 0 ? std::vector<Expr>() : last) {
        const Expr at_bound = simplify(substitute(to_expr(slack), {{number, bound}}));
        if (step < 0 && prove(at_bound >= least) == true) return all_of({});
        if (step > 0 && prove(at_bound < least) == true) return !all_of({});
    }
    return {};
}

/// What a loop's body compares, known where an iteration is at most each of `last`, which no bound of its variable
/// says: in a segment of max(0, last + 1) iterations.
Stmt with_known_comparisons(const Stmt& body, const Expr& number, const std::vector<Expr>& last) {
    auto known = [&](const Expr& e) -> Expr {
        const Binary* node = e.as<Binary>();
        const bool compares = node && (node->op == BinaryOp::Less || node->op == BinaryOp::LessEqual);
        return compares && is_integer(node->a.type()) ? value_up_to(*node, number, last) : Expr();
    };
    return map_exprs(body, [&](const Expr& e) { return simplify(transform(e, known)); });
}

/// The loops of a tree in the segments that they were cut into.
class Cutter {
public:
    Cutter(const State& state, std::source_location where) : state_(state), where_(where) {}

    Stmt cut(const Stmt& stmt) {
        if (const For* loop = stmt.as<For>()) {
            around_.push_back(loop->variable);
            For whole = *loop;
            whole.body = cut(loop->body);
            around_.pop_back();
            return in_segments(std::move(whole));
        }
        if (const Allocate* allocate = stmt.as<Allocate>())
            return make_stmt(Allocate{allocate->buffer, cut(allocate->body)});
        const Sequence* block = stmt.as<Sequence>();
        if (!block) return stmt;
        std::vector<Stmt> stmts;
        for (const Stmt& kid : block->stmts) stmts.push_back(cut(kid));
        return make_stmt(Sequence{std::move(stmts)});
    }

private:
    Stmt in_segments(For whole) const {
        const LoopRecord& record = state_.loops[whole.loop];
        if (whole.is_part || (record.is_whole() && !record.reversed)) return make_stmt(std::move(whole));
        const Segments segments = segments_of(state_, whole.loop, whole.extent, around_, where_);
        std::vector<Stmt> parts;
        // Where an iteration of a part runs, the loop has not ended: the part begins at the cut before.
        Expr from = integer(0), begin = integer(0);
        auto add = [&](const Expr& cut) {
            const Expr to = smaller(cut, segments.extent()), end = larger(from, to);
            const std::vector<Expr> last = upper_bounds(simplify(to - begin - 1));
            if (parts.empty() || !ends_before(whole, segments, begin))  // of an empty loop one part stays
                parts.push_back(part_of_loop(whole, simplify(end - from), [&](const Expr& number) {
                    const Expr iteration = segments.iteration(simplify(begin + number));
                    return with_known_comparisons(in_iteration(whole.body, whole.variable, iteration), number, last);
                }));
            from = end;
            begin = larger(begin, cut);
        };
        for (const Expr& cut : segments.cuts) add(cut);
        add(segments.extent());
        return sequence(std::move(parts));
    }

    /// Whether a part that begins there never runs.
    static bool ends_before(const For& whole, const Segments& segments, const Expr& begin) {
        const Expr first = segments.iteration(begin);
        return prove(segments.reversed ? first < 0 : first >= whole.extent) == true;
    }

    const State& state_;
    std::source_location where_;
    std::vector<Expr> around_;  // variables of the loops around
};

/// Calls see(comparison) for a <= b and a < b among the parts of a && b && ....
void see_comparisons(const Expr& condition, const std::function<void(const Binary&)>& see) {
    const Binary* node = condition.as<Binary>();
    if (!node) return;
    if (node->op == BinaryOp::And) {
        see_comparisons(node->a, see);
        see_comparisons(node->b, see);
    }
    bool compares = node->op == BinaryOp::Less || node->op == BinaryOp::LessEqual;
    if (compares && is_integer(node->a.type())) see(*node);
}

}  // namespace

std::vector<Expr> slacks_of_selects(const std::vector<Expr>& exprs) {
    std::vector<Expr> slacks;
    auto see = [&](const Binary& comparison) {
        Affine slack = affine_of(comparison.b) - affine_of(comparison.a);
        if (comparison.op == BinaryOp::Less) slack.offset -= 1;
        if (!reads_tensors(to_expr(slack))) slacks.push_back(to_expr(slack));
    };
    for (const Expr& expr : exprs)
        visit(expr, [&](const Expr& e) {
            if (const Select* select = e.as<Select>()) see_comparisons(select->condition, see);
        });
    return slacks;
}

namespace {

/// Comparisons in selects of the stage's leaves, and, if those of terms are wanted, in masks and reductions.
void see_conditions(const Stmt& stmt, int stage, bool terms, const std::function<void(const Binary&)>& see) {
    if (const For* loop = stmt.as<For>()) return see_conditions(loop->body, stage, terms, see);
    if (const Allocate* allocate = stmt.as<Allocate>()) return see_conditions(allocate->body, stage, terms, see);
    if (const Sequence* block = stmt.as<Sequence>())
        for (const Stmt& kid : block->stmts) see_conditions(kid, stage, terms, see);
    const Leaf* leaf = stmt.as<Leaf>();
    if (!leaf || leaf->stage != stage) return;
    const bool is_result = leaf->kind == Leaf::Kind::Finish || leaf->kind == Leaf::Kind::Copy;
    if (!terms && !is_result) return;
    if (terms) see_comparisons(leaf->mask, see);
    for (const StoreTo& store : leaf->stores)
        visit(store.value, [&](const Expr& e) {
            if (const Select* select = e.as<Select>()) see_comparisons(select->condition, see);
        });
}

const For* find_loop(const Stmt& stmt, int loop) {
    if (const Allocate* allocate = stmt.as<Allocate>()) return find_loop(allocate->body, loop);
    if (const Sequence* block = stmt.as<Sequence>()) {
        for (const Stmt& kid : block->stmts)
            if (const For* found = find_loop(kid, loop)) return found;
        return nullptr;
    }
    const For* here = stmt.as<For>();
    return !here || here->loop == loop ? here : find_loop(here->body, loop);
}

/// What one comparison says of a loop's iterations: from which on, or up to which, it holds for all that runs inside,
/// or for something.
class Limits {
public:
    Limits(const State& state, int loop, bool for_all) : variable_(state.loops[loop].variable), for_all_(for_all) {
        for (int around : enclosing_loops(state, loop))  // threads run the loop together
            if (around != loop && !is_thread(state.loops[around].level)) fixed_.push_back(state.loops[around].variable);
    }

    Expr first, behind;  ///< undefined without a limit

    void see(const Binary& comparison) {
        Affine slack = affine_of(comparison.b) - affine_of(comparison.a);  // >= 0 where it holds
        if (comparison.op == BinaryOp::Less) slack.offset -= 1;
        int64_t step = coefficient(slack, variable_).value_or(0);
        if (step == 0) return;
        erase_terms(slack, [&](const auto& term) { return term.first.same(variable_); });
        auto span = span_of(to_expr(slack), running(slack));
        if (!span || loads(span->lo)) return;
        Expr rest = for_all_ ? span->lo : simplify(span->lo + (span->extent - 1));
        if (step > 0) {
            Expr from = simplify((step - 1 - rest) / step);
            first = first.defined() ? larger(first, from) : from;
        } else {
            Expr to = simplify(rest / -step + 1);
            behind = behind.defined() ? smaller(behind, to) : to;
        }
    }

private:
    static bool loads(const Expr& expr) {
        bool found = false;
        visit(expr, [&](const Expr& e) { found = found || e.as<Load>(); });
        return found;
    }

    BoundsOverride running(const Affine& slack) const {
        BoundsOverride ranged;
        for (const auto& [atom, factor] : slack.terms)
            for (const Expr& variable : variables_of(atom)) {
                auto same = [&](const Expr& other) { return other.same(variable); };
                if (is_index(variable) && std::none_of(fixed_.begin(), fixed_.end(), same))
                    ranged[variable.id()] = bounds_of(variable);
            }
        return ranged;
    }

    Expr variable_;
    bool for_all_;
    std::vector<Expr> fixed_;
};

/// Of the loop as it would run without a delay, and from its first iteration on.
Limits limits_of(const State& scheduled, int loop, int stage, bool for_all, std::source_location where) {
    State state = scheduled;
    state.loops[loop].delay = {};
    state.loops[loop].reversed = false;
    Limits limits(state, loop, for_all);
    // What a stage masks, or leaves out of a sum of its own, its readers may replace, or another term; what a reduction
    // along the loop masks is no term of it.
    const bool terms = for_all || state.loops[loop].stage == stage || state.stages[stage].streams == loop;
    for (const Nest& nest : build_tree(state, where).nests)
        if (const For* found = find_loop(nest.body, loop))
            see_conditions(found->body, stage, terms, [&](const Binary& comparison) { limits.see(comparison); });
    return limits;
}

}  // namespace

Segments segments_of(const State& state, int loop, const Expr& extent, const std::vector<Expr>& around,
                     std::source_location where) {
    const LoopRecord& record = state.loops[loop];
    Segments segments{integer(0), extent, record.reversed};
    if (record.kept.first.defined())
        segments.from = larger(segments.from, position(state, loop, record.kept.first, around, where));
    if (record.kept.behind.defined())
        segments.end = smaller(segments.end, position(state, loop, record.kept.behind, around, where));
    if (record.skips()) segments.end = larger(segments.from, segments.end);
    for (const Expr& cut : record.cuts) {
        Expr at = position(state, loop, cut, around, where);
        segments.cuts.push_back(simplify(record.reversed ? segments.end - at : at - segments.from));
    }
    if (record.reversed) std::ranges::reverse(segments.cuts);
    return segments;
}

Expr Segments::extent() const { return simplify(end - from); }

Expr Segments::iteration(const Expr& number) const { return simplify(reversed ? end - 1 - number : from + number); }

Stmt in_iteration(const Stmt& stmt, const Expr& variable, const Expr& iteration) {
    return map_exprs(stmt, [&](const Expr& e) { return simplify(substitute(e, {{variable, iteration}})); });
}

Stmt with_own_registers(const Stmt& stmt) {
    if (const For* loop = stmt.as<For>()) {
        For copy = *loop;
        copy.body = with_own_registers(loop->body);
        return make_stmt(std::move(copy));
    }
    if (const Sequence* block = stmt.as<Sequence>()) {
        std::vector<Stmt> stmts;
        for (const Stmt& kid : block->stmts) stmts.push_back(with_own_registers(kid));
        return make_stmt(Sequence{std::move(stmts)});
    }
    const Allocate* allocate = stmt.as<Allocate>();
    if (!allocate) return stmt;
    Stmt body = with_own_registers(allocate->body);
    if (allocate->buffer->memory != Memory::Registers) return make_stmt(Allocate{allocate->buffer, std::move(body)});
    BufferRef own = std::make_shared<const BufferNode>(*allocate->buffer);
    return make_stmt(Allocate{own, in_buffers(body, {{allocate->buffer.get(), own}})});
}

Stmt part_of_loop(const For& whole, const Expr& extent, const std::function<Stmt(const Expr& number)>& body) {
    For part = whole;
    part.extent = extent;
    part.is_part = true;
    Variable variable{.name = whole.variable.as<Variable>()->name, .min = 0, .extent = extent};
    if (auto most = bounds_of(extent).max) variable.max = std::max<int64_t>(*most - 1, 0);
    part.variable = make_expr(Type::I64, variable);
    part.body = with_own_registers(body(part.variable));
    return make_stmt(std::move(part));
}

Tree cut_loops(const State& state, Tree tree, std::source_location where) {
    auto is_cut = [](const LoopRecord& loop) { return (!loop.is_whole() || loop.reversed) && loop.dead_step < 0; };
    if (std::none_of(state.loops.begin(), state.loops.end(), is_cut)) return tree;
    for (Nest& nest : tree.nests) nest.body = Cutter(state, where).cut(nest.body);
    return tree;
}

namespace {

/// A position that differs by at most one iteration is the later one, or the earlier one, of the two everywhere:
/// accesses behind a constant are known better.
Expr constant_nearby(const Expr& position, bool later) {
    const Interval bounds = bounds_of(position);
    if (!bounds.min || !bounds.max || *bounds.max - *bounds.min > 1) return position;
    return integer(later ? *bounds.max : *bounds.min);
}

}  // namespace

std::vector<Expr> where_conditions_hold(const State& state, int loop, int stage, std::source_location where) {
    const Limits limits = limits_of(state, loop, stage, true, where);
    std::vector<Expr> positions;
    const Expr& extent = state.loops[loop].extent;
    if (limits.first.defined() && prove(limits.first <= 0) != true)
        positions.push_back(constant_nearby(limits.first, true));
    if (limits.behind.defined() && prove(limits.behind >= extent) != true)
        positions.push_back(constant_nearby(limits.behind, false));
    return positions;
}

bool conditions_have_limits(const State& state, int loop, int stage, std::source_location where) {
    const Limits limits = limits_of(state, loop, stage, false, where);
    return limits.first.defined() || limits.behind.defined();
}

Kept where_conditions_hold_somewhere(const State& state, int loop, int stage, std::source_location where) {
    const Limits limits = limits_of(state, loop, stage, false, where);
    Kept kept;
    if (limits.first.defined() && prove(limits.first <= 0) != true) kept.first = limits.first;
    if (limits.behind.defined() && prove(limits.behind >= state.loops[loop].extent) != true)
        kept.behind = limits.behind;
    return kept;
}

namespace {

const char* operator_text(BinaryOp op) {
    switch (op) {
        case BinaryOp::Add: return "+";
        case BinaryOp::Sub: return "-";
        case BinaryOp::Mul: return "*";
        case BinaryOp::Div: return "/";
        case BinaryOp::Mod: return "%";
        case BinaryOp::Min: return "min";
        case BinaryOp::Max: return "max";
        default: return nullptr;
    }
}

}  // namespace

std::string saved_position(const State& state, const Expr& position) {
    if (auto known = as_constant(position)) return std::to_string(*known);
    if (const Variable* variable = position.as<Variable>()) {
        if (variable->kind == VariableKind::Size) return "n:" + saved_name(variable->name);
        int loop = loop_of(state, position);
        return loop < 0 ? "" : fmt::format("l{}", loop);
    }
    const Binary* node = position.as<Binary>();
    if (!node || !operator_text(node->op)) return "";
    std::string a = saved_position(state, node->a), b = saved_position(state, node->b);
    return a.empty() || b.empty() ? "" : fmt::format("{} {} {}", operator_text(node->op), a, b);
}

std::string position_as_cpp(Edit& edit, const Expr& position) {
    Substitution names;
    for (const Expr& variable : variables_of(position)) {
        int loop = loop_of(edit.state, variable);
        std::string name = loop < 0 ? edit.state.handle_names.size(to_string(variable))
                                    : fmt::format("s.index({})", edit.loop_as_cpp(loop));
        names.emplace_back(variable, index_variable(name));
    }
    return to_string(substitute(position, names));
}

}  // namespace tw
