// A step of computation, planned: kernels of groups of operations, in an order, with memory for all that lies between.
//
//   const Tensor loss = ..., dw = gradients(loss, one, {w})[0];
//   const Tensor next = compute("next", {64, 64}, [&](Expr i, Expr j) { return w(i, j) - 0.1 * dw(i, j); });
//   const StepPlan plan = plan_step({{loss, next}, {{next, w}}}, target("sm_90a"));
//   fmt::print("{}", plan.text());
//   PlannedStep step(plan, best_device().device);   // planned_step.h
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <string_view>
#include <vector>

#include "ops/input_part.h"
#include "ops/registry.h"
#include "ops/step/declare_group.h"
#include "ops/step/mixed_precision.h"
#include "ops/step/recompute.h"

namespace tw {

/// A tensor that has memory while a step runs.
struct StepValue {
    enum class Place {
        Given,    ///< an input of the step, or a result: memory of its own, known by its name
        Arena,    ///< between groups: from `offset` on
        Replaced  ///< a result that overwrites an input: its memory is that of value `replaces`
    };
    std::string name;
    Type type;
    std::vector<int64_t> shape, strides;  ///< elements
    int64_t bytes = 0;
    Place place = Place::Arena;
    bool is_result = false;
    int64_t offset = 0;  ///< in the arena, or of a part in its whole
    int part_of = -1;    ///< of an input that lies in the memory of another one: the value of that
    int replaces = -1;
    int made = -1;  ///< the group that writes it; -1: given
    int last = -1;  ///< the last group that reads or writes it; -1: none
};

/// Memory of a group's kernels alone.
struct StepWorkspace {
    int64_t bytes = 0, offset = 0;  ///< in the arena
    bool is_counter = false;        ///< it must be zero before the first step, and has memory of its own
};

/// What a group does without a kernel.
struct StepMemoryWork {
    bool is_copy = false;            ///< of the bytes that it reads
    std::vector<std::byte> element;  ///< else of these, 1, 2 or 4, into all that it writes
};

struct StepGroup {
    schedules::Declared declared;                ///< over inputs alone; groups that are equal have equal ones
    std::shared_ptr<const Selection> selection;  ///< its kernels; equal groups share them
    double seconds = 0;                          ///< as predicted
    std::vector<std::string> operations;         ///< as the user called them
    std::vector<std::string> declared_as;        ///< of each, its name in `declared`; empty: of a part
    std::vector<std::string> scopes;             ///< of each, "blocks.0.up" (ops/modules/scope.h); empty: of none
    std::vector<int> reads;                      ///< values, one for each of `inputs`
    std::vector<std::string> inputs;             ///< names in `declared`
    std::vector<int> writes;                     ///< values, one for each output
    std::vector<StepWorkspace> workspaces;       ///< one for each of the program's
    std::vector<int> after;  ///< groups that must have ended, none that another one of them waits for
    int again_of = -1;       ///< the group that it repeats, to make its values again; -1: none
    std::optional<StepMemoryWork> memory = {};  ///< in the place of its kernel, as StepOptions::memory_nodes asks
};

struct StepPlan {
    std::vector<StepValue> values;
    std::vector<StepGroup> groups;  ///< in an order in which they can run
    std::vector<int> results;       ///< values, in the order in which they were asked for
    int64_t arena_bytes = 0;
    int64_t most_alive = 0;               ///< bytes of the arena in use at a time; no plan of these groups needs less
    std::string placement;                ///< how the arena was filled: "by size", "in order"
    std::vector<std::string> rounded;     ///< what products read in another type than it is computed in, by name
    std::vector<std::string> simplified;  ///< what canonicalise() found, a line each
    std::vector<std::string> laid_out;    ///< what has its dimensions in another order than declared, a line each
    std::vector<std::string> refused;     ///< parts whose own schedules refused, and why
    std::vector<std::string> again;       ///< what is made again instead of kept, bytes saved, and predicted times
    std::vector<std::string> joined;      ///< neighbours that were joined, and what that saves as predicted
    std::vector<std::string> apart;       ///< neighbours that were not joined, and why
    bool branches = false;                ///< whether kernels may run beside each other, as StepOptions says

    double seconds() const;       ///< of all groups, one behind the other, as predicted
    size_t num_kernels() const;   ///< launches of a step
    size_t num_distinct() const;  ///< groups that are not equal to another one
    /// Groups, with their operations, kernels, why these, what they read and write, predicted times; then memory, and
    /// which neighbours were joined and which were not, if these are asked for.
    std::string text(bool with_neighbours = true) const;
};
/// Which neighbours were joined, with what that saves, and which were not, and why; a line each.
std::string neighbours_text(const StepPlan& plan);

/// A step as one of plan_step()'s passes leaves it.
struct StepStage {
    std::string_view pass;            ///< its name; "declared" in front of the first one
    const schedules::Declared& step;  ///< as it is declared now: what is computed, and what is written where
    const StepPlan* plan = nullptr;   ///< from "cut" on, of that declaration, with places and waits; nullptr before
    /// The plan's text; before there is one, an operation a line, producers first.
    std::string text() const;
};

struct StepOptions {
    /// Unless these ask for it, the model of time does not search for other schedules of a group, which takes up to
    /// half a second each.
    Preferences preferences = {.model = false};
    MixedPrecision mixed = {};
    Recompute recompute = {};
    /// Kernels of few blocks run beside others that they have nothing to do with (step_branches.h); else all run one
    /// behind the other.
    bool branches = true;
    /// Groups that copy an input whole, or set a result to a constant, are nodes of the graph that copy and set memory
    /// (step_memory_work.h), and no kernels. Such a node ends before what waits for it starts, where kernels in a chain
    /// start early.
    bool memory_nodes = false;
    /// Operations are scheduled together where that is faster; else each is a group by itself, whose results can be
    /// looked at.
    bool join = true;
    /// What lies between operations may have its dimensions in another order than it is declared (lay_out.h).
    bool lay_out = true;
    /// Inputs that share memory; those of which one is not read count for nothing.
    std::vector<InputPart> parts = {};
    /// Sees the step as it is declared, and after each pass.
    std::function<void(const StepStage& stage)> watch = {};
};

/// Whom StepOptions::watch shows the step after, in order.
std::vector<std::string> step_pass_names();

/// Simplifies the step (canonicalise.h), rounds what the options say (mixed_precision.h), lays out what lies between
/// operations (lay_out.h), cuts it into groups (cut_step.h), schedules each by the registry, equal ones once, orders
/// them (order_for_memory.h), has made again what is not to be kept (recompute.h), and places what lies between them in
/// one arena by its lifetime. Throws Error as mixed_precision() and step_graph() say, citing an operation that cannot
/// be scheduled, and if `recompute.bytes` is negative or less than any plan has that makes groups again.
StepPlan plan_step(const schedules::Declared& step, const Target& target, const Registry& registry = {},
                   const StepOptions& options = {}, TW_HERE);

/// What is wrong with a plan, a line each: values read before they are written, memory that two of them have at a time,
/// groups that touch the same memory, one writing, of which neither waits for the other. Nothing, of what plan_step()
/// returns.
std::vector<std::string> faults_of(const StepPlan& plan);

}  // namespace tw
