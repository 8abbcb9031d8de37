#include "tuning/mutate_schedule.h"

#include <algorithm>
#include <functional>
#include <set>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "dsl/edit.h"
#include "dsl/simplify.h"
#include "tuning/draw_tiles.h"

namespace tw::tuning {
namespace {

using Mutant = std::optional<Schedule>;
using Words = std::vector<std::string>;

constexpr int64_t most_unrolled = 16;  // iterations of a loop that is written out

Words words_of(const std::string& step) {
    std::istringstream stream(step);
    Words words;
    for (std::string word; stream >> word;) words.push_back(word);
    return words;
}
std::string text_of(const Words& words) { return fmt::format("{}", fmt::join(words, " ")); }

class Mutator {
public:
    Mutator(const ChangeableTrace& trace, Random& random)
        : trace_(trace), random_(random), looked_at_(trace.schedule()), state_(*Edit::state_of(looked_at_)) {}

    Mutant resize_split() {
        const auto step = some_step({"split", "split_by"});
        if (!step) return {};
        return trace_.with({resized(*step, [&](int64_t size, int64_t extent) { return other_size(size, extent); })});
    }

    /// What one split has more of, another one has less of.
    Mutant exchange_factor() {
        const auto one = some_step({"split", "split_by"}), other = some_step({"split", "split_by"});
        if (!one || *one == *other) return {};
        const int64_t factor = random_.chance(0.7) ? 2 : 4;
        return trace_.with(
            {resized(*one, [&](int64_t size, int64_t) { return size * factor; }),
             resized(*other, [&](int64_t size, int64_t) { return std::max<int64_t>(size / factor, 1); })});
    }

    Mutant write_out() {
        const int loop = some_loop([&](int id) {
            const int64_t extent = extent_of(id);
            return is_free(id) && extent > 1 && extent <= most_unrolled;
        });
        return appended(loop >= 0, [&](Schedule& s) { s.bind(loop_at(loop), unrolled); });
    }

    /// The innermost loop, or the inner part of it.
    Mutant make_vector() {
        const int loop = some_loop([&](int id) {
            return is_free(id) && state_.owner(id).order.back() == id && !state_.loops[static_cast<size_t>(id)].reduces;
        });
        return appended(loop >= 0, [&](Schedule& s) {
            const int64_t size = random_.pick(std::vector<int64_t>{2, 4, 4, 8}), extent = extent_of(loop);
            const bool is_whole = extent == 2 || extent == 4 || extent == 8;
            s.bind(is_whole ? loop_at(loop) : s.split(loop_at(loop), size, Tail::Mask)[1], vector);
        });
    }

    Mutant reorder() {
        const int stage = some_stage([&](int id) { return inner_loops(id).size() > 1; });
        return appended(stage >= 0, [&](Schedule& s) {
            std::vector<int> loops = inner_loops(stage);
            const auto count = static_cast<int64_t>(loops.size());
            const int64_t from = random_.below(count), to = random_.below(count);
            const int moved = loops[static_cast<size_t>(from)];
            loops.erase(loops.begin() + from);
            loops.insert(loops.begin() + to, moved);
            s.order(loops_at(loops));
        });
    }

    Mutant copy_operand() {
        const int stage = some_stage([](int) { return true; });
        if (stage < 0 || state_.stages[static_cast<size_t>(stage)].order.empty()) return {};
        return appended(true, [&](Schedule& s) {
            const std::vector<StageRef> operands = operands_of(s, stage_at(stage));
            if (operands.empty()) return;
            const Loop loop = loop_at(random_.pick(state_.stages[static_cast<size_t>(stage)].order));
            s.stage(stage_at(stage), random_.pick(operands), random_.chance(0.7) ? Memory::Shared : Memory::Registers,
                    loop);
            if (random_.chance(0.2)) try_step(s, [&](Schedule& t) { t.pipeline(loop, {.stages = 2}); });
        });
    }

