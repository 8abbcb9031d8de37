#include "ops/registry.h"

#include <algorithm>
#include <cstdlib>

#include <fmt/ranges.h>

#include "dsl/check_sizes.h"
#include "runtime/compile/cubin_cache.h"
#include "runtime/compile/errors.h"
#include "schedules/choose_by_rule.h"
#include "schedules/choose_in_place.h"
#include "schedules/declaration_text.h"
#include "schedules/plain_schedule.h"
#include "schedules/tuned_declarations.h"
#include "support/error.h"

namespace tw {
namespace {

/// "y f32 [5, 7]" of each.
std::vector<std::string> described(const std::vector<Tensor>& outputs) {
    std::vector<std::string> lines;
    for (const Tensor& t : outputs)
        lines.push_back(fmt::format("{} {} {}", t.name(), name_of(t.type()), shape_text(t.shape())));
    return lines;
}
std::vector<std::string> described(const Program& program) {
    std::vector<std::string> lines;
    for (const BufferRef& output : program.tree().outputs)
        lines.push_back(
            fmt::format("{} {} {}", output->name, name_of(output->type), shape_text(declared_shape(*output))));
    return lines;
}

void require_same_outputs(const std::string& what, const Program& program, const std::vector<Tensor>& outputs,
                          std::source_location where) {
    const std::vector<std::string> given = described(program), wanted = described(outputs);
    user_check(given == wanted, where,
               "{}: it makes {}, but what is declared is {}; make the same outputs in this order", what,
               fmt::join(given, ", "), fmt::join(wanted, ", "));
}

}  // namespace

std::string name_of(Provenance origin) {
    constexpr const char* names[] = {"pinned",       "added",   "tuned", "tuned for its bucket",
                                     "by the model", "by rule", "plain", "own"};
    return names[static_cast<int>(origin)];
}

std::string Selection::text() const {
    std::string text = fmt::format("{}: {}\n", name, why);
    for (const std::string& each : passed_over) text += fmt::format("not {}\n", each);
    return text;
}

void Registry::require_new(const std::string& name, std::source_location where) const {
    const std::vector<std::string> known = names();
    user_check(!name.empty(), where, "registry: the name is empty; selections are told by it, give one");
    user_check(std::ranges::find(known, name) == known.end(), where,
               "registry: there is a '{}' already; remove() it first, or take another name", name);
}

void Registry::add(const std::string& name, Rule rule, std::source_location where) {
    require_new(name, where);
    user_check(static_cast<bool>(rule), where, "registry: the rule '{}' is an empty function", name);
    added_.push_back({name, std::move(rule)});
}

void Registry::pin(const std::string& name, const std::vector<Tensor>& outputs, Program program,
                   std::source_location where) {
    require_new(name, where);
    require_same_outputs(fmt::format("registry: '{}' cannot be pinned", name), program, outputs, where);
    pins_.push_back({name, schedules::declaration_text(outputs), std::move(program)});
}

void Registry::remove(const std::string& name, std::source_location where) {
    const auto is_it = [&](const auto& each) { return each.name == name; };
    user_check(std::erase_if(pins_, is_it) + std::erase_if(added_, is_it) > 0, where,
               "registry: there is no '{}'; there are [{}]", name, fmt::join(names(), ", "));
}

std::vector<std::string> Registry::names() const {
    std::vector<std::string> names;
    for (auto pin = pins_.rbegin(); pin != pins_.rend(); ++pin) names.push_back(pin->name);
    for (auto rule = added_.rbegin(); rule != added_.rend(); ++rule) names.push_back(rule->name);
    return names;
}

namespace {

/// Asks one after another, and keeps why each that was asked is not taken.
class Asking {
public:
    Asking(const schedules::Declared& declared, const Target& target, const Preferences& preferences,
           std::source_location where)
        : declared_(declared), outputs_(declared.outputs), target_(target), preferences_(preferences), where_(where) {}

    bool may_take(const std::string& name) const {
        return std::ranges::find(preferences_.without, name) == preferences_.without.end();
    }
    void pass_over(const std::string& name, const std::string& why) {
        passed_over_.push_back(fmt::format("'{}': {}", name, why));
    }
    Selection taken(Program program, Provenance origin, const std::string& name, const std::string& why) {
        return {std::move(program), origin, name, why, std::move(passed_over_)};
    }

    std::optional<Selection> pinned(const std::string& name, const Program& program) {
        if (program.target().arch != target_.arch) {
            pass_over(name, fmt::format("it is pinned for {}, this is {}", program.target().arch, target_.arch));
            return {};
        }
        for (const auto& [out, in] : declared_.in_place)
            if (!overwrites(program, out.name(), in.name())) {
                pass_over(name, fmt::format("its '{}' does not overwrite '{}'", out.name(), in.name()));
                return {};
            }
        return taken(program, Provenance::Pinned, name, "pinned for this declaration");
    }

