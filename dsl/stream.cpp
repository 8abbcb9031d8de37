#include "dsl/stream.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "dsl/absorbed_terms.h"
#include "dsl/edit.h"
#include "dsl/evaluate.h"
#include "dsl/following.h"
#include "dsl/signs.h"
#include "dsl/simplify.h"
#include "support/error.h"

namespace tw {

using State = Schedule::State;

std::vector<int> producers_of(const State& state, const std::vector<Expr>& exprs) {
    std::vector<int> found;
    for (const Expr& expr : exprs)
        visit(expr, [&](const Expr& e) {
            const Read* read = e.as<Read>();
            const int producer = read ? state.stage_of(read->operation.get()) : -1;
            if (producer >= 0 && std::ranges::find(found, producer) == found.end()) found.push_back(producer);
        });
    return found;
}

bool is_member(const State& state, int stage, int loop) {
    return !state.stages[stage].inlined && state.stages[stage].streams == loop;
}

namespace {

/// The only term of max(accumulator, term) or min(accumulator, term).
Expr chosen_term(const StageDefinition& definition) {
    auto two = definition.update.size() == 1 ? definition.update[0].as<Binary>() : nullptr;
    if (!two || (two->op != BinaryOp::Max && two->op != BinaryOp::Min)) return {};
    if (two->a.same(definition.accumulators[0])) return two->b;
    return two->b.same(definition.accumulators[0]) ? two->a : Expr();
}

/// What a stage of the stream computes from running values, in one expression of its own axes.
class Terms {
public:
    Terms(const State& state, const Chain& chain, std::source_location where)
        : state_(state), chain_(chain), where_(where) {}

    /// With the stages between written out, as far as they depend on members.
    Expr written_out(const Expr& expr) const {
        return transform(expr, [&](const Expr& e) -> Expr {
            const Read* read = e.as<Read>();
            const int producer = read ? state_.stage_of(read->operation.get()) : -1;
            if (producer < 0 || chain_.has(producer) || !depends(producer)) return {};
            const StageDefinition& between = definition_of(state_, producer);
            user_check(
                !between.reducer, where_,
                "{}: '{}' is a reduction between those that are named: it would have to be corrected in the same "
                "iteration; name it, too, or let it read what does not run",
                chain_.step, between.name);
            Substitution axes;
            for (size_t d = 0; d < between.axes.size(); ++d) axes.emplace_back(between.axes[d], read->indices[d]);
            return written_out(substitute(between.finish[read->output], axes));
        });
    }

    /// What the running value, a maximum or minimum, chooses from, at its own reduce axes; undefined of others.
    Expr chosen(const RunningValue& value) const {
        const Read& read = *value.now.as<Read>();
        const StageDefinition& running = definition_of(state_, state_.stage_of(read.operation.get()));
        const Expr term = chosen_term(running);
        if (!term.defined()) return {};
        Substitution axes;
        for (size_t d = 0; d < running.axes.size(); ++d) axes.emplace_back(running.axes[d], read.indices[d]);
        return substitute(written_out(term), axes);
    }

private:
    bool depends(int stage) const {
        return std::ranges::any_of(chain_.members, [&](int member) { return depends_on(state_, stage, member); });
    }

