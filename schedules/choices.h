// Where schedules take one number, or one way, of several that would do: they ask here, and a search may answer.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "dsl/tensor.h"

namespace tw::schedules {

/// What was asked: "y.threads", what may be taken, and what the rule takes, and what was taken.
struct Choice {
    std::string name;
    std::vector<std::string> options;  ///< the rule's among them
    std::string rule, taken;
};

/// Answers that differ from the rule's, by the names of choices.
using Picks = std::map<std::string, std::string>;
/// "y.threads=128 y.vector=4"; "rule" where there are none. And back; throws Error for any other text.
std::string picks_text(const Picks& picks);
Picks parse_picks(const std::string& text);

/// A declaration that a rule scheduled while Choices lived, and the rule's name.
struct RuledDeclaration {
    std::vector<Tensor> outputs;
    std::string rule_name;
};

/// While it lives, the choices of this thread's schedules are asked here: those that `wanted` has are so, if they are
/// options, all others as the rule has them. The latest one is asked; where there is none, rules decide.
class Choices {
public:
    explicit Choices(Picks wanted = {});
    ~Choices();
    Choices(const Choices&) = delete;
    Choices& operator=(const Choices&) = delete;

    /// In the order in which they were first asked, each once.
    const std::vector<Choice>& asked() const { return asked_; }
    /// A wanted answer that the schedule has not, and why: "there is no such choice of y.threads; the rule offers .."
    struct Unmet {
        std::string name, why;
    };
    /// Those that were not asked for, are no options, or were answered where the rule could not go on so.
    std::vector<Unmet> unmet() const;

    /// This thread's, or nullptr.
    static Choices* current();
    std::string answer(const std::string& name, const std::vector<std::string>& options, const std::string& rule);
    /// What came of the last answer.
    void came(const std::string& name, const std::string& taken);

    std::vector<RuledDeclaration> ruled;  ///< in the order in which rules were called (schedule_as_tuned)

private:
    friend class Try;
    friend class KeptOutcomes;
    using Outcomes = std::map<std::string, std::string>;

    const Choice* choice(const std::string& name) const;
    std::string why_unmet(const std::string& name, const std::string& wanted, const std::string& outcome) const;
    /// What has come of a choice: in the schedule that was kept last, or beside all tries; "" if it was not asked
    /// there.
    std::string outcome_of(const std::string& name) const;

    Picks wanted_;
    std::vector<Choice> asked_;
    Outcomes beside_tries_, in_try_, made_;
    bool is_in_try_ = false;
    Choices* before_;
};

/// While it lives, a schedule is made from its beginning, as one of several tries: what its choices come to counts in
/// the place of what those of an earlier try came to, unless an error ends it.
class Try {
public:
    Try();
    ~Try();
    Try(const Try&) = delete;
    Try& operator=(const Try&) = delete;

private:
    Choices* choices_;
    int errors_;  ///< on their way when it began
};

/// What choices have come to in the schedule that was kept last, for one that is taken after all.
class KeptOutcomes {
public:
    KeptOutcomes();
    void take_back() const;

private:
    Choices* choices_;
    std::map<std::string, std::string> outcomes_;
};

/// What `make` makes, as a try.
template <class Make>
auto in_a_try(const Make& make) {
    const Try one;
    return make();
}

/// The number, or way, that a schedule takes for `what` of the stage or tensor `of`: `rule`, or another one of the
/// options if a search wants it. Equal questions have equal answers, however often and in whatever order they are
/// asked. To be asked only of what is legal, or where what steps refuse is tried (take_steps).
int64_t pick(const std::string& of, const std::string& what, const std::vector<int64_t>& options, int64_t rule);
std::string pick(const std::string& of, const std::string& what, const std::vector<std::string>& options,
                 const std::string& rule);
/// Of options that take long to tell: they are asked for only where a search listens.
std::string pick(const std::string& of, const std::string& what,
                 const std::function<std::vector<std::string>()>& options, const std::string& rule);

/// Tells what a schedule has taken in the end, where the steps that follow from an answer may be refused and others
/// made in their place: who wanted another one is told.
void took(const std::string& of, const std::string& what, const std::string& taken);
void took(const std::string& of, const std::string& what, int64_t taken);

/// The list with what is picked first, the others behind it in their order; `text` names each, and the first is the
/// rule's.
template <class T, class Text>
std::vector<T> picked_first(const std::string& of, const std::string& what, std::vector<T> all, const Text& text) {
    if (!Choices::current() || all.size() < 2) return all;
    std::vector<std::string> options;
    for (const T& each : all) options.push_back(text(each));
    const std::string taken = pick(of, what, options, options[0]);
    for (size_t i = 1; i < all.size() && options[0] != taken; ++i)
        if (options[i] == taken) {
            std::rotate(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(i),
                        all.begin() + static_cast<std::ptrdiff_t>(i) + 1);
            break;
        }
    return all;
}

}  // namespace tw::schedules
