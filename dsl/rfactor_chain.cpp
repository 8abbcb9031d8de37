// Reductions that need each other's results, each in parts with their own values: the parts are combined by the ratio
// of these values to those of all terms (split KV, of attention).
#include <algorithm>
#include <map>

#include "dsl/parts.h"
#include "dsl/simplify.h"
#include "dsl/stream.h"
#include "support/error.h"

namespace tw {
namespace {

using State = Schedule::State;

std::vector<Expr> in_part(const Expr& index, const std::vector<Expr>& element) {
    std::vector<Expr> indices{index};
    indices.insert(indices.end(), element.begin(), element.end());
    return indices;
}

class ChainInParts {
public:
    ChainInParts(Edit& edit, const Chain& chain, int along)
        : edit_(edit),
          state_(edit.state),
          chain_(chain),
          along_(along),
          loop_(loop_of_parts(edit.state, along)),
          between_(stages_between(edit.state, chain)) {
        for (int member : chain.members) links_.emplace(member, stream_link(state_, member, chain, edit.where));
        for (const auto& [member, link] : links_)
            for (const RunningValue& value : link.values) add_value(link, *value.now.as<Read>());
    }

    void run() {
        for (int stage : between_) check_between(stage);
        for (int member : chain_.members) make_parts(member);
        for (int member : chain_.members) combine(member);
        drop_unread();
    }

    bool has(int stage) const { return chain_.has(stage) || std::ranges::find(between_, stage) != between_.end(); }
    /// The stage that makes the parts of a stage of the chain, or between.
    int parts_of(int stage) const { return parts_.at(stage); }

private:
    /// What terms read of a member, and of its parts.
    struct Value {
        std::optional<NeutralValue> neutral;
        bool is_replaced = false;  ///< in terms, that is: some of them count where it has no inverse
        int output = -1;           ///< of the parts
    };

    void add_value(const StreamLink& link, const Read& read) {
        const int member = state_.stage_of(read.operation.get());
        auto [place, is_new] = values_[member].try_emplace(read.output);
        if (is_new) {
            place->second.neutral =
                neutral_value(state_, member, static_cast<size_t>(read.output), chain_, edit_.where);
            check_value(member);
        }
        place->second.is_replaced |= !link.raw_before && place->second.neutral;
    }

    void check_value(int member) const {
        for (int producer : producers_of(state_, definition_of(state_, member).finish)) {
            const bool depends = std::ranges::any_of(
                chain_.members, [&](int other) { return producer == other || depends_on(state_, producer, other); });
            user_check(!depends, edit_.where,
                       "rfactor: the value of '{}' in a part would need that of '{}'; compute it in a stage of its "
                       "own, of both",
                       stage_text(state_, member), stage_text(state_, producer));
        }
    }

    void check_between(int stage) const {
        const StageRecord& record = state_.stages[stage];
        bool is_fresh = record.attach < 0 && record.relations.empty() && !record.rounded;
        for (int id : record.order) is_fresh = is_fresh && state_.loops[id].level == Level::Serial;
        user_check(is_fresh, edit_.where,
                   "rfactor: '{}', between the reductions, was placed, bound, split or rounded already; its parts get "
                   "fresh loops, so do this step before those",
                   stage_text(state_, stage));
    }

    const std::shared_ptr<const Operation>& operation_of_parts(int stage) const {
        return definition_of(state_, parts_.at(stage)).operation;
    }

    /// A member's value in the part, as it is.
    Expr value_in_part(const Expr& value, const Expr& index) const {
        Read read = *value.as<Read>();
        const int member = state_.stage_of(read.operation.get());
        read.output = values_.at(member).at(read.output).output;
        read.operation = operation_of_parts(member);
        read.indices = in_part(index, read.indices);
        return make_expr(value.type(), read);
    }
    const Value& value_of(const Expr& value) const {
        const Read& read = *value.as<Read>();
        return values_.at(state_.stage_of(read.operation.get())).at(read.output);
    }
    /// As the terms of the part read it.
    Expr tag(const Expr& value, const Expr& index) const {
        const Expr own = value_in_part(value, index);
        const Value& known = value_of(value);
        return known.is_replaced ? known.neutral->of(own) : own;
    }

