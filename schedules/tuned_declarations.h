// Rules that ask what was measured: records of declarations, kept in a folder that every program of the user's reads.
//
//   folder   "tuned" in the folder of compiled kernels (runtime/compile/cubin_cache.h), by the same rules: an entry a
//            declaration, written whole or not at all; a damaged one is removed, with a warning.
//   key      the rule's name and declaration_text(outputs)
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

/// The rule's schedule with the picks of the declaration's record, if there is one for the target's architecture by
/// this version, and the rule has these choices: of records in use (RecordsInUse), or of the folder. explain() names
/// the record, or says why each is left out. Choices that live are asked instead of records.
Schedule schedule_as_tuned(const std::vector<Tensor>& outputs, const Target& target, const std::string& rule_name,
                           const ScheduleRule& rule);

/// The same, with the record that it is by.
struct TunedSchedule {
    Schedule schedule;
    std::optional<TunedRecord> record;
    std::vector<std::string> left_out;  ///< records, and why
};
TunedSchedule tuned_schedule(const std::vector<Tensor>& outputs, const Target& target, const std::string& rule_name,
                             const ScheduleRule& rule);

/// What records of a declaration are kept under.
struct DeclarationKey {
    std::string name;  ///< TunedRecord::kernel
    std::string text;
};
DeclarationKey declaration_key(const std::vector<Tensor>& outputs, const std::string& rule_name);

/// The folder's records of the declaration, of all devices; none where there are none, or with a warning where they
/// cannot be read.
std::vector<TunedRecord> kept_records(const DeclarationKey& key);
/// Puts it in the place of the device's. Throws Error if it cannot be written.
void keep_record(const DeclarationKey& key, const TunedRecord& record);

}  // namespace tw::schedules
