// Rules that ask what was measured, of this declaration or one like it, and what the model of time expects: records of
// declarations, kept in a folder that every program of the user's reads.
//
//   folder   "tuned" in the folder of compiled kernels (runtime/compile/cubin_cache.h), by the same rules: an entry a
//            declaration, and one a bucket of them, written whole or not at all; a damaged one is removed, with a
//            warning.
//   key      the rule's name and declaration_text(outputs), or bucket_text(outputs)
//   record   TunedRecord: its kernel declaration_name(), its tiling the picks (choices.h)
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dsl/schedule.h"
#include "schedules/choices.h"
#include "schedules/tuned_records.h"

namespace tw::schedules {

/// Makes a schedule of any declaration; equal ones of equal declarations and targets.
using ScheduleRule = std::function<Schedule(const std::vector<Tensor>& outputs, const Target& target)>;

/// Where the answers to a rule's choices are from, in the order in which these are asked.
enum class ChoiceSource {
    Record,  ///< of exactly this declaration
    Bucket,  ///< a record of a declaration like it (bucket_text), unless the model of time expects it to be slower
    Model,   ///< what the model of time expects to be faster by far (choose_by_model.h)
    Rule
};
struct AllowedSources {
    bool records = true, buckets = true, model = true;
};

/// The rule's schedule with the first answers that there are: picks of records for the target's architecture by this
/// version, which have choices that the rule has, of records in use (RecordsInUse), or of the folder; or of the model.
/// explain() names them, and says why each record that was found is left out. Choices that live are asked instead.
Schedule schedule_as_tuned(const std::vector<Tensor>& outputs, const Target& target, const std::string& rule_name,
                           const ScheduleRule& rule);

/// The same, with where it is from.
struct TunedSchedule {
    Schedule schedule;
    ChoiceSource source;
    std::string why;                         ///< "as tuned on NVIDIA H200: y.threads=64, 0.0123 ms"; "by rule"
    std::vector<std::string> left_out = {};  ///< records, and why
};
TunedSchedule tuned_schedule(const std::vector<Tensor>& outputs, const Target& target, const std::string& rule_name,
                             const ScheduleRule& rule, const AllowedSources& allowed = {});

/// What records of a declaration, or of its bucket, are kept under.
struct DeclarationKey {
    std::string name;  ///< TunedRecord::kernel
    std::string text;
};
DeclarationKey declaration_key(const std::vector<Tensor>& outputs, const std::string& rule_name);
DeclarationKey bucket_key(const std::vector<Tensor>& outputs, const std::string& rule_name);

/// The folder's records of the declaration, or bucket, of all devices; none where there are none, or with a warning
/// where they cannot be read.
std::vector<TunedRecord> kept_records(const DeclarationKey& key);
/// Puts it in the place of the device's, under the key's name. Throws Error if it cannot be written.
void keep_record(const DeclarationKey& key, TunedRecord record);

}  // namespace tw::schedules
