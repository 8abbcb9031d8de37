// What a schedule knows: stages, their loops and where they stand. The tree is derived from it after every step.
#pragma once
#include <array>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "dsl/handle_names.h"
#include "dsl/schedule.h"
#include "dsl/stage.h"

namespace tw {

constexpr int64_t most_cluster_blocks = 8;  ///< that every GPU can place

/// Software skew: of what stands under a loop, the stage and all behind it come so many iterations later, in front of
/// the stage `before`, if that is one.
struct Delay {
    int stage = -1, iterations = 0, before = -1;
};

/// The iterations of a loop that are not left out: the first, and the one behind the last, if not all.
struct Kept {
    Expr first = {}, behind = {};
};

struct LoopRecord {
    std::string name;
    Expr variable;
    Expr extent;
    int stage = -1;
    bool reduces = false;
    Level level = Level::Serial;
    int bind_step = -1;
    int stages = 1;     ///< of pipeline
    int in_flight = 0;  ///< of pipeline
    int pipeline_step = -1;
    Delay delay = {};             ///< none if of 0 iterations
    std::vector<Expr> cuts = {};  ///< where the segments after the first begin, over variables of loops around
    Kept kept = {};               ///< of skip
    bool reversed = false;        ///< runs from its last iteration to the first
    int dead_step = -1;           ///< the step that consumed it
    std::shared_ptr<const Origin> origin = {};
    std::string handle = {};  ///< what the trace calls it; empty until a step speaks of it

    bool skips() const { return kept.first.defined() || kept.behind.defined(); }
    bool is_whole() const { return cuts.empty() && !skips(); }
};

/// How loops came from others: split: parent = outer * size + inner; fuse: fused = outer * size + inner; align: whole =
/// inner - size, below 0 in the first iterations; mirror: whole = size - 1 - inner.
struct Relation {
    enum class Kind { Split, Fuse, Align, Mirror } kind;
    int whole, outer, inner;  ///< loop ids; none is the outer one of align and mirror
    Expr size;                ///< extent of inner; of align over variables of the stage's root loops
    bool masked = false;
};

/// The loops that a matrix instruction takes over.
struct MmaRecord {
    MatrixUnit unit;
    int m, n, k;
    int step;
};

/// A reduction that runs along some of its data axes: see Schedule::running. All of its reduce loops are parts of
/// `loop`; its update is over the data axes, the term that comes with the element.
struct ScanRecord {
    int loop = -1;              ///< iteration u of it has the terms up to u
    Expr length;                ///< how many terms the element has, over the axes
    bool is_exclusive = false;  ///< u instead of u + 1
};

struct StageRecord {
    StageDefinition definition;
    bool is_copy = false;
    std::vector<int> roots = {};  ///< a loop for each axis, data axes first, then reduce axes
    std::vector<int> order = {};  ///< current loops, outermost first
    std::vector<Relation> relations = {};
    int attach = -1;           ///< the loop it stands under, -1 for a kernel of its own
    bool after = false;        ///< stands behind the loop's own body: a consumer or a sibling
    int streams = -1;          ///< the loop of another reduction along which its terms are reduced: see stream.h
    Reference reference = {};  ///< of that, what terms read
    std::optional<ScanRecord> scan = {};
    bool inlined = false;
    Memory memory = Memory::Auto;
    Via via = {};
    std::optional<MmaRecord> mma = {};
    int persistent_blocks = 0;  ///< see Nest
    bool longest_first = false;
    int persistent_stages = 1;
    bool persistent_dynamic = false;
    Occupancy occupancy = {};          ///< of the kernel that the stage stands in
    std::optional<Type> rounded = {};  ///< what its elements are stored as, if not as what they are
    int step = -1;                     ///< the step that made or placed it
    std::shared_ptr<const Origin> origin = {};
    std::string handle = {};  ///< as a loop's
};

/// Where a stage computes: for each data axis, the first index and the number of indices.
struct Region {
    std::vector<Expr> lo, extent;
};

/// Terms in the order of their elements, which other reductions of such terms read, too.
struct SortedTerms {
    Expr term, key;               ///< the number of a term's element, over that of the term
    std::array<Expr, 2> extents;  ///< how many terms and elements there are
    std::string of;               ///< the reduction for which they were sorted
    Tensor offsets, order;        ///< where elements begin in the order of terms
};

struct Schedule::State {
    Target target;
    std::source_location made;             ///< where the schedule was
    std::source_location step_where;       ///< the step in progress
    std::vector<Tensor> outputs;           ///< as the user gave them
    std::vector<const Operation*> result;  ///< the operation that now writes each output
    std::vector<StageRecord> stages;
    std::vector<LoopRecord> loops;
    std::vector<std::pair<Tensor, Tensor>> in_place;            ///< (output, input) that share memory
    std::vector<std::pair<Tensor, std::vector<Expr>>> strides;  ///< of outputs that are no dense arrays
    /// Of inputs with joined axes, what stages read instead.
    std::map<const Operation*, std::shared_ptr<const Operation>> joined_inputs;
    std::vector<SortedTerms> sorted;             ///< by reductions that found their terms so
    std::map<int, std::vector<RoleSpec>> roles;  ///< of the kernel of a stage
    std::vector<ExclusiveSection> exclusive;
    std::vector<Step> trace;
    std::optional<std::string> list_handles;  ///< of a list's step in progress, see ListStep: what it takes
    std::vector<std::string> saved;           ///< the trace as replay reads it, a line a step
    HandleNames handle_names;                 ///< identifiers of the trace
    std::vector<std::string> notes;
    Tree tree;
    bool tree_is_old = false;  ///< a step has been made since it was built: see TreesLater
    // Kernels, by their own stages, in which steps have changed what regions go by since these were found, see
    // TreesLater:
    std::set<int> stale_kernels;      ///< of stages with loops that no step has split or bound
    std::set<int> unchecked_kernels;  ///< of the others, too

