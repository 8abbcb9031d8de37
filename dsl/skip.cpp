#include "dsl/skip.h"

#include <algorithm>

#include "dsl/cut.h"
#include "dsl/edit.h"
#include "dsl/following.h"
#include "dsl/signs.h"
#include "dsl/simplify.h"
#include "dsl/stream.h"
#include "support/error.h"

namespace tw {
namespace {

using State = Schedule::State;

/// One reduction along the loop, and the stage whose conditions are looked at.
class Skipped {
public:
    Skipped(const State& state, int loop, int reduction, int stage)
        : state_(state), loop_(loop), reduction_(reduction), stage_(stage) {}

    /// Whether nothing is reduced where the select takes its second value.
    bool holds_without(const Expr& select) const {
        const StageDefinition& whole = definition_of(state_, reduction_);
        for (size_t c = 0; c < whole.update.size(); ++c) {
            Expr update =
                reduction_ == stage_ ? without(whole.update[c], select) : written_out(whole.update[c], select);
            if (!leaves_as_it_is(update, whole.accumulators[c])) return false;
        }
        return true;
    }

    /// Whether a stage under the loop that keeps what the terms read is 0 there, or, if it makes updates, adds nothing.
    bool is_zero_without(const Expr& select, int follower) const {
        const StageDefinition& own = definition_of(state_, follower);
        const bool updates = makes_updates(state_, follower);
        if (own.reducer && !Skipped(state_, loop_, follower, stage_).holds_without(select)) return false;
        if (own.reducer && updates) return true;
        if (updates && own.combine != BinaryOp::Add) return false;
        Substitution nothing;  // was reduced
        for (size_t c = 0; c < own.accumulators.size(); ++c)
            nothing.emplace_back(own.accumulators[c], own.reducer->identity[c]);
        return std::ranges::all_of(own.finish, [&](const Expr& result) {
            return vanishes(simplify(substitute(written_out(result, select), nothing)));
        });
    }

private:
    static Expr without(const Expr& expr, const Expr& select) {
        return transform(expr, [&](const Expr& e) { return equal(e, select) ? e.as<Select>()->no : Expr(); });
    }

    /// With the stages under the loop written out, down to the one whose condition does not hold.
    Expr written_out(const Expr& expr, const Expr& select) const {
        return transform(expr, [&](const Expr& e) -> Expr {
            const Read* read = e.as<Read>();
            const int producer = read ? state_.stage_of(read->operation.get()) : -1;
            if (producer < 0 || is_member(state_, producer, loop_)) return {};
            const StageDefinition& made = definition_of(state_, producer);
            if (producer != stage_ && (made.reducer || !stands_below(state_, producer, false, loop_))) return {};
            Substitution axes;
            for (size_t d = 0; d < made.axes.size(); ++d) axes.emplace_back(made.axes[d], read->indices[d]);
            const Expr& own = made.finish[read->output];
            Expr value = substitute(producer == stage_ ? without(own, select) : own, axes);
            return producer == stage_ ? value : written_out(value, select);
        });
    }

