#include "tuning/tune_declaration.h"

#include <fmt/format.h>

#include "runtime/driver/arch.h"
#include "support/error.h"
#include "tuning/tunable_declaration.h"

namespace tw {
namespace {

std::string milliseconds_text(double milliseconds) { return fmt::format("{:.4f} ms", milliseconds); }

std::string report(const tuning::TuneResult& result) {
    const schedules::TunedRecord& record = result.record;
    const std::string rule = milliseconds_text(result.today_milliseconds);
    std::string text = fmt::format("{}: ", record.kernel);
    if (record.tiling == result.today)
        text += fmt::format("{}, by rule: no candidate is faster by enough", milliseconds_text(record.milliseconds));
    else
        text += fmt::format("{} by {}, {:.2f} times as fast as the rule ({})", milliseconds_text(record.milliseconds),
                            record.tiling, result.today_milliseconds / record.milliseconds, rule);
    text += fmt::format("; {} measured, {} skipped\n", result.measured.size(), result.skipped.size());
    for (const tuning::MeasuredTiling& each : result.measured)
        text += fmt::format("  {}  {}\n", milliseconds_text(each.milliseconds), each.tiling);
    for (const tuning::SkippedTiling& each : result.skipped)
        text += fmt::format("  skipped  {}: {}\n", each.tiling, each.reason.substr(0, each.reason.find('\n')));
    return text;
}

void check_clock(const std::vector<Tensor>& outputs, const std::shared_ptr<Device>& device,
                 const TuneRequest& request) {
    if (outputs.empty()) throw_error(Error, "tune: no outputs; give what is declared");
    const std::string name = outputs[0].name();
    if (!device) throw_error(Error, "tune: '{}': no device; give one, as open_device(\"cuda\")", name);
    if (device->kind() != DeviceKind::Cuda && !request.clock)
        throw_error(
            Error,
            "tune: '{}': {} has no times to choose by; give a GPU, as open_device(\"cuda\"), or a clock of your "
            "own, TuneRequest::clock",
            name, device->name());
}

/// Steps of the library's own rule cite the line that asked for tuning. Those of a user's cite its lines.
schedules::ScheduleRule rule_called_from(std::source_location where, const schedules::ScheduleRule& rule) {
    const auto* own = rule.target<schedules::ChooseSchedule>();
    if (!own) return rule;
    return [own = *own, where](const std::vector<Tensor>& outputs, const Target& target) {
        return own(outputs, target, where);
    };
}

}  // namespace

TunedDeclaration tune(const std::vector<Tensor>& outputs, const std::shared_ptr<Device>& device,
                      const TuneRequest& request, std::source_location where) {
    check_clock(outputs, device, request);
    const Target target = target_of(*device);
    const tuning::TuneOptions options{.limit = request.limit,
                                      .seconds = request.seconds,
                                      .within = request.within,
                                      .threads = request.threads,
                                      .generated = request.generated,
                                      .least_gain = request.least_gain,
                                      .clock = request.clock};
    const tuning::TunableDeclaration declared =
        tuning::tunable_declaration(outputs, request.rule_name, rule_called_from(where, request.rule), target, options);
    const auto quietly = [](const std::string&, int64_t, int64_t, const std::string&) {};
    tuning::TuneResult result = tuning::tune_choices(declared.tunable, device, options,
                                                     request.show ? request.show : tuning::ShowStep(quietly));
    if (request.keep)
        for (const schedules::DeclarationKey& key : {declared.key, declared.bucket}) keep_record(key, result.record);
    const std::string picks = result.record.tiling, text = report(result);
    return {declared.tunable.schedule(picks, target), schedules::parse_picks(picks), std::move(result), text};
}

}  // namespace tw