    /// The expression of terms of the part.
    Expr of_part(const Expr& expr, const Expr& index) {
        return transform(expr, [&](const Expr& e) -> Expr {
            const Read* read = e.as<Read>();
            const int producer = read ? state_.stage_of(read->operation.get()) : -1;
            if (producer < 0 || !has(producer)) return {};
            if (chain_.has(producer)) return tag(e, index);
            if (!parts_.count(producer)) make_between(producer);
            return make_expr(e.type(), Read{operation_of_parts(producer), read->output, in_part(index, read->indices),
                                            read->guarded});
        });
    }

    void make_between(int stage) {
        StageDefinition parts = definition_of(state_, stage);
        parts.name = unique_stage_name(state_, parts.name + "_partial");
        parts.axes = in_part(axis_like(loop_), parts.axes);
        for (Expr& expr : parts.finish) expr = simplify(of_part(expr, parts.axes[0]));
        auto operation = std::make_shared<Operation>(*parts.operation);
        operation->name = parts.name;
        operation->axes = parts.axes;
        operation->shape = in_part(loop_.extent, operation->shape);
        parts.operation = operation;
        parts_[stage] = add_stage(state_, std::move(parts), edit_.step);
    }

    void make_parts(int member) {
        StageDefinition parts = partial_definition(state_, member, owner(), along_);
        const StageDefinition whole = definition_of(state_, member);
        for (Expr& expr : parts.update) expr = simplify(of_part(expr, parts.axes[0]));
        auto operation = std::make_shared<Operation>(*parts.operation);
        if (auto values = values_.find(member); values != values_.end())
            for (auto& [output, value] : values->second) {
                const Expr& finish = whole.finish[static_cast<size_t>(output)];
                auto same = std::ranges::find_if(parts.finish, [&](const Expr& e) { return e.same(finish); });
                value.output = static_cast<int>(same - parts.finish.begin());
                if (same != parts.finish.end()) continue;
                parts.finish.push_back(finish);
                operation->outputs.push_back({finish.type(), finish});
            }
        parts.operation = operation;
        parts_[member] = member == owner() ? add_parts(state_, member, along_, std::move(parts), edit_.step)
                                           : add_stage(state_, std::move(parts), edit_.step);
    }

    /// The part's result, as it would be with the values of all terms.
    Expr corrected(int member, size_t component, const Expr& index) const {
        const StageDefinition& whole = definition_of(state_, member);
        const StreamLink& link = links_.at(member);
        const Expr identity = whole.reducer->identity[component];
        const Expr part = make_expr(
            identity.type(), Read{operation_of_parts(member), static_cast<int>(component), in_part(index, whole.axes)});
        if (link.corrections.empty()) return part;
        const Correction& correction = link.corrections[component];
        if (correction.kind == Correction::Kind::None) return part;
        Substitution before;
        Expr is_empty = Expr(false);  // all of its terms are 0 then
        for (const RunningValue& value : link.values) {
            before.emplace_back(value.before, tag(value.now, index));
            if (!link.raw_before) continue;
            const NeutralValue& neutral = *value_of(value.now).neutral;
            is_empty = is_empty || substitute(neutral.replaced, {{neutral.variable, value_in_part(value.now, index)}});
        }
        const Expr by = cast_unchecked(part.type(), substitute(correction.by, before));
        const Expr now = correction.kind == Correction::Kind::Scale ? part * by : part + by;
        if (link.raw_before) return select_unchecked(simplify(is_empty), identity, now);
        return link.keeps_identity ? select_unchecked(part == identity, identity, now) : now;
    }