    /// With all that needs it.
    Mutant leave_out() {
        const auto step = some_step({"stage", "stage_for", "stages", "pipeline", "occupancy", "at", "at_all", "memory",
                                     "bind", "cut", "cut_partial", "reverse", "delay", "order"});
        if (!step) return {};
        const Words words = words_of(trace_.steps()[*step]);
        const bool is_bound = words[0] == "bind" && words.back() != "unrolled" && words.back() != "vector";
        if (is_bound || rounds(words)) return {};
        return trace_.with({{.step = *step, .is_left_out = true}});
    }

    /// What stands under a loop, under another one of the same stage.
    Mutant move_under_another() {
        const auto step = some_step({"stage", "stage_for", "at", "at_all"});
        if (!step) return {};
        Words words = words_of(trace_.steps()[*step]);
        std::string& number = words[0] == "at_all" ? words[1] : words.back();
        const int under = std::stoi(number);
        if (under < 0) return {};
        std::vector<int> others = state_.owner(under).order;
        std::erase_if(others,
                      [&](int id) { return id == under || static_cast<size_t>(id) >= trace_.loops_before(*step); });
        if (others.empty()) return {};
        number = std::to_string(random_.pick(others));
        return trace_.with({{.step = *step, .instead = text_of(words)}});
    }

    Mutant change_memory() {
        const auto step = some_step({"stage", "stage_for", "at_all", "memory"});
        if (!step) return {};
        Words words = words_of(trace_.steps()[*step]);
        bool changes = false;
        for (std::string& word : words) {
            const bool is_shared = word == tw::to_string(Memory::Shared);
            if (!is_shared && word != tw::to_string(Memory::Registers)) continue;
            word = tw::to_string(is_shared ? Memory::Registers : Memory::Shared);
            changes = true;
        }
        if (!changes) return {};
        return trace_.with({{.step = *step, .instead = text_of(words)}});
    }

    Mutant change_pipeline() {
        if (const auto step = some_step({"pipeline"}); step && random_.chance(0.7)) {
            Words words = words_of(trace_.steps()[*step]);
            words[2] = std::to_string(random_.between(1, 6));
            return trace_.with({{.step = *step, .instead = text_of(words)}});
        }
        const int loop = some_loop([&](int id) { return is_free(id) && holds_copies(id); });
        return appended(loop >= 0, [&](Schedule& s) {
            s.pipeline(loop_at(loop), {.stages = static_cast<int>(random_.between(2, 4))});
        });
    }

    /// A kernel of its own, in the place where it is read.
    Mutant place_under_reader() {
        const int stage = some_stage([&](int id) {
            return of(id).attach < 0 && !state_.is_result(id) && !of(id).scan && !of(id).mma && !readers_of(id).empty();
        });
        if (stage < 0) return {};
        const StageRecord& reader = of(random_.pick(readers_of(stage)));
        return appended(!reader.order.empty(), [&](Schedule& s) {
            s.at(stage_at(stage), loop_at(random_.pick(reader.order)));
            if (random_.chance(0.5)) return;
            try_step(s, [&](Schedule& t) {
                t.set_memory(stage_at(stage), Memory::Shared);
                share_elements(t, stage_at(stage), threads_around(stage));
            });
        });
    }

    Mutant put_into_readers() {
        const int stage =
            some_stage([&](int id) { return !of(id).is_copy && !of(id).definition.reducer && !state_.is_result(id); });
        if (stage < 0) return {};
        Schedule s = without_loops_of(stage);
        const auto kept = stage_in(s, stage);
        if (!kept) return {};
        s.inline_stage(*kept);
        return s;
    }

