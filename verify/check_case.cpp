#include "verify/check_case.h"

#include <algorithm>

#include "ops/program.h"
#include "support/error.h"

namespace tw::fuzz {
namespace {

constexpr double kMostLeafRuns = 300000;  // a few milliseconds of interpretation

std::string indented(const std::string& text) {
    std::string result = "    ";
    for (char c : text) {
        result += c;
        if (c == '\n') result += "    ";
    }
    return result;
}

}  // namespace

CheckedSchedule::CheckedSchedule(Problem problem)
    : problem_(std::move(problem)), schedule_(problem_.outputs, target("sm_90a")) {
    for (const Bindings& launch : problem_.exact) expected_.push_back(interpret_plain(problem_.outputs, launch));
}

bool CheckedSchedule::take(const RandomStep& step) {
    bool taken = attempt(to_string(step), "", [&](Schedule& s) { perform(step, s, problem_); });
    if (taken) taken_.push_back(step);
    return taken;
}

bool CheckedSchedule::attempt(const std::string& what, const std::string& file,
                              const std::function<void(Schedule&)>& action) {
    Schedule before = schedule_;
    try {
        action(schedule_);
        if (leaf_runs(schedule_.tree()) <= kMostLeafRuns) return true;
        schedule_ = std::move(before);
    } catch (const Error& error) {
        bool names_line = std::string(error.what()).find(file) != std::string::npos;
        if (!names_line)
            fail(fmt::format("the message of \"{}\" does not name the caller's line: {}", what, error.what()));
        if (schedule_.to_string() != before.to_string() || schedule_.save() != before.save())
            fail(fmt::format("the refused step \"{}\" changed the schedule", what));
    } catch (const std::exception& error) {
        fail(fmt::format("the step \"{}\" ended in {}", what, error.what()));
    }
    return false;
}

void CheckedSchedule::compare(const std::vector<HostArray>& got, const std::vector<HostArray>& expected,
                              const Match& match, const std::string& what) {
    if (got.size() != expected.size())
        return fail(fmt::format("{}: {} outputs, expected {}", what, got.size(), expected.size()));
    for (size_t o = 0; o < got.size(); ++o) {
        auto wrong = difference(problem_.outputs[o].name(), got[o], expected[o], match);
        if (wrong) return fail(fmt::format("{}: {}", what, *wrong));
    }
}

void CheckedSchedule::check() {
    try {
        TreeInterpreter interpreter(schedule_.tree());
        for (size_t launch = 0; launch < problem_.exact.size(); ++launch)
            compare(interpreter.run(problem_.exact[launch]), expected_[launch], problem_.match,
                    "the tree's result is not the declaration's");
    } catch (const std::exception& error) {
        fail(fmt::format("the tree cannot be interpreted: {}", error.what()));
    }
}

void CheckedSchedule::check_replay() {
    try {
        Schedule again = replay(schedule_.save(), problem_.outputs, schedule_.target());
        if (again.to_string() != schedule_.to_string())
            fail("the replayed trace gives another tree:\n" + again.to_string());
        if (again.save() != schedule_.save()) fail("the replayed trace saves as\n" + again.save());
        schedule_.explain();
    } catch (const std::exception& error) {
        fail(fmt::format("the saved trace does not replay: {}\n{}", error.what(), schedule_.save()));
    }
}

void CheckedSchedule::take_room() {
    auto most_shared_bytes = [](const Schedule& schedule) {
        const Program program = build(schedule);
        int64_t most = 0;
        for (const codegen::KernelText& kernel : program.kernels()) most = std::max(most, kernel.shared_bytes);
        return most;
    };
    try {
        Target crowded = schedule_.target();
        crowded.shared_bytes = most_shared_bytes(schedule_) - 1;
        if (crowded.shared_bytes <= 0) return;
        Schedule again = replay(schedule_.save(), problem_.outputs, crowded);
        most_shared_bytes(again);
        schedule_ = std::move(again);
    } catch (const Error&) {  // over the target's limits, the one's or the other's
    } catch (const std::exception& error) {
        fail(fmt::format("with less shared memory, kernels cannot be built: {}", error.what()));
    }
}

void CheckedSchedule::check_kernels(const KernelResult& result) {
    if (result.refused) return;
    if (!result.failure.empty()) return fail("the kernels: " + result.failure);
    TreeInterpreter interpreter(schedule_.tree());
    Match match = problem_.approximates ? near(64, 1e-6) : bitwise;
    for (size_t launch = 0; launch < launches().size(); ++launch)
        compare(result.outputs.at(launch), interpreter.run(launches()[launch]), match,
                "the kernels' result is not the interpreter's");
}

const std::vector<Bindings>& CheckedSchedule::launches() const {
    return schedule_.deterministic() ? problem_.reals : problem_.exact;
}

std::string CheckedSchedule::report() const {
    std::string text = fmt::format("{}\n{}\n", problem_.name, indented(describe(problem_)));
    text += fmt::format("{}\n", failure_.value_or("nothing is wrong"));
    text += fmt::format("schedule:\n{}\n", indented(schedule_.trace_as_cpp()));
    return text + fmt::format("tree:\n{}\n", indented(schedule_.to_string()));
}

std::vector<RandomStep> shrink(std::vector<RandomStep> steps,
                               const std::function<bool(const std::vector<RandomStep>&)>& fails) {
    for (bool shorter = true; shorter;) {
        shorter = false;
        for (size_t k = steps.size(); k-- > 0;) {
            std::vector<RandomStep> fewer = steps;
            fewer.erase(fewer.begin() + static_cast<ptrdiff_t>(k));
            if (!fails(fewer)) continue;
            steps = std::move(fewer);
            shorter = true;
        }
    }
    return steps;
}

}  // namespace tw::fuzz
