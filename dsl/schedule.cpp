#include "dsl/schedule.h"

#include <algorithm>

#include "dsl/edit.h"
#include "dsl/mma.h"
#include "dsl/simplify.h"
#include "dsl/stage.h"
#include "support/error.h"

namespace tw {

using State = Schedule::State;

int State::add_loop(const std::string& name, const Expr& extent, int stage, bool reduces) {
    Variable variable{.name = name, .min = 0, .extent = extent};
    if (auto bounds = bounds_of(extent); bounds.max) variable.max = std::max<int64_t>(*bounds.max - 1, 0);
    loops.push_back({name, make_expr(Type::I64, variable), extent, stage, reduces});
    loops.back().origin = origin_of(name);
    return static_cast<int>(loops.size()) - 1;
}

std::shared_ptr<const Origin> State::origin_of(const std::string& name) const {
    return std::make_shared<const Origin>(Origin{name, outputs_text(*this), step_where});
}

namespace {

/// A launch gives a number by its name, so equal names are one number.
class Parameters {
public:
    explicit Parameters(std::source_location where) : where_(where) {}

    void see(const Operation& operation) {
        operation_ = &operation;
        for (const auto* exprs : {&operation.shape, &operation.strides})
            for (const Expr& expr : *exprs) see(expr);
        for (const Operation::Output& output : operation.outputs)
            if (output.body.defined()) see(output.body);
    }

private:
    struct Known {
        Expr variable;
        const Operation* operation;
    };

    void see(const Expr& root) {
        visit(root, [&](const Expr& e) {
            if (auto* reduce = e.as<Reduce>())
                for (const Expr& axis : reduce->axes) see(axis.as<Variable>()->extent);
            auto* variable = e.as<Variable>();
            if (!variable || variable->kind == VariableKind::Index) return;
            auto [known, fresh] = known_.try_emplace(variable->name, Known{e, operation_});
            if (!fresh && !known->second.variable.same(e)) check_same(known->second, e);
        });
    }

    void check_same(const Known& known, const Expr& e) const {
        const Variable &a = *known.variable.as<Variable>(), &b = *e.as<Variable>();
        bool same = known.variable.type() == e.type() && a.kind == b.kind && a.min == b.min && a.max == b.max &&
                    a.multiple_of == b.multiple_of;
        user_check(same, where_,
                   "Schedule: '{}' is {} in '{}', but {} in '{}'; a launch gives one number by that name. Declare it "
                   "once and use it in both, or give one another name",
                   b.name, text(known.variable), known.operation->name, text(e), operation_->name);
    }

    static std::string text(const Expr& e) {
        const Variable& variable = *e.as<Variable>();
        if (variable.kind == VariableKind::Scalar) return fmt::format("a scalar of type {}", name_of(e.type()));
        std::string multiple = variable.multiple_of > 1 ? fmt::format(", a multiple of {}", variable.multiple_of) : "";
        return fmt::format("a size from {} to {}{}", *variable.min, *variable.max, multiple);
    }

