#include <limits>
#include <set>

#include "support/error.h"
#include "verify/case_result.h"
#include "verify/check_case.h"
#include "verify/fuzz.h"
#include "verify/workers.h"

namespace tw::fuzz {
namespace {

/// Steps that no one should write: handles of other schedules and of the dead, sizes out of this world.
class ArbitrarySteps {
public:
    ArbitrarySteps(Random& random, CheckedSchedule& checked, const Problem& foreign)
        : random_(random), checked_(checked), foreign_(foreign) {
        Schedule other(foreign.outputs, checked.schedule().target());
        foreign_stages_ = other.all_stages();
        remember(other);
    }

    struct Attempt {
        std::string verb, text;
        std::function<void(Schedule&)> action;
    };

    Attempt next() {
        Loop a = loop(), b = loop();
        Stage x = stage(), y = stage();
        Tensor t = tensor(), u = tensor();
        int64_t n = size();
        Tail tail = random_.chance(0.5) ? Tail::Mask : Tail::Divide;
        auto level = static_cast<Level>(random_.below(9));
        auto memory = static_cast<Memory>(random_.below(4));
        switch (random_.below(18)) {
            case 0:
            case 1:
                return {"split", fmt::format("split(l{}, {}, {})", a.id, n, int(tail)),
                        [=](Schedule& s) { s.split(a, n, tail); }};
            case 2: return {"fuse", fmt::format("fuse(l{}, l{})", a.id, b.id), [=](Schedule& s) { s.fuse(a, b); }};
            case 3: {
                std::vector<Loop> loops(static_cast<size_t>(random_.below(5)), a);
                for (Loop& l : loops) l = loop();
                return {"order", "order of " + ids(loops), [=](Schedule& s) { s.order(loops); }};
            }
            case 4:
            case 5:
                return {"bind", fmt::format("bind(l{}, {})", a.id, tw::to_string(level)),
                        [=](Schedule& s) { s.bind(a, level); }};
            case 6: return {"at", fmt::format("at(s{}, l{})", x.id, a.id), [=](Schedule& s) { s.at(x, a); }};
            case 7: return {"at", fmt::format("at({}, l{})", name(t), a.id), [=](Schedule& s) { s.at(t, a); }};
            case 8:
                return {"inline_stage", fmt::format("inline_stage(s{})", x.id),
                        [=](Schedule& s) { s.inline_stage(x); }};
            case 9:
                return {"stage", fmt::format("stage(s{}, {}, {}, l{})", x.id, name(t), int(memory), a.id),
                        [=](Schedule& s) { s.stage(x, t, memory, a); }};
            case 10:
                return {"stage", fmt::format("stage(s{}, s{}, {}, l{})", x.id, y.id, int(memory), a.id),
                        [=](Schedule& s) { s.stage(x, y, memory, a); }};
            case 11:
                return {"stage", fmt::format("stage({}, {}, {})", name(t), name(u), int(memory)),
                        [=](Schedule& s) { s.stage(t, u, memory); }};
            case 12:
                return {"stage", fmt::format("stage({}, {}, l{})", name(t), int(memory), a.id),
                        [=](Schedule& s) { s.stage(t, memory, a); }};
            case 13:
                return {"set_memory", fmt::format("set_memory(s{}, {})", x.id, int(memory)),
                        [=](Schedule& s) { s.set_memory(x, memory); }};
            case 14:
                return {"in_place", fmt::format("in_place({}, {})", name(t), name(u)),
                        [=](Schedule& s) { s.in_place(t, u); }};
            case 15: return looks(x, a, t);
            case 16: return {"loop", fmt::format("loop(s{}, l{})", x.id, a.id), [=](Schedule& s) { s.loop(x, a); }};
            default: return garbled_trace();
        }
    }

private:
    Attempt looks(Stage x, Loop a, Tensor t) {
        auto index = static_cast<int>(random_.between(-2, 4));
        return {"look", fmt::format("looks at s{}, l{}, {}, {}", x.id, a.id, name(t), index), [=](Schedule& s) {
                    s.reduce(x, index);
                    s.all_loops(x);
                    s.data_loops(t);
                    s.loops<2>(t);
                }};
    }

