// Followers: stages that stand behind the body of a loop of another stage, their leader, and compute with each
// iteration what belongs to the elements that the leader has just made: consumers, sibling outputs, copies of a result.
#include <algorithm>
#include <map>

#include "dsl/following.h"
#include "dsl/simplify.h"
#include "support/error.h"

namespace tw {
using State = Schedule::State;

namespace {

bool drives(const State& state, int loop, int root) {
    return contains(loop_value(state, root), state.loops[loop].variable);
}

/// One follower and its leader: which axis of the follower goes along which dimension of the leader. An element of the
/// follower goes with a block of `step` indices of the dimension where its reads stay in such blocks: sums of rows
/// q * 128 + t go with 128 rows each. One iteration of the leader makes whole blocks then. What the leader and the
/// follower both read may be made along an index of the leader that is none of its dimensions: it counts as one more,
/// behind them.
class Pair {
public:
    Pair(const State& state, int follower, std::source_location where)
        : state_(state), stage_(follower), leader_(leader_of(state, follower)), where_(where) {
        blocks_ = blocks_made(state, leader_, record().attach, where);
        forget();
        bool reads = follow(leader_);
        for (int source = 0; source < static_cast<int>(state.stages.size()); ++source)
            if (is_sibling(source) || stands_in(state, leader_, source)) reads |= follow(source);
        if (!reads && !follow_by_common_reads(is_made_for)) {
            follow_as_sibling();
            if (!leads_everywhere() && !follow_by_common_reads(is_read_by)) follow_as_sibling();
        }
        if (record().streams >= 0) follow_where_open();
        need_all_of_shared_blocks();
        check_loops(*this, axis_, reads);
    }

    /// What the leader has made in one iteration, along the dimensions that the follower goes along; all of the others.
    Region region() const {
        Region result;
        for (const Expr& extent : own().operation->shape) {
            result.lo.push_back(constant(Type::I64, int64_t{0}));
            result.extent.push_back(extent);
        }
        Region box = made_in_iteration(state_, leader_, record().attach, where_);
        for (const Blocks& blocks : blocks_) {
            box.lo.push_back(blocks.first);
            box.extent.push_back(constant(Type::I64, blocks.size));
        }
        for (size_t d = 0; d < axis_.size(); ++d) {
            if (axis_[d] < 0) continue;
            result.lo[axis_[d]] = simplify(box.lo[d] / step_[d]);
            result.extent[axis_[d]] = simplify((box.extent[d] + (step_[d] - 1)) / step_[d]);
        }
        return result;
    }

    /// Whether this very iteration makes the leader's element, of which only some indices may be given: each loop
    /// around has the value that leads to the element.
    std::vector<Expr> conditions(const Access& element) const {
        const Region region = region_of(state_, leader_, where_);
        const StageRecord& leader = state_.stages[leader_];
        std::map<int, Expr> value;  // of each loop, from the element
        std::vector<Expr> all;
        for (size_t b = 0; b < blocks_.size(); ++b)
            if (const Expr& index = element[rank() + b]; index.defined()) {
                all.push_back(index >= blocks_[b].first);
                all.push_back(index < blocks_[b].first + blocks_[b].size);
            }
        for (size_t d = 0; d < rank(); ++d) {
            bool known = axis_[d] >= 0 && element[d].defined();
            bool single = !known && is_constant(made().operation->shape[d], 1) && !is_led_by_blocks(d, element);
            if (is_constant(made().operation->shape[d], 0)) continue;  // nothing is read there, nothing has to be made
            if (!single && !known) continue;
            Expr root = single ? constant(Type::I64, int64_t{0}) : element[d] - region.lo[d];
            value[leader.roots[d]] = root;
            all.push_back(root >= 0);
            all.push_back(root < region.extent[d]);
        }
        add_parts_of_loops(state_, leader, value);
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
            if (axis_[d] >= 0 && element[axis_[d]].defined()) result[d] = simplify(element[axis_[d]] * step_[d]);
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
            std::vector<Along> dimensions = leader_dimensions(source);
            for (const Access& access : found) {
                Access element(axis_.size());
                for (size_t d = 0; d < access.size(); ++d)
                    if (int dimension = dimensions[d].dimension; dimension >= 0)
                        element[dimension] = dimensions[d].first(access[d]);
                elements.push_back(std::move(element));
            }
        }
        return elements;
    }

private:
    const StageRecord& record() const { return state_.stages[stage_]; }
    const StageDefinition& own() const { return record().definition; }
    const StageDefinition& made() const { return state_.stages[leader_].definition; }
    size_t rank() const { return made().axes.size(); }

