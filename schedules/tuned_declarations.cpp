#include "schedules/tuned_declarations.h"

#include <filesystem>
#include <optional>

#include <fmt/format.h>

#include "codegen/cost/predict_time.h"
#include "dsl/edit.h"
#include "runtime/compile/cubin_cache.h"
#include "schedules/calibrated_speeds.h"
#include "schedules/choose_by_model.h"
#include "schedules/declaration_text.h"
#include "schedules/generated_picks.h"
#include "support/error.h"
#include "support/version.h"

namespace tw::schedules {
namespace {

std::filesystem::path folder_of_records() {
    const std::filesystem::path cache = default_cache_directory();
    return cache.empty() ? cache : cache / "tuned";
}

/// Why the record tells nothing of this target; nothing if it does.
std::optional<std::string> why_not(const TunedRecord& record, const Target& target) {
    auto left_out = [&](const std::string& why) {
        return fmt::format("a record of '{}' is left out: {}; tune it again", record.kernel, why);
    };
    if (record.arch != target.arch)
        return left_out(fmt::format("it was measured on {} ({}), this is {}", record.device, record.arch, target.arch));
    if (record.version != TILEWRIGHT_VERSION)
        return left_out(fmt::format("it is of version {}, this is {}", record.version, TILEWRIGHT_VERSION));
    return {};
}

/// By the record's picks; nothing, and why, where the rule has not these choices.
std::optional<Schedule> with_picks(const TunedRecord& record, const std::function<Schedule()>& rule, std::string& why) {
    auto left_out = [&](const std::string& reason) {
        why = fmt::format("a record of '{}', {}, is left out: {}; tune it again", record.kernel, record.tiling, reason);
        return std::nullopt;
    };
    try {
        const Picks picks = parse_picks(record.tiling);
        Choices choices(without_generated(picks));
        const Schedule s = rule();
        if (const std::vector<Choices::Unmet> unmet = choices.unmet(); !unmet.empty()) return left_out(unmet[0].why);
        return as_generated(picks, record.schedule, s);
    } catch (const Error& problem) {
        return left_out(problem.what());
    }
}

/// Those in use first, then the folder's.
std::vector<TunedRecord> records_of(const DeclarationKey& key) {
    std::vector<TunedRecord> records = tuned_records_of(key.name);
    for (const TunedRecord& kept : kept_records(key)) records.push_back(kept);
    return records;
}

double predicted_seconds(const Schedule& s) {
    return codegen::predict_time(s.tree(), s.target(), calibrated_speeds(s.target())).seconds;
}
/// What was measured of another declaration is not taken where the model expects it to be slower here.
std::optional<std::string> why_slower(const Schedule& like_another, const TunedRecord& record,
                                      const std::function<Schedule()>& rule) {
    constexpr double errors_of_the_model = 1.1;
    const double by_rule = predicted_seconds(rule());
    double seconds = 0;
    try {
        seconds = predicted_seconds(like_another);
    } catch (const Error& refusal) {  // steps that were generated for other sizes
        return fmt::format("a record of declarations like it, {}, is left out: {}", record.tiling, refusal.what());
    }
    if (seconds <= errors_of_the_model * by_rule) return {};
    return fmt::format(
        "a record of declarations like it, {}, is left out: the model of time expects {:.4f} ms, and {:.4f} by rule",
        record.tiling, seconds * 1e3, by_rule * 1e3);
}

/// Asks one source after another.
class Asking {
public:
    Asking(const std::vector<Tensor>& outputs, const Target& target, const std::string& rule_name,
           const ScheduleRule& rule)
        : outputs_(outputs), target_(target), rule_name_(rule_name), rule_([&] { return rule(outputs, target); }) {}

