// Followers inside of reduce loops: what an iteration makes for the terms that it reduces is kept, too, for others.
#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "dsl/cut.h"
#include "dsl/following.h"
#include "dsl/simplify.h"
#include "support/error.h"

namespace tw {
namespace {

using State = Schedule::State;

class Keeper {
public:
    Keeper(const State& state, int stage, std::source_location where)
        : state_(state),
          own_(state.stages[stage].definition),
          stage_(stage),
          loop_(state.stages[stage].attach),
          leader_(leader_of(state, stage)),
          updates_(makes_updates(state, stage)),
          where_(where) {}

    Region region() const {
        const int source = followed();
        check_terms(source);
        const Region made = read_in_iteration(state_, leader_, loop_, Memory::Registers, of_leader(source)[0], where_);
        const std::vector<Led> led = axes_of(source);
        Region result;
        for (const Expr& extent : own_.operation->shape) {  // of axes that the source has not, all
            result.lo.push_back(integer(0));
            result.extent.push_back(extent);
        }
        for (size_t d = 0; d < led.size(); ++d) {
            check_blocks(source, made, d, led[d].block);
            result.lo[led[d].axis] = simplify(made.lo[d] / led[d].block);
            result.extent[led[d].axis] = simplify(made.extent[d] / led[d].block);
        }
        return result;
    }

    /// Over the follower's axes: that something in the iteration of the reduce loop `around` fulfils the conditions of
    /// `stage`, with the index that the loop leads to, and any of the others that the iteration makes. Where the
    /// element fulfils them, so it does; and where it does, skip leaves the iteration in.
    std::vector<Expr> fulfilled_beside(int stage, int around) const {
        Substitution beside;
        BoundsOverride ranged;
        for (size_t d = 0; d < own_.axes.size(); ++d) {
            auto [lo, extent] = made_beside(d, around);
            if (!lo.defined()) continue;
            const int64_t last = std::min(extent, most_made(stage, own_.axes[d])) - 1;
            Expr further = index_variable("further", 0, last);
            ranged[further.id()] = {0, last};
            beside.emplace_back(own_.axes[d], lo + further);
        }
        const StageDefinition& conditional = state_.stages[stage].definition;
        std::vector<Expr> all;
        for (const Access& read : accesses(state_, own_, leader_, stage)) {
            Substitution element;
            for (size_t d = 0; d < read.size(); ++d) element.emplace_back(conditional.axes[d], read[d]);
            for (const Expr& slack : slacks_of_selects(conditional.finish)) {
                const Expr own = substitute(slack, element);
                auto span = span_of(simplify(substitute(own, beside)), ranged);
                all.push_back(simplify((span ? span->lo + (span->extent - 1) : own) >= 0));
            }
        }
        return all;
    }

private:
    const std::string& name(int stage) const { return state_.stages[stage].definition.name; }
    const LoopRecord& loop() const { return state_.loops[loop_]; }

    /// What the leader's terms read, with an element for each of the follower's.
    int followed() const {
        for (size_t s = 0; s < state_.stages.size(); ++s) {
            const int source = static_cast<int>(s);
            if (!state_.stages[s].inlined && source != leader_ && !axes_of(source).empty() &&
                !of_leader(source).empty())
                return source;
        }
        user_error(
            where_,
            "'{}' cannot stand inside the reduce loop '{}' of '{}', which is complete only after its reduce "
            "loops: it could keep what their terms read, element by element; place it under a data loop outside, "
            "or order the loops so",
            own_.name, loop().name, name(leader_));
    }

    std::vector<Access> of_leader(int source) const {
        return accesses(state_, state_.stages[leader_].definition, leader_, source);
    }

    /// The axis that counts the elements of a dimension through, or blocks of so many, of which it reduces all.
    struct Led {
        int axis;
        int64_t block;
    };

