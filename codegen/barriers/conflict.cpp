#include "codegen/barriers/conflict.h"

#include <algorithm>

#include "codegen/barriers/conflict_question.h"

namespace tw::codegen {
namespace {

constexpr int64_t lanes_of_warp = 32;

Interval iterations(const ThreadLoop& loop) {
    Interval interval{0, {}};
    if (auto extent = bounds_of(loop.extent).max) interval.max = std::max<int64_t>(*extent - 1, 0);
    return interval;
}

/// The parts of a conjunction that do not depend on data; `all` says whether these are all.
std::vector<Expr> decidable_parts(const Expr& condition, bool& all) {
    auto binary = condition.as<Binary>();
    if (binary && binary->op == BinaryOp::And) {
        std::vector<Expr> parts = decidable_parts(binary->a, all), others = decidable_parts(binary->b, all);
        parts.insert(parts.end(), others.begin(), others.end());
        return parts;
    }
    if (!reads_memory(condition)) return {condition};
    all = false;
    return {};
}

/// Writes the question down.
class Questioner {
public:
    Questioner(const PlacedAccess& a, const PlacedAccess& b, size_t common, Distance distance,
               const ThreadKernel& kernel)
        : kernel_(kernel) {
        q_.threads = kernel.threads;
        q_.known = KnownBounds(kernel).map();
        for (size_t level = 0; level < common; ++level) {
            q_.known[a.loops[level].variable.id()] = iterations(a.loops[level]);
            for (const Expr& ticket : {a.tickets[level], b.tickets[level]})
                if (ticket.defined()) q_.known[ticket.id()] = iterations(a.loops[level]);
        }
        step_ = distance == Distance::SameIteration ? nullptr : &a.loops[common - 1];
        if (step_) shorten(*step_, distance);
        q_.a = side(a, common, false);
        q_.b = side(b, common, true);
    }

    Conflict answer() {
        if (same_thread_by_conditions(q_)) return Conflict::Never;  // whatever the indices are
        if (data_dependent()) return Conflict::Possible;
        join_digits(q_);
        if (is_same_thread()) return Conflict::Never;
        const Side a = q_.a, b = q_.b;
        if (separate_dimensions(q_) && is_same_thread()) return Conflict::Never;
        q_.a = a, q_.b = b;
        return conflict_by_enumeration(q_);
    }

private:
    bool is_same_thread() {
        if (apart_by_bounds()) return true;
        cancel_shared_terms();
        return same_thread_by_coordinates(q_);
    }

    /// The carrying loop's variable is the earlier iteration; `later_` is how many the other comes after it.
    void shorten(const ThreadLoop& loop, Distance distance) {
        bool next = distance == Distance::NextIteration;
        Interval all = iterations(loop), later{next ? 1 : 2, next ? std::optional<int64_t>(1) : all.max};
        if (all.max) all.max = *all.max - *later.min;
        q_.known[loop.variable.id()] = all;
        later_ = next ? constant(Type::I64, int64_t{1}) : index_variable("later", later.min, later.max);
        q_.known[later_.id()] = later;
        later_ticket_ = index_variable("later_ticket", later.min, iterations(loop).max);
        q_.known[later_ticket_.id()] = {later.min, iterations(loop).max};
    }

    Side side(const PlacedAccess& placed, size_t common, bool is_later) {
        Side result{{}, {}, placed.access.width, index_variable("thread", 0, kernel_.threads - 1), {}};
        Substitution rename;
        own(result, result.thread, {0, kernel_.threads - 1});
        Expr at_place = result.thread;  // whose place it is
        if (placed.access.by_warp) {
            const Expr lane = index_variable("lane", 0, lanes_of_warp - 1);
            own(result, lane, {0, lanes_of_warp - 1});
            at_place = result.thread / lanes_of_warp * lanes_of_warp + lane;
        }
        if (kernel_.thread.defined()) rename.push_back({kernel_.thread, at_place});
        if (is_later && step_) rename.push_back({step_->variable, step_->variable + later_});
        if (is_later && step_ && placed.tickets[common - 1].defined())
            rename.push_back({placed.tickets[common - 1], placed.tickets[common - 1] + later_ticket_});
        for (size_t level = common; level < placed.loops.size(); ++level) {
            const ThreadLoop& loop = placed.loops[level];
            Interval bounds = iterations(loop);
            Expr fresh = index_variable(loop.variable.as<Variable>()->name, bounds.min, bounds.max);
            rename.push_back({loop.variable, fresh});
            own(result, fresh, bounds);
            if (!placed.tickets[level].defined()) continue;
            Expr ticket = index_variable("ticket", bounds.min, bounds.max);
            rename.push_back({placed.tickets[level], ticket});
            own(result, ticket, bounds);
        }
        for (const Expr& index : placed.access.place.indices)
            result.indices.push_back(affine_of(simplify(substitute(index, rename))));
        for (const Expr& condition : placed.conditions)
            for (const Expr& part : decidable_parts(condition, q_.all_conditions))
                result.conditions.push_back(simplify(substitute(part, rename)));
        if (is_later && step_) add_last_iteration(result);
        return result;
    }

