// tw candidates: the schedules that tuning would measure, by predicted times; needs no GPU. tw calibrate: the numbers
// that times are predicted with.
#include <algorithm>
#include <chrono>
#include <memory>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "codegen/cost/predict_time.h"
#include "runtime/driver/arch.h"
#include "schedules/calibrated_speeds.h"
#include "schedules/candidates.h"
#include "schedules/choices.h"
#include "support/error.h"
#include "tools/commands.h"
#include "tools/numbers.h"
#include "tools/output.h"
#include "tuning/calibrate.h"
#include "tuning/search_schedules.h"

namespace tw {
namespace {

using schedules::PredictedPicks;

struct CandidatesCommand {
    std::string name, arch = "sm_90a";
    size_t limit = 20, generated = 0;
    bool as_json = false, has_steps = false;
};

/// The rule's first. A kernel with a schedule of its own has no other.
std::vector<PredictedPicks> predicted_candidates(const CandidatesCommand& command) {
    const schedules::CatalogEntry& entry = kernel_named(command.name);
    const Target wanted = target(command.arch);
    const std::function<Schedule()> rule = [&] { return entry.make(wanted); };
    return schedules::neighbours_of_rule(rule, command.limit);
}

std::string bounds_text(const codegen::Prediction& time) {
    std::string text;
    for (const codegen::KernelPrediction& kernel : time.kernels)
        text += fmt::format("{}{} {:.4f} ms ({})", text.empty() ? "" : ", ", kernel.name, kernel.seconds * 1e3,
                            kernel.bound);
    return text;
}

nlohmann::json json_of(const PredictedPicks& each) {
    nlohmann::json kernels = nlohmann::json::array();
    for (const codegen::KernelPrediction& kernel : each.time.kernels) {
        const codegen::KernelWork& work = kernel.work;
        kernels.push_back({{"name", kernel.name},
                           {"ms", kernel.seconds * 1e3},
                           {"bound", kernel.bound},
                           {"blocks", work.blocks},
                           {"resident", work.resident},
                           {"warps", work.warps},
                           {"registers", work.registers},
                           {"statements", work.statements},
                           {"instructions", work.of_block.instructions},
                           {"special", work.of_block.special},
                           {"doubles", work.of_block.doubles},
                           {"wavefronts", work.of_block.wavefronts},
                           {"unit_cycles", work.of_block.unit_cycles},
                           {"round_trips", work.of_block.round_trips},
                           {"barriers", work.of_block.barriers},
                           {"l2_bytes", work.l2_bytes},
                           {"memory_bytes", work.memory_bytes},
                           {"atomics", work.atomics}});
    }
    return {{"picks", schedules::picks_text(each.picks)}, {"ms", each.time.seconds * 1e3}, {"kernels", kernels}};
}

/// What a search finds from the fastest candidates on, and why it refused others.
void show_generated(const CandidatesCommand& command, const std::vector<PredictedPicks>& fastest_first) {
    constexpr size_t begun_with = 6;
    const schedules::CatalogEntry& entry = kernel_named(command.name);
    std::vector<Schedule> begin;
    for (const PredictedPicks& each : fastest_first)
        if (begin.size() < begun_with)
            begin.push_back(schedules::schedule_with(each.picks, [&] { return entry.make(target(command.arch)); }));
    const tuning::SearchResult found = tuning::search_schedules(begin, {.candidates = command.generated});
    print("generated: {} tried, {} legal\n", found.tried, found.legal);
    for (const tuning::GeneratedSchedule& each : found.best)
        print("{:>10.4f} ms  {:<40} {}\n", each.time.seconds * 1e3, each.changes, bounds_text(each.time));
    for (const auto& [why, times] : found.refused) print("{:>10} refused: {}\n", times, why);
    if (command.has_steps && !found.best.empty()) print("{}", found.best[0].schedule.trace_as_cpp());
}

void show_candidates(const CandidatesCommand& command) {
    std::vector<PredictedPicks> all = predicted_candidates(command);
    std::ranges::stable_sort(all, {}, [](const PredictedPicks& each) { return each.time.seconds; });
    if (command.as_json) {
        nlohmann::json list = nlohmann::json::array();
        for (const PredictedPicks& each : all) list.push_back(json_of(each));
        print("{}\n", json_text({{"name", command.name}, {"candidates", list}}));
        return;
    }
    for (const PredictedPicks& each : all)
        print("{:>10.4f} ms  {:<40} {}\n", each.time.seconds * 1e3, schedules::picks_text(each.picks),
              bounds_text(each.time));
    if (command.generated > 0) show_generated(command, all);
}

}  // namespace

void add_calibrate_command(CLI::App& app) {
    auto which = std::make_shared<std::string>();
    auto* command = app.add_subcommand("calibrate",
                                       "measure the numbers of the model of time, and keep them for this user's "
                                       "programs; see docs/schedules.md");
    command->add_option("--device", *which, "cuda or cuda:1; the best there is if not given");
    command->callback([which] {
        const ChosenDevice chosen = which->empty() ? best_device() : ChosenDevice{open_device(*which), *which};
        const tuning::Calibration measured = tuning::calibrate(chosen.device);
        schedules::keep_speeds(target_of(*chosen.device), measured.speeds);
        print("on {}\n{}kept: choose_schedule and tw candidates predict with them from now on\n", chosen.reason,
              measured.text);
    });
}

void add_candidates_command(CLI::App& app) {
    auto o = std::make_shared<CandidatesCommand>();
    auto* command = app.add_subcommand(
        "candidates", "schedules that tuning would measure, the fastest by the model of time first; needs no GPU");
    command->add_option("kernel", o->name, "a name of `tw list`, or of what is scheduled by rule, NAME_automatic")
        ->required();
    command->add_option("--arch", o->arch, "sm_80, sm_90a, sm_100a, ...")->capture_default_str();
    command->add_option("--limit", o->limit, "so many, the rule's among them")
        ->check(whole_number(1, 1000000))
        ->capture_default_str();
    command
        ->add_option("--generated", o->generated,
                     "beside them, the best of so many schedules that a search makes by changing steps")
        ->check(whole_number(0, 1000000))
        ->capture_default_str();
    command->add_flag("--steps", o->has_steps, "the steps of the best of these");
    command->add_flag("--json", o->as_json, "as JSON, with what each kernel does");
    add_load_option(command);
    command->callback([o] { show_candidates(*o); });
}

}  // namespace tw
