// What every schedule primitive is made of: an edit of a copy of the state, which takes its place when it holds.
#pragma once
#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include "dsl/schedule_state.h"

namespace tw {

/// A step on a copy of the state: what fails leaves the schedule as it was.
class Edit {
public:
    Edit(std::unique_ptr<Schedule::State>& target, std::source_location where);

    /// Checks the rules, rebuilds the tree and records the step. `cpp` is the step as C++, `saved` as replay reads it.
    void commit(const std::string& cpp, const std::string& saved);

    /// The loop's index. Throws Error if it is another schedule's, was consumed, or belongs to no stage that is left.
    int alive(const Loop& loop, const char* what) const;
    /// The loop of the stage's axis. Throws Error if it was consumed.
    Loop root(const StageRecord& stage, size_t axis, const char* what) const;
    /// The stage's index. Throws Error if there is none, or if it is another schedule's.
    int stage(const StageRef& ref, const char* what) const;

    Schedule::State state;
    std::source_location where;
    int step;

private:
    [[noreturn]] void refuse_foreign(const Origin& origin, const char* kind, const char* what) const;

    std::unique_ptr<Schedule::State>& target_;
};

/// Adds a stage with loops of its own; returns its index.
int add_stage(Schedule::State& state, StageDefinition definition, int step);
/// A loop for each axis, none split; the old ones are forgotten.
void add_root_loops(Schedule::State& state, int stage, const std::vector<Expr>& data_extents);
/// `wanted`, or with a number behind it if a stage has that name.
std::string unique_stage_name(const Schedule::State& state, const std::string& wanted);
/// Stages that stand under the loop.
std::vector<int> attached_to(const Schedule::State& state, int loop);
/// ": floats may differ by rounding" of a reducer whose values do, combined in another order; else nothing.
std::string rounding_text(const ReducerNode& reducer);
/// "'c', 'd'": what the schedule computes, in messages.
std::string outputs_text(const Schedule::State& state);
/// The stage's name, in messages and in a trace.
std::string stage_text(const Schedule::State& state, int stage);
/// The name as one word of a saved trace, "a%20b", and back.
std::string saved_name(const std::string& name);
std::string name_from_saved(const std::string& word);
/// "l5": a loop in a trace.
std::string loop_text(int loop);

}  // namespace tw
