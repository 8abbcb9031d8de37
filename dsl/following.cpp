// Followers: stages that stand behind the body of a loop of another stage, their leader, and compute with each
// iteration what belongs to the elements that the leader has just made: consumers, sibling outputs, copies of a result.
#include <algorithm>
#include <map>

#include "dsl/schedule_state.h"
#include "dsl/simplify.h"
#include "support/error.h"

namespace tw {
namespace {

using State = Schedule::State;

int leader_of(const State& state, int stage) { return state.loops[state.stages[stage].attach].stage; }

/// Whether `inner` stands somewhere under a loop of `outer`.
bool stands_in(const State& state, int inner, int outer) {
    while (state.stages[inner].attach >= 0) {
        inner = leader_of(state, inner);
        if (inner == outer) return true;
    }
    return false;
}

using Access = std::vector<Expr>;  // an index a dimension

/// Indices at which `definition`, together with the stages that stand in `around`, reads the target.
std::vector<Access> accesses(const State& state, const StageDefinition& definition, int around, int target) {
    std::vector<Access> found;
    for (const ReadSite& site : reads_of(definition)) {
        int producer = state.stage_of(site.read->operation.get());
        if (producer == target) found.push_back(site.read->indices);
        if (producer < 0 || producer == target || !stands_in(state, producer, around)) continue;
        const StageDefinition& through = state.stages[producer].definition;
        Substitution axes;
        for (size_t d = 0; d < through.axes.size(); ++d) axes.emplace_back(through.axes[d], site.read->indices[d]);
        for (Access access : accesses(state, through, around, target)) {
            for (Expr& index : access) index = simplify(substitute(index, axes));
            found.push_back(std::move(access));
        }
    }
    return found;
}

/// Loops of the stage from the outermost to `loop`, inclusive.
std::vector<int> loops_to(const State& state, int stage, int loop) {
    const auto& order = state.stages[stage].order;
    return {order.begin(), order.begin() + state.position(loop) + 1};
}

bool drives(const State& state, int loop, int root) {
    return contains(loop_value(state, root), state.loops[loop].variable);
}

/// One follower and its leader: which axis of the follower goes along which dimension of the leader.
class Pair {
public:
    Pair(const State& state, int follower, std::source_location where)
        : state_(state), stage_(follower), leader_(leader_of(state, follower)), where_(where) {
        axis_.assign(made().axes.size(), -1);
        needs_all_.assign(made().axes.size(), false);
        bool reads = follow(leader_);
        for (size_t s = 0; s < state.stages.size(); ++s)
            if (is_sibling(static_cast<int>(s)) || stands_in(state, leader_, static_cast<int>(s)))
                reads |= follow(static_cast<int>(s));
        if (!reads) follow_as_sibling();
        check_loops(stage_, axis_, reads);
    }

    /// What the leader has made in one iteration, along the dimensions that the follower goes along; all of the others.
    Region region() const {
        Region result;
        for (const Expr& extent : own().operation->shape) {
            result.lo.push_back(constant(Type::I64, int64_t{0}));
            result.extent.push_back(extent);
        }
        Region box = made_in_iteration(state_, leader_, record().attach, where_);
        for (size_t d = 0; d < axis_.size(); ++d) {
            if (axis_[d] < 0) continue;
            result.lo[axis_[d]] = box.lo[d];
            result.extent[axis_[d]] = box.extent[d];
        }
        return result;
    }

