#include "verify/random_step.h"

#include <algorithm>
#include <set>

#include "support/error.h"

namespace tw::fuzz {
namespace {

using Verb = RandomStep::Verb;

/// Collects from the tree what Schedule does not tell: extents, levels, and what leaves read.
struct TreeReader {
    std::map<int, LoopView> loops;               // by the handle's id
    std::map<int, std::set<std::string>> reads;  // by stage

    void read(const Stmt& stmt) {
        std::visit([&](const auto& node) { (*this)(node); }, (*stmt).kind);
    }
    void operator()(const For& loop) {
        bool fills = false;
        Stmt body = loop.body;
        for (const Allocate* inside = body.as<Allocate>(); inside; inside = body.as<Allocate>()) {
            fills = fills || inside->buffer->memory == Memory::Shared;
            body = inside->body;
        }
        loops[loop.loop] = {{loop.loop}, as_constant(loop.extent), loop.level, loop.reduces, fills};
        read(loop.body);
    }
    void operator()(const Sequence& block) {
        for (const Stmt& stmt : block.stmts) read(stmt);
    }
    void operator()(const Allocate& allocate) { read(allocate.body); }
    void operator()(const Leaf& leaf) {
        for (const StoreTo& store : leaf.stores)
            visit(store.value, [&](const Expr& e) {
                if (const Load* load = e.as<Load>()) reads[leaf.stage].insert(load->buffer->name);
            });
    }
};

struct RunCounter {
    double count(const Stmt& stmt) const {
        return std::visit([&](const auto& node) { return (*this)(node); }, (*stmt).kind);
    }
    double operator()(const For& loop) const {
        constexpr int64_t data_decide = 32;  // a guess
        int64_t extent = as_constant(loop.extent).value_or(data_decide);
        if (const Variable* variable = loop.variable.as<Variable>(); !as_constant(loop.extent) && variable->max)
            extent = *variable->max + 1;
        return static_cast<double>(extent) * (1 + count(loop.body));
    }
    double operator()(const Sequence& block) const {
        double total = 0;
        for (const Stmt& stmt : block.stmts) total += count(stmt);
        return total;
    }
    double operator()(const Allocate& allocate) const {
        double cells = 1;
        for (const Expr& extent : allocate.buffer->shape) cells *= static_cast<double>(as_constant(extent).value_or(1));
        return cells / 64 + count(allocate.body);
    }
    double operator()(const Leaf&) const { return 1; }
};

Stage stage_named(const Schedule& schedule, const std::string& name) {
    for (Stage stage : schedule.all_stages())
        if (schedule.name(stage) == name) return stage;
    throw_error(Error, "no stage is named '{}'", name);
}

Loop loop_of(const Schedule& schedule, const std::string& stage, int position) {
    auto loops = schedule.all_loops(stage_named(schedule, stage));
    if (position < 0 || position >= static_cast<int>(loops.size()))
        throw_error(Error, "'{}' has no loop {}", stage, position);
    return loops[position];
}

Tensor tensor_named(const Problem& problem, const std::string& name, int component) {
    for (const Tensor& tensor : tensors_of(problem))
        if (tensor.name() == name && tensor.output() == component) return tensor;
    return {};
}

StageRef operand_named(const Schedule& schedule, const Problem& problem, const std::string& name, int component) {
    Tensor tensor = tensor_named(problem, name, component);
    if (tensor.defined()) return tensor;
    return stage_named(schedule, name);
}

}  // namespace

std::vector<StageView> view_of(const Schedule& schedule) {
    TreeReader reader;
    for (const Nest& nest : schedule.tree().nests) reader.read(nest.body);
    std::vector<StageView> views;
    for (Stage stage : schedule.all_stages()) {
        StageView view{stage, schedule.name(stage), {}, {}};
        for (Loop loop : schedule.all_loops(stage)) {
            auto known = reader.loops.find(loop.id);
            internal_check(known != reader.loops.end(), "loop {} of '{}' is not in the tree", loop.id, view.name);
            view.loops.push_back(known->second);
        }
        view.reads.assign(reader.reads[stage.id].begin(), reader.reads[stage.id].end());
        views.push_back(std::move(view));
    }
    return views;
}

double leaf_runs(const Tree& tree) {
    double total = 0;
    for (const Nest& nest : tree.nests) total += RunCounter().count(nest.body);
    return total;
}

std::string verb_name(Verb verb) {
    switch (verb) {
        case Verb::Split: return "split";
        case Verb::Fuse: return "fuse";
        case Verb::Order: return "order";
        case Verb::Cut: return "cut";
        case Verb::CutPartial: return "cut where partial";
        case Verb::Bind: return "bind";
        case Verb::At: return "at";
        case Verb::Inline: return "inline_stage";
        case Verb::StageOperand: return "stage";
        case Verb::StageGlobal: return "stage in global";
        case Verb::StageResult: return "stage result";
        case Verb::SetMemory: return "set_memory";
        case Verb::InPlace: return "in_place";
        case Verb::Rfactor: return "rfactor";
        case Verb::Accumulators: return "accumulators";
        case Verb::Delay: return "delay";
        case Verb::Scatter: return "scatter";
        case Verb::Via: return "via";
        case Verb::Pipeline: return "pipeline";
        case Verb::Persistent: return "persistent";
        case Verb::Roles: return "roles";
    }
    return "?";
}

std::string to_string(const RandomStep& step) {
    std::string text = fmt::format("{} {}", verb_name(step.verb), step.stage);
    if (!step.operand.empty()) text += fmt::format(" {}.{}", step.operand, step.component);
    if (!step.owner.empty()) text += " under " + step.owner;
    if (!step.loops.empty()) text += fmt::format("[{}]", fmt::join(step.loops, ", "));
    if (step.verb == Verb::Split) text += fmt::format(" {} {}", step.size, step.tail == Tail::Mask ? "mask" : "divide");
    if (step.verb == Verb::Cut)
        text += fmt::format(" at {} * {} + {}", step.owner.empty() ? 0 : 1, step.size, fmt::join(step.positions, ", "));
    if (step.verb == Verb::Bind) text += " " + tw::to_string(step.level);
    if (step.combine == Combine::Atomic) text += " atomic";
    if (step.combine == Combine::Search) text += " search";
    bool remembers = step.verb == Verb::StageOperand || step.verb == Verb::StageResult || step.verb == Verb::SetMemory;
    return remembers ? text + " " + tw::to_string(step.memory) : text;
}

namespace {

/// What the loops of a step are called: nothing, or what others are called, what means something in C++, or no
/// identifier at all.
std::string odd_name(const RandomStep& step, size_t which) {
    static const std::vector<std::string> names = {"",    "",         "",    "",      "i",         "k_outer",
                                                   "y",   "x_shared", "for", "block", "threadIdx", "lane",
                                                   "a b", "\"1\n\"",  "ö%",  "min"};
    size_t number = static_cast<size_t>(step.size) * 5 + which;
    for (int loop : step.loops) number = number * 3 + static_cast<size_t>(loop);
    return names[number % names.size()];
}

}  // namespace

void perform(const RandomStep& step, Schedule& s, const Problem& problem) {
    auto loop = [&](const std::string& stage, size_t k) { return loop_of(s, stage, step.loops.at(k)); };
    auto operand = [&] { return operand_named(s, problem, step.operand, step.component); };
    switch (step.verb) {
        case Verb::Split:
            s.split(loop(step.stage, 0), step.size, step.tail, {odd_name(step, 0), odd_name(step, 1)});
            break;
        case Verb::Fuse: s.fuse(loop(step.stage, 0), loop(step.stage, 1), odd_name(step, 0)); break;
        case Verb::Order: {
            std::vector<Loop> loops;
            for (size_t k = 0; k < step.loops.size(); ++k) loops.push_back(loop(step.stage, k));
            s.order(loops);
            break;
        }
        case Verb::Cut: {
            std::vector<Expr> positions;
            for (int64_t position : step.positions) {
                positions.push_back(constant(Type::I64, position));
                if (!step.owner.empty()) positions.back() = s.index(loop(step.owner, 1)) * step.size + positions.back();
            }
            s.cut(loop(step.stage, 0), positions);
            break;
        }
        case Verb::CutPartial: s.cut(loop(step.stage, 0), where_partial(stage_named(s, step.owner))); break;
        case Verb::Bind: s.bind(loop(step.stage, 0), step.level); break;
        case Verb::Rfactor: s.rfactor(stage_named(s, step.stage), loop(step.stage, 0), step.combine); break;
        case Verb::Accumulators: s.accumulators(stage_named(s, step.stage)); break;
        case Verb::Delay: s.delay(stage_named(s, step.stage), loop(step.owner, 0), static_cast<int>(step.size)); break;
        case Verb::Scatter: s.scatter(stage_named(s, step.stage), step.combine); break;
        case Verb::Via: s.via(stage_named(s, step.stage), step.copy); break;
        case Verb::Pipeline: s.pipeline(loop(step.stage, 0), {.stages = static_cast<int>(step.size)}); break;
        case Verb::Persistent: {
            std::vector<Loop> loops;
            for (size_t k = 0; k < step.loops.size(); ++k) loops.push_back(loop(step.stage, k));
            s.persistent(loops, {.blocks = static_cast<int>(step.size)});
            break;
        }
        case Verb::Roles:
            s.roles({{"load", warps(1), {}, {stage_named(s, step.operand)}},
                     {"math", warps(static_cast<int>(step.size)), {}, {stage_named(s, step.stage)}}});
            break;
        case Verb::At: s.at(stage_named(s, step.stage), loop(step.owner, 0)); break;
        case Verb::Inline: s.inline_stage(stage_named(s, step.stage)); break;
        case Verb::StageOperand:
            s.stage(stage_named(s, step.stage), operand(), step.memory, loop(step.owner, 0));
            break;
        case Verb::StageGlobal: s.stage(stage_named(s, step.stage), operand(), Memory::Global); break;
        case Verb::StageResult: s.stage(stage_named(s, step.stage), step.memory, loop(step.owner, 0)); break;
        case Verb::SetMemory: s.set_memory(stage_named(s, step.stage), step.memory); break;
        case Verb::InPlace:
            s.in_place(tensor_named(problem, step.stage, 0), tensor_named(problem, step.operand, step.component));
            break;
    }
}

}  // namespace tw::fuzz
