// Steps that may be legal, by what a schedule looks like.
#include <algorithm>

#include "support/error.h"
#include "verify/random_step.h"

namespace tw::fuzz {
namespace {

using Verb = RandomStep::Verb;

const StageView* find(const std::vector<StageView>& stages, const std::string& name) {
    auto found = std::find_if(stages.begin(), stages.end(), [&](const StageView& stage) { return stage.name == name; });
    return found == stages.end() ? nullptr : &*found;
}

/// Proposes steps for one schedule.
class Proposer {
public:
    Proposer(Random& random, const Schedule& schedule, const Problem& problem)
        : random_(random), problem_(problem), stages_(view_of(schedule)), fresh_(schedule.trace().empty()) {}

    RandomStep any() {
        if (random_.chance(fresh_ ? 0.25 : 0.002)) return scatter();
        int64_t dice = random_.below(100);
        if (dice < 21) return split();
        if (dice < 27) return fuse();
        if (dice < 38) return order();
        if (dice < 55) return bind();
        if (dice < 71) return at();
        if (dice < 75) return inline_stage();
        if (dice < 87) return stage_operand();
        if (dice < 89) return stage_global();
        if (dice < 92) return stage_result();
        if (dice < 94) return set_memory();
        if (dice < 96) return random_.chance(0.7) ? rfactor() : accumulators();
        if (dice < 97) return random_.chance(0.3) ? delay() : random_.chance(0.8) ? pipeline() : via();
        if (dice < 98) return in_place();
        return random_.chance(0.5) ? cut() : cut_partial();
    }

    RandomStep split() {
        const StageView& stage = some_stage();
        int position = some_loop(stage, [](const LoopView& l) { return l.level == Level::Serial; });
        auto extent = loop(stage, position).extent;
        static const std::vector<int64_t> kSizes = {1, 2, 2, 3, 4, 4, 5, 7, 8, 8, 16, 32};
        int64_t size = random_.pick(kSizes);
        if (extent && *extent > 1 && random_.chance(0.5)) size = divisor_of(*extent);
        if (extent && random_.chance(0.05)) size = *extent + random_.below(2);
        bool mask = random_.chance(0.7);
        return {.verb = Verb::Split,
                .stage = stage.name,
                .loops = {position},
                .size = size,
                .tail = mask ? Tail::Mask : Tail::Divide};
    }

    RandomStep fuse() {
        const StageView& stage = some_stage();
        int position =
            static_cast<int>(random_.below(std::max<int64_t>(1, static_cast<int64_t>(stage.loops.size()) - 1)));
        return {.verb = Verb::Fuse, .stage = stage.name, .loops = {position, position + 1}};
    }

    RandomStep order() {
        const StageView& stage = some_stage();
        std::vector<int> positions;
        for (size_t k = 0; k < stage.loops.size(); ++k)
            if (random_.chance(0.8)) positions.push_back(static_cast<int>(k));
        random_.shuffle(positions);
        return {.verb = Verb::Order, .stage = stage.name, .loops = positions};
    }

    /// At constants, or relative to a loop around.
    RandomStep cut() {
        const StageView& stage = some_stage();
        int position = some_loop(stage, [](const LoopView& l) { return l.level == Level::Serial; });
        int64_t most = loop(stage, position).extent.value_or(6) + 1;
        RandomStep step{.verb = Verb::Cut, .stage = stage.name, .loops = {position}, .size = random_.between(-1, 2)};
        if (position > 0 && random_.chance(0.4)) {
            step.owner = stage.name;
            step.loops.push_back(static_cast<int>(random_.below(position)));
        }
        for (int64_t count = random_.below(4); count > 0; --count) step.positions.push_back(random_.between(-1, most));
        return step;
    }

    RandomStep cut_partial() {
        const StageView &stage = some_stage(), &conditions = random_.chance(0.7) ? stage : some_stage();
        int position = some_loop(stage, [](const LoopView& l) { return l.level == Level::Serial; });
        return {.verb = Verb::CutPartial, .stage = stage.name, .loops = {position}, .owner = conditions.name};
    }

    RandomStep bind() {
        const StageView& stage = some_stage();
        if (random_.chance(0.3)) {  // the innermost, as a vector or unrolled
            int last = static_cast<int>(stage.loops.size()) - 1;
            return bind(stage, last, random_.chance(0.5) ? Level::Vector : Level::Unroll);
        }
        if (random_.chance(0.4)) {  // outer loops on the grid
            int position = 0;
            while (is_grid(loop(stage, position).level)) ++position;
            return bind(stage, position, random_.pick<Level>({Level::GridX, Level::GridY, Level::GridZ}));
        }
        if (random_.chance(0.1)) return bind(stage, some_loop(stage), Level::Serial);
        bool shares_terms = random_.chance(0.3);
        int position = some_loop(
            stage, [&](const LoopView& l) { return (shares_terms || !l.reduces) && l.level == Level::Serial; });
        return bind(stage, position,
                    random_.pick<Level>(
                        {Level::Thread, Level::Thread, Level::Thread, Level::Warp, Level::Lane, Level::Unroll}));
    }