    /// Whether this very iteration makes the leader's element, of which only some indices may be given: each loop
    /// around has the value that leads to the element.
    std::vector<Expr> conditions(const Access& element) const {
        Region region = region_of(state_, leader_, where_);
        const StageRecord& leader = state_.stages[leader_];
        std::map<int, Expr> value;  // of each loop, from the element
        std::vector<Expr> all;
        for (size_t d = 0; d < axis_.size(); ++d) {
            bool single = axis_[d] < 0 && is_constant(made().operation->shape[d], 1);
            if (!single && (axis_[d] < 0 || !element[d].defined())) continue;
            Expr root = single ? constant(Type::I64, int64_t{0}) : element[d] - region.lo[d];
            value[leader.roots[d]] = root;
            all.push_back(root >= 0);
            all.push_back(root < region.extent[d]);
        }
        for (const Relation& relation : leader.relations) {
            if (relation.kind == Relation::Kind::Split && value.count(relation.whole)) {
                value[relation.outer] = value[relation.whole] / relation.size;
                value[relation.inner] = value[relation.whole] % relation.size;
            }
            if (relation.kind == Relation::Kind::Fuse && value.count(relation.outer) && value.count(relation.inner))
                value[relation.whole] = value[relation.outer] * relation.size + value[relation.inner];
        }
        for (int loop : loops_to(state_, leader_, record().attach))
            if (value.count(loop)) all.push_back(value[loop] == state_.loops[loop].variable);
        if (leader.attach < 0 || !leader.after) return all;
        Pair above(state_, leader_, where_);
        for (const Expr& condition : above.conditions(above.leader_element(element))) all.push_back(condition);
        return all;
    }

    /// The leader's element that belongs to an element of the follower, as far as it is known.
    Access leader_element(const Access& element) const {
        Access result(axis_.size());
        for (size_t d = 0; d < axis_.size(); ++d)
            if (axis_[d] >= 0) result[d] = element[axis_[d]];
        return result;
    }

    /// The leader's elements that must have been made where the stage `inside`, which stands in the follower, computes.
    std::vector<Access> elements_read_by(const StageDefinition& inside) const {
        std::vector<Access> elements;
        for (size_t s = 0; s < state_.stages.size(); ++s) {
            int source = static_cast<int>(s);
            if (source != leader_ && !is_sibling(source) && !stands_in(state_, leader_, source)) continue;
            auto found = accesses(state_, inside, stage_, source);
            if (found.empty()) continue;
            std::vector<int> dimensions = leader_dimensions(source);
            for (const Access& access : found) {
                Access element(axis_.size());
                for (size_t d = 0; d < access.size(); ++d)
                    if (dimensions[d] >= 0) element[dimensions[d]] = access[d];
                elements.push_back(std::move(element));
            }
        }
        return elements;
    }

private:
    const StageRecord& record() const { return state_.stages[stage_]; }
    const StageDefinition& own() const { return record().definition; }
    const StageDefinition& made() const { return state_.stages[leader_].definition; }

    /// Whether the stage follows, directly or through others, what this one follows.
    bool is_sibling(int stage) const {
        return stage != stage_ && !state_.stages[stage].inlined && !stands_in(state_, stage, stage_) && follows(stage);
    }
    bool follows(int stage) const {
        const StageRecord& other = state_.stages[stage];
        if (other.attach < 0 || !other.after) return false;
        return leader_of(state_, stage) == leader_ || follows(leader_of(state_, stage));
    }

    /// For each dimension of `stage` the leader's dimension that it goes along, or -1. The stage is the leader, another
    /// of its followers, or one that the leader follows.
    std::vector<int> leader_dimensions(int stage) const {
        std::vector<int> result(state_.stages[stage].definition.axes.size(), -1);
        if (stage == leader_) {
            for (size_t d = 0; d < result.size(); ++d) result[d] = static_cast<int>(d);
            return result;
        }
        if (stands_in(state_, leader_, stage)) {
            int below = leader_;
            while (leader_of(state_, below) != stage) below = leader_of(state_, below);
            std::vector<int> dimensions = leader_dimensions(below);
            Pair pair(state_, below, where_);
            for (size_t d = 0; d < result.size(); ++d)
                if (pair.axis_[d] >= 0) result[d] = dimensions[pair.axis_[d]];
            return result;
        }
        std::vector<int> above = leader_dimensions(leader_of(state_, stage));
        Pair other(state_, stage, where_);
        for (size_t d = 0; d < above.size(); ++d)
            if (other.axis_[d] >= 0) result[other.axis_[d]] = above[d];
        return result;
    }

    bool follow(int source) {
        auto found = accesses(state_, own(), stage_, source);
        if (found.empty()) return false;
        std::vector<int> dimensions = leader_dimensions(source);
        for (const Access& access : found)
            for (size_t d = 0; d < access.size(); ++d)
                if (dimensions[d] >= 0) connect(dimensions[d], access[d]);
        return true;
    }