    void combine(int member) {
        StageDefinition left = definition_of(state_, member);
        combine_parts(left, loop_,
                      [&](size_t component, const Expr& index) { return corrected(member, component, index); });
        const StreamLink& link = links_.at(member);
        state_.notes.push_back(
            fmt::format("[{}] the terms of '{}' are combined in parts along '{}'{}{}{}", edit_.step, left.name,
                        loop_.name, link.values.empty() ? "" : ", each corrected from its own values to those of all",
                        rounding_text(*left.reducer), link.rounds ? ", also of what its terms are cast to" : ""));
        for (int id : state_.stages[member].order)
            if (state_.loops[id].stage == member) state_.loops[id].dead_step = edit_.step;
        state_.stages[member].definition = left;
        add_root_loops(state_, member, left.operation->shape);
    }

    /// What only terms have read is made in parts alone.
    void drop_unread() {
        std::vector<int> order = topological_order(state_);
        std::ranges::reverse(order);
        for (int stage : order) {
            const bool is_read = std::ranges::any_of(state_.stages, [&](const StageRecord& reader) {
                return !reader.inlined && reads_stage(reader.definition, definition_of(state_, stage));
            });
            if (!is_read && !chain_.has(stage) && has(stage) && !state_.is_result(stage))
                state_.stages[stage].inlined = true;
        }
    }

    int owner() const { return chain_.members.back(); }

    Edit& edit_;
    State& state_;
    const Chain& chain_;
    int along_;
    LoopRecord loop_;  // as it was, but for the longest of elements
    std::vector<int> between_;
    std::map<int, StreamLink> links_;
    std::map<int, std::map<int, Value>> values_;  // of members, of their outputs
    std::map<int, int> parts_;
};

/// The reductions among the stages, producers first; the last one has the loop.
Chain chain_of(const State& state, const std::vector<int>& named) {
    Chain chain{"rfactor", {}};
    for (int stage : topological_order(state))
        if (stage != named.back() && definition_of(state, stage).reducer)
            chain.members.insert(chain.members.end(), std::ranges::count(named, stage), stage);
    chain.members.push_back(named.back());
    return chain;
}

}  // namespace

std::vector<Stage> Schedule::rfactor(const std::vector<StageRef>& reductions, Loop loop, std::source_location where) {
    Edit edit(state_, where);
    State& state = edit.state;
    user_check(!reductions.empty(), where, "rfactor: name at least one reduction, last the one that has the loop");
    std::vector<int> named;
    for (const StageRef& reduction : reductions) named.push_back(edit.stage(reduction, "rfactor"));
    for (int stage : named)
        user_check(std::ranges::count(named, stage) == 1, where, "rfactor: '{}' is named twice; name each once",
                   stage_text(state, stage));
    const int along = edit.alive(loop, "rfactor");
    const Chain chain = chain_of(state, named);
    check_chain(state, chain, where);
    check_parts(edit, named.back(), along,
                fmt::format("rfactor(.., {}, {})", stage_text(state, named.back()), state.loops[along].name));
    ChainInParts parts(edit, chain, along);
    for (int stage : named)
        user_check(parts.has(stage), where,
                   "rfactor(.., {}, ..): it is neither a reduction nor read by terms between them",
                   stage_text(state, stage));
    std::string taken, saved, made;
    for (int stage : named) {
        taken += (taken.empty() ? "" : ", ") + edit.stage_as_cpp(stage);
        saved += fmt::format(" {}", stage);
    }
    const std::string cut = edit.loop_as_cpp(along);
    parts.run();
    std::vector<Stage> results;
    for (int stage : named) {
        results.push_back(state.handle_of_stage(parts.parts_of(stage)));
        made += (made.empty() ? "" : ", ") + edit.stage_as_cpp(parts.parts_of(stage));
    }
    edit.commit(fmt::format("auto [{}] = s.rfactor<{}>({{{}}}, {});", made, named.size(), taken, cut),
                fmt::format("rfactor_chain {}{} {}", named.size(), saved, along));
    return results;
}

void Schedule::check_part_count(size_t named, size_t wanted, std::source_location where) const {
    user_check(named == wanted, where, "rfactor<{}>: {} stages are named; write rfactor<{}>", wanted, named, named);
}

}  // namespace tw
