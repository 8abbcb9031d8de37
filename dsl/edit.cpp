#include "dsl/edit.h"

#include <algorithm>
#include <charconv>

#include <fmt/ranges.h>

#include "dsl/cut.h"
#include "dsl/found_by_search.h"
#include "dsl/remember_regions.h"
#include "dsl/simplify.h"
#include "dsl/stream.h"
#include "support/error.h"

namespace tw {

using State = Schedule::State;

namespace {

thread_local int trees_later = 0;  // how many live
thread_local int found_by_search = 0;
thread_local int64_t trees_refused = 0;

/// "matmul.cpp:31"; of a step that a library function made for its caller, the caller's line and its own:
/// "matmul.cpp:31, product.cpp:120".
std::string step_place(const std::source_location& where) {
    const std::string own = place_text(where), told = found_by_search > 0 ? "found by search" : own;
    std::string asked = where_prefix(where);
    asked.resize(asked.size() - 2);  // ": "
    return asked == own ? told : asked + ", " + told;
}

void refresh(State& state, std::set<int>& kernels_then, Refreshed which, std::source_location where) {
    std::set<int> kernels;
    for (const int kernel : kernels_then) kernels.insert(state.kernel_of(kernel));
    if (!kernels.empty()) refresh_regions(state, kernels, which, where);
    kernels_then.clear();
}

/// What steps have left unchecked.
void check_regions(State& state, std::source_location where) {
    refresh(state, state.unchecked_kernels, Refreshed::All, where);
    state.stale_kernels.clear();
}

/// Of stages whose loops may get other extents.
void renew_regions(State& state, std::source_location where) {
    try {
        refresh(state, state.stale_kernels, Refreshed::Unsettled, where);
    } catch (const Error&) {
        ++trees_refused;
        throw;
    }
}

void renew_region_of(State& state, int loop, std::source_location where) {
    if (state.stale_kernels.empty()) return;
    const StageRecord& owner = state.owner(loop);
    if (owner.attach >= 0 && !is_settled(state, owner)) renew_regions(state, where);
}

void check_lengths(const State& state, std::source_location where) {
    RememberRegions regions(state);
    check_lengths_alike(state, where);
}

}  // namespace

void renew_tree(State& state, std::source_location where) {
    if (!state.tree_is_old) return;
    try {
        check_regions(state, where);
        state.tree = cut_loops(state, build_tree(state, where), where);
    } catch (const Error&) {
        ++trees_refused;
        throw;
    }
    state.tree_is_old = false;
}

Edit::Edit(std::unique_ptr<State>& target, std::source_location where, Regions regions)
    : state(*target), where(where), step(static_cast<int>(target->trace.size())), target_(target) {
    state.step_where = where;
    if (regions == Regions::All) renew_regions(state, where);
}

int Edit::alive(const Loop& loop, const char* what) {
    const int id = Look(state, where).alive(loop, what);
    renew_region_of(state, id, where);
    return id;
}

const LoopRecord& Edit::loop_of(State& state, const Loop& loop, const char* what, std::source_location where) {
    const int id = Look(state, where).alive(loop, what);
    renew_region_of(state, id, where);
    return state.loops[id];
}

void Edit::commit(const std::string& cpp, const std::string& saved) {
    const std::set<int> kernels = kernels_changed(*target_, state);
    if (trees_later == 0) {
        check_rules(state, where);
        state.unchecked_kernels.insert(kernels.begin(), kernels.end());
        check_regions(state, where);
        check_lengths(state, where);
    } else {
        check_with_stale_regions(kernels);
    }
    state.tree_is_old = true;
    if (trees_later == 0) renew_tree(state, where);
    record(cpp, saved);
}

/// What the rules refuse of regions that are old they are asked again.
void Edit::check_with_stale_regions(const std::set<int>& kernels_changed) {
    for (std::set<int>* kernels : {&state.stale_kernels, &state.unchecked_kernels})
        kernels->insert(kernels_changed.begin(), kernels_changed.end());
    try {
        check_rules(state, where);
        return check_lengths(state, where);
    } catch (const Error&) {
        if (state.stale_kernels.empty()) throw;
    }
    renew_regions(state, where);
    check_rules(state, where);
    check_lengths(state, where);
}

TreesLater::TreesLater() { ++trees_later; }
TreesLater::~TreesLater() { --trees_later; }
FoundBySearch::FoundBySearch() { ++found_by_search; }
FoundBySearch::~FoundBySearch() { --found_by_search; }

Schedule made_with_trees_later(const std::function<Schedule()>& make) {
    const int64_t refused_before = trees_refused;
    try {
        const TreesLater later;
        Schedule made = make();
        made.tree();
        return made;
    } catch (const Error&) {
        if (trees_refused == refused_before) throw;  // a step has told what it refuses
    }
    return make();  // the step that is to blame is told by steps that build trees
}

void Edit::record(const std::string& cpp, const std::string& saved) {
    if (state.list_handles) {
        *state.list_handles += handles_;
    } else {
        state.trace.push_back({cpp, handles_, where, step_place(where)});
        state.saved.push_back(saved);
    }
    *target_ = std::move(state);
}

ListStep::ListStep(Schedule& schedule, std::source_location where, const std::function<void(Edit&)>& names)
    : target_(schedule.state_), before_(std::make_unique<State>(*target_)), where_(where) {
    internal_check(!target_->list_handles, "a list's step in another one's");
    Edit edit(target_, where);
    names(edit);
    edit.state.list_handles = "";
    edit.record("", "");
}

ListStep::~ListStep() {
    if (before_) target_ = std::move(before_);
}

void ListStep::commit(const std::string& cpp, const std::string& saved) {
    target_->trace.push_back({cpp, *target_->list_handles, where_, step_place(where_)});
    target_->saved.push_back(saved);
    target_->list_handles.reset();
    before_.reset();
}

void Edit::note(Schedule& schedule, const std::string& line) { schedule.state_->notes.push_back(line); }

void Look::refuse_foreign(const Origin& origin, const char* kind, const char* what) const {
    user_error(
        where,
        "{}: this handle is of the {} '{}' made at {}, in another schedule (of {}) or in another copy of this one. "
        "This one is of {}, made at {}: take its own {}s",
        what, kind, origin.name, place_text(origin.where), origin.outputs, outputs_text(state), place_text(state.made),
        kind);
}

int Look::alive(const Loop& loop, const char* what) const {
    user_check(loop.id >= 0 && loop.origin, where,
               "{}: this loop handle belongs to no loop of the schedule; take one from loops(), split() or fuse()",
               what);
    bool own = loop.id < static_cast<int>(state.loops.size()) && state.loops[loop.id].origin == loop.origin;
    if (!own) refuse_foreign(*loop.origin, "loop", what);
    const LoopRecord& record = state.loops[loop.id];
    user_check(record.dead_step < static_cast<int>(state.trace.size()), where, "{}: loop '{}' is named twice", what,
               record.name);
    if (record.dead_step >= 0) {
        const Step& consumer = state.trace[record.dead_step];
        user_error(where, "{}: loop '{}' is gone: step [{}] {} ({}) consumed it; use the loops that it returned", what,
                   record.name, record.dead_step, consumer.text, consumer.file_line);
    }
    user_check(!state.stages[record.stage].inlined, where, "{}: loop '{}' belongs to '{}', which was inlined", what,
               record.name, state.stages[record.stage].definition.name);
    return loop.id;
}

Loop Look::root(const StageRecord& stage, size_t axis, const char* what) const {
    Loop loop = state.handle_of_loop(stage.roots[axis]);
    alive(loop, what);
    return loop;
}

namespace {

/// Whether a stage is of a tensor of the schedule's own that is called so.
bool computes_another(const State& state, const std::string& name) {
    return std::ranges::any_of(operations_of(state.outputs), [&](const auto& operation) {
        return operation->name == name && state.stage_of(operation.get()) >= 0;
    });
}

}  // namespace

int Look::stage(const StageRef& ref, const char* what) const {
    const std::shared_ptr<const Origin>& origin = ref.stage_.origin;
    int found = ref.tensor_.defined() ? state.stage_of(ref.tensor_.operation().get()) : ref.stage_.id;
    if (ref.tensor_.defined() && found < 0) {
        user_check(!ref.tensor_.operation()->is_input(), where,
                   "{}: '{}' is an input, no computation; name a computed tensor", what, ref.tensor_.name());
        const std::string& name = ref.tensor_.operation()->name;
        user_check(!computes_another(state, name), where,
                   "{}: '{}' is not computed in this schedule, which computes another tensor of that name, as where a "
                   "rule has declared it anew; take named_tensor(s.outputs(), {})",
                   what, name, quoted(name));
        user_error(where, "{}: '{}' is not computed in this schedule (or was inlined); its outputs() are {}", what,
                   ref.tensor_.name(), outputs_text(state));
    }
    if (ref.tensor_.defined()) return found;
    user_check(found >= 0 && origin, where,
               "{}: this stage handle belongs to no stage of the schedule, or is an undefined tensor", what);
    bool own = found < static_cast<int>(state.stages.size()) && state.stages[found].origin == origin;
    if (!own) refuse_foreign(*origin, "stage", what);
    return found;
}

void add_root_loops(State& state, int stage, const std::vector<Expr>& data_extents) {
    StageRecord& record = state.stages[stage];
    const StageDefinition& definition = record.definition;
    record.roots.clear();
    record.relations.clear();
    for (size_t d = 0; d < definition.axes.size(); ++d)
        record.roots.push_back(state.add_loop(to_string(definition.axes[d]), data_extents[d], stage, false));
    for (size_t r = 0; r < definition.reduce_axes.size(); ++r) {
        const Expr& axis = definition.reduce_axes[r];
        Expr extent = definition.reduce_extents.empty() ? axis.as<Variable>()->extent : definition.reduce_extents[r];
        record.roots.push_back(state.add_loop(to_string(axis), extent, stage, true));
    }
    record.order = record.roots;
}

void fit_root_loops(State& state, int stage, std::source_location where) {
    std::vector<Expr> extents = region_of(state, stage, where).extent;
    if (state.stages[stage].streams >= 0)
        for (const Expr& terms : shared_terms(state, stage, where).extent) extents.push_back(terms);
    for (size_t d = 0; d < extents.size(); ++d) {
        const LoopRecord& root = state.loops[state.stages[stage].roots[d]];
        int fresh = state.add_loop(root.name, extents[d], stage, root.reduces);
        std::swap(state.loops[state.stages[stage].roots[d]], state.loops[fresh]);
        state.loops.pop_back();
    }
}

int add_stage(State& state, StageDefinition definition, int step) {
    state.stages.push_back({.definition = std::move(definition), .step = step});
    int stage = static_cast<int>(state.stages.size()) - 1;
    state.stages[stage].origin = state.origin_of(state.stages[stage].definition.name);
    add_root_loops(state, stage, state.stages[stage].definition.operation->shape);
    return stage;
}

std::string unique_stage_name(const State& state, const std::string& wanted) {
    std::string name = wanted;
    auto taken = [&](const StageRecord& stage) { return stage.definition.name == name; };
    for (int number = 2; std::any_of(state.stages.begin(), state.stages.end(), taken); ++number)
        name = fmt::format("{}{}", wanted, number);
    return name;
}

std::vector<int> attached_to(const State& state, int loop) {
    std::vector<int> found;
    for (size_t s = 0; s < state.stages.size(); ++s) {
        const StageRecord& stage = state.stages[s];
        if ((stage.attach == loop || stage.streams == loop) && !stage.inlined) found.push_back(static_cast<int>(s));
    }
    return found;
}

bool has_shared_copies(const State& state, int loop) {
    return std::ranges::any_of(attached_to(state, loop), [&](int stage) {
        const StageRecord& copy = state.stages[stage];
        const bool leaves = copy.after && copy.is_copy;
        return copy.attach == loop && (leaves || !copy.after) &&
               (leaves ? memory_of_source : resolved_memory)(state, stage) == Memory::Shared;
    });
}

Memory memory_of_source(const State& state, int copy) {
    int source = state.stage_of(reads_of(state.stages[copy].definition)[0].read->operation.get());
    return source < 0 ? Memory::Global : resolved_memory(state, source);
}

void move_under(State& state, int from, int to) {
    for (StageRecord& stage : state.stages) {
        if (stage.attach == from) stage.attach = to;
        if (stage.streams == from) stage.streams = to;
    }
}

std::string rounding_text(const ReducerNode& reducer) {
    bool rounds = false;
    for (const Expr& combined : reducer.combined)
        visit(combined, [&](const Expr& e) {
            const Binary* binary = e.as<Binary>();
            const bool chooses = binary && (binary->op == BinaryOp::Min || binary->op == BinaryOp::Max);
            const bool computes = binary || e.as<Unary>() || e.as<Fma>() || e.as<Cast>();
            rounds = rounds || (is_float(e.type()) && computes && !chooses);
        });
    return rounds ? ": floats may differ by rounding" : "";
}

std::string outputs_text(const State& state) {
    std::vector<std::string> names;
    for (const Tensor& output : state.outputs) names.push_back(fmt::format("'{}'", output.name()));
    return fmt::format("{}", fmt::join(names, ", "));
}

std::string stage_text(const Schedule::State& state, int stage) { return state.stages[stage].definition.name; }

std::string saved_name(const std::string& name) {
    std::string word;
    for (char c : name) {
        auto byte = static_cast<unsigned char>(c);
        bool plain = byte > ' ' && byte != '%' && byte < 127;
        word += plain ? std::string(1, c) : fmt::format("%{:02x}", byte);
    }
    return word;
}

std::string name_from_saved(const std::string& word) {
    std::string name;
    for (size_t i = 0; i < word.size(); ++i) {
        unsigned byte = 0;
        auto digits = word.substr(i, 3);
        bool coded = digits.size() == 3 && digits[0] == '%' &&
                     std::from_chars(digits.data() + 1, digits.data() + 3, byte, 16).ptr == digits.data() + 3;
        name += coded ? static_cast<char>(byte) : word[i];
        if (coded) i += 2;
    }
    return name;
}

std::string quoted(const std::string& text) {
    std::string literal;
    for (char c : text) {
        auto byte = static_cast<unsigned char>(c);
        if (c == '"' || c == '\\')
            literal += std::string("\\") + c;
        else
            literal += byte < ' ' || byte == 127 ? fmt::format("\\{:03o}", byte) : std::string(1, c);
    }
    bool ends_early = text.find('\0') != text.npos;
    return ends_early ? fmt::format("std::string(\"{}\", {})", literal, text.size()) : "\"" + literal + "\"";
}

SplitNames default_names(const std::string& whole) { return {whole + "_outer", whole + "_inner"}; }

}  // namespace tw