    TunedSchedule first(const AllowedSources& allowed) {
        std::optional<TunedSchedule> found;
        if (allowed.records) found = by_record();
        if (!found && allowed.buckets) found = by_bucket();
        if (!found) found = allowed.model ? by_model() : by_rule(rule_());
        if (found->source != ChoiceSource::Rule) Edit::note(found->schedule, found->why);
        if (found->source != ChoiceSource::Record)
            for (const std::string& why : left_out_) Edit::note(found->schedule, why);
        found->left_out = std::move(left_out_);
        return std::move(*found);
    }

private:
    std::optional<TunedSchedule> by_record() {
        for (const TunedRecord& record : records_of(declaration_key(outputs_, rule_name_)))
            if (auto s = made_by(record))
                return TunedSchedule{
                    std::move(*s), ChoiceSource::Record,
                    fmt::format("as tuned on {}: {}, {:.4f} ms", record.device, record.tiling, record.milliseconds)};
        return {};
    }
    std::optional<TunedSchedule> by_bucket() {
        for (const TunedRecord& record : records_of(bucket_key(outputs_, rule_name_))) {
            auto s = made_by(record);
            if (!s) continue;
            if (const auto why = why_slower(*s, record, rule_)) {
                left_out_.push_back(*why);
                continue;
            }
            return TunedSchedule{
                std::move(*s), ChoiceSource::Bucket,
                fmt::format("as a declaration like it was tuned on {}: {}", record.device, record.tiling)};
        }
        return {};
    }
    TunedSchedule by_model() {
        Schedule s = rule_();
        const std::optional<Picks> faster = faster_by_model(rule_, s);
        if (!faster) return by_rule(std::move(s));
        return {schedule_with(*faster, rule_), ChoiceSource::Model,
                fmt::format("by the model of time, not as by rule: {}", picks_text(*faster))};
    }
    static TunedSchedule by_rule(Schedule s) { return {std::move(s), ChoiceSource::Rule, "by rule"}; }

    std::optional<Schedule> made_by(const TunedRecord& record) {
        std::optional<std::string> why = why_not(record, target_);
        std::optional<Schedule> s;
        if (!why) s = with_picks(record, rule_, why.emplace());
        if (!s) left_out_.push_back(*why);
        return s;
    }

    const std::vector<Tensor>& outputs_;
    const Target& target_;
    const std::string& rule_name_;
    const std::function<Schedule()> rule_;
    std::vector<std::string> left_out_;
};

DeclarationKey key_of(const std::string& what, const std::vector<Tensor>& outputs, const std::string& rule_name,
                      const std::string& text) {
    const std::string whole = fmt::format("{} {}\n{}", what, rule_name, text);
    return {declaration_name(outputs, whole), whole};
}

}  // namespace

DeclarationKey declaration_key(const std::vector<Tensor>& outputs, const std::string& rule_name) {
    return key_of("rule", outputs, rule_name, declaration_text(outputs));
}
DeclarationKey bucket_key(const std::vector<Tensor>& outputs, const std::string& rule_name) {
    return key_of("bucket of rule", outputs, rule_name, bucket_text(outputs));
}

std::vector<TunedRecord> kept_records(const DeclarationKey& key) {
    const std::filesystem::path folder = folder_of_records();
    std::error_code ignored;
    if (folder.empty() || !std::filesystem::is_directory(folder, ignored)) return {};
    CubinCache kept(folder);
    const auto text = kept.load(key.text);
    if (!text) return {};
    try {
        return parse_records(*text, folder.string());
    } catch (const Error& problem) {
        warn_once(fmt::format("records of '{}' are left out: {}", key.name, problem.what()));
        return {};
    }
}

void keep_record(const DeclarationKey& key, TunedRecord record) {
    record.kernel = key.name;
    std::vector<TunedRecord> records = kept_records(key);
    put_record(records, record);
    CubinCache kept(folder_of_records());
    if (!kept.store(key.text, records_text(records)))
        throw_error(Error,
                    "cannot keep the record of '{}' in {}; give a folder of yours by TW_CACHE_DIR, or tune without "
                    "keeping",
                    key.name, folder_of_records().string());
}

TunedSchedule tuned_schedule(const std::vector<Tensor>& outputs, const Target& target, const std::string& rule_name,
                             const ScheduleRule& rule, const AllowedSources& allowed) {
    if (Choices* choices = Choices::current()) {
        choices->ruled.push_back({outputs, rule_name});
        return {rule(outputs, target), ChoiceSource::Rule, "by rule, with the choices that were given", {}};
    }
    return Asking(outputs, target, rule_name, rule).first(allowed);
}

Schedule schedule_as_tuned(const std::vector<Tensor>& outputs, const Target& target, const std::string& rule_name,
                           const ScheduleRule& rule) {
    return tuned_schedule(outputs, target, rule_name, rule).schedule;
}

}  // namespace tw::schedules