    void connect(int dimension, const Expr& index) {
        auto axis = std::find_if(own().axes.begin(), own().axes.end(), [&](const Expr& a) { return a.same(index); });
        int found = axis == own().axes.end() ? -1 : static_cast<int>(axis - own().axes.begin());
        if (found >= 0 && (axis_[dimension] < 0 || axis_[dimension] == found) && !needs_all_[dimension] &&
            fits(dimension, found)) {
            axis_[dimension] = found;
            return;
        }
        needs_all_[dimension] = true;  // read elsewhere too: all of the dimension must be there
        axis_[dimension] = -1;
    }

    /// The axis does not leave the dimension, and goes along no other.
    bool fits(int dimension, int axis) const {
        for (size_t d = 0; d < axis_.size(); ++d)
            if (static_cast<int>(d) != dimension && axis_[d] == axis) return false;
        return prove(own().operation->shape[axis] <= made().operation->shape[dimension]) == true;
    }

    void follow_as_sibling() {
        for (size_t d = 0; d < axis_.size() && d < own().axes.size(); ++d)
            if (equal(own().operation->shape[d], made().operation->shape[d])) axis_[d] = static_cast<int>(d);
    }

    /// Every loop around, of the leader and of those that it follows, must lead to elements of the follower. `axis`
    /// tells for each dimension of `below`'s leader the axis.
    void check_loops(int below, const std::vector<int>& axis, bool reads) const {
        int leader = leader_of(state_, below);
        const StageRecord& made = state_.stages[leader];
        for (int loop : loops_to(state_, leader, state_.stages[below].attach))
            for (size_t d = 0; d < axis.size(); ++d)
                if (axis[d] < 0 && drives(state_, loop, made.roots[d]) && !is_constant(state_.loops[loop].extent, 1) &&
                    !is_constant(made.definition.operation->shape[d], 1))
                    refuse(made.definition.name, state_.loops[loop].name, d, reads);
        if (made.attach < 0 || !made.after) return;
        Pair above(state_, leader, where_);
        std::vector<int> axis_above(above.axis_.size(), -1);
        for (size_t d = 0; d < axis_above.size(); ++d)
            if (above.axis_[d] >= 0) axis_above[d] = axis[above.axis_[d]];
        check_loops(leader, axis_above, reads);
    }

    void refuse(const std::string& made, const std::string& loop, size_t dimension, bool reads) const {
        user_check(!reads, where_,
                   "'{}' cannot follow '{}' here: it reads more of dimension {} of '{}' than its own element, but one "
                   "iteration "
                   "makes only a part of it; place it under a loop outside of '{}'",
                   own().name, made, dimension, made, loop);
        user_error(where_,
                   "'{}' cannot follow '{}' here: each iteration of '{}' would compute it again; place it under a loop "
                   "outside "
                   "of '{}'",
                   own().name, made, loop, loop);
    }

    const State& state_;
    int stage_, leader_;
    std::source_location where_;
    std::vector<int> axis_;        // for each dimension of the leader the follower's axis, or -1
    std::vector<bool> needs_all_;  // dimensions of which the follower needs more than the axis tells
};

}  // namespace

Region following_region(const State& state, int stage, std::source_location where) {
    return Pair(state, stage, where).region();
}

std::vector<Expr> following_conditions(const State& state, int stage, std::source_location where) {
    std::vector<Expr> all;
    const StageDefinition& own = state.stages[stage].definition;
    if (state.stages[stage].attach >= 0 && state.stages[stage].after) {
        Pair pair(state, stage, where);
        all = pair.conditions(pair.leader_element(own.axes));
    }
    // A producer inside of followers: fills no element from what the followers' leaders have not made.
    for (int around = stage; state.stages[around].attach >= 0; around = leader_of(state, around)) {
        if (around == stage || !state.stages[around].after) continue;
        Pair pair(state, around, where);
        for (const Access& element : pair.elements_read_by(own))
            for (const Expr& condition : pair.conditions(element)) all.push_back(condition);
    }
    return all;
}

}  // namespace tw
