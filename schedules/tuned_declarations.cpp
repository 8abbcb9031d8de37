#include "schedules/tuned_declarations.h"

#include <filesystem>
#include <optional>

#include <fmt/format.h>

#include "dsl/edit.h"
#include "runtime/compile/cubin_cache.h"
#include "schedules/declaration_text.h"
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
        Choices choices(parse_picks(record.tiling));
        Schedule s = rule();
        const std::vector<std::string> unmet = choices.unmet();
        if (!unmet.empty()) return left_out(fmt::format("there is no such choice of {}", unmet[0]));
        Edit::note(s, fmt::format("as tuned on {}: {}", record.device, record.tiling));
        return s;
    } catch (const Error& problem) {
        return left_out(problem.what());
    }
}

}  // namespace

DeclarationKey declaration_key(const std::vector<Tensor>& outputs, const std::string& rule_name) {
    const std::string text = fmt::format("rule {}\n{}", rule_name, declaration_text(outputs));
    return {declaration_name(outputs, text), text};
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

void keep_record(const DeclarationKey& key, const TunedRecord& record) {
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
                             const ScheduleRule& rule) {
    if (Choices* choices = Choices::current()) {
        choices->ruled.push_back({outputs, rule_name});
        return {rule(outputs, target), {}, {}};
    }
    const DeclarationKey key = declaration_key(outputs, rule_name);
    std::vector<TunedRecord> records = tuned_records_of(key.name);
    for (const TunedRecord& kept : kept_records(key)) records.push_back(kept);
    std::vector<std::string> left_out;
    for (const TunedRecord& record : records) {
        std::optional<std::string> why = why_not(record, target);
        if (!why) {
            why.emplace();
            if (auto s = with_picks(
                    record, [&] { return rule(outputs, target); }, *why))
                return {std::move(*s), record, std::move(left_out)};
        }
        left_out.push_back(*why);
    }
    Schedule s = rule(outputs, target);
    for (const std::string& why : left_out) Edit::note(s, why);
    return {std::move(s), {}, std::move(left_out)};
}

Schedule schedule_as_tuned(const std::vector<Tensor>& outputs, const Target& target, const std::string& rule_name,
                           const ScheduleRule& rule) {
    return tuned_schedule(outputs, target, rule_name, rule).schedule;
}

}  // namespace tw::schedules