    const State& state_;
    const Chain& chain_;
    std::source_location where_;
};

/// What an empty reduction gives for the output, if it is a constant.
std::optional<double> empty_value(const StageDefinition& definition, size_t output) {
    Substitution identity;
    for (size_t c = 0; c < definition.accumulators.size(); ++c)
        identity.emplace_back(definition.accumulators[c], definition.reducer->identity[c]);
    Expr empty = simplify(substitute(definition.finish[output], identity));
    auto real = empty.as<FloatConstant>();
    return real ? std::optional(real->value) : std::nullopt;
}

bool is_unbounded(const Expr& identity) {
    auto real = identity.as<FloatConstant>();
    return real && std::isinf(real->value);
}

bool is_function_of(const Expr& expr, const Expr& variable) {
    bool alone = true;
    visit(expr, [&](const Expr& e) { alone = alone && !e.as<Read>() && (!e.as<Variable>() || e.same(variable)); });
    return alone;
}

/// One for which all of the functions of the variable are finite and, of factors, not 0.
std::optional<double> value_that_inverts(const std::vector<Invertible>& parts, const Expr& variable) {
    for (double candidate : {1.0, 2.0, 0.5, -1.0, -2.0, -0.5, 3.0, -3.0}) {
        const Expr value = constant(variable.type(), candidate);
        const bool suits = std::ranges::all_of(parts, [&](const Invertible& part) {
            SlotMap none;
            const double there = CompiledExpr(substitute(part.value, {{variable, value}}), none, {}).run({}).real;
            return std::isfinite(there) && (!part.is_factor || there != 0);
        });
        if (suits) return candidate;
    }
    return {};
}

/// Whether every factor is 0 while the value before is empty.
bool factors_vanish(const StreamLink& link, const RunningValue& value, const Expr& empty) {
    return std::ranges::all_of(link.corrections, [&](const Correction& correction) {
        if (correction.kind != Correction::Kind::Scale) return false;
        Expr by = substitute(correction.by, {{value.before, empty}});
        return vanishes(simplify(replaced(by, value.now, constant(value.now.type(), 0.0))));
    });
}

}  // namespace

std::vector<int> streamed_along(const State& state, int loop) {
    std::vector<int> found;
    for (int stage : topological_order(state))
        if (is_member(state, stage, loop)) found.push_back(stage);
    return found;
}

int shared_loop(const State& state, int stage) {
    if (state.stages[stage].streams >= 0) return state.stages[stage].streams;
    for (const StageRecord& member : state.stages)
        if (!member.inlined && member.streams >= 0 && state.loops[member.streams].stage == stage) return member.streams;
    return -1;
}

bool reads_running(const State& state, int reader, bool in_update, int producer) {
    const int loop = state.stages[producer].streams;
    return loop >= 0 && stands_below(state, reader, in_update, loop);
}

bool is_read_running(const State& state, int stage) {
    if (state.stages[stage].reference.kind == Reference::Kind::Constant) return false;
    for (size_t s = 0; s < state.stages.size(); ++s) {
        if (state.stages[s].inlined) continue;
        for (const ReadSite& site : reads_of(definition_of(state, static_cast<int>(s))))
            if (site.read->operation == definition_of(state, stage).operation &&
                reads_running(state, static_cast<int>(s), site.in_update, stage))
                return true;
    }
    return false;
}

Expr reduce_value(const State& state, int stage, size_t axis, std::source_location where) {
    const StageRecord& record = state.stages[stage];
    Expr own = loop_value(state, record.roots[record.definition.axes.size() + axis]);
    return record.streams < 0 ? own : simplify(shared_terms(state, stage, where).lo[axis] + own);
}

StreamLink stream_link(const State& state, int stage, std::source_location where) {
    return stream_link(state, stage, chain_along(state, shared_loop(state, stage)), where);
}

StreamLink stream_link(const State& state, int stage, const Chain& chain, std::source_location where) {
    const StageDefinition& own = definition_of(state, stage);
    const Terms terms(state, chain, where);
    StreamLink link;
    std::vector<Expr> written;
    for (const Expr& update : own.update) {
        Expr flat = terms.written_out(update);
        written.push_back(transform(flat, [&](const Expr& e) -> Expr {
            const Read* read = e.as<Read>();
            const int producer = read ? state.stage_of(read->operation.get()) : -1;
            if (producer < 0 || !chain.has(producer)) return {};
            for (const RunningValue& known : link.values)
                if (equal(known.now, e)) return known.before;
            for (const Expr& axis : own.reduce_axes)
                user_check(!contains(e, axis), where,
                           "{}: the terms of '{}' read '{}' at an index that differs from term to term ({}); only an "
                           "element that all of them read can run along",
                           chain.step, own.name, definition_of(state, producer).name, to_string(e));
            std::string name = definition_of(state, producer).name + "_before";
            Expr before = make_expr(e.type(), Variable{.name = name, .kind = VariableKind::Scalar});
            link.values.push_back({before, e});
            return before;
        }));
    }
    if (link.values.empty()) return link;
    Changing changing{.later = {}, .differs = own.reduce_axes};
    for (const RunningValue& value : link.values) changing.later.emplace_back(value.before, value.now);
    Law law = law_of(written, own.accumulators, *own.reducer, changing);
    std::string read = definition_of(state, state.stage_of(link.values[0].now.as<Read>()->operation.get())).name;
    user_check(!law.corrections.empty(), where,
               "{}: '{}' cannot run in one pass with '{}', which its terms read: {}. Terms must be a part that differs "
               "from term to term and a factor (or a summand, of a maximum) of '{}' alone, as exp(x - r) or x / r; "
               "compute '{}' in a pass before",
               chain.step, own.name, read, law.reason, read, read);
    link.corrections = law.corrections;
    link.inverted = law.inverted;
    link.rounds = law.rounds;
    link.raw_before = law.inverted.empty();
    for (const RunningValue& value : link.values) {
        const Read& now = *value.now.as<Read>();
        const StageDefinition& running = definition_of(state, state.stage_of(now.operation.get()));
        auto empty = empty_value(running, static_cast<size_t>(now.output));
        const Expr as_constant = constant(value.now.type(), empty.value_or(0));
        link.raw_before = link.raw_before && empty && std::isinf(*empty) && factors_vanish(link, value, as_constant) &&
                          absorbs(state, chain, terms.chosen(value), running, own, written, as_constant, where);
    }
    const auto changes = [](const Correction& c) { return c.kind != Correction::Kind::None; };
    link.keeps_identity = !link.raw_before && std::ranges::any_of(link.corrections, changes);
    return link;
}

Expr NeutralValue::of(const Expr& value) const {
    return select_unchecked(substitute(replaced, {{variable, value}}), neutral, value);
}

std::optional<NeutralValue> neutral_value(const State& state, int stage, size_t output, std::source_location where) {
    return neutral_value(state, stage, output, chain_along(state, state.stages[stage].streams), where);
}

std::optional<NeutralValue> neutral_value(const State& state, int stage, size_t output, const Chain& chain,
                                          std::source_location where) {
    const StageDefinition& running = definition_of(state, stage);
    const Type type = running.operation->outputs[output].type;
    NeutralValue result{.variable = make_expr(type, Variable{.name = "value", .kind = VariableKind::Scalar}),
                        .replaced = Expr(false),
                        .neutral = constant(type, 0.0)};
    std::vector<Invertible> parts;  // of the variable
    auto replace_if = [&](const Expr& condition) { result.replaced = result.replaced || condition; };
    const Type computed = is_float(type) && bytes_of(type) < 4 ? f32 : type;
    const Expr value_now = computed == type ? result.variable : cast(computed, result.variable);
    const Expr unbounded = constant(computed, std::numeric_limits<double>::infinity());
    if (auto empty = empty_value(running, output)) {
        if (std::isinf(*empty)) replace_if(value_now == constant(computed, *empty));
    } else if (is_float(type) && std::ranges::any_of(running.reducer->identity, is_unbounded)) {
        replace_if(!(abs(value_now) < unbounded));
    }
    for (int other : chain.members) {
        if (other == stage) continue;
        const StreamLink link = stream_link(state, other, chain, where);
        for (const RunningValue& value : link.values) {
            const Read& read = *value.now.as<Read>();
            if (read.operation != running.operation || read.output != static_cast<int>(output)) continue;
            for (const Invertible& part : link.inverted) {
                if (!contains(part.value, value.before)) continue;
                Expr inverted = substitute(part.value, {{value.before, result.variable}});
                replace_if(!(abs(inverted) < constant(inverted.type(), std::numeric_limits<double>::infinity())));
                if (part.is_factor) replace_if(inverted == constant(inverted.type(), 0.0));
                parts.push_back({inverted, part.is_factor});
                user_check(is_function_of(inverted, result.variable), where,
                           "{}: '{}' is corrected by quotients or differences of {}, which depends on more than '{}': "
                           "no value can stand for those of '{}' that have no inverse. Write the factor of the running "
                           "value alone, with constants",
                           chain.step, definition_of(state, other).name, to_string(part.value), running.name,
                           running.name);
            }
        }
    }
    if (!parts.empty()) {
        auto neutral = value_that_inverts(parts, result.variable);
        user_check(neutral.has_value(), where,
                   "{}: what reads '{}' is corrected by quotients of {}, which none of 1, 2, 0.5, -1, -2, -0.5, 3 and "
                   "-3 makes finite and different from 0, to stand for values of '{}' without an inverse; compute '{}' "
                   "in a pass before",
                   chain.step, running.name, to_string(parts[0].value), running.name, running.name);
        result.neutral = constant(type, *neutral);
    }
    result.replaced = simplify(result.replaced);
    if (prove(result.replaced) == false) return {};
    return result;
}

void check_shared_loops(const State& state, int owner, int loop, std::source_location where) {
    const StageRecord& record = state.stages[owner];
    const int first = state.first_reduce(owner);
    for (int p = first; p <= state.position(loop); ++p) {
        const LoopRecord& shared = state.loops[record.order[p]];
        user_check(shared.reduces, where,
                   "stream: the data loop '{}' of '{}' stands between its reduce loops and '{}', which others share; "
                   "order it outside of the reduce loops, or inside of '{}'",
                   shared.name, record.definition.name, state.loops[loop].name, state.loops[loop].name);
        user_check(shared.level == Level::Serial || shared.level == Level::Unroll, where,
                   "stream: the loop '{}' of '{}', which others share, is bound to {}; bind a loop inside of it",
                   shared.name, record.definition.name, to_string(shared.level));
    }
}

namespace {

/// What reads the member stands inside of the shared loop, or nothing inside reads it.
void check_stages_outside(const State& state, int member, int loop, std::source_location where) {
    for (size_t s = 0; s < state.stages.size(); ++s) {
        const int outside = static_cast<int>(s);
        const bool is_part = outside == state.loops[loop].stage || state.stages[outside].streams == loop;
        if (state.stages[outside].inlined || is_part || stands_below(state, outside, false, loop)) continue;
        if (!depends_on(state, outside, member)) continue;
        for (size_t r = 0; r < state.stages.size(); ++r) {
            if (state.stages[r].inlined) continue;
            for (const ReadSite& site : reads_of(definition_of(state, static_cast<int>(r))))
                user_check(site.read->operation != definition_of(state, outside).operation ||
                               !stands_below(state, static_cast<int>(r), site.in_update, loop),
                           where,
                           "stream: '{}' stands outside of loop '{}', but '{}' reads it inside, where '{}' still runs; "
                           "place '{}' under the loop",
                           stage_text(state, outside), state.loops[loop].name, stage_text(state, static_cast<int>(r)),
                           definition_of(state, member).name, stage_text(state, outside));
        }
    }
}

/// How many terms the elements have that an iteration of the loops around makes: of a member any of its box, whatever
/// loops it has there.
std::vector<Expr> lengths_of(const State& state, int stage, std::source_location where) {
    const StageDefinition& definition = definition_of(state, stage);
    const Region region = region_of(state, stage, where);
    const bool is_member = state.stages[stage].streams >= 0;
    Substitution element;
    for (size_t d = 0; d < definition.axes.size(); ++d) {
        const Expr &axis = definition.axes[d], own = loop_value(state, state.stages[stage].roots[d]);
        const int64_t last = std::max<int64_t>(as_constant(region.extent[d]).value_or(1) - 1, 0);
        const Expr any = last == 0 ? integer(0) : index_variable(to_string(axis), 0, last);
        const bool is_only = is_constant(definition.operation->shape[d], 1);  // a loop around may have more iterations
        element.emplace_back(axis, is_only ? integer(0) : simplify(region.lo[d] + (is_member ? any : own)));
    }
    Substitution single;
    for (const LoopRecord& loop : state.loops)
        if (is_constant(loop.extent, 1)) single.emplace_back(loop.variable, integer(0));
    std::vector<Expr> lengths;
    for (const Expr& extent : definition.reduce_extents)
        lengths.push_back(simplify(substitute(substitute(extent, element), single)));
    return lengths;
}

/// Where elements decide how many terms they have, those of the member have as many as those of the owner.
void check_lengths(const State& state, int member, int owner, std::source_location where) {
    if (definition_of(state, member).reduce_extents.empty()) return;
    user_check(std::ranges::equal(lengths_of(state, member, where), lengths_of(state, owner, where), equal), where,
               "stream: the elements of '{}' have {} terms, those of '{}' {}, which is not shown to be the same where "
               "they are made together; only reductions over the same terms share a loop",
               definition_of(state, member).name, terms_text(definition_of(state, member)),
               definition_of(state, owner).name, terms_text(definition_of(state, owner)));
}

}  // namespace

void check_lengths_alike(const State& state, std::source_location where) {
    for (size_t s = 0; s < state.stages.size(); ++s)
        if (!state.stages[s].inlined && state.stages[s].streams >= 0)
            check_lengths(state, static_cast<int>(s), state.loops[state.stages[s].streams].stage, where);
}

namespace {

/// What an iteration makes for the terms, and is kept for others, must not be made of what is reduced on the way.
void check_kept_for_terms(const State& state, int member, int loop, std::source_location where) {
    for (size_t s = 0; s < state.stages.size(); ++s) {
        const int stage = static_cast<int>(s);
        if (state.stages[s].inlined || stage == member || !follows_terms(state, stage)) continue;
        const int owner = leader_of(state, stage);
        if (owner != state.loops[loop].stage && owner != member) continue;
        user_check(!depends_on(state, stage, member), where,
                   "stream: '{}' keeps what an iteration of '{}' makes, and depends on '{}', which is not complete "
                   "there; place it in a kernel of its own",
                   stage_text(state, stage), state.loops[loop].name, state.stages[member].definition.name);
    }
}

}  // namespace

void check_streams(const State& state, std::source_location where) {
    for (size_t s = 0; s < state.stages.size(); ++s) {
        const StageRecord& member = state.stages[s];
        if (member.inlined || member.streams < 0) continue;
        const int loop = member.streams, owner = state.loops[loop].stage;
        check_shared_loops(state, owner, loop, where);
        const int first = state.first_reduce(owner);
        const int around = first > 0 ? state.stages[owner].order[first - 1] : state.stages[owner].attach;
        user_check(member.attach == around, where,
                   "stream: '{}' is made where '{}' begins to reduce, and this step moves one of them; do it before "
                   "stream",
                   member.definition.name, state.stages[owner].definition.name);
        for (int id : member.order)
            user_check(shared_loop(state, static_cast<int>(s)) == loop && attached_to(state, id).empty(), where,
                       "stream: '{}' cannot stand under loop '{}' of '{}', which shares the loop of '{}'; place it "
                       "under '{}'",
                       attached_to(state, id).empty() ? "" : stage_text(state, attached_to(state, id)[0]),
                       state.loops[id].name, member.definition.name, state.stages[owner].definition.name,
                       state.loops[loop].name);
        stream_link(state, static_cast<int>(s), where);
        stream_link(state, owner, where);
        check_stages_outside(state, static_cast<int>(s), loop, where);
        check_kept_for_terms(state, static_cast<int>(s), loop, where);
        if (!is_read_running(state, static_cast<int>(s))) continue;
        for (int producer : producers_of(state, member.definition.finish))
            user_check(state.stages[producer].streams != loop, where,
                       "stream: the value of '{}' so far would need that of '{}' so far; compute it in a stage of its "
                       "own, of both",
                       member.definition.name, stage_text(state, producer));
    }
}

}  // namespace tw