    /// The stage that computes an operation, or -1 for inputs.
    int stage_of(const Operation* operation) const;
    const StageRecord& owner(int loop) const { return stages[loops[loop].stage]; }
    int position(int loop) const;       ///< in its stage's order
    int first_reduce(int stage) const;  ///< position of the outermost reduce loop; number of loops without one
    /// How many loops, outermost first, stand around the stage's results: those in front of the reduce loops; of a scan
    /// all up to the last of these, or to the first that is bound to threads.
    int around_results(int stage) const;
    bool is_result(int stage) const;
    int kernel_of(int stage) const;  ///< the stage that is a kernel of its own and around this one
    int add_loop(const std::string& name, const Expr& extent, int stage, bool reduces);
    /// For a loop or a stage that the step in progress makes.
    std::shared_ptr<const Origin> origin_of(const std::string& name) const;
    Loop handle_of_loop(int loop) const { return {loop, loops[loop].origin}; }
    Stage handle_of_stage(int stage) const { return {stage, stages[stage].origin}; }
};

/// Every Read in the stage: `in_update` says whether it stands in the reduction.
struct ReadSite {
    const Read* read;
    bool in_update;
};
std::vector<ReadSite> reads_of(const StageDefinition& definition);
/// Whether `reader` reads the stage's operation, directly.
bool reads_stage(const StageDefinition& reader, const StageDefinition& producer);

/// Whether the stage reads the other one's elements, directly or through others.
bool depends_on(const Schedule::State& state, int reader, int producer);

/// What the stage's source is rounded to, if the stage is a copy of one that is: it holds the same elements.
std::optional<Type> copied_rounding(const Schedule::State& state, const StageRecord& stage);

/// The stage whose elements the stage updates, or -1; the stages that update this one's.
int target_of(const Schedule::State& state, int stage);
std::vector<int> updaters_of(const Schedule::State& state, int stage);

/// Whether data of tensors decide the value.
bool reads_tensors(const Expr& expr);
/// Whether a reduction is as long as its element says: by data, or by the element's indices.
bool depends_on_element(const Expr& extent);

/// Where iterations of a masked relation are those of the whole.
std::vector<Expr> conditions_of(const Schedule::State& state, const Relation& relation, const Expr& extent);
/// The expression over variables of root loops, of which these values are known; undefined if one is missing.
Expr over_values(const Schedule::State& state, const Expr& expr, const std::vector<int>& roots,
                 const std::map<int, Expr>& values);

/// Stage ids, producers before their readers.
std::vector<int> topological_order(const Schedule::State& state);

/// The stages that are kernels of their own, in launch order. Throws Error if two kernels need each other's results.
std::vector<int> kernel_order(const Schedule::State& state, std::source_location where);

/// The loops around the body of `loop`, outermost first, across the stages that it stands under.
std::vector<int> enclosing_loops(const Schedule::State& state, int loop);
/// Whether the site's leaf stands inside one iteration of `loop`.
bool stands_below(const Schedule::State& state, int stage, bool in_update, int loop);

/// The memory that the stage's elements live in between producer and readers: Auto resolved.
Memory resolved_memory(const Schedule::State& state, int stage);
/// The memory of elements that live in one iteration of the loop.
Memory memory_inside(const Schedule::State& state, int stage, int loop);
/// The loop in whose iterations a local result lives; -1 if it lives in global memory.
int storage_loop(const Schedule::State& state, int stage);

/// The value of a loop in terms of its descendants' variables.
Expr loop_value(const Schedule::State& state, int loop);
/// The same in terms of loops below which no masked split is: what lies behind a masked end is never computed, so that
/// a loop's own variable, with its extent, tells more than its parts do. Not of loops that have one of the `fixed`
/// variables among their descendants'.
Expr value_below_end(const Schedule::State& state, int loop, const std::vector<Expr>& fixed = {});
/// The region that a stage computes in one iteration of the loop it stands under, the whole for kernels of their own.
/// Throws Error at `where` if it is no box of constant extents.
Region region_of(const Schedule::State& state, int stage, std::source_location where);
/// What one iteration of `loop` computes of `stage`, which owns it.
Region footprint_below(const Schedule::State& state, int stage, int loop, std::source_location where);

/// What one iteration of `loop`, all loops around it fixed, makes of `stage`, which owns it: a box around it.
Region made_in_iteration(const Schedule::State& state, int stage, int loop, std::source_location where);
/// The box of what one iteration of `loop`, all loops around it fixed, reads at `indices` over the axes of `reader`,
/// which owns it; in shared memory, of all threads. Throws Error at `where` if it has no constant extents.
Region read_in_iteration(const Schedule::State& state, int reader, int loop, Memory memory,
                         const std::vector<Expr>& indices, std::source_location where);
/// The same; nothing if it has no constant extents.
std::optional<Region> box_read_in_iteration(const Schedule::State& state, int reader, int loop, Memory memory,
                                            const std::vector<Expr>& indices, std::source_location where);
/// The region of a stage that stands behind the body of another's loop. Throws Error unless it can be computed
/// iteration by iteration, each element once.
Region following_region(const Schedule::State& state, int stage, std::source_location where);
/// Conditions on the stage's axes and the loops around it: that what it reads of the stages which it follows, or in
/// whose followers it stands, has been made in this iteration.
std::vector<Expr> following_conditions(const Schedule::State& state, int stage, std::source_location where);

/// Rules about levels, nesting and placement.
void check_rules(const Schedule::State& state, std::source_location where);
/// The schedule tree.
Tree build_tree(const Schedule::State& state, std::source_location where);

}  // namespace tw