    std::optional<Selection> added(const std::string& name, const Registry::Rule& rule) {
        std::optional<Program> program;
        try {
            if (const std::optional<Schedule> schedule = rule(outputs_, target_))
                program = build(schedules::overwriting(*schedule, declared_));
            else
                pass_over(name, "it does not take this declaration");
        } catch (const Error& problem) {
            pass_over(name, problem.what());
        } catch (const std::exception& problem) {
            throw_error(Error,
                        "registry: the rule '{}' ended with '{}'; it should return nothing for what it does not take, "
                        "or throw a tw::Error",
                        name, problem.what());
        }
        if (!program) return {};
        require_same_outputs(fmt::format("registry: the rule '{}'", name), *program, outputs_, where_);
        return taken(std::move(*program), Provenance::Added, name,
                     "it takes this declaration, and was added last of such");
    }

    /// Before a schedule is chosen.
    void tune(const Registry::Tuner& tuner) try {
        CalledFrom caller(where_);
        const char* wanted = std::getenv("TW_TUNE");
        const bool asks = wanted && *wanted && std::string(wanted) != "off";
        if (!preferences_.tuned || (!tuner && !asks) || is_tuned()) return;
        if (tuner)
            tuner(outputs_, target_);
        else
            warn_once(
                fmt::format("TW_TUNE={} tunes nothing here: the program has to call tune_on_first_use(), of "
                            "<tilewright/tune.h>, for its registry",
                            wanted));
    } catch (const StickyError&) {
        throw;  // nothing runs on the device any more
    } catch (const Error& problem) {
        pass_over("tuning", problem.what());
    }

    /// As tuned, by the model of time, or by choose_schedule alone.
    std::optional<Selection> chosen() try {
        CalledFrom caller(where_);
        const schedules::AllowedSources allowed{
            .records = preferences_.tuned, .buckets = preferences_.bucket, .model = preferences_.model};
        schedules::TunedSchedule found =
            schedules::tuned_schedule(outputs_, target_, rule_name, schedules::chosen_schedule, allowed);
        for (const std::string& why : found.left_out) passed_over_.push_back(why);
        return taken(build(schedules::overwriting(found.schedule, declared_)), origin_of(found.source), rule_name,
                     found.why);
    } catch (const Error& problem) {
        pass_over(rule_name, problem.what());
        return {};
    }

private:
    static constexpr const char* rule_name = "choose_schedule";

    /// By a record that the rule can follow: one that it cannot is no reason not to tune again.
    bool is_tuned() const {
        const schedules::AllowedSources records_alone{.records = true, .buckets = false, .model = false};
        return schedules::tuned_schedule(outputs_, target_, rule_name, schedules::chosen_schedule, records_alone)
                   .source == schedules::ChoiceSource::Record;
    }
    static Provenance origin_of(schedules::ChoiceSource source) {
        constexpr Provenance origins[] = {Provenance::Tuned, Provenance::Bucket, Provenance::Model, Provenance::Rule};
        return origins[static_cast<int>(source)];
    }

    static bool overwrites(const Program& program, const std::string& out, const std::string& in) {
        return std::ranges::any_of(program.tree().in_place, [&](const auto& pair) {
            return pair.first->name == out && pair.second->name == in;
        });
    }

    const schedules::Declared& declared_;
    const std::vector<Tensor>& outputs_;
    const Target& target_;
    const Preferences& preferences_;
    const std::source_location where_;
    std::vector<std::string> passed_over_;
};

}  // namespace

Selection Registry::select(const std::vector<Tensor>& outputs, const Target& target, const Preferences& preferences,
                           std::source_location where) const {
    return select(schedules::Declared{outputs}, target, preferences, where);
}

Selection Registry::select(const schedules::Declared& declared, const Target& target, const Preferences& preferences,
                           std::source_location where) const {
    user_check(!declared.outputs.empty(), where, "registry: select() needs at least one output tensor");
    const std::vector<std::string> known = preferences.without.empty() ? std::vector<std::string>() : names();
    for (const std::string& name : preferences.without)
        user_check(std::ranges::find(known, name) != known.end(), where,
                   "registry: there is no '{}' to select without; there are [{}]", name, fmt::join(known, ", "));
    Asking asking(declared, target, preferences, where);
    if (preferences.pinned && !pins_.empty()) {
        const std::string text = schedules::declaration_text(declared.outputs);
        for (auto pin = pins_.rbegin(); pin != pins_.rend(); ++pin)
            if (pin->declaration == text && asking.may_take(pin->name))
                if (auto found = asking.pinned(pin->name, pin->program)) return std::move(*found);
    }
    if (preferences.added)
        for (auto each = added_.rbegin(); each != added_.rend(); ++each)
            if (asking.may_take(each->name))
                if (auto found = asking.added(each->name, each->rule)) return std::move(*found);
    if (preferences.rule) {
        asking.tune(tuner_);
        if (auto found = asking.chosen()) return std::move(*found);
    }
    const Schedule plain = schedules::plain_schedule(declared.outputs, target);
    return asking.taken(build(schedules::overwriting(plain, declared)), Provenance::Plain, "plain_schedule",
                        "a thread for each element, as nothing else may or can take it");
}

}  // namespace tw