    /// The later iteration is one of the loop, too.
    void add_last_iteration(Side& side) const {
        const auto last = iterations(*step_).max;
        const auto has_loop = [&](const Affine& index) { return contains(to_expr(index), step_->variable); };
        if (last && std::ranges::any_of(side.indices, has_loop))
            side.conditions.push_back(simplify(step_->variable + later_ < *last + 1));
    }

    void own(Side& side, const Expr& variable, Interval bounds) {
        side.own.push_back({variable, bounds});
        q_.known[variable.id()] = bounds;
    }

    bool data_dependent() const {
        auto reads = [](const Affine& index) { return reads_memory(to_expr(index)); };
        return std::any_of(q_.a.indices.begin(), q_.a.indices.end(), reads) ||
               std::any_of(q_.b.indices.begin(), q_.b.indices.end(), reads);
    }

    bool apart_by_bounds() const {
        for (size_t d = 0; d < q_.a.indices.size(); ++d) {
            Interval distance = bounds_of(simplify(to_expr(q_.a.indices[d] - q_.b.indices[d])), q_.known);
            if (distance.min && *distance.min >= q_.b.width_in(d)) return true;
            if (distance.max && -*distance.max >= q_.a.width_in(d)) return true;
        }
        return false;
    }

    /// Equal terms that are the same on both sides say nothing about whether the indices are equal.
    void cancel_shared_terms() {
        auto is_own = [&](const Expr& v) { return among(q_.a.own, v) || among(q_.b.own, v); };
        for (size_t d = 0; d < q_.a.indices.size(); ++d) {
            auto& terms_a = q_.a.indices[d].terms;
            auto& terms_b = q_.b.indices[d].terms;
            for (size_t t = terms_a.size(); t-- > 0;) {
                auto [atom, factor] = terms_a[t];
                auto variables = variables_of(atom);
                if (std::any_of(variables.begin(), variables.end(), is_own)) continue;
                auto twin =
                    std::find_if(terms_b.begin(), terms_b.end(), [&, atom = atom, factor = factor](const auto& term) {
                        return term.second == factor && equal(term.first, atom);
                    });
                if (twin == terms_b.end()) continue;
                terms_b.erase(twin);
                terms_a.erase(terms_a.begin() + static_cast<std::ptrdiff_t>(t));
            }
        }
    }

    const ThreadKernel& kernel_;
    ConflictQuestion q_;
    const ThreadLoop* step_ = nullptr;  // the carrying loop
    Expr later_;                        // how many iterations lie between,
    Expr later_ticket_;                 // and by how much its ticket grows in them
};

}  // namespace

bool among(const std::vector<Ranged>& list, const Expr& variable) {
    return std::any_of(list.begin(), list.end(), [&](const Ranged& r) { return r.variable.same(variable); });
}

bool only_over(const Expr& expr, const std::vector<Ranged>& list) {
    auto variables = variables_of(expr);
    return std::all_of(variables.begin(), variables.end(), [&](const Expr& v) { return among(list, v); });
}

std::optional<int64_t> count(const Interval& bounds) {
    if (!bounds.min || !bounds.max) return {};
    return std::max<int64_t>(*bounds.max - *bounds.min + 1, 0);
}

Conflict conflict_of(const PlacedAccess& earlier, const PlacedAccess& later, size_t common, Distance distance,
                     const ThreadKernel& kernel) {
    const MemoryAccess &a = earlier.access, &b = later.access;
    if (!(a.writes || b.writes) || kernel.threads == 1) return Conflict::Never;
    if (array_of(a.place.buffer, kernel) != array_of(b.place.buffer, kernel))
        return take_turns(a.place.buffer.get(), b.place.buffer.get(), kernel.unions) ? Conflict::Possible
                                                                                     : Conflict::Never;
    if (a.begins || b.begins) return Conflict::Never;
    return Questioner(earlier, later, common, distance, kernel).answer();
}

}  // namespace tw::codegen
