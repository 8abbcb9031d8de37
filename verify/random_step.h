// Random schedule steps, as data: stages by name, loops by their position, so that a list of steps keeps its meaning
// when some of them are dropped.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dsl/schedule.h"
#include "verify/problem.h"

namespace tw::fuzz {

struct RandomStep {
    enum class Verb {
        Split,
        Fuse,
        Order,
        Cut,
        CutPartial,
        Bind,
        At,
        Inline,
        StageOperand,
        StageGlobal,
        StageResult,
        SetMemory,
        InPlace,
        Rfactor,
        Accumulators,
        Delay,
        Scatter,
        Via,
        Pipeline,
        Persistent,
        Roles  ///< one warp brings `operand`, `size` warps run `stage`
    };
    Verb verb;
    std::string stage;            ///< whose loops are meant; of StageOperand the consumer; of At what moves
    std::vector<int> loops = {};  ///< positions in `stage`, of At, StageOperand and StageResult in `owner`
    std::string owner = {};       ///< the stage whose loop is meant
    std::string operand = {};     ///< a tensor or a stage
    int component = 0;            ///< of the operand
    int64_t size = 0;
    /// For Cut: with `owner`, each is added to the iteration of that loop times `size`.
    std::vector<int64_t> positions = {};
    Tail tail = Tail::Mask;
    Level level = Level::Serial;
    Memory memory = Memory::Auto;
    Combine combine = Combine::Workspace;
    Copy copy = Copy::Automatic;
};

/// "split", "at", ...
std::string verb_name(RandomStep::Verb verb);
/// "split c[1] 5 mask": for messages.
std::string to_string(const RandomStep& step);

/// What a schedule looks like to someone who picks a step.
struct LoopView {
    Loop loop;
    std::optional<int64_t> extent;  ///< if constant
    Level level = Level::Serial;
    bool reduces = false;
    bool fills = false;  ///< shared memory lives in an iteration
};
struct StageView {
    Stage stage;
    std::string name;
    std::vector<LoopView> loops;
    std::vector<std::string> reads;  ///< names of buffers
};
std::vector<StageView> view_of(const Schedule& schedule);

/// How often leaves run, all loops at their full extents: what interpreting costs.
double leaf_runs(const Tree& tree);

/// A step that may be legal.
RandomStep random_step(Random& random, const Schedule& schedule, const Problem& problem);
/// Several steps that belong together: tiles, the outer loops on the grid and the inner ones on threads.
std::vector<RandomStep> random_tiling(Random& random, const Schedule& schedule, const Problem& problem);
/// Steps of a fresh schedule by which the tensor memory accelerator brings what one of its reductions reads, as far as
/// its rows and its places allow; none where no stage reduces an input of several dimensions.
std::vector<RandomStep> random_boxes(Random& random, const Schedule& schedule, const Problem& problem);

/// Performs the step. Throws Error if it is refused, or if a stage or loop that it names is not there.
void perform(const RandomStep& step, Schedule& schedule, const Problem& problem);

}  // namespace tw::fuzz
