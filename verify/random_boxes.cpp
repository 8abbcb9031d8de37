// Steps that have the tensor memory accelerator bring what a reduction reads, in boxes of short and long rows.
#include <algorithm>

#include "verify/random_step.h"

namespace tw::fuzz {
namespace {

using Verb = RandomStep::Verb;

/// Where the loops of the reduction are, once they are split and ordered: outer data loops, outer reduce loops, the
/// data loop of threads, the reduce loop of a row.
struct Positions {
    int data, reduces;
    int last_outer() const { return data + reduces - 1; }
    int threads() const { return data + reduces; }
};

/// Stages that reduce and read an input.
std::vector<const StageView*> likely_stages(const std::vector<StageView>& stages) {
    std::vector<const StageView*> likely;
    for (const StageView& stage : stages) {
        auto reduces = [](const LoopView& l) { return l.reduces; };
        auto is_free = [](const LoopView& l) { return l.level == Level::Serial; };
        if (std::ranges::any_of(stage.loops, reduces) && !std::ranges::all_of(stage.loops, reduces) &&
            std::ranges::all_of(stage.loops, is_free))
            likely.push_back(&stage);
    }
    return likely;
}

/// All but what may be a table.
std::vector<Tensor> inputs_read(const StageView& stage, const Problem& problem) {
    std::vector<Tensor> inputs;
    for (const Tensor& tensor : tensors_of(problem))
        if (tensor.operation()->is_input() && tensor.rank() > 1 && tensor.type() != i32 && tensor.type() != i64 &&
            std::ranges::count(stage.reads, tensor.name()))
            inputs.push_back(tensor);
    return inputs;
}

/// Rows of `row` elements, and `tile` of them for the threads.
void split_and_order(std::vector<RandomStep>& steps, const std::string& stage, Positions at, int64_t tile,
                     int64_t row) {
    auto split = [&](int position, int64_t size) {
        steps.push_back({.verb = Verb::Split, .stage = stage, .loops = {position}, .size = size});
    };
    split(at.data - 1, tile);
    split(at.data + at.reduces, row);
    std::vector<int> order;
    for (int k = 0; k < at.data + at.reduces + 2; ++k)
        if (k != at.data && k != at.data + at.reduces + 1) order.push_back(k);
    order.push_back(at.data);
    order.push_back(at.data + at.reduces + 1);
    steps.push_back({.verb = Verb::Order, .stage = stage, .loops = order});
}

/// The outer data loops in blocks: each its own, or a few that take them in turn.
void spread_over_blocks(Random& random, std::vector<RandomStep>& steps, const std::string& stage, Positions at) {
    if (random.chance(0.4)) {
        RandomStep step{.verb = Verb::Persistent, .stage = stage, .size = random.between(1, 4)};
        for (int k = 0; k < at.data; ++k) step.loops.push_back(k);
        return steps.push_back(step);
    }
    static const std::vector<Level> levels = {Level::GridX, Level::GridY, Level::GridZ};
    for (int k = 0; k < std::min(at.data, 3); ++k)
        steps.push_back({.verb = Verb::Bind, .stage = stage, .loops = {k}, .level = levels[static_cast<size_t>(k)]});
}

}  // namespace

std::vector<RandomStep> random_boxes(Random& random, const Schedule& schedule, const Problem& problem) {
    const std::vector<StageView> stages = view_of(schedule);
    const std::vector<const StageView*> likely = likely_stages(stages);
    if (likely.empty()) return {};
    const StageView& stage = *random.pick(likely);
    const std::vector<Tensor> inputs = inputs_read(stage, problem);
    if (inputs.empty()) return {};
    const Tensor& operand = random.pick(inputs);
    auto reduces = static_cast<int>(std::ranges::count_if(stage.loops, [](const LoopView& l) { return l.reduces; }));
    const Positions at{static_cast<int>(stage.loops.size()) - reduces, reduces};
    const bool roles = random.chance(0.3);  // a role computes in whole warpgroups
    const int64_t row_bytes = random.pick<int64_t>({16, 32, 32, 48, 64, 64, 96, 128});
    std::vector<RandomStep> steps;
    split_and_order(steps, stage.name, at, roles ? 128 : random.pick<int64_t>({1, 4, 8, 8, 16, 16, 24, 32}),
                    std::max<int64_t>(1, row_bytes / bytes_of(operand.type())));
    spread_over_blocks(random, steps, stage.name, at);
    steps.push_back({.verb = Verb::Bind, .stage = stage.name, .loops = {at.threads()}, .level = Level::Thread});
    const int loop = random.chance(0.8) ? at.last_outer() : at.data;
    steps.push_back({.verb = Verb::StageOperand,
                     .stage = stage.name,
                     .loops = {loop},
                     .owner = stage.name,
                     .operand = operand.name(),
                     .memory = Memory::Shared});
    const std::string copy = operand.name() + "_shared";
    if (!roles || random.chance(0.3)) steps.push_back({.verb = Verb::Via, .stage = copy, .copy = Copy::Tma});
    if (roles || random.chance(0.9))
        steps.push_back({.verb = Verb::Pipeline, .stage = stage.name, .loops = {loop}, .size = random.between(2, 4)});
    if (roles) steps.push_back({.verb = Verb::Roles, .stage = stage.name, .operand = copy, .size = 4});
    return steps;
}

}  // namespace tw::fuzz
