// What every schedule primitive is made of: an edit of a copy of the state, which takes its place when it holds.
#pragma once
#include <functional>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include "dsl/schedule_state.h"

namespace tw {

/// What handles are of in a state.
class Look {
public:
    Look(const Schedule::State& state, std::source_location where) : state(state), where(where) {}

    /// The loop's index. Throws Error if it is another schedule's, was consumed, or belongs to no stage that is left.
    int alive(const Loop& loop, const char* what) const;
    /// The loop of the stage's axis. Throws Error if it was consumed.
    Loop root(const StageRecord& stage, size_t axis, const char* what) const;
    /// The stage's index. Throws Error if there is none, or if it is another schedule's.
    int stage(const StageRef& ref, const char* what) const;

    const Schedule::State& state;
    std::source_location where;

private:
    [[noreturn]] void refuse_foreign(const Origin& origin, const char* kind, const char* what) const;
};

/// A step on a copy of the state: what fails leaves the schedule as it was.
class Edit {
public:
    /// What the step needs to know of regions: all, or those of stages whose loops it takes by alive().
    enum class Regions { All, OfItsLoops };
    Edit(std::unique_ptr<Schedule::State>& target, std::source_location where, Regions regions = Regions::All);

    /// Checks the rules, rebuilds the tree and records the step. `cpp` is the step as C++, `saved` as replay reads it.
    void commit(const std::string& cpp, const std::string& saved);

    // As Look has them.
    int alive(const Loop& loop, const char* what);
    Loop root(const StageRecord& stage, size_t axis, const char* what) const {
        return Look(state, where).root(stage, axis, what);
    }
    int stage(const StageRef& ref, const char* what) const { return Look(state, where).stage(ref, what); }

    /// What the trace calls the loop, the stage. What no step has returned yet, nor returns, is taken from the schedule
    /// before the step, by a statement of its own. To be asked in the order in which names are to be given.
    std::string loop_as_cpp(int loop);
    std::string stage_as_cpp(int stage);

    /// The loop, which is as long as its region says, of a schedule that is asked.
    static const LoopRecord& loop_of(Schedule::State& state, const Loop& loop, const char* what,
                                     std::source_location where);

    /// A line that explain() gives, too; no step.
    static void note(Schedule& schedule, const std::string& line);
    /// Of steps that are functions of a schedule: what they edit.
    static std::unique_ptr<Schedule::State>& state_of(Schedule& schedule) { return schedule.state_; }

    Schedule::State state;
    std::source_location where;
    int step;

private:
    friend class ListStep;
    void record(const std::string& cpp, const std::string& saved);
    void check_with_stale_regions(const std::set<int>& kernels_changed);
    void take_handle(int loop);
    std::string name_of_root(int loop);

    std::unique_ptr<Schedule::State>& target_;
    std::string handles_;  // statements
};

/// While one lives, steps of this thread check what they do, but build no tree: Schedule::tree() does, when somebody
/// asks for it. Regions are found when a step needs them, and those that no step may change, of stages whose loops were
/// split or bound, with the tree. What these refuse is then told where they are asked for, and not if a later step has
/// mended it.
class TreesLater {
public:
    TreesLater();
    ~TreesLater();
    TreesLater(const TreesLater&) = delete;
    TreesLater& operator=(const TreesLater&) = delete;
};

/// The same schedule as `make` gives, whose steps build one tree together instead of one each. Errors are those of the
/// steps: where a tree is refused, not a step, `make` is called again, with trees for all. Whatever it tries and may
/// come back from has to ask for the tree.
Schedule made_with_trees_later(const std::function<Schedule()>& make);

/// The tree of the state as it is, if it was of another one.
void renew_tree(Schedule::State& state, std::source_location where);

/// Steps on each of a list that are one step of the trace: all or none.
class ListStep {
public:
    /// `names` takes the handles of all that the list names, as they are before the step.
    ListStep(Schedule& schedule, std::source_location where, const std::function<void(Edit&)>& names);
    ~ListStep();
    ListStep(const ListStep&) = delete;
    ListStep& operator=(const ListStep&) = delete;
    void commit(const std::string& cpp, const std::string& saved);

private:
    std::unique_ptr<Schedule::State>& target_;
    std::unique_ptr<Schedule::State> before_;
    std::source_location where_;
};

/// Adds a stage with loops of its own; returns its index.
int add_stage(Schedule::State& state, StageDefinition definition, int step);
/// A loop for each axis, none split; the old ones are forgotten.
void add_root_loops(Schedule::State& state, int stage, const std::vector<Expr>& data_extents);
/// Fresh root loops become as long as the region that the stage computes where it stands.
void fit_root_loops(Schedule::State& state, int stage, std::source_location where);
/// `wanted`, or with a number behind it if a stage has that name.
std::string unique_stage_name(const Schedule::State& state, const std::string& wanted);
/// Throws Error if a step cannot replace the loop, which is bound, pipelined, cut and so on.
void require_serial(const Edit& edit, int loop, const char* what);
/// What C++ calls it.
std::string level_text(Level level);
/// Throws Error if the loop cannot be bound to the level.
void check_level(const Edit& edit, const LoopRecord& loop, Level level);
/// Buffers of a copy in a pipelined loop, or of one for an iteration of a persistent kernel.
inline constexpr int most_stages = 16;
/// What stands under a loop, or shares it, does so under another one from now on.
void move_under(Schedule::State& state, int from, int to);
/// Stages that stand under the loop, or share it.
std::vector<int> attached_to(const Schedule::State& state, int loop);
/// Whether something of an iteration lies in shared memory, of which a pipeline could have several.
bool has_shared_copies(const Schedule::State& state, int loop);
/// Where the elements live that a copy of a result reads.
Memory memory_of_source(const Schedule::State& state, int copy);
/// ": floats may differ by rounding" of a reducer whose values do, combined in another order; else nothing.
std::string rounding_text(const ReducerNode& reducer);
/// "'c', 'd'": what the schedule computes, in messages.
std::string outputs_text(const Schedule::State& state);
/// The stage's name, in messages.
std::string stage_text(const Schedule::State& state, int stage);
/// The name as one word of a saved trace, "a%20b", and back.
std::string saved_name(const std::string& name);
std::string name_from_saved(const std::string& word);
/// The text as a literal of C++.
std::string quoted(const std::string& text);
/// What a split calls its loops where nothing was asked for: "i_outer", "i_inner".
SplitNames default_names(const std::string& whole);

}  // namespace tw