    RandomStep at() {
        const StageView &moved = some_stage(), &owner = some_stage();
        return {.verb = Verb::At, .stage = moved.name, .loops = {some_loop(owner)}, .owner = owner.name};
    }

    RandomStep inline_stage() { return {.verb = Verb::Inline, .stage = some_stage().name}; }

    RandomStep stage_operand() {
        const StageView& consumer = some_stage();
        const StageView& owner = random_.chance(0.8) ? consumer : some_stage();
        auto [operand, component] = some_operand(consumer);
        static const std::vector<Memory> kMemories = {Memory::Shared, Memory::Shared, Memory::Registers, Memory::Auto};
        return {.verb = Verb::StageOperand,
                .stage = consumer.name,
                .loops = {some_loop(owner)},
                .owner = owner.name,
                .operand = operand,
                .component = component,
                .memory = random_.pick(kMemories)};
    }

    RandomStep stage_global() {
        const StageView& consumer = some_stage();
        auto [operand, component] = some_operand(consumer);
        return {.verb = Verb::StageGlobal, .stage = consumer.name, .operand = operand, .component = component};
    }

    RandomStep stage_result() {
        const StageView& stage = random_.chance(0.8) ? output_stage() : some_stage();
        static const std::vector<Memory> kMemories = {Memory::Shared, Memory::Registers, Memory::Auto};
        return {.verb = Verb::StageResult,
                .stage = stage.name,
                .loops = {some_loop(stage)},
                .owner = stage.name,
                .memory = random_.pick(kMemories)};
    }

    RandomStep set_memory() {
        static const std::vector<Memory> kMemories = {Memory::Shared, Memory::Registers, Memory::Auto, Memory::Global};
        return {.verb = Verb::SetMemory, .stage = some_stage().name, .memory = random_.pick(kMemories)};
    }

    RandomStep rfactor() {
        const StageView& stage = some_stage();
        int position = some_loop(stage, [](const LoopView& l) { return l.reduces; });
        return {.verb = Verb::Rfactor, .stage = stage.name, .loops = {position}, .combine = some_combine()};
    }

    /// Mostly of a stage that reads what stands under one of its loops.
    RandomStep delay() {
        std::vector<RandomStep> likely;
        for (const StageView& stage : stages_)
            for (size_t k = 0; k < stage.loops.size(); ++k)
                if (stage.loops[k].fills)
                    likely.push_back({.verb = Verb::Delay,
                                      .stage = stage.name,
                                      .loops = {static_cast<int>(k)},
                                      .owner = stage.name,
                                      .size = random_.between(1, 3)});
        if (!likely.empty() && random_.chance(0.8)) return random_.pick(likely);
        const StageView& owner = some_stage();
        return {.verb = Verb::Delay,
                .stage = random_.chance(0.5) ? owner.name : some_stage().name,
                .loops = {some_loop(owner)},
                .owner = owner.name,
                .size = random_.between(0, 2)};
    }

    RandomStep accumulators() { return {.verb = Verb::Accumulators, .stage = some_stage().name}; }

    RandomStep scatter() {
        const Combine combine = random_.chance(0.3) ? Combine::Search : some_combine();
        return {.verb = Verb::Scatter, .stage = some_stage().name, .combine = combine};
    }

    /// Mostly a loop that shared copies stand in.
    RandomStep pipeline() {
        std::vector<RandomStep> likely;
        for (const StageView& stage : stages_)
            for (size_t k = 0; k < stage.loops.size(); ++k)
                if (stage.loops[k].fills)
                    likely.push_back({.verb = Verb::Pipeline,
                                      .stage = stage.name,
                                      .loops = {static_cast<int>(k)},
                                      .size = random_.between(2, 4)});
        if (!likely.empty() && random_.chance(0.9)) return random_.pick(likely);
        const StageView& stage = some_stage();
        return {
            .verb = Verb::Pipeline, .stage = stage.name, .loops = {some_loop(stage)}, .size = random_.between(1, 2)};
    }

    /// Not Async: that is a promise, which build may find impossible to keep.
    RandomStep via() {
        return {.verb = Verb::Via,
                .stage = some_stage().name,
                .copy = random_.chance(0.5) ? Copy::Vector : Copy::Automatic};
    }