    void forget() {
        axis_.assign(rank() + blocks_.size(), -1);
        step_.assign(axis_.size(), 1);
        needs_all_.assign(axis_.size(), false);
        read_.clear();
        needs_more_.resize(axis_.size());
    }

    /// The dimension of the leader that the index is, or that counts behind these; -1 without.
    int number_of(const Expr& index) const {
        const auto& axes = made().axes;
        const auto axis = std::ranges::find_if(axes, [&](const Expr& a) { return a.same(index); });
        if (axis != axes.end()) return static_cast<int>(axis - axes.begin());
        const auto found = std::ranges::find_if(blocks_, [&](const Blocks& b) { return equal(b.index, index); });
        return found == blocks_.end() ? -1 : static_cast<int>(rank() + static_cast<size_t>(found - blocks_.begin()));
    }

    /// Where the leader reads at the index: a dimension of its own, or blocks of one, as j / 128.
    Along along_index(const Expr& index) const {
        const Binary* quotient = index.as<Binary>();
        const auto size = quotient && quotient->op == BinaryOp::Div ? as_constant(quotient->b) : std::nullopt;
        if (!size || *size < 1) return {.dimension = number_of(index)};
        const int dimension = number_of(quotient->a);
        if (dimension < 0 || static_cast<size_t>(dimension) >= rank()) return {.dimension = number_of(index)};
        return {.dimension = dimension, .times = *size};
    }

    bool leads(int loop, size_t d) const {
        if (is_constant(state_.loops[loop].extent, 1)) return false;
        if (d < rank()) return drives(state_, loop, state_.stages[leader_].roots[d]);
        const std::vector<int>& loops = blocks_[d - rank()].loops;
        return std::ranges::find(loops, loop) != loops.end();
    }
    /// Whether the loop leads to a block of an index that the follower goes along.
    bool leads_to_blocks(int loop) const {
        for (size_t d = rank(); d < axis_.size(); ++d)
            if (axis_[d] >= 0 && leads(loop, d)) return true;
        return false;
    }
    /// Whether loops that lead along the dimension count blocks of which the element has one.
    bool is_led_by_blocks(size_t d, const Access& element) const {
        for (size_t b = rank(); b < element.size(); ++b)
            if (element[b].defined() && share_loops(d, b)) return true;
        return false;
    }
    bool stands_under_any(const std::vector<int>& loops) const {
        return std::ranges::any_of(loops_to(state_, leader_, record().attach),
                                   [&](int loop) { return std::ranges::find(loops, loop) != loops.end(); });
    }
    /// Whether one loop leads along both, of which one at least is no dimension of the leader.
    bool share_loops(size_t a, size_t b) const {
        if (std::max(a, b) < rank()) return false;
        return std::ranges::any_of(loops_to(state_, leader_, record().attach),
                                   [&](int loop) { return leads(loop, a) && leads(loop, b); });
    }

    /// Whether the stage follows, directly or through others, what this one follows.
    bool is_sibling(int stage) const {
        return stage != stage_ && !state_.stages[stage].inlined && !stands_in(state_, stage, stage_) && follows(stage);
    }
    bool follows(int stage) const {
        const StageRecord& other = state_.stages[stage];
        if (other.attach < 0 || !other.after || follows_terms(state_, stage)) return false;
        return leader_of(state_, stage) == leader_ || follows(leader_of(state_, stage));
    }

