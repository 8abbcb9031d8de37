// The primitive that has several reductions share a loop.
#include <algorithm>
#include <cmath>
#include <functional>

#include <fmt/ranges.h>

#include "dsl/copy_definition.h"
#include "dsl/edit.h"
#include "dsl/evaluate.h"
#include "dsl/stream.h"
#include "support/error.h"

namespace tw {

using State = Schedule::State;

namespace {

void place(State& state, int stage, int under, int step) {
    StageRecord& record = state.stages[stage];
    record.attach = under;
    record.step = step;
    for (int id : record.order) state.loops[id].dead_step = step;
    record.order.clear();
    add_root_loops(state, stage, record.definition.operation->shape);
}

/// Reads of `from`, or of one output of it, which then is the only one of `to`.
bool redirect(std::vector<Expr>& exprs, const Operation* from, const std::shared_ptr<const Operation>& to,
              std::optional<int> output = {}) {
    bool found = false;
    for (Expr& expr : exprs)
        expr = transform(expr, [&](const Expr& e) -> Expr {
            const Read* read = e.as<Read>();
            if (!read || read->operation.get() != from || (output && read->output != *output)) return {};
            found = true;
            Read other = *read;
            other.operation = to;
            if (output) other.output = 0;
            return make_expr(e.type(), other);
        });
    return found;
}

/// A second computation of the stage for the terms alone, if others read it, too: its running values are nobody's.
int own_for_terms(State& state, int stage, int loop, int step) {
    std::vector<int> inside = streamed_along(state, loop);
    inside.push_back(state.loops[loop].stage);
    bool elsewhere = state.is_result(stage);
    const auto operation = definition_of(state, stage).operation;
    auto is_inside = [&](int reader) {
        return std::ranges::find(inside, reader) != inside.end() ||
               (state.stages[reader].attach == loop && !state.stages[reader].definition.reducer);
    };
    for (size_t s = 0; s < state.stages.size(); ++s)
        for (const ReadSite& site : reads_of(state.stages[s].definition))
            if (!state.stages[s].inlined && site.read->operation == operation)
                elsewhere = elsewhere || !is_inside(static_cast<int>(s)) ||
                            (!site.in_update && state.stages[s].definition.reducer);
    if (!elsewhere) return stage;
    StageDefinition again = definition_of(state, stage);
    again.name = unique_stage_name(state, again.name + "_streamed");
    auto copy = std::make_shared<Operation>(*again.operation);
    copy->name = again.name;
    again.operation = copy;
    for (size_t s = 0; s < state.stages.size(); ++s) {
        if (!is_inside(static_cast<int>(s)) || state.stages[s].inlined) continue;
        StageDefinition& reader = state.stages[s].definition;
        redirect(reader.reducer ? reader.update : reader.finish, operation.get(), copy);
    }
    return add_stage(state, std::move(again), step);
}

bool stands_under(const State& state, int stage, int loop) {
    const int attach = state.stages[stage].attach;
    if (attach < 0) return false;
    const std::vector<int> around = enclosing_loops(state, attach);
    return std::ranges::find(around, loop) != around.end();
}

/// What others read of a member, or a caller is given, is a copy behind the shared loop.
void copy_out(State& state, int member, int output, int loop, int step) {
    const int owner = state.loops[loop].stage;
    const std::shared_ptr<const Operation> source = definition_of(state, member).operation;
    StageDefinition copy = copy_definition(state, source, output, definition_of(state, member).name + "_out",
                                           definition_of(state, member), state.stages[member].attach);
    bool read = false;
    for (size_t s = 0; s < state.stages.size(); ++s) {
        const int reader = static_cast<int>(s);
        if (state.stages[s].inlined || reader == owner || is_member(state, reader, loop) ||
            stands_under(state, reader, state.stages[member].attach))
            continue;
        StageDefinition& into = state.stages[s].definition;
        for (auto* exprs : {&into.update, &into.finish, &into.place})
            read |= redirect(*exprs, source.get(), copy.operation, output);
    }
    for (size_t k = 0; k < state.result.size(); ++k)
        if (state.result[k] == source.get() && state.outputs[k].output() == output) {
            state.result[k] = copy.operation.get();
            read = true;
        }
    if (!read) return;
    const int stage = add_stage(state, std::move(copy), step);
    state.stages[stage].is_copy = state.stages[stage].after = true;
    state.stages[stage].attach = state.stages[member].attach;
}

/// Of the stages that the step has placed, readers first: what they need tells what those before them compute.
void fit_loops(State& state, int step, std::source_location where) {
    std::vector<int> order = topological_order(state);
    for (auto stage = order.rbegin(); stage != order.rend(); ++stage)
        if (state.stages[*stage].step == step && state.stages[*stage].attach >= 0) fit_root_loops(state, *stage, where);
}

/// As the trace calls it: "Reference::lazy(8)".
std::string reference_as_cpp(const Reference& reference) {
    const bool is_running = reference.kind == Reference::Kind::Running;
    return fmt::format("Reference::{}({})", word_of(reference.kind), is_running ? "" : fmt::format("{}", reference.by));
}

/// What has to be read there meanwhile, as notes say it.
std::string reference_text(const Reference& reference, const std::string& name) {
    using Kind = Reference::Kind;
    if (reference.kind == Kind::Constant) return fmt::format("{} in the place of '{}'", reference.by, name);
    const std::string running = fmt::format("values so far of '{}'", name);
    if (reference.kind == Kind::Lazy)
        return fmt::format("{} that may be {} away from the newest", running, reference.by);
    return reference.kind == Kind::Offset ? fmt::format("{} plus {}", running, reference.by) : running;
}

/// Whether a constant may stand for the stage's result where terms divide by it, or by a function of it.
void check_constant(const State& state, int stage, std::source_location where) {
    const Reference& reference = state.stages[stage].reference;
    const auto& outputs = definition_of(state, stage).operation->outputs;
    for (size_t o = 0; o < outputs.size(); ++o) {
        const auto neutral = neutral_value(state, stage, o, where);
        if (!neutral) continue;
        const Expr stands = constant(outputs[o].type, reference.by);
        SlotMap none;
        const Expr replaced = substitute(neutral->replaced, {{neutral->variable, stands}});
        user_check(CompiledExpr(replaced, none, {}).run_integer({}) == 0, where,
                   "stream(.., {{'{}', {}}}): what its terms are divided by, or multiplied with, is 0 or not finite "
                   "there, so nothing leads back to the true '{}'; choose another constant",
                   definition_of(state, stage).name, reference_as_cpp(reference), definition_of(state, stage).name);
    }
}

bool is_read_by_terms(const State& state, int stage, const std::vector<int>& all, std::source_location where) {
    for (int reader : all)
        for (const RunningValue& value : stream_link(state, reader, where).values)
            if (state.stage_of(value.now.as<Read>()->operation.get()) == stage) return true;
    return false;
}

/// What can be said of a reference before the reductions share the loop.
void check_reference(const State& state, int stage, const Reference& reference, const std::vector<int>& members,
                     std::source_location where) {
    const std::string call =
        fmt::format("stream(.., {{'{}', {}}})", definition_of(state, stage).name, reference_as_cpp(reference));
    user_check(std::ranges::find(members, stage) != members.end(), where,
               "{}: a reference is that of a reduction which others read on the way; name one in front of the last",
               call);
    const bool wide = definition_of(state, stage).operation->outputs[0].body.type() == Type::F64;
    user_check(wide ? std::isfinite(reference.by) : std::isfinite(static_cast<float>(reference.by)), where,
               "{}: give a finite number", call);
    user_check(reference.kind != Reference::Kind::Lazy || reference.by >= 0, where,
               "{}: a lazy reference may be so far away from the newest value; give 0 or more", call);
}

/// The factor by which terms of a link change that are made with one number in the place of the stage's value, instead
/// of another; 1 where more than the value tells.
double factor_between(const State& state, int stage, const RunningValue& value, const Correction& correction,
                      double before, double now) {
    const bool is_own = state.stage_of(value.now.as<Read>()->operation.get()) == stage;
    if (!is_own || correction.kind != Correction::Kind::Scale) return 1;
    const Type type = value.now.type();
    const Expr by = transform(correction.by, [&](const Expr& e) -> Expr {
        if (e.same(value.before)) return constant(type, before);
        return e.type() == type && equal(e, value.now) ? constant(type, now) : Expr();
    });
    bool is_known = true;
    visit(by, [&](const Expr& e) { is_known = is_known && !e.as<Read>() && !e.as<Variable>(); });
    SlotMap none;
    return is_known ? CompiledExpr(by, none, {}).run({}).real : 1;
}

/// Whether factors of the distance alone, such as exp(r - r'), are no numbers for the reference's.
bool is_too_far(const State& state, int stage, const StreamLink& link) {
    const double by = state.stages[stage].reference.by;
    for (const RunningValue& value : link.values)
        for (const Correction& correction : link.corrections) {
            const auto factor = [&](double before, double now) {
                return factor_between(state, stage, value, correction, before, now);
            };
            const double there = factor(0, by), back = factor(by, 0);
            const bool is_of_distance = factor(0, 0) == 1 && there == factor(1, 1 + by) && back == factor(1 + by, 1);
            if (is_of_distance && !(std::isfinite(there) && std::isfinite(back))) return true;
        }
    return false;
}

/// Terms that are made with an offset are always so far away.
void check_offset(const State& state, int stage, const std::vector<int>& all, std::source_location where) {
    for (int reader : all)
        user_check(!is_too_far(state, stage, stream_link(state, reader, where)), where,
                   "stream(.., {{'{}', {}}}): terms of '{}' are infinite, or all 0, so far away in their type; give a "
                   "number closer to 0",
                   definition_of(state, stage).name, reference_as_cpp(state.stages[stage].reference),
                   stage_text(state, reader));
}

/// Whether an accumulator that no correction changes goes with one that is corrected and compared: of argmax, the
/// place.
bool picks_by_corrected(const ReducerNode& reducer, const StreamLink& link) {
    const auto changes = [&](size_t c) { return link.corrections[c].kind != Correction::Kind::None; };
    for (size_t c = 0; c < link.corrections.size(); ++c) {
        bool picks = false;
        if (!changes(c))
            visit(reducer.combined[c], [&](const Expr& e) {
                const Select* select = e.as<Select>();
                for (size_t other = 0; select && other < link.corrections.size(); ++other)
                    picks = picks || (changes(other) && contains(select->condition, reducer.left[other]));
            });
        if (picks) return true;
    }
    return false;
}

/// What is read of the values in their place, each once.
std::string references_text(const State& state, const StreamLink& link) {
    std::vector<std::string> texts;
    for (const RunningValue& value : link.values) {
        const Operation* read = value.now.as<Read>()->operation.get();
        const std::string text = reference_text(state.stages[state.stage_of(read)].reference, read->name);
        if (std::ranges::find(texts, text) == texts.end()) texts.push_back(text);
    }
    return fmt::format("{}", fmt::join(texts, ", and with "));
}

/// What the declaration does otherwise, or may, and how far terms may go.
std::string limits_text(const State& state, const StageDefinition& definition, const StreamLink& link,
                        std::source_location where) {
    if (link.raw_before) return "; without any terms it is 0, even where the declaration makes NaN of that";
    std::string text = "; nothing shows that these bound its terms, which may leave the range of their type";
    const bool may_lack_inverse = std::ranges::any_of(link.values, [&](const RunningValue& value) {
        const Read& read = *value.now.as<Read>();
        return neutral_value(state, state.stage_of(read.operation.get()), static_cast<size_t>(read.output), where)
            .has_value();
    });
    if (link.keeps_identity && may_lack_inverse)
        text += fmt::format("; where all of its terms are {} it is that, even where the declaration makes NaN of them",
                            to_string(definition.reducer->identity[0]));
    return text;
}

void note_links(State& state, const std::vector<int>& stages, int step, std::source_location where) {
    for (int stage : stages) {
        const StreamLink link = stream_link(state, stage, where);
        if (link.values.empty()) continue;
        const StageDefinition& definition = definition_of(state, stage);
        const bool is_corrected =
            std::ranges::any_of(link.corrections, [](const Correction& c) { return c.kind != Correction::Kind::None; });
        const std::string rounds =
            is_corrected ? ": floats may differ by rounding" : rounding_text(*definition.reducer);
        const bool is_far = std::ranges::any_of(link.values, [&](const RunningValue& value) {
            const int producer = state.stage_of(value.now.as<Read>()->operation.get());
            const Reference::Kind kind = state.stages[producer].reference.kind;
            return kind == Reference::Kind::Constant ||
                   (kind == Reference::Kind::Lazy && is_too_far(state, producer, link));
        });
        state.notes.push_back(fmt::format(
            "[{}] '{}' goes on with {}, and is corrected {}{}{}{}{}{}", step, stage_text(state, stage),
            references_text(state, link), is_free_of_corrections(state, link) ? "behind the loop" : "when they change",
            rounds, link.rounds ? ", also of what its terms are cast to" : "",
            picks_by_corrected(*definition.reducer, link)
                ? ", and of values that are equal up to it another may be picked"
                : "",
            limits_text(state, definition, link, where),
            is_far && link.raw_before ? "; nothing shows that the reference is close enough for terms and sums to stay "
                                        "in the range of their type"
                                      : ""));
    }
}

}  // namespace

void Schedule::stream(const std::vector<StageRef>& reductions, Loop loop, std::source_location where) {
    stream(reductions, loop, {}, where);
}

void Schedule::stream(const std::vector<StageRef>& reductions, Loop loop, const std::vector<ReferenceOf>& references,
                      std::source_location where) {
    Edit edit(state_, where);
    State& state = edit.state;
    user_check(reductions.size() > 1, where, "stream: name at least two reductions, last the one that has the loop");
    std::vector<int> members;
    for (const StageRef& reduction : reductions) members.push_back(edit.stage(reduction, "stream"));
    const int owner = members.back(), along = edit.alive(loop, "stream");
    const LoopRecord& shared = state.loops[along];
    members.pop_back();
    user_check(shared.stage == owner && shared.reduces, where,
               "stream(.., {}, {}): the loop is no reduce loop of '{}', which is named last; name one of reduce({}), "
               "or what it was split into",
               stage_text(state, owner), shared.name, stage_text(state, owner), stage_text(state, owner));
    for (int id : state.stages[owner].order)
        user_check(
            !state.loops[id].skips(), where,
            "stream(.., {}): '{}' leaves out iterations that count nothing for '{}' alone; cut({}, {{}}) makes it "
            "whole, and skip follows behind stream",
            shared.name, state.loops[id].name, stage_text(state, owner), state.loops[id].name);
    std::vector<int> all = members;
    all.push_back(owner);
    check_chain(state, {"stream", all}, where);
    check_shared_loops(state, owner, along, where);
    const int first = state.first_reduce(owner);
    const int around = first > 0 ? state.stages[owner].order[first - 1] : state.stages[owner].attach;
    user_check(around >= 0, where,
               "stream: no loop stands around the reduce loops of '{}'; of a reduction to one number, rfactor the loop "
               "first",
               stage_text(state, owner));
    std::vector<int> referred;
    for (const ReferenceOf& each : references) {
        const int stage = edit.stage(each.reduction, "stream");
        user_check(std::ranges::find(referred, stage) == referred.end(), where,
                   "stream(.., {{'{}', ..}}): it has a reference already; give each reduction one",
                   definition_of(state, stage).name);
        check_reference(state, stage, each.reference, members, where);
        state.stages[stage].reference = each.reference;
        referred.push_back(stage);
    }
    for (int member : members) {
        state.stages[member].after =
            std::ranges::none_of(all, [&](int other) { return depends_on(state, other, member); });
        state.stages[member].streams = along;
        place(state, member, around, edit.step);
    }
    const std::vector<int> between = stages_between(state, chain_along(state, along));
    for (auto stage = between.rbegin(); stage != between.rend(); ++stage)  // readers first, which so are inside
        place(state, own_for_terms(state, *stage, along, edit.step), along, edit.step);
    for (int member : members)
        for (size_t o = 0; !state.stages[member].after && o < definition_of(state, member).finish.size(); ++o)
            copy_out(state, member, static_cast<int>(o), along, edit.step);
    for (int stage : referred) {
        const Reference& reference = state.stages[stage].reference;
        if (reference.kind == Reference::Kind::Running) continue;
        user_check(is_read_by_terms(state, stage, all, where), where,
                   "stream(.., {{'{}', {}}}): no terms read it, so it needs no reference; leave it out",
                   definition_of(state, stage).name, reference_as_cpp(reference));
        if (reference.kind == Reference::Kind::Constant) check_constant(state, stage, where);
        if (reference.kind == Reference::Kind::Offset) check_offset(state, stage, all, where);
    }
    check_rules(state, where);
    fit_loops(state, edit.step, where);
    note_links(state, all, edit.step, where);
    std::string cpp, saved, cpp_of_references, saved_references;
    for (int stage : all) {
        cpp += (cpp.empty() ? "" : ", ") + edit.stage_as_cpp(stage);
        saved += fmt::format(" {}", stage);
    }
    for (int stage : referred) {
        const Reference& reference = state.stages[stage].reference;
        cpp_of_references += fmt::format("{}{{{}, {}}}", cpp_of_references.empty() ? "" : ", ",
                                         edit.stage_as_cpp(stage), reference_as_cpp(reference));
        saved_references += fmt::format(" {} {} {}", stage, word_of(reference.kind), reference.by);
    }
    if (!referred.empty()) cpp_of_references = ", {" + cpp_of_references + "}";
    edit.commit(fmt::format("s.stream({{{}}}, {}{});", cpp, edit.loop_as_cpp(along), cpp_of_references),
                fmt::format("stream {}{} {}{}", all.size(), saved, along, saved_references));
}

}  // namespace tw