    const State& state_;
    int loop_, reduction_, stage_;
};

}  // namespace

namespace {

std::vector<Expr> selects_in(const std::vector<Expr>& exprs) {
    std::vector<Expr> selects;
    for (const Expr& expr : exprs)
        visit(expr, [&](const Expr& e) {
            if (e.as<Select>()) selects.push_back(e);
        });
    return selects;
}

}  // namespace

void check_skipped_terms(const State& state, int loop, int stage, std::source_location where) {
    const StageDefinition& conditional = definition_of(state, stage);
    std::vector<int> reductions = streamed_along(state, loop);
    reductions.push_back(state.loops[loop].stage);
    const bool reduces = std::ranges::find(reductions, stage) != reductions.end();
    const std::vector<Expr> selects = selects_in(reduces ? conditional.update : conditional.finish);
    for (int reduction : reductions)
        for (const Expr& select : selects)
            user_check(Skipped(state, loop, reduction, stage).holds_without(select), where,
                       "skip({}, {}): where the condition of '{}' does not hold, the terms of '{}' are not shown to "
                       "count nothing: 0 in a sum, or -infinity in a maximum. Give the select such a second value",
                       state.loops[loop].name, conditional.name, to_string(select),
                       definition_of(state, reduction).name);
}

namespace {

/// Whether all that the reader's terms read of the stage is one element.
bool is_read_once(const StageDefinition& reader, const StageDefinition& made) {
    const Read* first = nullptr;
    for (const ReadSite& site : reads_of(reader)) {
        if (site.read->operation != made.operation) continue;
        if (!first) first = site.read;
        for (size_t d = 0; d < first->indices.size(); ++d)
            if (!equal(first->indices[d], site.read->indices[d])) return false;
    }
    return true;
}

/// Where the condition does not hold the stage's elements are 0, and not made: readers take them so.
void read_as_zero(State& state, int stage, const std::vector<Expr>& conditions) {
    const StageDefinition& made = state.stages[stage].definition;
    auto held_at = [&](const Read& read) {
        Substitution element;
        for (size_t d = 0; d < made.axes.size(); ++d) element.emplace_back(made.axes[d], read.indices[d]);
        std::vector<Expr> held;
        for (const Expr& condition : conditions) held.push_back(simplify(substitute(condition, element)));
        return held;
    };
    auto replaced = [&](const Expr& expr, const std::function<Expr(const Expr&, const Read&)>& by) {
        return transform(expr, [&](const Expr& e) -> Expr {
            const Read* read = e.as<Read>();
            return read && read->operation == made.operation ? by(e, *read) : Expr();
        });
    };
    auto conditions_of = [&](const StageDefinition& reader) {
        std::vector<Expr> all;
        for (const ReadSite& site : reads_of(reader))
            if (site.read->operation == made.operation)
                for (const Expr& held : held_at(*site.read)) all.push_back(held);
        return all;
    };
    auto zero = [](const Expr& e, const Read&) { return constant(e.type(), 0.0); };
    auto masked = [&](const Expr& e, const Read& read) { return select(all_of(held_at(read)), e, zero(e, read)); };
    for (StageRecord& record : state.stages) {
        StageDefinition& reader = record.definition;
        if (record.inlined || !reads_stage(reader, made)) continue;
        bool leaves_terms = reader.reducer != nullptr && is_read_once(reader, made) &&
                            std::ranges::none_of(conditions_of(reader), reads_tensors);
        for (size_t c = 0; leaves_terms && c < reader.update.size(); ++c)
            leaves_terms = leaves_as_it_is(simplify(replaced(reader.update[c], zero)), reader.accumulators[c]);
        if (leaves_terms)  // a sum needs no zeros
            for (const Expr& update : reader.update)
                replaced(update, [&](const Expr&, const Read& read) {
                    for (const Expr& held : held_at(read)) reader.terms_where.push_back(held);
                    return Expr();
                });
        for (Expr& update : reader.update)
            if (!leaves_terms) update = replaced(update, masked);
        for (Expr& finish : reader.finish) finish = replaced(finish, masked);
    }
}

/// Of what stages under the loop keep, an iteration that is left out would have made zeros.
void keep_zeros_unwritten(State& state, int loop, int stage, std::source_location where) {
    const StageDefinition conditional = definition_of(state, stage);
    const int owner = state.loops[loop].stage;
    const bool reduces = stage == owner || is_member(state, stage, loop);  // its conditions are those of terms alone
    for (size_t s = 0; s < state.stages.size(); ++s) {
        const int follower = static_cast<int>(s);
        if (state.stages[s].inlined || !follows_terms(state, follower) || !stands_below(state, follower, false, loop))
            continue;
        user_check(!state.is_result(follower), where,
                   "skip({}, {}): '{}' is an output, whose elements would not be written in the iterations left out; "
                   "make it by a kernel of its own, or leave skip out",
                   state.loops[loop].name, conditional.name, state.stages[s].definition.name);
        auto zero = [&](const Expr& select) {
            return Skipped(state, loop, owner, stage).is_zero_without(select, follower);
        };
        user_check(!reduces && std::ranges::all_of(selects_in(conditional.finish), zero), where,
                   "skip({}, {}): where the conditions of '{}' do not hold, the elements of '{}', which would not be "
                   "made, are not shown to be 0",
                   state.loops[loop].name, conditional.name, conditional.name, state.stages[s].definition.name);
        if (makes_updates(state, follower)) continue;  // zeros would have been added
        read_as_zero(state, follower, fulfilled_beside(state, follower, stage, loop, where));
    }
}

}  // namespace

void Schedule::skip(Loop loop, const StageRef& conditions, std::source_location where) {
    Edit edit(state_, where);
    const int id = edit.alive(loop, "skip"), stage = edit.stage(conditions, "skip");
    LoopRecord& record = edit.state.loops[id];
    const std::string call = fmt::format("skip({}, {})", record.name, stage_text(edit.state, stage));
    user_check(record.reduces, where, "{}: '{}' is no reduce loop: without an iteration its elements would not be made",
               call, record.name);
    user_check(record.level == Level::Serial, where,
               "{}: the loop is bound to {}; only a serial loop leaves out iterations", call,
               tw::to_string(record.level));
    user_check(stands_below(edit.state, stage, true, id), where,
               "{}: '{}' does not stand under the loop; name the stage whose masks or selects say what counts", call,
               stage_text(edit.state, stage));
    check_skipped_terms(edit.state, id, stage, where);
    user_check(conditions_have_limits(edit.state, id, stage, where), where,
               "{}: no mask or select of '{}' compares indices so that whole iterations of '{}' fail it: there is "
               "nothing to leave out",
               call, stage_text(edit.state, stage), record.name);
    record.kept = where_conditions_hold_somewhere(edit.state, id, stage, where);
    if (record.skips()) keep_zeros_unwritten(edit.state, id, stage, where);
    edit.state.notes.push_back(
        record.skips()
            ? fmt::format("[{}] iterations of '{}' in which the conditions of '{}' hold nowhere are left out: "
                          "infinities there, times 0 in the declaration, make no NaN",
                          edit.step, record.name, stage_text(edit.state, stage))
            : fmt::format("[{}] the conditions of '{}' hold somewhere in each iteration of '{}': none is left out",
                          edit.step, stage_text(edit.state, stage), record.name));
    const std::string skipped = edit.loop_as_cpp(id), conditional = edit.stage_as_cpp(stage);
    edit.commit(fmt::format("s.skip({}, {});", skipped, conditional), fmt::format("skip {} {}", id, stage));
}

}  // namespace tw