    /// How each dimension of `stage` goes along the leader's. The stage is the leader, another of its followers, one
    /// that the leader follows, or one made for it.
    std::vector<Along> leader_dimensions(int stage) const {
        std::vector<Along> result(state_.stages[stage].definition.axes.size());
        if (stage == leader_) {
            for (size_t d = 0; d < result.size(); ++d) result[d].dimension = static_cast<int>(d);
            return result;
        }
        if (stands_in(state_, leader_, stage)) {
            int below = leader_;
            while (leader_of(state_, below) != stage) below = leader_of(state_, below);
            std::vector<Along> dimensions = leader_dimensions(below);
            Pair pair(state_, below, where_);
            for (size_t d = 0; d < result.size(); ++d)
                if (pair.axis_[d] >= 0) {
                    result[d] = dimensions[pair.axis_[d]];
                    result[d].over *= pair.step_[d];
                }
            return result;
        }
        if (is_read_by(state_, leader_, stage)) {
            const Access indices = indices_read(state_, leader_, stage);
            for (size_t d = 0; d < result.size(); ++d)
                if (indices[d].defined()) result[d] = along_index(indices[d]);
            return result;
        }
        std::vector<Along> above = leader_dimensions(leader_of(state_, stage));
        Pair other(state_, stage, where_);
        for (const Blocks& blocks : other.blocks_) {
            const int number = number_of(blocks.index);
            above.push_back({.dimension = number, .is_apart = number < 0 && stands_under_any(blocks.loops)});
        }
        for (size_t d = 0; d < above.size(); ++d)
            if (other.axis_[d] >= 0) {
                result[other.axis_[d]] = above[d];
                result[other.axis_[d]].times *= other.step_[d];
            }
        return result;
    }

    bool follow(int source) {
        auto found = accesses(state_, own(), stage_, source);
        if (found.empty()) return false;
        std::vector<Along> dimensions = leader_dimensions(source);
        for (const Access& access : found)
            for (size_t d = 0; d < access.size(); ++d)
                if (dimensions[d].dimension >= 0) connect(dimensions[d], access[d]);
        const StageRecord& read = state_.stages[source];
        for (const Along& along : dimensions)
            user_check(!along.is_apart &&
                           (along.dimension < static_cast<int>(rank()) || !needs_all_[along.dimension] || !read.after),
                       where_,
                       "'{}' cannot follow '{}' here: it reads more of '{}' than one iteration of '{}' makes; place it "
                       "under a loop outside of it",
                       own().name, made().name, read.definition.name, state_.loops[record().attach].name);
        return true;
    }

    void connect(const Along& along, const Expr& index) {
        int d = along.dimension;
        if (static_cast<size_t>(d) < rank() && along.times == 1) read_.emplace_back(d, along.first(index));
        auto [axis, step] = along.times == 1 && along.over == 1 ? own_axis(index) : std::pair(-1, int64_t{1});
        if (axis < 0) std::tie(axis, step) = axis_of_block(along, index);
        bool as_before = axis_[d] < 0 || (axis_[d] == axis && step_[d] == step);
        if (axis >= 0 && as_before && !needs_all_[d] && fits(d, axis, step)) {
            axis_[d] = axis;
            step_[d] = step;
            return;
        }
        needs_all_[d] = true;  // read elsewhere too: all of the dimension must be there
        axis_[d] = -1;
    }

    /// Where an iteration makes only some elements of its box, as every other one of several rows, a block is made by
    /// several, though the box has it: all of the dimension is needed then. Each read of a block has to lead to the
    /// same iteration as its first element.
    void need_all_of_shared_blocks() {
        const Access first = leader_element(own().axes);
        for (const auto& [d, index] : read_) {
            if (axis_[d] < 0 || step_[d] == 1) continue;
            Access element = first;
            element[d] = index;
            if (in_same_iteration(state_, leader_, record().attach, first, element, where_)) continue;
            needs_all_[d] = true;
            axis_[d] = -1;
        }
    }

    /// The axis that the index is, and its step; or -1.
    std::pair<int, int64_t> own_axis(const Expr& index) const {
        for (size_t a = 0; a < own().axes.size(); ++a)
            if (own().axes[a].same(index)) return {static_cast<int>(a), 1};
        return {-1, 1};
    }

