#include "dsl/absorbed_terms.h"

#include <algorithm>

#include "dsl/signs.h"
#include "dsl/simplify.h"
#include "dsl/tensor.h"

namespace tw {

using State = Schedule::State;

Expr replaced(const Expr& root, const Expr& part, const Expr& by) {
    return transform(root, [&](const Expr& e) { return e.type() == part.type() && equal(e, part) ? by : Expr(); });
}

namespace {

/// Whether an iteration of the shared loop reads the same elements at the indices as at its terms' own places.
bool permutes_terms(const State& state, const Chain& chain, const StageDefinition& sum, const Substitution& order,
                    std::source_location where) {
    const auto is_own = [&](size_t r) { return order[r].second.same(sum.reduce_axes[r]); };
    bool own = true;
    for (size_t r = 0; r < order.size(); ++r) own = own && is_own(r);
    if (own || state.stages[chain.members[0]].streams < 0) return own;
    const Region box = shared_terms(state, chain.members[0], where);
    for (size_t r = 0; r < order.size(); ++r) {
        const int64_t last = require_constant(box.extent[r]) - 1;
        const Expr inside = index_variable("inside", 0, last);
        const Expr place = substitute(order[r].second, {{sum.reduce_axes[r], box.lo[r] + inside}});
        const auto bounds = bounds_of(simplify(place - box.lo[r]));
        if (!bounds.min || !bounds.max || *bounds.min < 0 || *bounds.max > last) return false;
    }
    return true;
}

/// At which indices, in the place of the axes, the sum reads what the term reads at them: its own, or others in which
/// it goes through the terms of an iteration.
std::vector<Substitution> orders_of_terms(const Expr& term, const StageDefinition& running, const StageDefinition& sum,
                                          const std::vector<Expr>& written) {
    std::vector<Substitution> orders(1);
    for (size_t r = 0; r < running.reduce_axes.size(); ++r)
        orders[0].emplace_back(running.reduce_axes[r], sum.reduce_axes[r]);
    auto add = [&](const Read& known, const Read& read) {
        Substitution order;
        for (const Expr& axis : running.reduce_axes)
            for (size_t d = 0; d < known.indices.size(); ++d)
                if (known.indices[d].same(axis)) order.emplace_back(axis, read.indices[d]);
        const auto is_order = [&](const Substitution& other) {
            return std::ranges::equal(order, other, [](const auto& a, const auto& b) {
                return a.first.same(b.first) && equal(a.second, b.second);
            });
        };
        if (order.size() == running.reduce_axes.size() && std::ranges::none_of(orders, is_order))
            orders.push_back(order);
    };
    visit(term, [&](const Expr& e) {
        const Read* known = e.as<Read>();
        for (const Expr& update : written)
            visit(update, [&](const Expr& other) {
                const Read* read = known ? other.as<Read>() : nullptr;
                if (read && read->operation == known->operation && read->output == known->output) add(*known, *read);
            });
    });
    return orders;
}

/// The term without a positive factor, of x * 1.4 x; undefined if it has none.
Expr without_factor(const Expr& term) {
    auto two = term.as<Binary>();
    if (!two || two->op != BinaryOp::Mul) return {};
    const auto is_positive = [](const Expr& e) { return e.as<FloatConstant>() && e.as<FloatConstant>()->value > 0; };
    return is_positive(two->b) ? two->a : is_positive(two->a) ? two->b : Expr();
}

}  // namespace

bool absorbs(const State& state, const Chain& chain, const Expr& term, const StageDefinition& running,
             const StageDefinition& sum, const std::vector<Expr>& written, const Expr& empty,
             std::source_location where) {
    if (!term.defined()) return false;
    std::vector<Expr> chosen;
    for (const Substitution& order : orders_of_terms(term, running, sum, written))
        if (permutes_terms(state, chain, sum, order, where)) chosen.push_back(simplify(substitute(term, order)));
    Substitution none;
    for (const Expr& accumulator : sum.accumulators) none.emplace_back(accumulator, constant(accumulator.type(), 0.0));
    for (;;) {
        const bool all = std::ranges::all_of(written, [&](const Expr& update) {
            Expr rest = simplify(update);
            for (const Expr& each : chosen) rest = replaced(rest, each, empty);
            return vanishes(simplify(substitute(rest, none)));
        });
        if (all) return true;
        for (Expr& each : chosen) each = without_factor(each);
        std::erase_if(chosen, [](const Expr& each) { return !each.defined(); });
        if (chosen.empty()) return false;
    }
}

}  // namespace tw
