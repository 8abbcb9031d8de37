#include "schedules/candidates.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "dsl/edit.h"
#include "schedules/calibrated_speeds.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

/// Picks whose schedule was made, and the choices that it asked for.
struct Made {
    Picks picks;
    std::vector<Choice> asked;
    Schedule schedule;
    codegen::Prediction time;
};

/// "y: threads 128 (256 by rule), vector 4 (8)".
std::string text_of(const Made& made) {
    std::string text, of;
    bool is_first = true;
    for (const Choice& choice : made.asked) {
        if (!made.picks.contains(choice.name)) continue;
        const size_t dot = choice.name.rfind('.');
        const std::string stage = name_from_saved(choice.name.substr(0, dot)), what = choice.name.substr(dot + 1);
        const std::string begin = stage.empty() || stage == of ? "" : stage + ": ";
        text += fmt::format("{}{}{} {} ({}{})",
                            text.empty()  ? ""
                            : stage == of ? ", "
                                          : "; ",
                            begin, what, choice.taken, choice.rule, is_first ? " by rule" : "");
        of = stage;
        is_first = false;
    }
    return text.empty() ? "by rule" : text;
}

using Clock = std::chrono::steady_clock;

/// Walks from the rule's choices to those that differ in one, in two, and so on: a choice differs behind all others
/// that do, in the order in which they are asked, so that no set of picks comes twice.
class Search {
public:
    /// Ends behind so many seconds, if these are more than none.
    Search(const std::function<Schedule()>& rule, size_t limit, std::set<std::string> left_alone = {},
           double seconds = 0)
        : rule_(rule), limit_(std::max<size_t>(limit, 1)), left_alone_(std::move(left_alone)), seconds_(seconds) {}

    std::vector<Made> run() {
        found_.push_back(*make({}));
        known_.insert(found_[0].schedule.save());
        for (size_t next = 0; next < found_.size() && has_room(); ++next) take_neighbours(next);
        return std::move(found_);
    }

private:
    bool has_room() const { return found_.size() < limit_ && tried_ < tries_of_each * limit_ && !is_late(); }
    bool is_late() const {
        return seconds_ > 0 && std::chrono::duration<double>(Clock::now() - begin_).count() > seconds_;
    }

    /// Nothing where what else is picked leaves no such choice.
    std::optional<Made> make(const Picks& picks) {
        Choices choices(picks);
        Schedule s = rule_();
        if (!choices.unmet().empty()) return {};
        codegen::Prediction time = codegen::predict_time(s.tree(), s.target(), calibrated_speeds(s.target()));
        return Made{picks, choices.asked(), std::move(s), std::move(time)};
    }

    void take_neighbours(size_t of) {
        const std::vector<Choice> asked = found_[of].asked;
        const Picks picks = found_[of].picks;
        size_t first = 0;
        for (size_t k = 0; k < asked.size(); ++k)
            if (picks.contains(asked[k].name)) first = k + 1;
        for (size_t k = first; k < asked.size(); ++k) {
            if (left_alone_.contains(asked[k].name.substr(asked[k].name.rfind('.') + 1))) continue;
            for (const std::string& option : asked[k].options) {
                if (option == asked[k].rule) continue;
                if (!has_room()) return;
                Picks other = picks;
                other[asked[k].name] = option;
                take(other);
            }
        }
    }

    void take(const Picks& picks) try {
        ++tried_;
        std::optional<Made> made = make(picks);
        if (made && known_.insert(made->schedule.save()).second) found_.push_back(std::move(*made));
    } catch (const Error&) {  // what steps and passes refuse is no candidate
    }

    static constexpr size_t tries_of_each = 4;

    const std::function<Schedule()>& rule_;
    size_t limit_, tried_ = 0;
    const std::set<std::string> left_alone_;
    const double seconds_;
    const Clock::time_point begin_ = Clock::now();
    std::vector<Made> found_;
    std::set<std::string> known_;
};

}  // namespace

std::vector<Candidate> candidates(const std::vector<Tensor>& outputs, const Target& target,
                                  const CandidateOptions& options) {
    user_check(!outputs.empty(), std::source_location::current(), "candidates: needs at least one output tensor");
    const std::function<Schedule()> rule = [&] { return options.rule(outputs, target); };
    std::vector<Candidate> found;
    for (Made& made : Search(rule, options.limit).run()) {
        std::string text = text_of(made);
        found.push_back({std::move(made.schedule), std::move(made.picks), std::move(text), made.time.seconds});
    }
    return found;
}

std::vector<PredictedPicks> neighbours_of_rule(const std::function<Schedule()>& rule, size_t limit,
                                               const std::set<std::string>& left_alone, double seconds) {
    std::vector<PredictedPicks> found;
    for (Made& made : Search(rule, limit, left_alone, seconds).run())
        found.push_back({std::move(made.picks), std::move(made.time)});
    return found;
}

std::vector<PredictedPicks> best_by_model(const std::function<Schedule()>& rule, size_t limit, double seconds) {
    constexpr size_t looked_at = 4;       // as many times those that are wanted
    constexpr double times_the_best = 3;  // the model errs by less
    constexpr double told_apart = 0.1;
    constexpr double most_statements = 20000;  // about ten seconds of a compiler
    std::vector<PredictedPicks> all = neighbours_of_rule(rule, looked_at * limit, {}, seconds);
    auto seconds_of = [](const PredictedPicks& each) { return each.time.seconds; };
    const double best = seconds_of(*std::ranges::min_element(all, {}, seconds_of));
    // Of what the model cannot tell apart, fewer differences from the rule come first.
    auto step_of = [&](const PredictedPicks& each) {
        return std::floor(std::log(seconds_of(each) / best) / told_apart);
    };
    std::stable_sort(all.begin() + 1, all.end(),
                     [&](const PredictedPicks& a, const PredictedPicks& b) { return step_of(a) < step_of(b); });
    auto hopeless = [&](const PredictedPicks& each) {
        return !each.picks.empty() &&
               (seconds_of(each) > times_the_best * best || each.time.statements() > most_statements);
    };
    std::erase_if(all, hopeless);
    if (all.size() > limit) all.resize(std::max<size_t>(limit, 1));
    return all;
}

Schedule schedule_with(const Picks& picks, const std::function<Schedule()>& rule) {
    Choices choices(picks);
    Schedule s = rule();
    if (const std::vector<Choices::Unmet> unmet = choices.unmet(); !unmet.empty())
        throw_error(Error, "{}; pick what the rule can make, as the picks of candidates() are, or leave {} out",
                    unmet[0].why, unmet[0].name);
    return s;
}

}  // namespace tw::schedules