    /// A saved trace with a few bytes changed: refused, or some other schedule.
    Attempt garbled_trace() {
        std::string text = checked_.schedule().save();
        static const std::string kBytes = "0123456789 -\nabcstx:";
        for (int64_t k = random_.between(1, 4); k > 0; --k) {
            auto at = static_cast<size_t>(random_.below(static_cast<int64_t>(text.size())));
            char byte = kBytes[static_cast<size_t>(random_.below(static_cast<int64_t>(kBytes.size())))];
            if (random_.chance(0.3))
                text.erase(at, static_cast<size_t>(random_.below(9)));
            else
                text[at] = byte;
            if (text.empty()) text = "\n";
        }
        auto outputs = checked_.problem().outputs;
        return {"replay", "replay of\n" + text, [=](Schedule& s) { s = replay(text, outputs, s.target()); }};
    }

    Loop loop() {
        if (random_.chance(0.05))
            return {random_.chance(0.5) ? std::numeric_limits<int>::max() : std::numeric_limits<int>::min()};
        auto views = view_of(checked_.schedule());
        const StageView& owner = random_.pick(views);
        remember(checked_.schedule());
        if (random_.chance(0.6) && !owner.loops.empty()) return random_.pick(owner.loops).loop;
        if (random_.chance(0.9) && !seen_.empty()) return random_.pick(seen_);  // dead, or another schedule's
        return {static_cast<int>(random_.between(-1, 25))};                     // never born
    }
    Stage stage() {
        if (random_.chance(0.6)) return random_.pick(checked_.schedule().all_stages());
        if (random_.chance(0.5)) return random_.pick(foreign_stages_);
        return {static_cast<int>(random_.between(-2, 12))};
    }
    void remember(const Schedule& schedule) {
        for (const Stage& stage : schedule.all_stages())
            for (const Loop& loop : schedule.all_loops(stage))
                if (known_.insert(loop.origin.get()).second) seen_.push_back(loop);
    }
    Tensor tensor() {
        if (random_.chance(0.05)) return {};
        return random_.pick(tensors_of(random_.chance(0.1) ? foreign_ : checked_.problem()));
    }
    int64_t size() {
        using Limits = std::numeric_limits<int64_t>;
        static const std::vector<int64_t> kSizes = {
            Limits::min(),          Limits::max(),    -1, 0, 1, 2, 3, 7, 64, int64_t{1} << 30, int64_t{1} << 31,
            (int64_t{1} << 32) + 1, Limits::max() / 2};
        return random_.pick(kSizes);
    }

    static std::string name(const Tensor& tensor) { return tensor.defined() ? tensor.name() : "undefined"; }
    static std::string ids(const std::vector<Loop>& loops) {
        std::string text;
        for (Loop l : loops) text += fmt::format(" l{}", l.id);
        return text;
    }

    Random& random_;
    CheckedSchedule& checked_;
    const Problem& foreign_;
    std::vector<Stage> foreign_stages_;
    std::vector<Loop> seen_;
    std::set<const Origin*> known_;
};

void run_case(int64_t number, const FuzzOptions& options, const Tell& tell) {
    Random random(options.seed ^ 0xa5b17, static_cast<uint64_t>(number));
    Problem problem = problem_for(options, number, random), foreign = problem_for(options, number + 5, random);
    CaseResult result;
    result.computation = problem.name;
    tell({Message::Kind::Begin, number, problem.name + "\n" + describe(problem)});
    CheckedSchedule checked(std::move(problem));
    ArbitrarySteps steps(random, checked, foreign);
    std::string tried;
    for (int k = 0; k < 4 * options.steps && !checked.failure(); ++k) {
        // Some legal steps between, for there to be something.
        if (random.chance(0.3)) checked.take(random_step(random, checked.schedule(), checked.problem()));
        ArbitrarySteps::Attempt attempt = steps.next();
        tell({Message::Kind::Note, number, attempt.text});
        bool accepted = checked.attempt(attempt.text, "fuzz_arbitrary.cpp:", attempt.action);
        ++(accepted ? result.accepted : result.refused)[attempt.verb];
        if (accepted && !checked.failure()) checked.check();
    }
    if (checked.failure()) result.failure = checked.report();
    tell({Message::Kind::Result, number, result.encode()});
}

}  // namespace

Summary fuzz_arbitrary(const FuzzOptions& options) {
    return collect(options, [&](const std::vector<int64_t>& cases, const Tell& tell) {
        for (int64_t number : cases) run_case(number, options, tell);
    });
}

}  // namespace tw::fuzz
