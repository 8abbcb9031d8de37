#include "dsl/schedule.h"

#include <algorithm>

#include "dsl/edit.h"
#include "dsl/simplify.h"
#include "dsl/stage.h"
#include "support/error.h"

namespace tw {

using State = Schedule::State;

int State::add_loop(const std::string& name, const Expr& extent, int stage, bool reduces) {
    Variable variable{.name = name, .min = 0, .extent = extent};
    if (auto bounds = bounds_of(extent); bounds.max) variable.max = std::max<int64_t>(*bounds.max - 1, 0);
    loops.push_back({name, make_expr(Type::I64, variable), extent, stage, reduces});
    return static_cast<int>(loops.size()) - 1;
}

namespace {

std::string level_text(Level level) {
    switch (level) {
        case Level::Unroll: return "unrolled";
        default: return to_string(level);
    }
}

std::string memory_text(Memory memory) {
    switch (memory) {
        case Memory::Auto: return "Memory::Auto";
        case Memory::Global: return "Memory::Global";
        case Memory::Shared: return "Memory::Shared";
        case Memory::Registers: return "Memory::Registers";
    }
    return "?";
}

std::string stage_text(const State& state, int stage) { return state.stages[stage].definition.name; }

bool depends_on(const State& state, int reader, int producer) {
    for (const ReadSite& site : reads_of(state.stages[reader].definition)) {
        int next = state.stage_of(site.read->operation.get());
        if (next == producer || (next >= 0 && depends_on(state, next, producer))) return true;
    }
    return false;
}

void require_serial(const Edit& edit, int loop, const char* what) {
    const LoopRecord& record = edit.state.loops[loop];
    user_check(record.level == Level::Serial, edit.where,
               "{}: loop '{}' is bound to {}; {} it before binding, or bind(loop, serial) first", what, record.name,
               to_string(record.level), what);
    user_check(record.stages == 1, edit.where,
               "{}: loop '{}' is pipelined; {} it before, or pipeline(loop, {{.stages = 1}}) first", what, record.name,
               what);
}

}  // namespace

Schedule::Schedule(const std::vector<Tensor>& outputs, Target target, std::source_location where)
    : state_(std::make_unique<State>()) {
    state_->target = std::move(target);
    state_->outputs = outputs;
    user_check(!outputs.empty(), where, "Schedule: needs at least one output tensor");
    for (const Tensor& output : outputs) {
        user_check(output.defined(), where, "Schedule: an output is an undefined tensor");
        user_check(!output.operation()->is_input(), where,
                   "Schedule: '{}' is an input; an output must be computed, e.g. compute(\"copy\", ...)", output.name());
        state_->result.push_back(output.operation().get());
    }
    std::set<std::string> names;
    for (const auto& operation : operations_of(outputs))
        user_check(names.insert(operation->name).second, where,
                   "Schedule: two tensors are named '{}'; names must differ within a schedule", operation->name);
    for (StageDefinition& definition : stages_of(outputs)) add_stage(*state_, std::move(definition), -1);
    state_->tree = build_tree(*state_, where);
}

Schedule::Schedule(const Schedule& other) : state_(std::make_unique<State>(*other.state_)) {}
Schedule& Schedule::operator=(const Schedule& other) {
    state_ = std::make_unique<State>(*other.state_);
    return *this;
}
Schedule::Schedule(Schedule&&) noexcept = default;
Schedule& Schedule::operator=(Schedule&&) noexcept = default;
Schedule::~Schedule() = default;

const Tree& Schedule::tree() const { return state_->tree; }
const Target& Schedule::target() const { return state_->target; }
const std::vector<Step>& Schedule::trace() const { return state_->trace; }
const std::vector<Tensor>& Schedule::outputs() const { return state_->outputs; }
std::string Schedule::to_string() const { return tw::to_string(state_->tree); }
void Schedule::print() const { fmt::print("{}", to_string()); }

// Handles.

Stage Schedule::operator[](const StageRef& ref) const {
    auto& self = const_cast<Schedule&>(*this);
    return {Edit(self.state_, std::source_location::current()).stage(ref, "operator[]")};
}

std::vector<Stage> Schedule::all_stages() const {
    std::vector<Stage> stages;
    for (int stage : topological_order(*state_)) stages.push_back({stage});
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
    Edit look(const_cast<Schedule&>(*this).state_, where);
    std::vector<Loop> loops;
    for (int id : look.state.stages[look.stage(ref, "all_loops")].order) loops.push_back({id});
    return loops;
}

std::vector<Loop> Schedule::data_loops(const StageRef& ref, std::source_location where) const {
    Edit look(const_cast<Schedule&>(*this).state_, where);
    const StageRecord& record = look.state.stages[look.stage(ref, "loops")];
    std::vector<Loop> loops;
    for (size_t d = 0; d < record.definition.axes.size(); ++d) loops.push_back({look.alive({record.roots[d]}, "loops")});
    return loops;
}

void Schedule::check_loop_count(const StageRef& ref, size_t found, size_t wanted, std::source_location where) const {
    Edit look(const_cast<Schedule&>(*this).state_, where);
    user_check(found == wanted, where, "loops<{}>: '{}' has {} data axes; write loops<{}>", wanted,
               stage_text(look.state, look.stage(ref, "loops")), found, found);
}

Loop Schedule::reduce(const StageRef& ref, int index, std::source_location where) const {
    Edit look(const_cast<Schedule&>(*this).state_, where);
    int stage = look.stage(ref, "reduce");
    const StageRecord& record = look.state.stages[stage];
    int count = static_cast<int>(record.definition.reduce_axes.size());
    user_check(index >= 0 && index < count, where, "reduce: '{}' has {} reduce axes; there is none with index {}",
               stage_text(look.state, stage), count, index);
    return {look.alive({record.roots[record.definition.axes.size() + index]}, "reduce")};
}

Expr Schedule::extent(Loop loop, std::source_location where) const {
    Edit look(const_cast<Schedule&>(*this).state_, where);
    return look.state.loops[look.alive(loop, "extent")].extent;
}

Loop Schedule::loop(const StageRef& ref, Loop other, std::source_location where) const {
    Edit look(const_cast<Schedule&>(*this).state_, where);
    int stage = look.stage(ref, "loop");
    const State& state = look.state;
    const StageRecord& record = state.stages[stage];
    Expr variable = state.loops[look.alive(other, "loop")].variable;
    const StageRecord& theirs = state.owner(other.id);
    auto found = [&](size_t axis) { return Loop{look.alive({record.roots[axis]}, "loop")}; };
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
                    if (depends(theirs.roots[d]) && equal(site.read->indices[d], record.definition.axes[a])) return found(a);
    user_error(where, "loop: no loop of '{}' corresponds to '{}' of '{}'", stage_text(state, stage),
               state.loops[other.id].name, theirs.definition.name);
}

// A. Loops.

std::array<Loop, 2> Schedule::split(Loop loop, int64_t size, Tail tail, std::source_location where) {
    Edit edit(state_, where);
    int id = edit.alive(loop, "split");
    LoopRecord whole = edit.state.loops[id];
    user_check(size >= 1, where, "split({}, {}): the size must be at least 1", whole.name, size);
    user_check(size <= (int64_t{1} << 30), where, "split({}, {}): the size is larger than any loop of a kernel",
               whole.name, size);
    require_serial(edit, id, "split");
    bool divides = divisor_of(whole.extent) % size == 0;
    if (!divides && tail == Tail::Divide)
        user_error(where, "split({}, {}): {} does not divide axis '{}' ({}). Use a divisor, or split({}, {}, Tail::Mask)",
                   whole.name, size, size, whole.name, tw::to_string(whole.extent), whole.name, size);
    Expr inner_extent = constant(Type::I64, size);
    Expr outer_extent = simplify((whole.extent + (size - 1)) / inner_extent);
    int outer = edit.state.add_loop(whole.name + "o", outer_extent, whole.stage, whole.reduces);
    int inner = edit.state.add_loop(whole.name + "i", inner_extent, whole.stage, whole.reduces);
    StageRecord& record = edit.state.stages[whole.stage];
    auto place = std::find(record.order.begin(), record.order.end(), id);
    *place = outer;
    record.order.insert(place + 1, inner);
    record.relations.push_back({Relation::Kind::Split, id, outer, inner, inner_extent, !divides});
    // One iteration of the inner loop is one of the whole.
    for (int stage : attached_to(edit.state, id)) edit.state.stages[stage].attach = inner;
    edit.state.loops[id].dead_step = edit.step;
    edit.commit(fmt::format("auto [{}, {}] = s.split({}, {}{});", loop_text(outer), loop_text(inner), loop_text(id), size,
                            tail == Tail::Mask ? ", Tail::Mask" : ""),
                fmt::format("split {} {} {}", id, size, tail == Tail::Mask ? "mask" : "divide"));
    return {Loop{outer}, Loop{inner}};
}

Loop Schedule::fuse(Loop outer, Loop inner, std::source_location where) {
    Edit edit(state_, where);
    int first = edit.alive(outer, "fuse"), second = edit.alive(inner, "fuse");
    const LoopRecord a = edit.state.loops[first], b = edit.state.loops[second];
    user_check(a.stage == b.stage, where, "fuse({}, {}): the loops belong to '{}' and '{}'; fuse loops of one stage",
               a.name, b.name, stage_text(edit.state, a.stage), stage_text(edit.state, b.stage));
    user_check(edit.state.position(second) == edit.state.position(first) + 1, where,
               "fuse({}, {}): '{}' does not stand directly around '{}'; order them first", a.name, b.name, a.name, b.name);
    user_check(a.reduces == b.reduces, where, "fuse({}, {}): one is a data loop, the other a reduce loop", a.name, b.name);
    require_serial(edit, first, "fuse");
    require_serial(edit, second, "fuse");
    user_check(attached_to(edit.state, first).empty(), where,
               "fuse({}, {}): '{}' stands under '{}', between them; move it first", a.name, b.name,
               stage_text(edit.state, attached_to(edit.state, first).empty() ? a.stage : attached_to(edit.state, first)[0]),
               a.name);
    int fused = edit.state.add_loop(a.name + "_" + b.name, simplify(a.extent * b.extent), a.stage, a.reduces);
    StageRecord& record = edit.state.stages[a.stage];
    auto place = std::find(record.order.begin(), record.order.end(), first);
    *place = fused;
    record.order.erase(place + 1);
    Expr size = is_constant(b.extent, 0) ? constant(Type::I64, 1) : b.extent;  // of an empty loop nothing is ever divided
    record.relations.push_back({Relation::Kind::Fuse, fused, first, second, size});
    for (int stage : attached_to(edit.state, second)) edit.state.stages[stage].attach = fused;
    edit.state.loops[first].dead_step = edit.state.loops[second].dead_step = edit.step;
    edit.commit(fmt::format("Loop {} = s.fuse({}, {});", loop_text(fused), loop_text(first), loop_text(second)),
                fmt::format("fuse {} {}", first, second));
    return {fused};
}

void Schedule::order(const std::vector<Loop>& loops, std::source_location where) {
    Edit edit(state_, where);
    user_check(!loops.empty(), where, "order: name at least one loop");
    std::vector<int> wanted;
    for (Loop loop : loops) {
        int id = edit.alive(loop, "order");
        user_check(edit.state.loops[id].stage == edit.state.loops[loops[0].id].stage, where,
                   "order: '{}' belongs to '{}', '{}' to '{}'; order the loops of one stage at a time",
                   edit.state.loops[loops[0].id].name, stage_text(edit.state, edit.state.loops[loops[0].id].stage),
                   edit.state.loops[id].name, stage_text(edit.state, edit.state.loops[id].stage));
        user_check(std::find(wanted.begin(), wanted.end(), id) == wanted.end(), where, "order: loop '{}' is named twice",
                   edit.state.loops[id].name);
        wanted.push_back(id);
    }
    StageRecord& record = edit.state.stages[edit.state.loops[wanted[0]].stage];
    std::vector<int> reduce_before, reduce_after;
    auto reduce_loops = [&](std::vector<int>& list) {
        for (int id : record.order)
            if (edit.state.loops[id].reduces) list.push_back(id);
    };
    reduce_loops(reduce_before);
    size_t next = 0;
    for (int& id : record.order)
        if (std::find(wanted.begin(), wanted.end(), id) != wanted.end()) id = wanted[next++];
    reduce_loops(reduce_after);
    if (reduce_before != reduce_after) {
        user_check(record.definition.reducer->commutative, where,
                   "order: the reducer '{}' of '{}' is not commutative; keep its reduce loops in their order",
                   record.definition.reducer->name, record.definition.name);
        edit.state.notes.push_back(fmt::format("[{}] the terms of '{}' are combined in another order: floats may differ by rounding",
                                               edit.step, record.definition.name));
    }
    std::vector<std::string> names, ids;
    for (int id : wanted) {
        names.push_back(loop_text(id));
        ids.push_back(std::to_string(id));
    }
    edit.commit(fmt::format("s.order({{{}}});", fmt::join(names, ", ")), fmt::format("order {}", fmt::join(ids, " ")));
}

namespace {

void check_level(const Edit& edit, const LoopRecord& loop, Level level) {
    auto extent = as_constant(loop.extent);
    std::string asked = fmt::format("bind({}, {})", loop.name, to_string(level));
    user_check(!(is_grid(level) || level == Level::Vector) || !loop.reduces, edit.where,
               "{}: '{}' runs along a reduction: its terms can be shared among threads, not {}", asked, loop.name,
               is_grid(level) ? "among blocks; partial(...) makes a kernel of each part" : "as a vector; unroll it");
    user_check(is_grid(level) || level == Level::Serial || extent, edit.where,
               "{}: the extent {} is not constant; split it and bind the inner loop", asked, to_string(loop.extent));
    if (level == Level::Vector)
        user_check(*extent == 2 || *extent == 4 || *extent == 8 || *extent == 16, edit.where,
                   "{}: a vector has 2, 4, 8 or 16 elements, the loop {}; split it", asked, *extent);
    if (level == Level::Unroll)
        user_check(*extent <= 256, edit.where, "{}: unrolling {} iterations makes a huge kernel; split it (256 at most)",
                   asked, *extent);
    if (is_thread(level))
        user_check(*extent >= 1, edit.where, "{}: the loop has no iterations", asked);
}

}  // namespace

void Schedule::bind(Loop loop, Level level, std::source_location where) {
    Edit edit(state_, where);
    int id = edit.alive(loop, "bind");
    LoopRecord& record = edit.state.loops[id];
    check_level(edit, record, level);
    user_check(record.level == Level::Serial || level == Level::Serial, where,
               "bind({}, {}): the loop is already bound to {}; bind(loop, serial) frees it", record.name,
               tw::to_string(level), tw::to_string(record.level));
    user_check(record.stages == 1, where,
               "bind({}, {}): the loop is pipelined: its iterations follow each other; pipeline(loop, {{.stages = 1}}) first",
               record.name, tw::to_string(level));
    record.level = level;
    record.bind_step = level == Level::Serial ? -1 : edit.step;
    if (record.reduces && is_thread(level))
        edit.state.notes.push_back(
            fmt::format("[{}] the threads combine their parts of '{}' in pairs: floats may differ by rounding", edit.step,
                        edit.state.stages[record.stage].definition.name));
    edit.commit(fmt::format("s.bind({}, {});", loop_text(id), level_text(level)),
                fmt::format("bind {} {}", id, tw::to_string(level)));
}

void Schedule::pipeline(Loop loop, PipelineOptions options, std::source_location where) {
    Edit edit(state_, where);
    int id = edit.alive(loop, "pipeline");
    LoopRecord& record = edit.state.loops[id];
    user_check(record.level == Level::Serial, where,
               "pipeline({}, ...): the loop is bound to {}; only iterations that follow each other can overlap", record.name,
               tw::to_string(record.level));
    user_check(options.stages == 1 || options.stages == 2, where,
               "pipeline({}, {{.stages = {}}}): 2 buffers serve copies that go through registers, 1 is no pipeline", record.name,
               options.stages);
    auto copies = attached_to(edit.state, id);
    bool any = std::any_of(copies.begin(), copies.end(), [&](int stage) {
        return !edit.state.stages[stage].after && resolved_memory(edit.state, stage) == Memory::Shared;
    });
    user_check(any, where,
               "pipeline({}, ...): nothing in shared memory stands under the loop; stage an operand there first: "
               "stage(consumer, operand, Memory::Shared, {})",
               record.name, record.name);
    record.stages = options.stages;
    edit.commit(fmt::format("s.pipeline({}, {{.stages = {}}});", loop_text(id), options.stages),
                fmt::format("pipeline {} {}", id, options.stages));
}

// B. Placement.

void Schedule::at(const StageRef& ref, Loop loop, std::source_location where) {
    Edit edit(state_, where);
    State& state = edit.state;
    int stage = edit.stage(ref, "at"), under = edit.alive(loop, "at");
    int owner = state.loops[under].stage;
    StageRecord& record = state.stages[stage];
    user_check(owner != stage, where, "at({}, {}): the loop is the stage's own", stage_text(state, stage),
               state.loops[under].name);
    for (int loop_around : enclosing_loops(state, under))
        user_check(state.loops[loop_around].stage != stage, where, "at({}, {}): the loop stands inside '{}' itself",
                   stage_text(state, stage), state.loops[under].name, stage_text(state, stage));
    for (int id : record.order)
        user_check(attached_to(state, id).empty(), where,
                   "at({}, {}): '{}' stands under its loop '{}'; place that one again after this step, or place '{}' first",
                   stage_text(state, stage), state.loops[under].name,
                   attached_to(state, id).empty() ? "" : stage_text(state, attached_to(state, id)[0]),
                   state.loops[id].name, stage_text(state, stage));
    record.attach = under;
    record.after = !depends_on(state, owner, stage);
    record.step = edit.step;
    for (int id : record.order) state.loops[id].dead_step = edit.step;
    record.order.clear();
    add_root_loops(state, stage, record.definition.operation->shape);
    check_rules(state, where);
    Region region = region_of(state, stage, where);
    for (size_t d = 0; d < region.extent.size(); ++d) {
        int fresh = state.add_loop(state.loops[state.stages[stage].roots[d]].name, region.extent[d], stage, false);
        std::swap(state.loops[state.stages[stage].roots[d]], state.loops[fresh]);
        state.loops.pop_back();
    }
    edit.commit(fmt::format("s.at({}, {});", stage_text(state, stage), loop_text(under)),
                fmt::format("at {} {}", stage, under));
}

namespace {

/// The expression with Reads of `definition`'s operation replaced by its expression.
Expr inlined(const Expr& root, const StageDefinition& definition) {
    return transform(root, [&](const Expr& e) -> Expr {
        const Read* read = e.as<Read>();
        if (!read || read->operation != definition.operation) return {};
        Substitution axes;
        for (size_t d = 0; d < definition.axes.size(); ++d) axes.emplace_back(definition.axes[d], read->indices[d]);
        Expr body = substitute(definition.finish[read->output], axes);
        if (!read->guarded) return body;
        return transform(body, [](const Expr& inner) -> Expr {  // evaluated only where the outer read is
            const Read* inside = inner.as<Read>();
            if (!inside || inside->guarded) return {};
            Read guarded = *inside;
            guarded.guarded = true;
            return make_expr(inner.type(), guarded);
        });
    });
}

}  // namespace

void Schedule::inline_stage(const StageRef& ref, std::source_location where) {
    Edit edit(state_, where);
    State& state = edit.state;
    int stage = edit.stage(ref, "inline_stage");
    StageRecord& record = state.stages[stage];
    const std::string name = stage_text(state, stage);
    user_check(!record.inlined, where, "inline_stage({}): it is inlined already", name);
    user_check(!record.definition.reducer, where,
               "inline_stage({}): it is a reduction, and each reader would repeat it; use at({}, loop)", name, name);
    user_check(!state.is_result(stage), where, "inline_stage({}): it is an output of the schedule", name);
    for (int id : record.order)
        user_check(attached_to(state, id).empty(), where, "inline_stage({}): '{}' stands under its loop '{}'; move it first",
                   name, attached_to(state, id).empty() ? "" : stage_text(state, attached_to(state, id)[0]),
                   state.loops[id].name);
    StageDefinition definition = record.definition;
    for (StageRecord& reader : state.stages) {
        for (Expr& expr : reader.definition.update) expr = inlined(expr, definition);
        for (Expr& expr : reader.definition.finish) expr = inlined(expr, definition);
    }
    record.inlined = true;
    record.attach = -1;
    edit.commit(fmt::format("s.inline_stage({});", name), fmt::format("inline {}", stage));
}

namespace {

StageDefinition copy_definition(const State& state, const std::shared_ptr<const Operation>& source, int output,
                                const std::string& name) {
    auto operation = std::make_shared<Operation>();
    operation->name = unique_stage_name(state, name);
    operation->shape = source->shape;
    operation->where = source->where;
    for (size_t d = 0; d < source->shape.size(); ++d) {
        auto bounds = bounds_of(source->shape[d]);
        Variable axis{.name = source->axes.empty() ? fmt::format("d{}", d) : tw::to_string(source->axes[d]),
                      .min = 0, .extent = source->shape[d]};
        if (bounds.max) axis.max = std::max<int64_t>(*bounds.max - 1, 0);
        operation->axes.push_back(make_expr(Type::I64, axis));
    }
    Type type = source->outputs[output].type;
    Expr body = make_expr(type, Read{source, output, operation->axes});
    operation->outputs = {{type, body}};
    return {operation->name, operation, operation->axes, {}, {}, {}, {}, {body}};
}

/// Replaces reads of (operation, output) by reads of the copy; says whether there were any.
bool redirect(std::vector<Expr>& exprs, const Operation* from, int output, const std::shared_ptr<const Operation>& to,
              int to_output = 0) {
    bool found = false;
    for (Expr& root : exprs)
        root = transform(root, [&](const Expr& e) -> Expr {
            const Read* read = e.as<Read>();
            if (!read || read->operation.get() != from || read->output != output) return {};
            found = true;
            return make_expr(e.type(), Read{to, to_output, read->indices, read->guarded});
        });
    return found;
}

std::string suffix_of(Memory memory) { return memory == Memory::Auto ? "copy" : tw::to_string(memory); }

struct OperandOf {
    std::shared_ptr<const Operation> operation;
    int output;
};

OperandOf operand_of(const Edit& edit, const StageRef& ref) {
    if (ref.tensor_.defined()) return {ref.tensor_.operation(), ref.tensor_.output()};
    return {edit.state.stages[edit.stage(ref, "stage")].definition.operation, 0};
}

/// "t:a 0" for a tensor by its name, "s 3" for a copy's stage: how a trace names an operand.
std::string saved_operand(const Edit& edit, const StageRef& ref) {
    if (!ref.tensor_.defined()) return fmt::format("s {}", edit.stage(ref, "stage"));
    return fmt::format("t:{} {}", ref.tensor_.name(), ref.tensor_.output());
}

}  // namespace

Stage Schedule::stage(const StageRef& consumer, const StageRef& operand, Memory memory, Loop loop,
                      std::source_location where) {
    Edit edit(state_, where);
    State& state = edit.state;
    int reader = edit.stage(consumer, "stage"), under = edit.alive(loop, "stage");
    OperandOf source = operand_of(edit, operand);
    int owner = state.loops[under].stage;
    bool only_update = owner == reader && state.position(under) >= state.first_reduce(reader);
    StageDefinition definition =
        copy_definition(state, source.operation, source.output, fmt::format("{}_{}", source.operation->name, suffix_of(memory)));
    StageDefinition& into = state.stages[reader].definition;
    bool found = redirect(into.update, source.operation.get(), source.output, definition.operation);
    if (!only_update) found |= redirect(into.finish, source.operation.get(), source.output, definition.operation);
    user_check(found, where, "stage({}, {}, ..., {}): '{}' does not read '{}' inside loop '{}'", into.name,
               source.operation->name, state.loops[under].name, into.name, source.operation->name,
               state.loops[under].name);
    std::string name = definition.name;
    int copy = add_stage(state, std::move(definition), edit.step);
    StageRecord& record = state.stages[copy];
    record.is_copy = true;
    record.attach = under;
    record.memory = memory;
    edit.commit(fmt::format("Stage {} = s.stage({}, {}, {}, {});", name, stage_text(state, reader),
                            source.operation->name, memory_text(memory), loop_text(under)),
                fmt::format("stage {} {} {} {}", reader, saved_operand(edit, operand), tw::to_string(memory), under));
    return {copy};
}

Stage Schedule::stage(const StageRef& consumer, const StageRef& operand, Memory memory, std::source_location where) {
    Edit edit(state_, where);
    State& state = edit.state;
    int reader = edit.stage(consumer, "stage");
    OperandOf source = operand_of(edit, operand);
    user_check(memory == Memory::Global, where,
               "stage({}, {}, {}): a copy in {} needs the loop whose iteration it serves: stage(consumer, operand, memory, loop)",
               stage_text(state, reader), source.operation->name, memory_text(memory), tw::to_string(memory));
    StageDefinition definition =
        copy_definition(state, source.operation, source.output, source.operation->name + "_global");
    StageDefinition& into = state.stages[reader].definition;
    bool in_update = redirect(into.update, source.operation.get(), source.output, definition.operation);
    bool in_finish = redirect(into.finish, source.operation.get(), source.output, definition.operation);
    user_check(in_update || in_finish, where, "stage({}, {}, ...): '{}' does not read '{}'", into.name,
               source.operation->name, into.name, source.operation->name);
    std::string name = definition.name;
    int copy = add_stage(state, std::move(definition), edit.step);
    state.stages[copy].is_copy = true;
    edit.commit(fmt::format("Stage {} = s.stage({}, {}, {});", name, stage_text(state, reader), source.operation->name,
                            memory_text(memory)),
                fmt::format("stage {} {} {} -1", reader, saved_operand(edit, operand), tw::to_string(memory)));
    return {copy};
}

Stage Schedule::stage(const StageRef& result, Memory memory, Loop loop, std::source_location where) {
    Edit edit(state_, where);
    State& state = edit.state;
    int stage = edit.stage(result, "stage"), under = edit.alive(loop, "stage");
    const StageDefinition& made = state.stages[stage].definition;
    user_check(state.is_result(stage), where,
               "stage({}, {}, {}): '{}' is no output; to choose where it lives use set_memory({}, ...)", made.name,
               memory_text(memory), state.loops[under].name, made.name, made.name);
    user_check(made.finish.size() == 1, where, "stage({}, ...): it has {} outputs; only a single result can be staged",
               made.name, made.finish.size());
    std::shared_ptr<const Operation> source = made.operation;
    StageDefinition definition = copy_definition(state, source, 0, made.name + "_out");
    for (const Operation*& operation : state.result)
        if (operation == source.get()) operation = definition.operation.get();
    for (StageRecord& reader : state.stages) {  // other readers take the finished result
        redirect(reader.definition.update, source.get(), 0, definition.operation);
        redirect(reader.definition.finish, source.get(), 0, definition.operation);
    }
    std::string name = definition.name;
    int copy = add_stage(state, std::move(definition), edit.step);
    state.stages[stage].memory = memory;
    StageRecord& record = state.stages[copy];
    record.is_copy = record.after = true;
    record.attach = under;
    edit.commit(fmt::format("Stage {} = s.stage({}, {}, {});", name, stage_text(state, stage), memory_text(memory),
                            loop_text(under)),
                fmt::format("result {} {} {}", stage, tw::to_string(memory), under));
    return {copy};
}

void Schedule::set_memory(const StageRef& ref, Memory memory, std::source_location where) {
    Edit edit(state_, where);
    int stage = edit.stage(ref, "set_memory");
    edit.state.stages[stage].memory = memory;
    edit.commit(fmt::format("s.set_memory({}, {});", stage_text(edit.state, stage), memory_text(memory)),
                fmt::format("memory {} {}", stage, tw::to_string(memory)));
}

void Schedule::in_place(const Tensor& out, const Tensor& in, std::source_location where) {
    Edit edit(state_, where);
    State& state = edit.state;
    user_check(in.defined(), where, "in_place: the input is an undefined tensor");
    int stage = edit.stage(out, "in_place");
    const StageDefinition& definition = state.stages[stage].definition;
    bool listed = std::any_of(state.outputs.begin(), state.outputs.end(), [&](const Tensor& o) { return o.same(out); });
    user_check(state.is_result(stage) && listed, where, "in_place({}, {}): '{}' is no output of the schedule", out.name(),
               in.name(), out.name());
    user_check(in.operation()->is_input(), where, "in_place({}, {}): '{}' is no input", out.name(),
               in.name(), in.name());
    user_check(in.type() == out.type() && in.rank() == out.rank() &&
                   std::equal(in.shape().begin(), in.shape().end(), out.shape().begin(), equal) &&
                   in.operation()->strides.empty(),
               where, "in_place({}, {}): both must have one type, shape and dense rows", out.name(), in.name());
    for (const auto& [taken_out, taken_in] : state.in_place)
        user_check(!taken_out.same(out) && !taken_in.same(in), where, "in_place({}, {}): '{}' already overwrites '{}'",
                   out.name(), in.name(), taken_out.name(), taken_in.name());
    for (const StageRecord& reader : state.stages) {
        if (reader.inlined) continue;
        for (const ReadSite& site : reads_of(reader.definition)) {
            if (site.read->operation != in.operation()) continue;
            bool own = &reader.definition == &definition && !site.in_update && !site.read->guarded &&
                       std::equal(site.read->indices.begin(), site.read->indices.end(), definition.axes.begin(), equal);
            user_check(own, where,
                       "in_place({}, {}): '{}' reads '{}' elsewhere than at the element that it overwrites; only an "
                       "elementwise use is safe",
                       out.name(), in.name(), reader.definition.name, in.name());
        }
    }
    state.in_place.emplace_back(out, in);
    edit.commit(fmt::format("s.in_place({}, {});", out.name(), in.name()),
                fmt::format("in_place t:{} {} t:{} {}", out.name(), out.output(), in.name(), in.output()));
}

// Looking.

std::string Schedule::explain() const {
    std::string text;
    for (const std::string& note : state_->notes) text += note + "\n";
    for (size_t s = 0; s < state_->stages.size(); ++s) {
        const StageRecord& record = state_->stages[s];
        if (record.inlined) continue;
        std::string memory = tw::to_string(resolved_memory(*state_, static_cast<int>(s)));
        text += fmt::format("'{}' lives in {} memory{}\n", record.definition.name, memory,
                            record.memory == Memory::Auto ? " (default)" : "");
    }
    return text;
}

std::string Schedule::trace_as_cpp() const {
    std::string text;
    for (size_t k = 0; k < state_->trace.size(); ++k)
        text += fmt::format("{:<60}  // [{}] {}\n", state_->trace[k].text, k, state_->trace[k].file_line);
    return text;
}

}  // namespace tw