    /// A thread makes several elements that so many threads have made.
    Mutant give_thread_results() {
        const int loop = some_loop([&](int id) {
            return is_thread(state_.loops[static_cast<size_t>(id)].level) &&
                   state_.loops[static_cast<size_t>(id)].bind_step >= 0 && extent_of(id) > 1;
        });
        if (loop < 0) return {};
        const auto step = static_cast<size_t>(state_.loops[static_cast<size_t>(loop)].bind_step);
        StepChange change{.step = step};
        change.split = {loop, random_.pick(std::vector<int64_t>{2, 2, 4, 8}), random_.chance(0.5)};
        Schedule s = trace_.with({change});
        const Schedule::State& now = *Edit::state_of(s);
        const int stage = state_.loops[static_cast<size_t>(loop)].stage;
        const auto& relations = now.stages[static_cast<size_t>(stage)].relations;
        const auto made = std::ranges::find(relations, loop, &Relation::whole);
        if (made == relations.end()) return s;
        const int own = change.split.keeps_outer ? made->inner : made->outer;
        place_results(s, stage, own);
        return s;
    }

    /// From the beginning, with tiles that are drawn.
    Mutant tile_anew() {
        const int stage = some_stage([&](int id) { return is_tiled_alone(id); });
        if (stage < 0) return {};
        Schedule s = without_loops_of(stage);
        const auto kept = stage_in(s, stage);
        if (!kept) return {};
        draw_tiles(s, *kept, random_);
        return s;
    }

    /// Terms in parts, which blocks share.
    Mutant reduce_in_parts() {
        const int stage = some_stage([&](int id) {
            return is_tiled_alone(id) && of(id).definition.reducer &&
                   state_.first_reduce(id) < int(of(id).order.size());
        });
        if (stage < 0) return {};
        Schedule s = without_loops_of(stage);
        const auto whole = stage_in(s, stage);
        if (!whole) return {};
        const Loop terms = s.reduce(*whole);
        const int64_t extent = as_constant(s.extent(terms)).value_or(0);
        const int64_t parts = random_.pick(std::vector<int64_t>{2, 4, 8, 16, 32, 64, 128, 256});
        if (extent < 2 * parts) return {};
        const Stage part = s.rfactor(*whole, s.split(terms, (extent + parts - 1) / parts, Tail::Mask)[0]);
        draw_tiles(s, part, random_);
        draw_tiles(s, *whole, random_);
        return s;
    }

    Mutant change_occupancy() {
        const int stage = some_stage([&](int id) { return of(id).attach < 0; });
        return appended(stage >= 0,
                        [&](Schedule& s) { s.occupancy(stage_at(stage), static_cast<int>(random_.between(1, 6))); });
    }

    Mutant cut_masks() {
        const int loop = some_loop([&](int id) { return is_free(id); });
        return appended(loop >= 0, [&](Schedule& s) {
            s.cut(loop_at(loop), where_partial(stage_at(state_.loops[static_cast<size_t>(loop)].stage)));
        });
    }

private:
    const StageRecord& of(int stage) const { return state_.stages[static_cast<size_t>(stage)]; }
    Loop loop_at(int id) const { return state_.handle_of_loop(id); }
    Stage stage_at(int id) const { return state_.handle_of_stage(id); }
    std::vector<Loop> loops_at(const std::vector<int>& ids) const {
        std::vector<Loop> loops;
        for (int id : ids) loops.push_back(loop_at(id));
        return loops;
    }
    /// The stage of that name, if steps that are left out have not made it.
    std::optional<Stage> stage_in(const Schedule& s, int stage) const {
        for (const Stage& each : s.all_stages())
            if (s.name(each) == of(stage).definition.name) return each;
        return {};
    }