    /// The follower's axis for each dimension of the source; none if it is read elsewhere, or has others.
    std::vector<Led> axes_of(int source) const {
        std::vector<Access> found = accesses(state_, own_, stage_, source);
        if (found.empty() && updates_) found = accesses(state_, own_, leader_, source);  // by copies, say
        std::vector<Led> axes;
        if (found.empty()) return {};
        if (!updates_ && found[0].size() != own_.axes.size()) return {};
        if (!updates_) put_own_first(found);
        for (size_t d = 0; d < found[0].size(); ++d) {
            const Led led = led_along(found[0][d]);
            if (led.axis < 0 || std::ranges::find(axes, led.axis, &Led::axis) != axes.end()) return {};
            const bool are_alike =
                std::ranges::all_of(found, [&](const Access& access) { return equal(access[d], found[0][d]); });
            if (!are_alike && (updates_ || !makes_all(source, d))) return {};
            axes.push_back(led);
        }
        return axes;
    }
    /// What is made for it may read, along a dimension of which an iteration has all, more than its element, as
    /// reductions of rows do.
    void put_own_first(std::vector<Access>& found) const {
        const auto is_own = [&](const Access& access) {
            return std::ranges::all_of(access, [&](const Expr& index) { return led_along(index).axis >= 0; });
        };
        std::ranges::stable_partition(found, is_own);
    }
    bool makes_all(int source, size_t dimension) const {
        const std::vector<Access> read = of_leader(source);
        if (read.empty()) return false;
        const Region made = read_in_iteration(state_, leader_, loop_, Memory::Shared, {read[0][dimension]}, where_);
        const Expr& extent = state_.stages[source].definition.operation->shape[dimension];
        return is_constant(simplify(made.lo[0]), 0) && prove(made.extent[0] >= extent) == true;
    }

    /// Updates add what they are made of, wherever it is: of `axis * n + term`, n terms, a block.
    Led led_along(const Expr& index) const {
        for (size_t a = 0; a < own_.axes.size(); ++a)
            if (own_.axes[a].same(index)) return {static_cast<int>(a), 1};
        const Affine affine = affine_of(index);
        if (!updates_ || affine.offset != 0 || affine.terms.size() != 2) return {-1, 1};
        for (size_t a = 0; a < own_.axes.size(); ++a)
            for (const Expr& term : own_.reduce_axes) {
                const int64_t block = coefficient(affine, own_.axes[a]).value_or(0);
                if (block > 0 && coefficient(affine, term).value_or(0) == 1 &&
                    is_constant(term.as<Variable>()->extent, block))
                    return {static_cast<int>(a), block};
            }
        return {-1, 1};
    }

    /// What an iteration makes along the dimension are whole blocks.
    void check_blocks(int source, const Region& made, size_t dimension, int64_t block) const {
        const int64_t extent = as_constant(made.extent[dimension]).value_or(0);
        user_check(
            block == 1 || (extent > 0 && extent % block == 0 && divisor_of(made.lo[dimension]) % block == 0), where_,
            "'{}' cannot keep what '{}' makes for the terms of '{}': of dimension {} it reduces blocks of {}, but "
            "an iteration of '{}' makes {} elements; split what it is made of by a divisor of that",
            own_.name, name(source), name(leader_), dimension, block, loop().name, extent);
    }

    /// What all threads make in an iteration along one of the follower's axes: the first index, by the element's, and
    /// how many; undefined of what the reduce loop itself leads to.
    std::pair<Expr, int64_t> made_beside(size_t axis, int around) const {
        const int source = followed();
        const std::vector<Led> axes = axes_of(source);
        const size_t d = std::ranges::find(axes, static_cast<int>(axis), &Led::axis) - axes.begin();
        const Expr index = of_leader(source)[0][d];
        const std::vector<Counted> counted = axes_of_leader();
        const StageRecord& leader = state_.stages[leader_];
        for (size_t a = 0; a < counted.size(); ++a)
            if (contains(index, counted[a].axis) &&
                contains(loop_value(state_, leader.roots[a]), state_.loops[around].variable))
                return {};
        const Region made = read_in_iteration(state_, leader_, loop_, Memory::Shared, {index}, where_);
        Substitution loops;
        for (const auto& [id, value] : iterations_of_element()) loops.emplace_back(state_.loops[id].variable, value);
        return {simplify(substitute(made.lo[0], loops)), as_constant(made.extent[0]).value()};
    }