    std::source_location where_;
    const Operation* operation_ = nullptr;
    std::map<std::string, Known> known_;
};

/// Each is a buffer, an output of a tuple by its own name if it has one.
void check_names(const std::vector<std::shared_ptr<const Operation>>& operations, std::source_location where) {
    std::set<std::string> names;
    for (const auto& operation : operations) {
        std::vector<std::string> own{operation->name};
        for (const Operation::Output& output : operation->outputs)
            if (!output.name.empty()) own.push_back(output.name);
        for (const std::string& name : own)
            user_check(names.insert(name).second, where,
                       "Schedule: two tensors are named '{}'; names must differ within a schedule", name);
    }
}

}  // namespace

Schedule::Schedule(const std::vector<Tensor>& outputs, Target target, std::source_location where)
    : state_(std::make_unique<State>()) {
    state_->target = std::move(target);
    state_->made = state_->step_where = where;
    state_->outputs = outputs;
    user_check(!outputs.empty(), where, "Schedule: needs at least one output tensor");
    for (const Tensor& output : outputs) {
        user_check(output.defined(), where, "Schedule: an output is an undefined tensor");
        user_check(!output.operation()->is_input(), where,
                   "Schedule: '{}' is an input; an output must be computed, e.g. compute(\"copy\", ...)",
                   output.name());
        state_->result.push_back(output.operation().get());
    }
    auto operations = operations_of(outputs);
    check_names(operations, where);
    Parameters parameters(where);
    for (const auto& operation : operations) parameters.see(*operation);
    for (StageDefinition& definition : stages_of(outputs)) add_stage(*state_, std::move(definition), -1);
    state_->tree = build_tree(*state_, where);
    state_->handle_names = HandleNames(operations, state_->tree.sizes);
}

Schedule::Schedule(const Schedule& other) : state_(std::make_unique<State>(*other.state_)) {}
Schedule& Schedule::operator=(const Schedule& other) {
    state_ = std::make_unique<State>(*other.state_);
    return *this;
}
Schedule::Schedule(Schedule&&) noexcept = default;
Schedule& Schedule::operator=(Schedule&&) noexcept = default;
Schedule::~Schedule() = default;

const Tree& Schedule::tree() const {
    renew_tree(*state_, state_->step_where);
    return state_->tree;
}
const Target& Schedule::target() const { return state_->target; }
const std::vector<Step>& Schedule::trace() const { return state_->trace; }
const std::vector<Tensor>& Schedule::outputs() const { return state_->outputs; }
std::vector<Type> Schedule::roundings() const {
    std::vector<Type> types;
    for (const StageRecord& stage : state_->stages)
        if (stage.rounded && copied_rounding(*state_, stage) != stage.rounded) types.push_back(*stage.rounded);
    return types;
}
std::vector<std::pair<Tensor, Type>> Schedule::rounded() const {
    std::vector<std::pair<Tensor, Type>> found;
    for (const auto& operation : operations_of(state_->outputs))
        if (const int stage = state_->stage_of(operation.get()); stage >= 0 && state_->stages[stage].rounded)
            found.emplace_back(Tensor(operation, 0), *state_->stages[stage].rounded);
    return found;
}
std::string Schedule::to_string() const { return tw::to_string(tree()); }
void Schedule::print() const { fmt::print("{}", to_string()); }

// Handles.

Stage Schedule::operator[](const StageRef& ref) const {
    const bool is_tensor = ref.tensor_.defined();
    const int known = is_tensor ? state_->stage_of(ref.tensor_.operation().get()) : ref.stage_.id;
    if (known >= 0 && known < static_cast<int>(state_->stages.size())) {
        const Stage stage = state_->handle_of_stage(known);
        if (is_tensor || (ref.stage_.origin && stage.origin == ref.stage_.origin)) return stage;
    }
    const Look look(*state_, ref.where_);
    return state_->handle_of_stage(look.stage(ref, "operator[]"));
}

std::vector<Stage> Schedule::all_stages() const {
    std::vector<Stage> stages;
    for (int stage : topological_order(*state_)) stages.push_back(state_->handle_of_stage(stage));
    return stages;
}

bool Schedule::reduces(const StageRef& ref) const {
    Stage stage = (*this)[ref];
    return state_->stages[stage.id].definition.reducer != nullptr;
}

std::vector<Stage> Schedule::readers(const StageRef& ref) const {
    const StageDefinition& read = state_->stages[(*this)[ref].id].definition;
    std::vector<Stage> found;
    for (Stage stage : all_stages())
        if (reads_stage(state_->stages[stage.id].definition, read)) found.push_back(stage);
    return found;
}

std::string Schedule::name(const StageRef& ref) const {
    Stage stage = (*this)[ref];
    return stage_text(*state_, stage.id);
}

std::vector<Loop> Schedule::all_loops(const StageRef& ref, std::source_location where) const {
    const Look look(*state_, where);
    std::vector<Loop> loops;
    for (int id : look.state.stages[look.stage(ref, "all_loops")].order) loops.push_back(look.state.handle_of_loop(id));
    return loops;
}

std::vector<Loop> Schedule::data_loops(const StageRef& ref, std::source_location where) const {
    const Look look(*state_, where);
    const StageRecord& record = look.state.stages[look.stage(ref, "data_loops")];
    std::vector<Loop> loops;
    for (size_t d = 0; d < record.definition.axes.size(); ++d)
        loops.push_back(look.root(record, d, "loops (data_loops)"));
    return loops;
}

void Schedule::check_loop_count(const StageRef& ref, size_t found, size_t wanted, std::source_location where) const {
    const Look look(*state_, where);
    user_check(found == wanted, where, "loops<{}>: '{}' has {} data axes; write loops<{}>", wanted,
               stage_text(look.state, look.stage(ref, "loops")), found, found);
}

Loop Schedule::reduce(const StageRef& ref, int index, std::source_location where) const {
    const Look look(*state_, where);
    int stage = look.stage(ref, "reduce");
    const StageRecord& record = look.state.stages[stage];
    int count = static_cast<int>(record.definition.reduce_axes.size());
    const char* advice = count > 0 ? ""
                                   : ". Of several reductions in one expression each is a stage of its own: declare "
                                     "them as tensors of their own to schedule them";
    user_check(0 <= index && index < count, where, "reduce: '{}' has {} reduce axes; there is none with index {}{}",
               stage_text(look.state, stage), count, index, advice);
    return look.root(record, record.definition.axes.size() + index, "reduce");
}

Expr Schedule::extent(Loop loop, std::source_location where) const {
    return Edit::loop_of(*state_, loop, "extent", where).extent;
}

Expr Schedule::index(Loop loop, std::source_location where) const {
    return Edit::loop_of(*state_, loop, "index", where).variable;
}

Loop Schedule::loop(const StageRef& ref, Loop other, std::source_location where) const {
    const Look look(*state_, where);
    int stage = look.stage(ref, "loop");
    const State& state = look.state;
    const StageRecord& record = state.stages[stage];
    Expr variable = state.loops[look.alive(other, "loop")].variable;
    const StageRecord& theirs = state.owner(other.id);
    auto found = [&](size_t axis) { return look.root(record, axis, "loop"); };
    auto depends = [&](int root) { return contains(loop_value(state, root), variable); };
    size_t rank = record.definition.axes.size(), their_rank = theirs.definition.axes.size();
    // The reduce axis itself, if both run over it.
    for (size_t r = 0; r < theirs.definition.reduce_axes.size(); ++r)
        for (size_t mine = 0; mine < record.definition.reduce_axes.size(); ++mine)
            if (depends(theirs.roots[their_rank + r]) &&
                record.definition.reduce_axes[mine].same(theirs.definition.reduce_axes[r]))
                return found(rank + mine);
    // The dimension that one reads at an axis of the other which the loop drives.
    auto drives = [&](const Expr& index, const StageRecord& reader) {
        for (size_t a = 0; a < reader.roots.size(); ++a) {
            const auto& d = reader.definition;
            Expr axis = a < d.axes.size() ? d.axes[a] : d.reduce_axes[a - d.axes.size()];
            if (contains(index, axis) && depends(reader.roots[a])) return true;
        }
        return false;
    };
    for (const ReadSite& site : reads_of(theirs.definition))
        if (site.read->operation == record.definition.operation)
            for (size_t d = 0; d < rank; ++d)
                if (drives(site.read->indices[d], theirs)) return found(d);
    for (const ReadSite& site : reads_of(record.definition))
        if (site.read->operation == theirs.definition.operation)
            for (size_t d = 0; d < their_rank; ++d)
                for (size_t a = 0; a < rank; ++a)
                    if (depends(theirs.roots[d]) && equal(site.read->indices[d], record.definition.axes[a]))
                        return found(a);
    user_error(where, "loop: no loop of '{}' corresponds to '{}' of '{}'", stage_text(state, stage),
               state.loops[other.id].name, theirs.definition.name);
}

Loop Schedule::numbered_loop(int id) const {
    bool there = id >= 0 && id < static_cast<int>(state_->loops.size());
    return there ? state_->handle_of_loop(id) : Loop{};
}

Stage Schedule::numbered_stage(int id) const {
    bool there = id >= 0 && id < static_cast<int>(state_->stages.size());
    return there ? state_->handle_of_stage(id) : Stage{};
}

// Looking.

namespace {

std::string memory_of_elements(const Schedule::State& state, int stage) {
    const Memory resolved = resolved_memory(state, stage);
    return tw::to_string(resolved) + (resolved == Memory::Registers ? "" : " memory");
}

/// Where the stage's elements live; or, of updates, which have none, those that they change.
std::string text_of_elements(const Schedule::State& state, int stage) {
    const StageRecord& record = state.stages[stage];
    const std::string& name = record.definition.name;
    if (const int target = target_of(state, stage); target >= 0)
        return fmt::format("'{}' updates the elements of '{}', in {}", name, state.stages[target].definition.name,
                           memory_of_elements(state, target));
    return fmt::format("'{}' lives in {}{}", name, memory_of_elements(state, stage),
                       record.memory == Memory::Auto ? " (default)" : "");
}

}  // namespace

std::string Schedule::explain() const {
    std::string text;
    for (const std::string& note : state_->notes) text += note + "\n";
    for (size_t s = 0; s < state_->stages.size(); ++s) {
        const StageRecord& record = state_->stages[s];
        if (record.inlined) continue;
        for (const std::string& note : notes_of_unit(*state_, static_cast<int>(s))) text += note + "\n";
        text += text_of_elements(*state_, static_cast<int>(s)) + "\n";
    }
    for (const LoopRecord& loop : state_->loops)
        if (loop.pipeline_step >= 0 && loop.stages == 1)
            text += fmt::format("[{}] '{}' is no pipeline: with 1 stage each copy has one buffer; give 2 or more\n",
                                loop.pipeline_step, loop.name);
    return text;
}

bool Schedule::deterministic() const {
    return std::none_of(state_->stages.begin(), state_->stages.end(), [](const StageRecord& stage) {
        return stage.definition.target && stage.definition.combine == BinaryOp::Add &&
               is_float(stage.definition.finish[0].type());
    });
}

std::string Schedule::trace_as_cpp() const {
    std::string text;
    for (size_t k = 0; k < state_->trace.size(); ++k) {
        const Step& step = state_->trace[k];
        text += fmt::format("{}{:<60}  // [{}] {}\n", step.handles, step.text, k, step.file_line);
    }
    return text;
}

}  // namespace tw