    int64_t extent_of(int loop) const {
        return as_constant(state_.loops[static_cast<size_t>(loop)].extent).value_or(int64_t{1} << 20);
    }
    bool is_mma_loop(int loop) const {
        const auto& mma = state_.owner(loop).mma;
        return mma && (loop == mma->m || loop == mma->n || loop == mma->k);
    }
    /// Serial, and no instruction's.
    bool is_free(int loop) const {
        return state_.loops[static_cast<size_t>(loop)].level == Level::Serial && !is_mma_loop(loop);
    }
    std::vector<int> inner_loops(int stage) const {
        std::vector<int> loops = of(stage).order;
        std::erase_if(loops,
                      [&](int id) { return is_grid(state_.loops[static_cast<size_t>(id)].level) || is_mma_loop(id); });
        return loops;
    }
    bool holds_copies(int loop) const {
        return std::ranges::any_of(attached_to(state_, loop), [&](int stage) {
            return of(stage).is_copy && resolved_memory(state_, stage) == Memory::Shared;
        });
    }
    std::vector<int> readers_of(int stage) const {
        std::vector<int> readers;
        for (size_t id = 0; id < state_.stages.size(); ++id)
            if (!state_.stages[id].inlined && reads_stage(state_.stages[id].definition, of(stage).definition))
                readers.push_back(static_cast<int>(id));
        return readers;
    }
    int64_t threads_around(int stage) const {
        int64_t threads = 1;
        for (int reader : readers_of(stage))
            for (int id : of(state_.kernel_of(reader)).order)
                if (is_thread(state_.loops[static_cast<size_t>(id)].level)) threads *= extent_of(id);
        return std::clamp<int64_t>(threads, 1, state_.target.max_threads);
    }
    /// A kernel of its own that no instruction and no other reduction runs.
    bool is_tiled_alone(int stage) const {
        const StageRecord& record = of(stage);
        return record.attach < 0 && !record.mma && !record.scan && record.streams < 0 && !record.is_copy &&
               !record.definition.target && !record.persistent_blocks;
    }

    template <class Suits>
    int some_stage(const Suits& suits) {
        std::vector<int> found;
        for (size_t id = 0; id < state_.stages.size(); ++id)
            if (!state_.stages[id].inlined && suits(static_cast<int>(id))) found.push_back(static_cast<int>(id));
        return found.empty() ? -1 : random_.pick(found);
    }
    template <class Suits>
    int some_loop(const Suits& suits) {
        std::vector<int> found;
        for (const StageRecord& stage : state_.stages)
            if (!stage.inlined)
                for (int id : stage.order)
                    if (suits(id)) found.push_back(id);
        return found.empty() ? -1 : random_.pick(found);
    }
    std::optional<size_t> some_step(const std::set<std::string>& verbs) {
        std::vector<size_t> found;
        for (size_t k = 0; k < trace_.steps().size(); ++k)
            if (verbs.contains(words_of(trace_.steps()[k])[0])) found.push_back(k);
        if (found.empty()) return {};
        return random_.pick(found);
    }

    Mutant appended(bool possible, const std::function<void(Schedule&)>& steps) {
        if (!possible) return {};
        Schedule s = trace_.schedule();
        const size_t before = s.trace().size();
        steps(s);
        if (s.trace().size() == before) return {};
        return s;
    }

    /// The steps that name the stage's loops, and what they have made, left out.
    Schedule without_loops_of(int stage) const {
        std::vector<StepChange> changes;
        for (size_t k = 0; k < trace_.steps().size(); ++k) {
            auto is_own = [&](int id) { return state_.loops[static_cast<size_t>(id)].stage == stage; };
            if (std::ranges::any_of(trace_.loops_named_by(k), is_own))
                changes.push_back({.step = k, .is_left_out = true});
        }
        return trace_.with(changes);
    }

    /// Mostly innermost, where neighbours may be a vector.
    void place_results(Schedule& s, int stage, int own) {
        const Schedule::State& now = *Edit::state_of(s);
        std::vector<Loop> loops;
        for (int id : now.stages[static_cast<size_t>(stage)].order)
            if (id != own && !is_grid(now.loops[static_cast<size_t>(id)].level))
                loops.push_back(now.handle_of_loop(id));
        const Loop results = now.handle_of_loop(own);
        loops.push_back(results);
        if (!random_.chance(0.75)) return;
        try_step(s, [&](Schedule& t) { t.order(loops); });
        if (random_.chance(0.5))
            try_step(s, [&](Schedule& t) { t.bind(results, random_.chance(0.6) ? vector : unrolled); });
    }

