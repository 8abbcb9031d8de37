#include "schedules/choices.h"

#include <exception>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "dsl/edit.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

thread_local Choices* asked_now = nullptr;

constexpr const char* without_picks = "rule";

std::vector<std::string> texts_of(const std::vector<int64_t>& numbers) {
    std::vector<std::string> texts;
    for (const int64_t number : numbers) texts.push_back(std::to_string(number));
    return texts;
}

/// One word, whatever the tensor is called.
std::string name_of_choice(const std::string& of, const std::string& what) { return saved_name(of) + "." + what; }

}  // namespace

std::string picks_text(const Picks& picks) {
    std::vector<std::string> words;
    for (const auto& [name, taken] : picks) words.push_back(name + "=" + taken);
    return picks.empty() ? without_picks : fmt::format("{}", fmt::join(words, " "));
}

Picks parse_picks(const std::string& text) {
    Picks picks;
    if (text == without_picks) return picks;
    std::istringstream words(text);
    for (std::string word; words >> word;) {
        const size_t equals = word.rfind('=');
        if (equals == std::string::npos || equals == 0 || equals + 1 == word.size())
            throw_error(Error, "'{}' tells no choices, as y.threads=128 does: '{}' is none; tune it again", text, word);
        picks[word.substr(0, equals)] = word.substr(equals + 1);
    }
    if (picks.empty()) throw_error(Error, "'{}' tells no choices, as y.threads=128 does; tune it again", text);
    return picks;
}

Choices::Choices(Picks wanted) : wanted_(std::move(wanted)), before_(asked_now) { asked_now = this; }
Choices::~Choices() { asked_now = before_; }
Choices* Choices::current() { return asked_now; }

const Choice* Choices::choice(const std::string& name) const {
    const auto found = std::ranges::find(asked_, name, &Choice::name);
    return found == asked_.end() ? nullptr : &*found;
}

std::string Choices::outcome_of(const std::string& name) const {
    for (const Outcomes* outcomes : {&made_, &beside_tries_})
        if (const auto found = outcomes->find(name); found != outcomes->end()) return found->second;
    return "";
}

std::string Choices::why_unmet(const std::string& name, const std::string& wanted, const std::string& outcome) const {
    const Choice* asked = choice(name);
    if (!asked) {
        std::vector<std::string> names;
        for (const Choice& each : asked_) names.push_back(each.name);
        return fmt::format("{}={}: there is no such choice of {}; the rule asks for {}", name, wanted, name,
                           names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", ")));
    }
    const std::string offered = fmt::format("{}", fmt::join(asked->options, ", "));
    if (std::ranges::find(asked->options, wanted) == asked->options.end())
        return fmt::format("{}={}: there is no such choice of {}; the rule offers {}", name, wanted, name, offered);
    if (outcome.empty())
        return fmt::format("{}={}: that is asked on the way, but not of the schedule that is made", name, wanted);
    return fmt::format("{}={}: that cannot be made here, the rule takes {} (it offers {})", name, wanted, outcome,
                       offered);
}

std::vector<Choices::Unmet> Choices::unmet() const {
    std::vector<Unmet> found;
    for (const auto& [name, wanted] : wanted_) {
        const std::string outcome = outcome_of(name);
        if (outcome != wanted) found.push_back({name, why_unmet(name, wanted, outcome)});
    }
    return found;
}

std::string Choices::answer(const std::string& name, const std::vector<std::string>& options, const std::string& rule) {
    const auto wanted = wanted_.find(name);
    const bool is_offered = wanted != wanted_.end() && std::ranges::find(options, wanted->second) != options.end();
    const Choice answered{name, options, rule, is_offered ? wanted->second : rule};
    const auto known = std::ranges::find(asked_, name, &Choice::name);
    if (known == asked_.end())
        asked_.push_back(answered);
    else if (is_offered)
        *known = answered;  // of two that have one name, whichever offers it
    Outcomes& outcomes = is_in_try_ ? in_try_ : beside_tries_;
    if (is_offered)
        outcomes[name] = answered.taken;
    else
        outcomes.emplace(name, answered.taken);
    return answered.taken;
}

void Choices::came(const std::string& name, const std::string& taken) {
    if (choice(name)) (is_in_try_ ? in_try_ : beside_tries_)[name] = taken;
}

Try::Try() : choices_(Choices::current()), errors_(std::uncaught_exceptions()) {
    if (!choices_) return;
    choices_->in_try_.clear();
    choices_->is_in_try_ = true;
}
Try::~Try() {
    if (!choices_) return;
    choices_->is_in_try_ = false;
    if (std::uncaught_exceptions() == errors_) choices_->made_ = choices_->in_try_;
}

KeptOutcomes::KeptOutcomes() : choices_(Choices::current()) {
    if (choices_) outcomes_ = choices_->made_;
}
void KeptOutcomes::take_back() const {
    if (choices_) choices_->made_ = outcomes_;
}

void took(const std::string& of, const std::string& what, const std::string& taken) {
    if (Choices* choices = Choices::current()) choices->came(name_of_choice(of, what), taken);
}
void took(const std::string& of, const std::string& what, int64_t taken) { took(of, what, std::to_string(taken)); }

std::string pick(const std::string& of, const std::string& what,
                 const std::function<std::vector<std::string>()>& options, const std::string& rule) {
    Choices* choices = Choices::current();
    if (!choices) return rule;
    std::vector<std::string> all = options();
    if (std::ranges::find(all, rule) == all.end()) all.insert(all.begin(), rule);
    return choices->answer(name_of_choice(of, what), all, rule);
}

std::string pick(const std::string& of, const std::string& what, const std::vector<std::string>& options,
                 const std::string& rule) {
    return pick(
        of, what, [&] { return options; }, rule);
}

int64_t pick(const std::string& of, const std::string& what, const std::vector<int64_t>& options, int64_t rule) {
    if (!Choices::current()) return rule;
    return std::stoll(pick(of, what, texts_of(options), std::to_string(rule)));
}

}  // namespace tw::schedules