    /// Where `stage`, whose dimension the axis is, makes all of it at once, it makes no more than there is.
    int64_t most_made(int stage, const Expr& axis) const {
        const Region region = region_of(state_, stage, where_);
        const std::vector<Expr>& shape = state_.stages[stage].definition.operation->shape;
        int64_t most = std::numeric_limits<int64_t>::max();
        for (const Access& read : accesses(state_, own_, leader_, stage))
            for (size_t d = 0; d < read.size(); ++d)
                if (read[d].same(axis) && equal(region.extent[d], shape[d]))
                    most = std::min(most, as_constant(shape[d]).value_or(most));
        return most;
    }

    /// Of the leader's loops that its axes decide, those which make the follower's element.
    std::map<int, Expr> iterations_of_element() const {
        const StageRecord& leader = state_.stages[leader_];
        const int source = followed();
        const Access read = of_leader(source)[0];
        const std::vector<Led> axes = axes_of(source);
        std::vector<Counted> counted = axes_of_leader();
        std::map<int, Expr> value;
        for (size_t a = 0; a < counted.size(); ++a)
            if (is_constant(counted[a].extent, 1)) value[leader.roots[a]] = constant(Type::I64, int64_t{0});
        for (size_t d = 0; d < read.size(); ++d)
            for (const auto& [atom, factor] : affine_of(read[d]).terms)
                for (size_t a = 0; a < counted.size(); ++a)
                    if (counted[a].axis.same(atom))
                        value[leader.roots[a]] = simplify(own_.axes[axes[d].axis] / factor % counted[a].extent);
        add_parts_of_loops(state_, leader, value);
        return value;
    }

    /// An axis of the leader, and whether the terms' reads follow it.
    struct Counted {
        Expr axis, extent;
        bool used = false;
    };

    std::vector<Counted> axes_of_leader() const {
        const StageDefinition& made = state_.stages[leader_].definition;
        std::vector<Counted> axes;
        for (size_t d = 0; d < made.axes.size(); ++d) axes.push_back({made.axes[d], made.operation->shape[d]});
        for (const Expr& axis : made.reduce_axes) axes.push_back({axis, axis.as<Variable>()->extent});
        return axes;
    }

    /// The leader's terms read each element of the source once: its indices count them through.
    void check_terms(int source) const {
        const StageDefinition& read = state_.stages[source].definition;
        std::vector<Counted> axes = axes_of_leader();
        const std::vector<Access> found = of_leader(source);
        bool each_once = !updates_ || following_conditions(state_, leader_, where_).empty();
        for (size_t d = 0; d < found[0].size(); ++d) {
            for (const Access& access : found) each_once &= equal(access[d], found[0][d]);
            each_once &= counts_through(found[0][d], axes, read.operation->shape[d], !updates_);
        }
        // Of what its terms do not tell apart, an iteration must have all.
        const Region box = made_in_iteration(state_, leader_, loop_, where_);
        for (size_t a = 0; a < axes.size(); ++a) {
            const bool all = a < box.extent.size() && prove(box.extent[a] >= axes[a].extent) == true;
            each_once &= axes[a].used || all || is_constant(axes[a].extent, 1);
            each_once &= !updates_ || !is_made_again(axes[a], found[0]);
        }
        user_check(each_once, where_,
                   "'{}' cannot keep what '{}' makes for the terms of '{}': iterations of '{}' and of the loops around "
                   "would make elements several times, or not all of them; place it in a kernel of its own",
                   own_.name, read.name, name(leader_), loop().name);
    }

    /// Whether loops around have more iterations along the axis than those that tell elements apart: what is kept is
    /// kept again, but updates would be added again. An index of the axis alone leaves the tensor there.
    bool is_made_again(const Counted& axis, const Access& read) const {
        const StageRecord& leader = state_.stages[leader_];
        const std::vector<Counted> all = axes_of_leader();
        const size_t a =
            std::ranges::find_if(all, [&](const Counted& c) { return c.axis.same(axis.axis); }) - all.begin();
        const bool alone = std::ranges::any_of(read, [&](const Expr& index) { return index.same(axis.axis); });
        if (alone) return false;
        if (axis.used) return goes_beyond(leader, leader.roots[a]);
        const Expr value = loop_value(state_, leader.roots[a]);
        return std::ranges::any_of(loops_to(state_, leader_, loop_), [&](int loop) {
            return !is_constant(state_.loops[loop].extent, 1) && contains(value, state_.loops[loop].variable);
        });
    }

