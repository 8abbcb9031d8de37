#include "tuning/tunable_declaration.h"

#include <algorithm>
#include <optional>
#include <set>

#include "bench/random_data.h"
#include "ops/check.h"
#include "ops/nest_costs.h"
#include "schedules/generated_picks.h"
#include "support/error.h"
#include "tuning/generated_tilings.h"

namespace tw::tuning {
namespace {

using schedules::Choices;
using schedules::RuledDeclaration;

/// The stage that all of the picks are of; nothing if they are of several, or of none.
std::optional<std::string> stage_of(const schedules::Picks& picks) {
    std::optional<std::string> stage;
    for (const auto& [name, taken] : picks) {
        const std::string of = name.substr(0, name.rfind('.'));
        if (stage && *stage != of) return {};
        stage = of;
    }
    return stage;
}

/// The fastest of each stage that are faster than today's, together; nothing if that is what was measured.
std::optional<std::string> joined(const TuneResult& result, double least_gain) {
    schedules::Picks all;
    std::set<std::string> stages;
    for (const MeasuredTiling& each : result.measured) {
        if (each.milliseconds > result.today_milliseconds * (1 - least_gain)) break;
        const schedules::Picks picks = schedules::parse_picks(each.tiling);
        if (schedules::are_generated(picks)) continue;
        const auto stage = stage_of(picks);
        if (stage && !stage->empty() && stages.insert(*stage).second) all.insert(picks.begin(), picks.end());
    }
    if (stages.size() < 2) return {};
    return schedules::picks_text(all);
}

/// Of all kernels together: what each element of the result costs, about.
double flops_of(const Schedule& s) {
    double flops = 0;
    for (const LoopCost& cost : nest_costs(s.tree()))
        if (cost.depth == 0) flops += std::max(cost.cost.flops, cost.cost.global_bytes);
    return flops;
}

std::vector<std::string> texts_of(const std::vector<schedules::PredictedPicks>& all) {
    std::vector<std::string> texts;
    for (const schedules::PredictedPicks& each : all) texts.push_back(schedules::picks_text(each.picks));
    return texts;
}

TunableDeclaration tunable_of(const std::vector<Tensor>& outputs, const std::string& rule_name,
                              const std::function<Schedule(const Target&)>& make, const Target& target,
                              const TuneOptions& options) {
    TunableDeclaration made;
    made.key = schedules::declaration_key(outputs, rule_name);
    made.bucket = schedules::bucket_key(outputs, rule_name);
    made.tunable.name = made.key.name;
    made.tunable.outputs = outputs;
    made.tunable.is_exact = false;
    {
        const Choices by_rule;
        made.tunable.flops = flops_of(make(target));
    }
    constexpr double share_of_search = 0.25, share_of_generated = 0.125;
    const auto traces = std::make_shared<GeneratedTraces>();
    made.tunable.tilings = [make, options, traces](const Target& wanted) {
        const std::function<Schedule()> rule = [&] { return make(wanted); };
        const auto by_rule = schedules::best_by_model(rule, options.limit, share_of_search * options.within);
        const SearchOptions search{.candidates = options.spread ? 0 : options.generated,
                                   .seconds = share_of_generated * options.within};
        return with_generated(by_rule, rule, options.limit, search, *traces);
    };
    made.tunable.spread = [make](const Target& wanted, size_t count) {
        return texts_of(schedules::neighbours_of_rule([&] { return make(wanted); }, count));
    };
    made.tunable.schedule = [make, traces](const std::string& text, const Target& wanted) {
        const schedules::Picks picks = schedules::parse_picks(text);
        const Schedule begun_with =
            schedules::schedule_with(schedules::without_generated(picks), [&] { return make(wanted); });
        return schedules::as_generated(picks, traces->contains(text) ? traces->at(text) : "", begun_with);
    };
    return made;
}

/// Whether the rule's steps are all there are: then other ones may take their place.
bool is_rules_alone(const Schedule& whole, const RuledDeclaration& ruled) {
    return ruled.rule_name == "choose_schedule" &&
           schedules::choose_schedule(ruled.outputs, whole.target()).save() == whole.save();
}

/// Tables that the entry fills, by their names.
bench::FillInput tables_of(const schedules::CatalogEntry& entry, const std::vector<Tensor>& outputs) {
    if (!entry.give_tables) return {};
    return [give = entry.give_tables, outputs](const std::string& input, HostArray& array, uint64_t seed) {
        Bindings bindings = random_bindings(outputs, 100, [](HostArray&, uint64_t) {});  // tables are of integers
        const auto before = bindings.inputs.find(input);
        if (before == bindings.inputs.end() || is_float(array.type)) return false;
        const std::vector<std::byte> drawn = before->second.bytes;
        give(bindings, seed);
        const HostArray& given = bindings.inputs.at(input);
        if (given.bytes == drawn || given.bytes.size() != array.bytes.size()) return false;
        array.bytes = given.bytes;
        return true;
    };
}

}  // namespace

TunableDeclaration tunable_declaration(const std::vector<Tensor>& outputs, const std::string& rule_name,
                                       const schedules::ScheduleRule& rule, const Target& target,
                                       const TuneOptions& options) {
    return tunable_of(
        outputs, rule_name, [outputs, rule](const Target& wanted) { return rule(outputs, wanted); }, target, options);
}

TunableDeclaration tunable_kernel(const schedules::CatalogEntry& entry, const Target& target,
                                  const TuneOptions& options) {
    std::vector<RuledDeclaration> ruled;
    TuneOptions possible = options;
    {
        const Choices choices;
        const Schedule whole = entry.make(target);
        ruled = choices.ruled;
        if (ruled.size() != 1 || !is_rules_alone(whole, ruled[0])) possible.generated = 0;
    }
    if (ruled.empty())
        throw_error(Error,
                    "'{0}' has a schedule of its own, which leaves nothing to choose; tune {0}_automatic, if that is a "
                    "kernel of the library, or have choose_schedule or schedule_as_tuned make the schedule",
                    entry.name);
    TunableDeclaration made = tunable_of(ruled[0].outputs, ruled[0].rule_name, entry.make, target, possible);
    made.tunable.fill = tables_of(entry, ruled[0].outputs);
    return made;
}

TuneResult tune_choices(const Tunable& tunable, const std::shared_ptr<Device>& device, const TuneOptions& options,
                        const ShowStep& show) {
    TuneResult apart = tune(tunable, device, options, show);
    const auto together = joined(apart, options.least_gain);
    auto is_together = [&](const MeasuredTiling& each) { return each.tiling == *together; };
    if (!together || std::ranges::any_of(apart.measured, is_together)) return apart;
    Tunable both = tunable;
    both.tilings = [&](const Target&) {
        std::vector<std::string> all{apart.today, *together};
        if (apart.record.tiling != apart.today) all.push_back(apart.record.tiling);
        return all;
    };
    TuneResult result = tune(both, device, options, show);
    std::erase_if(apart.measured, [&](const MeasuredTiling& each) {
        return std::ranges::find(result.measured, each.tiling, &MeasuredTiling::tiling) != result.measured.end();
    });
    result.measured.insert(result.measured.end(), apart.measured.begin(), apart.measured.end());
    std::ranges::stable_sort(result.measured, {}, &MeasuredTiling::milliseconds);
    result.skipped.insert(result.skipped.end(), apart.skipped.begin(), apart.skipped.end());
    put_times_in_record(result);
    result.compile_seconds += apart.compile_seconds;
    result.measure_seconds += apart.measure_seconds;
    result.check_seconds += apart.check_seconds;
    return result;
}

}  // namespace tw::tuning
