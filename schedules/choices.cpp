#include "schedules/choices.h"

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

std::vector<std::string> Choices::unmet() const {
    std::vector<std::string> names;
    for (const auto& [name, wanted] : wanted_) {
        auto meets = [&, &name = name, &wanted = wanted](const Choice& choice) {
            return choice.name == name && choice.taken == wanted;
        };
        if (std::ranges::none_of(asked_, meets)) names.push_back(name);
    }
    return names;
}

std::string Choices::answer(const std::string& name, const std::vector<std::string>& options, const std::string& rule) {
    const auto wanted = wanted_.find(name);
    const bool is_offered = wanted != wanted_.end() && std::ranges::find(options, wanted->second) != options.end();
    const Choice choice{name, options, rule, is_offered ? wanted->second : rule};
    const auto known = std::ranges::find(asked_, name, &Choice::name);
    if (known == asked_.end())
        asked_.push_back(choice);
    else if (is_offered)
        known->taken = choice.taken;  // of two that have one name, whichever offers it
    return choice.taken;
}

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