    RandomStep in_place() {
        const Tensor& out = random_.pick(problem_.outputs);
        auto suits = [&](const Tensor& tensor) {
            return tensor.operation()->is_input() && tensor.type() == out.type() &&
                   std::ranges::equal(tensor.shape(), out.shape(), equal);
        };
        std::vector<std::string> inputs;
        for (const Tensor& tensor : tensors_of(problem_))
            if (suits(tensor)) inputs.push_back(tensor.name());
        bool any = inputs.empty() || random_.chance(0.2);
        return {.verb = Verb::InPlace,
                .stage = out.name(),
                .operand = any ? random_.pick(tensors_of(problem_)).name() : random_.pick(inputs)};
    }

    /// Positions after the splits of the first two data loops of an output: outer ones first, then inner ones.
    std::vector<RandomStep> tiling() {
        const StageView& stage = output_stage();
        std::vector<RandomStep> steps;
        std::vector<int> outer, inner, rest;
        int position = 0;
        static const std::vector<int64_t> kTiles = {2, 3, 4, 5, 8, 16};
        for (const LoopView& l : stage.loops) {
            bool tiles = !l.reduces && l.level == Level::Serial && outer.size() < 2;
            if (!tiles) {
                rest.push_back(position++);
                continue;
            }
            steps.push_back(
                {.verb = Verb::Split, .stage = stage.name, .loops = {position}, .size = random_.pick(kTiles)});
            outer.push_back(position);
            inner.push_back(position + 1);
            position += 2;
        }
        std::vector<int> order = outer;
        bool reduce_outside = random_.chance(0.5);
        const auto &second = reduce_outside ? rest : inner, &third = reduce_outside ? inner : rest;
        order.insert(order.end(), second.begin(), second.end());
        order.insert(order.end(), third.begin(), third.end());
        // The loops take each other's places: listed in the order of those places, they are a permutation.
        steps.push_back({.verb = Verb::Order, .stage = stage.name, .loops = order});
        int first_inner = static_cast<int>(outer.size() + (reduce_outside ? rest.size() : 0));
        for (size_t k = 0; k < outer.size(); ++k)
            steps.push_back(bind(stage, static_cast<int>(k), k == 0 ? Level::GridX : Level::GridY));
        for (size_t k = 0; k < inner.size(); ++k)
            if (random_.chance(0.8)) steps.push_back(bind(stage, first_inner + static_cast<int>(k), Level::Thread));
        return steps;
    }

private:
    static RandomStep bind(const StageView& stage, int position, Level level) {
        return {.verb = Verb::Bind, .stage = stage.name, .loops = {position}, .level = level};
    }

    Combine some_combine() { return random_.chance(0.5) ? Combine::Atomic : Combine::Workspace; }
    const StageView& some_stage() { return random_.pick(stages_); }
    const StageView& output_stage() {
        const StageView* stage = find(stages_, random_.pick(problem_.outputs).name());
        return stage ? *stage : some_stage();
    }

    template <class Suits>
    int some_loop(const StageView& stage, const Suits& suits) {
        std::vector<int> positions;
        for (size_t k = 0; k < stage.loops.size(); ++k)
            if (suits(stage.loops[k])) positions.push_back(static_cast<int>(k));
        return positions.empty() ? 0 : random_.pick(positions);
    }
    int some_loop(const StageView& stage) {
        return some_loop(stage, [](const LoopView&) { return true; });
    }

    /// A loop that says nothing where the stage has none at the position.
    static LoopView loop(const StageView& stage, int position) {
        bool there = position >= 0 && position < static_cast<int>(stage.loops.size());
        return there ? stage.loops[position] : LoopView{};
    }

    int64_t divisor_of(int64_t extent) {
        std::vector<int64_t> divisors;
        for (int64_t d = 1; d <= extent; ++d)
            if (extent % d == 0) divisors.push_back(d);
        return random_.pick(divisors);
    }

    /// Mostly something that the consumer reads.
    std::pair<std::string, int> some_operand(const StageView& consumer) {
        std::vector<std::pair<std::string, int>> all, read;
        for (const Tensor& tensor : tensors_of(problem_)) all.emplace_back(tensor.name(), tensor.output());
        for (const StageView& stage : stages_) all.emplace_back(stage.name, 0);
        for (const auto& [name, component] : all)
            for (const std::string& buffer : consumer.reads)
                if (buffer == name || buffer == fmt::format("{}_{}", name, component))
                    read.emplace_back(name, component);
        return random_.pick(read.empty() || random_.chance(0.1) ? all : read);
    }

    Random& random_;
    const Problem& problem_;
    std::vector<StageView> stages_;
    bool fresh_;  // no step was taken
};

}  // namespace

RandomStep random_step(Random& random, const Schedule& schedule, const Problem& problem) {
    return Proposer(random, schedule, problem).any();
}

std::vector<RandomStep> random_tiling(Random& random, const Schedule& schedule, const Problem& problem) {
    return Proposer(random, schedule, problem).tiling();
}

}  // namespace tw::fuzz
