#include "schedules/choose_by_model.h"

#include <algorithm>
#include <set>
#include <string>

#include "codegen/cost/predict_time.h"
#include "dsl/edit.h"
#include "schedules/calibrated_speeds.h"
#include "schedules/choices.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

constexpr size_t looked_at = 12;     // candidates, the rule's among them
constexpr double least_gain = 0.25;  // of the time: of 45 kernels on an H200, none was slower then
constexpr double told_apart = 1.05;
constexpr double near_the_floor = 1.3;      // times as long as memory or tensor cores need: not worth a search
constexpr double short_text = 600;          // statements that compile soon, and fit into registers,
constexpr double longer_text = 2;           // or so many times those of the rule's
constexpr double long_text = 1500;          // nothing is searched: each candidate would take long to make
constexpr double seconds_of_little = 5e-6;  // nor is what could be gained then

/// What no choice changes: what the kernels move, multiply and are launched for.
double floor_of(const codegen::Prediction& time, const Target& target, const codegen::DeviceSpeeds& speeds) {
    double seconds = 0;
    for (const codegen::KernelPrediction& kernel : time.kernels) {
        const double products =
            kernel.work.blocks * kernel.work.of_block.unit_cycles / target.multiprocessors / speeds.clock;
        seconds += speeds.launch + std::max(kernel.work.memory_bytes / speeds.memory_bytes, products);
    }
    return seconds;
}

/// What products are tiled by is chosen by models that were fitted to them; how many terms a row finds, data say; a
/// plain schedule is nothing to come back
/// to.
const std::set<std::string> left_to_the_rule{"tiles", "tiling", "schedule", "terms"};
bool multiplies_matrices(const codegen::KernelPrediction& kernel) { return kernel.work.of_block.unit_cycles > 0; }

/// Seconds of kernels that none of the other choices changes: those of stages whose tiles the rule has chosen.
double seconds_left_to_the_rule(const std::function<Schedule()>& rule, const codegen::Prediction& time) {
    const Choices choices;
    rule();
    double seconds = 0;
    for (const codegen::KernelPrediction& kernel : time.kernels) {
        auto is_left = [&](const Choice& choice) {
            const size_t dot = choice.name.rfind('.');
            return dot > 0 && left_to_the_rule.contains(choice.name.substr(dot + 1)) &&
                   kernel.name.starts_with(name_from_saved(choice.name.substr(0, dot)) + "_");
        };
        if (std::ranges::any_of(choices.asked(), is_left)) seconds += kernel.seconds;
    }
    return seconds;
}

std::optional<Picks> searched(const std::function<Schedule()>& rule, const Schedule& by_rule) {
    const codegen::DeviceSpeeds& speeds = calibrated_speeds(by_rule.target());
    const codegen::Prediction today = codegen::predict_time(by_rule.tree(), by_rule.target(), speeds);
    const double floor = floor_of(today, by_rule.target(), speeds);
    if (today.seconds < near_the_floor * floor || today.seconds < floor + seconds_of_little) return {};
    if (today.statements() > long_text || std::ranges::any_of(today.kernels, multiplies_matrices)) return {};
    if (today.seconds - seconds_left_to_the_rule(rule, today) < least_gain * today.seconds) return {};
    std::vector<PredictedPicks> all = neighbours_of_rule(rule, looked_at, left_to_the_rule);
    const double most_statements = std::max(longer_text * today.statements(), short_text);
    std::erase_if(all, [&](const PredictedPicks& each) {
        return !each.picks.empty() && each.time.statements() > most_statements;
    });
    auto seconds_of = [](const PredictedPicks& each) { return each.time.seconds; };
    const double least = seconds_of(*std::ranges::min_element(all, {}, seconds_of));
    // Of what the model cannot tell apart, the fewest differences from the rule.
    std::erase_if(all, [&](const PredictedPicks& each) { return seconds_of(each) > told_apart * least; });
    const PredictedPicks& best = *std::ranges::min_element(
        all, {}, [&](const PredictedPicks& each) { return std::pair(each.picks.size(), seconds_of(each)); });
    if (best.picks.empty() || best.time.seconds > (1 - least_gain) * today.seconds) return {};
    return best.picks;
}

}  // namespace

std::optional<Picks> faster_by_model(const std::function<Schedule()>& rule, const Schedule& by_rule) try {
    return searched(rule, by_rule);
} catch (const Error&) {  // what the rule's schedule lacks, build() tells
    return {};
}

}  // namespace tw::schedules