    /// How many indices of the dimension an iteration makes, where these are whole blocks of so many; 0 otherwise.
    int64_t block_of(int dimension) const {
        if (static_cast<size_t>(dimension) >= rank()) return blocks_[static_cast<size_t>(dimension) - rank()].size;
        Region box = made_in_iteration(state_, leader_, record().attach, where_);
        const int64_t extent = as_constant(box.extent[dimension]).value_or(0);
        return extent > 0 && divisor_of(box.lo[dimension]) % extent == 0 ? extent : 0;
    }

    /// The axis that tells in which of the leader's iterations all that the index reads has been made, and its step;
    /// or -1.
    std::pair<int, int64_t> axis_of_block(const Along& along, const Expr& index) const {
        const int64_t size = block_of(along.dimension);
        if (size <= 0) return {-1, 1};
        Expr further = make_expr(Type::I64, Variable{.name = "further", .min = 0, .max = along.times - 1});
        Expr read = simplify(along.first(index) + further);
        for (size_t a = 0; a < own().axes.size(); ++a) {
            const Expr& axis = own().axes[a];
            if (!contains(index, axis)) continue;
            // Of a single iteration every step would do: the axis' own makes no more than there is.
            for (int64_t step : {coefficient(affine_of(read), axis).value_or(1), int64_t{1}})
                if (step > 0 && (size % step == 0 || step % size == 0) &&
                    prove(simplify(read / size) == simplify(axis * step / size)) == true)
                    return {static_cast<int>(a), step};
        }
        return {-1, 1};
    }

    /// The axis does not leave the dimension, and goes along no other, nor do loops that lead along the dimension.
    bool fits(int dimension, int axis, int64_t step) const {
        for (size_t d = 0; d < axis_.size(); ++d)
            if (static_cast<int>(d) != dimension && axis_[d] >= 0 &&
                (axis_[d] == axis || share_loops(d, static_cast<size_t>(dimension))))
                return false;
        const bool is_block = static_cast<size_t>(dimension) >= rank();
        const Expr extent =
            is_block ? blocks_[static_cast<size_t>(dimension) - rank()].all : made().operation->shape[dimension];
        return prove(own().operation->shape[axis] <= (step == 1 ? extent : (extent + (step - 1)) / step)) == true;
    }

    /// As the leader reads what both read. Whether each loop around leads to elements of the follower then.
    bool follow_by_common_reads(bool (*is_common)(const State&, int leader, int stage)) {
        forget();
        bool reads = false;
        for (size_t s = 0; s < state_.stages.size(); ++s)
            if (is_common(state_, leader_, static_cast<int>(s))) reads |= follow(static_cast<int>(s));
        if (reads) follow_where_open(false);
        if (reads && leads_everywhere()) return true;
        needs_more_ = needs_all_;
        return false;
    }

    /// Whether each loop around leads along an axis.
    bool leads_everywhere() const {
        for (int loop : loops_to(state_, leader_, record().attach))
            for (size_t d = 0; d < rank(); ++d)
                if (axis_[d] < 0 && leads(loop, d) && (needs_all_[d] || !leads_to_blocks(loop))) return false;
        return true;
    }

    void follow_as_sibling() {
        forget();
        follow_where_open();
    }
    /// Along dimensions of equal extents that no read tells the place in: a stream's, of which its owner's tile is all.
    /// And along those of which an iteration makes a block for each element.
    void follow_where_open(bool equal_extents = true) {
        for (size_t d = 0; d < rank() && d < own().axes.size(); ++d) {
            if (axis_[d] >= 0 || needs_all_[d] || std::ranges::find(axis_, static_cast<int>(d)) != axis_.end())
                continue;
            const Expr &extent = own().operation->shape[d], &all = made().operation->shape[d];
            if (equal_extents && equal(extent, all)) axis_[d] = static_cast<int>(d);
            const int64_t block = axis_[d] >= 0 ? 0 : block_of(static_cast<int>(d));
            if (block < 2 || !is_constant(all, as_constant(extent).value_or(0) * block)) continue;
            axis_[d] = static_cast<int>(d);
            step_[d] = block;
        }
    }