    /// Whether a loop that the root was made of has iterations that a mask leaves out.
    static bool goes_beyond(const StageRecord& leader, int root) {
        std::set<int> made{root};
        for (const Relation& relation : leader.relations) {
            const bool fuses = relation.kind == Relation::Kind::Fuse;
            if (fuses ? made.contains(relation.outer) || made.contains(relation.inner)
                      : made.contains(relation.whole)) {
                if (relation.kind == Relation::Kind::Split && relation.masked) return true;
                made.insert({relation.whole, relation.outer, relation.inner});
            }
        }
        return false;
    }

    /// Whether the index takes each value below `extent` once while its axes, not used before, run: i * n + j. It may
    /// go on behind where what is there is not made, as in the last of parts.
    bool counts_through(const Expr& index, std::vector<Counted>& axes, const Expr& extent, bool may_go_on) const {
        Affine affine = affine_of(index);
        if (affine.offset != 0) return false;
        std::ranges::sort(affine.terms, {}, [](const auto& term) { return term.second; });
        Expr counted = constant(Type::I64, int64_t{1});
        for (const auto& [atom, coefficient] : affine.terms) {
            auto axis = std::ranges::find_if(axes, [&](const Counted& a) { return a.axis.same(atom); });
            if (axis == axes.end() || axis->used || !is_constant(counted, coefficient)) return false;
            axis->used = true;
            counted = simplify(counted * axis->extent);
            // Behind its end stand the elements of the axis with the next larger factor.
            const bool is_last = atom.same(affine.terms.back().first);
            if (!is_last && goes_beyond(state_.stages[leader_], state_.stages[leader_].roots[axis - axes.begin()]))
                return false;
        }
        return equal(counted, simplify(extent)) || (may_go_on && prove(counted >= extent) == true);
    }

    const State& state_;
    const StageDefinition& own_;
    int stage_, loop_, leader_;
    bool updates_;
    std::source_location where_;
};

}  // namespace

int leader_of(const State& state, int stage) { return state.loops[state.stages[stage].attach].stage; }

bool stands_in(const State& state, int inner, int outer) {
    while (state.stages[inner].attach >= 0) {
        inner = leader_of(state, inner);
        if (inner == outer) return true;
    }
    return false;
}

bool makes_updates(const State& state, int stage) {
    if (target_of(state, stage) >= 0) return true;
    return std::ranges::any_of(state.stages, [&](const StageRecord& other) {
        return other.is_copy && other.definition.target && other.attach >= 0 &&
               state.loops[other.attach].stage == stage;
    });
}

void add_parts_of_loops(const State& state, const StageRecord& leader, std::map<int, Expr>& value) {
    for (const Relation& relation : leader.relations) {
        if (relation.kind == Relation::Kind::Split && value.count(relation.whole)) {
            value[relation.outer] = value[relation.whole] / relation.size;
            value[relation.inner] = value[relation.whole] % relation.size;
        }
        if (relation.kind == Relation::Kind::Mirror && value.count(relation.whole))
            value[relation.inner] = relation.size - 1 - value[relation.whole];
        if (relation.kind == Relation::Kind::Align && value.count(relation.whole))
            if (Expr shift = over_values(state, relation.size, leader.roots, value); shift.defined())
                value[relation.inner] = value[relation.whole] + shift;
        if (relation.kind == Relation::Kind::Fuse && value.count(relation.outer) && value.count(relation.inner))
            value[relation.whole] = value[relation.outer] * relation.size + value[relation.inner];
    }
}

bool follows_terms(const State& state, int stage) {
    const StageRecord& record = state.stages[stage];
    return record.attach >= 0 && record.after &&
           state.position(record.attach) >= state.around_results(leader_of(state, stage));
}

int follower_of_terms_around(const State& state, int stage) {
    for (; state.stages[stage].attach >= 0; stage = leader_of(state, stage))
        if (follows_terms(state, stage)) return stage;
    return -1;
}

std::vector<Expr> fulfilled_beside(const State& state, int follower, int stage, int loop, std::source_location where) {
    return Keeper(state, follower, where).fulfilled_beside(stage, loop);
}

Region region_beside_terms(const State& state, int stage, std::source_location where) {
    return Keeper(state, stage, where).region();
}

}  // namespace tw