    int64_t other_size(int64_t size, int64_t extent) {
        switch (random_.below(6)) {
            case 0: return size * 2;
            case 1: return std::max<int64_t>(size / 2, 1);
            case 2: return size * 4;
            case 3: return std::max<int64_t>(size / 4, 1);
            case 4: return int64_t{1} << random_.between(0, 9);
            default: break;
        }
        std::vector<int64_t> divisors{1};
        for (int64_t d = 2; d <= std::min<int64_t>(extent, 1024); ++d)
            if (extent % d == 0) divisors.push_back(d);
        return random_.pick(divisors);
    }

    /// "split 3 16 divide .." or "split_by 3 divide 2 128 16 ..", by another size.
    StepChange resized(size_t step, const std::function<int64_t(int64_t, int64_t)>& size_for) {
        Words words = words_of(trace_.steps()[step]);
        const bool is_list = words[0] == "split_by";
        const int64_t extent = extent_of(std::stoi(words[1]));
        const size_t at = is_list ? 4 + static_cast<size_t>(random_.below(std::stoi(words[3]))) : 2;
        const int64_t size = std::clamp<int64_t>(size_for(std::stoll(words[at]), extent), 1, int64_t{1} << 20);
        words[at] = std::to_string(size);
        if (is_list || extent % size != 0) words[is_list ? 2 : 3] = "mask";
        return {.step = step, .instead = text_of(words)};
    }

    static bool rounds(const Words& words) { return words[0] == "stages" && words[3] != "as_it_is"; }

    const ChangeableTrace& trace_;
    Random& random_;
    Schedule looked_at_;
    const Schedule::State& state_;
};

struct Kind {
    const char* name;
    int64_t weight;
    Mutant (Mutator::*change)();
};
const std::vector<Kind>& kinds() {
    static const std::vector<Kind> all{{"size of a split", 22, &Mutator::resize_split},
                                       {"factor of two splits", 10, &Mutator::exchange_factor},
                                       {"loop written out", 4, &Mutator::write_out},
                                       {"vector", 7, &Mutator::make_vector},
                                       {"order", 8, &Mutator::reorder},
                                       {"copy of an operand", 10, &Mutator::copy_operand},
                                       {"step left out", 6, &Mutator::leave_out},
                                       {"place under another loop", 5, &Mutator::move_under_another},
                                       {"memory", 3, &Mutator::change_memory},
                                       {"pipeline", 4, &Mutator::change_pipeline},
                                       {"place under a reader", 5, &Mutator::place_under_reader},
                                       {"inlining", 3, &Mutator::put_into_readers},
                                       {"results of a thread", 10, &Mutator::give_thread_results},
                                       {"tiles", 16, &Mutator::tile_anew},
                                       {"parts of a reduction", 4, &Mutator::reduce_in_parts},
                                       {"occupancy", 2, &Mutator::change_occupancy},
                                       {"cut", 3, &Mutator::cut_masks}};
    return all;
}

}  // namespace

std::optional<Schedule> mutate(const ChangeableTrace& trace, Random& random, std::string& change) {
    int64_t all = 0;
    for (const Kind& kind : kinds()) all += kind.weight;
    int64_t drawn = random.below(all);
    const auto kind = std::ranges::find_if(kinds(), [&](const Kind& each) { return (drawn -= each.weight) < 0; });
    change = kind->name;
    const TreesLater later;
    Mutant mutant = (Mutator(trace, random).*kind->change)();
    if (mutant) mutant->tree();
    return mutant;
}

}  // namespace tw::tuning
