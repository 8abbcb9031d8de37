// Which kernels a declaration gets, and why: pinned ones, rules of one's own, what was tuned, or the rule for anything.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dsl/schedule.h"
#include "ops/program.h"
#include "schedules/declared.h"

namespace tw {

/// Where kernels come from, in the order in which they are asked.
enum class Provenance {
    Pinned,  ///< a program that was pinned for exactly this declaration
    Added,   ///< a rule that was added
    Tuned,   ///< choose_schedule, with the picks of this declaration's record (docs/tuning.md)
    Bucket,  ///< choose_schedule, with the picks of the record of a declaration like it
    Model,   ///< choose_schedule, with picks that the model of time expects to be faster by far
    Rule,    ///< choose_schedule
    Plain,   ///< a thread for each element
    Own      ///< the schedule of a part of a step that has one of its own (own_schedule.h), which nothing else replaces
};
/// "pinned", "added", "tuned", "tuned for its bucket", "by the model", "by rule", "plain", "own".
std::string name_of(Provenance origin);

/// What select() may take. All that is left out is not asked.
struct Preferences {
    bool pinned = true, added = true, tuned = true, bucket = true, model = true, rule = true;
    std::vector<std::string> without = {};  ///< pins and rules by their names
};

struct Selection {
    Program program;
    Provenance origin;
    std::string name;  ///< of the pin or the rule that was added; else "choose_schedule", "plain_schedule"
    std::string why;   ///< in plain words
    std::vector<std::string> passed_over;  ///< what was asked before, and why it is not taken

    /// A line for each.
    std::string text() const;
};

/// Pins and rules of a program. For one thread at a time while it is changed.
class Registry {
public:
    /// Nothing, if it does not take the declaration. What it throws as Error passes it over, too.
    using Rule = std::function<std::optional<Schedule>(const std::vector<Tensor>& outputs, const Target& target)>;
    /// Asked before all that were added before it. Throws Error if the name is empty or known, or the rule is empty.
    void add(const std::string& name, Rule rule, TW_HERE);

    /// The program for each declaration that is equal to this one (names of tensors, shapes, types, every expression),
    /// on targets of its architecture; the latest of several. With Program::with_cuda, kernels that were edited by
    /// hand. Throws Error if the name is empty or known, or the program's outputs have other names, shapes or types.
    void pin(const std::string& name, const std::vector<Tensor>& outputs, Program program, TW_HERE);
    void pin(const std::string& name, const std::vector<Tensor>& outputs, const Schedule& schedule, TW_HERE) {
        pin(name, outputs, build(schedule), where);
    }

    /// Called by select() before rules are asked, where tuned kernels may be taken and there is no record of the
    /// declaration: it may measure some, and keep one. What it throws as Error is told by `passed_over`. An empty one
    /// is none. tune_on_first_use (tuning/tune_on_first_use.h) gives one.
    using Tuner = std::function<void(const std::vector<Tensor>& outputs, const Target& target)>;
    void tune_by(Tuner tuner) { tuner_ = std::move(tuner); }

    /// Removes the pin or rule. Throws Error, with the names that there are, if there is none.
    void remove(const std::string& name, TW_HERE);
    /// Of pins and rules, in the order in which they are asked.
    std::vector<std::string> names() const;

    /// The first that takes the declaration. Throws Error if an added rule returns a schedule of something else, and
    /// what plain_schedule throws where all else is passed over.
    Selection select(const std::vector<Tensor>& outputs, const Target& target, const Preferences& preferences = {},
                     TW_HERE) const;
    /// The same where outputs overwrite inputs: programs that were pinned have to do so, schedules get it.
    Selection select(const schedules::Declared& declared, const Target& target, const Preferences& preferences = {},
                     TW_HERE) const;

private:
    struct Pin {
        std::string name, declaration;
        Program program;
    };
    struct Added {
        std::string name;
        Rule rule;
    };
    void require_new(const std::string& name, std::source_location where) const;

    std::vector<Pin> pins_;  // the latest last
    std::vector<Added> added_;
    Tuner tuner_;
};

}  // namespace tw