    /// Every loop around, of the leader and of those that it follows, must lead to elements of the follower. `axis`
    /// tells for each dimension of the leader of `below` the axis.
    void check_loops(const Pair& below, const std::vector<int>& axis, bool reads) const {
        const StageRecord& made = state_.stages[below.leader_];
        for (int loop : loops_to(state_, below.leader_, below.record().attach)) {
            if (is_constant(state_.loops[loop].extent, 1)) continue;
            const bool counts = below.leads_to_blocks(loop);  // also where the leader has one element
            for (size_t d = 0; d < below.rank(); ++d)
                if (axis[d] < 0 && drives(state_, loop, made.roots[d]) &&
                    (counts || !is_constant(made.definition.operation->shape[d], 1)) &&
                    !(below.stage_ == stage_ && !needs_all_[d] && counts))
                    refuse(made.definition.name, state_.loops[loop].name, d, reads);
        }
        if (made.attach < 0 || !made.after) return;
        if (follows_terms(state_, below.leader_)) return check_whole(below, axis, reads);
        Pair above(state_, below.leader_, where_);
        std::vector<int> axis_above(above.axis_.size(), -1);
        for (size_t d = 0; d < axis_above.size(); ++d)
            if (above.axis_[d] >= 0) axis_above[d] = axis[above.axis_[d]];
        check_loops(above, axis_above, reads);
    }

    /// Of what is kept for terms, a follower finds all along a dimension that it does not go along.
    void check_whole(const Pair& below, const std::vector<int>& axis, bool reads) const {
        const StageRecord& made = state_.stages[below.leader_];
        const Region region = region_of(state_, below.leader_, where_);
        for (size_t d = 0; d < below.rank(); ++d)
            if (axis[d] < 0 && prove(region.extent[d] >= made.definition.operation->shape[d]) != true)
                refuse(made.definition.name, state_.loops[made.attach].name, d, reads);
    }

    void refuse(const std::string& made, const std::string& loop, size_t dimension, bool reads) const {
        user_check(!reads, where_,
                   "'{}' cannot follow '{}' here: it reads more of dimension {} of '{}' than its own element, but "
                   "one iteration makes only a part of it; place it under a loop outside of '{}'",
                   own().name, made, dimension, made, loop);
        for (int part : loops_to(state_, leader_, record().attach))
            for (size_t d = 0; d < rank(); ++d)
                user_check(!needs_more_[d] || !leads(part, d), where_,
                           "'{}' cannot follow '{}' here: of what both read it needs all along dimension {} of '{}', "
                           "but one iteration makes only a part of it; place it under a loop outside of '{}'",
                           own().name, this->made().name, d, this->made().name, state_.loops[part].name);
        user_error(where_,
                   "'{}' cannot follow '{}' here: each iteration of '{}' would compute it again; place it under a "
                   "loop outside of '{}'",
                   own().name, made, loop, loop);
    }

    const State& state_;
    int stage_, leader_;
    std::source_location where_;
    std::vector<Blocks> blocks_;  // of indices at which the leader reads what is made for it
    std::vector<int> axis_;       // for each dimension of the leader, blocks behind, the follower's axis, or -1
    std::vector<int64_t> step_;   // and how many of the leader's indices go with each of the axis
    std::vector<std::pair<int, Expr>> read_;  // dimensions of the leader, and where the follower reads along them
    std::vector<bool> needs_all_;             // dimensions of which the follower needs more than the axis tells
    std::vector<bool> needs_more_;            // the same of what both read, where it cannot go along that
};

}  // namespace

Region following_region(const State& state, int stage, std::source_location where) {
    if (follows_terms(state, stage)) return region_beside_terms(state, stage, where);
    return Pair(state, stage, where).region();
}

std::vector<Expr> following_conditions(const State& state, int stage, std::source_location where) {
    std::vector<Expr> all;
    const StageDefinition& own = state.stages[stage].definition;
    if (follower_of_terms_around(state, stage) >= 0) return all;  // what those read has the very elements
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
