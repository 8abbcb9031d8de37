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
    /// Names of wanted answers that were not asked for, or are no options.
    std::vector<std::string> unmet() const;

    /// This thread's, or nullptr.
    static Choices* current();
    std::string answer(const std::string& name, const std::vector<std::string>& options, const std::string& rule);

    std::vector<RuledDeclaration> ruled;  ///< in the order in which rules were called (schedule_as_tuned)

private:
    Picks wanted_;
    std::vector<Choice> asked_;
    Choices* before_;
};

/// The number, or way, that a schedule takes for `what` of the stage or tensor `of`: `rule`, or another one of the
/// options if a search wants it. Equal questions have equal answers, however often and in whatever order they are
/// asked. To be asked only of what is legal, or where what steps refuse is tried (take_steps).
int64_t pick(const std::string& of, const std::string& what, const std::vector<int64_t>& options, int64_t rule);
std::string pick(const std::string& of, const std::string& what, const std::vector<std::string>& options,
                 const std::string& rule);
/// Of options that take long to tell: they are asked for only where a search listens.
std::string pick(const std::string& of, const std::string& what,
                 const std::function<std::vector<std::string>()>& options, const std::string& rule);

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
