// How the schedule's stages become a tree; see build_tree.cpp. Inside of dsl/ only.
#pragma once
#include <functional>
#include <map>
#include <set>

#include "dsl/schedule_state.h"
#include "dsl/stream.h"

namespace tw {

/// Builds it once: storage and masks of every stage first (build_storage.cpp), then the nests of their loops
/// (build_tree.cpp) around leaves (build_leaves.cpp).
class TreeBuilder {
    using State = Schedule::State;

public:
    TreeBuilder(const State& state, std::source_location where) : state_(state), where_(where) {}
    Tree run();

private:
    /// Where a stage's results live: buffer[index - lo].
    struct Storage {
        std::vector<BufferRef> buffers;  // one an output
        std::vector<Expr> lo;
        int loop = -1;  // allocated in this loop's body
    };
    /// What is known of a stage before its loops are built.
    struct Prepared {
        Region region;
        Substitution axes;                               // axis variable -> value in loop variables
        std::vector<Expr> values;                        // of the data axes
        Substitution axes_below_ends, loops_below_ends;  // of elements: see value_below_end; and the loops' values
        Expr data_mask, full_mask;
        std::vector<Expr> data_conditions;  // of data_mask, if loops are as long as data say
        Storage storage;
        std::vector<BufferRef> accumulators;
        // Of a reduction that others read while it runs: one iteration's part, values so far and those before.
        std::vector<BufferRef> parts, before;
        Storage running;
        // Of one whose reference is not what it is at last: the lazy one, of each private part, and that behind the
        // loop.
        std::vector<BufferRef> used;
        Storage reference;
        std::vector<BufferRef> last_factors;  // of corrections behind the loop
        std::vector<Expr> indices;            // of the accumulators: the data loops inside the outermost reduce loop
        // Of a scan whose terms threads share: what comes before those of a thread, and what each term has before it
        // there, or has made.
        std::vector<BufferRef> ahead, kept;
        std::vector<Expr> kept_at;
    };
    struct Masks {
        std::vector<Expr> data, all;
    };

    const StageRecord& record(int stage) const { return state_.stages[stage]; }
    std::vector<RoleSpec> roles_of(int kernel) const;
    BufferRef tickets_of(int kernel) const;
    Occupancy occupancy_of(int kernel) const;
    void check_exclusive() const;
    std::vector<ExclusiveSection> exclusive_in(int kernel) const;

    // Storage and masks.
    void prepare(int stage);
    void prepare_ends(int stage, Prepared& p);
    void prepare_masks(int stage, Prepared& p);
    Expr of_first_term(int stage, const Expr& condition) const;
    Masks masks_of(int stage, const Prepared& p, bool with_reduction);
    static void guard_reads(const Expr& value, const std::function<void(const Expr&, bool)>& guard);
    void check_collective(int stage, const std::vector<Expr>& conditions) const;
    bool is_copied_to_shared(int stage) const;
    void prepare_storage(int stage, Prepared& p);
    static Region whole(const Operation& operation);
    std::vector<Expr> shape_given(const Operation& operation) const;
    std::vector<Expr> strides_given(const Operation& operation, size_t output) const;
    void reserve_names();
    std::string buffer_name(int stage, size_t output);

    // Loops.
    Stmt emit(int stage);
    Stmt nest(int stage, int from, const std::function<Stmt()>& inner);
    Stmt nest(int stage, int from, int to, const std::function<Stmt()>& inner);
    struct DelayedParts {
        Stmt first, between, late;
        bool is_late_there = false, is_early_there = false, is_before_there = false;
    };
    int part_under(int loop, int stage) const;
    bool is_read_only_in(int copy, int loop, const std::vector<std::pair<int, Stmt>>& parts) const;
    DelayedParts delayed_parts(int loop, Stmt inner);
    std::vector<BufferRef> buffers_in(int loop) const;
    Stmt delayed_for(int loop, Stmt inner);
    Stmt make_for(int loop, Stmt body);
    AtomRole role_of(int loop) const;
    Expr lower_extent(int loop);
    Expr lower_length(int stage, const Expr& length);
    bool copies_inputs(int stage) const;
    bool reads_overwritten(int stage) const;
    void put_readers_first(std::vector<std::pair<int, Stmt>>& followers) const;
    std::vector<std::pair<int, Stmt>> parts_under(int loop, Stmt inner);
    Stmt with_attached(int loop, Stmt inner);
    Stmt reduction(int stage, int outermost);
    // Scans (build_scan.cpp).
    Stmt scan(int stage, int outermost);
    Stmt scan_of_threads(int stage, int outermost);
    Stmt own_terms(int stage, int first_bound);
    Stmt keep_leaf(int stage);
    Stmt joined_leaf(int stage, const std::vector<BufferRef>& into, const std::vector<BufferRef>& left,
                     const std::vector<BufferRef>& right);
    std::vector<Expr> combined_loads(int stage, const std::vector<BufferRef>& left, const std::vector<Expr>& left_at,
                                     const std::vector<BufferRef>& right, const std::vector<Expr>& right_at) const;
    Substitution kept_behind_others(int stage) const;
    std::vector<Stmt> prefixes(int stage, const std::vector<int>& bound, const std::vector<int>& around);
    Stmt prefix_leaf(int stage, int loop);
    std::vector<BufferRef> registers_like(int stage, const std::string& suffix, const std::vector<int>& loops) const;
    /// The loops in whose iterations partial results are made, of which those in `bound` run side by side.
    struct PrivateLoops {
        std::vector<int> bound, all;
    };
    PrivateLoops private_loops(int stage, int outermost) const;
    Stmt inside(const std::vector<int>& loops, Stmt body);
    std::vector<Stmt> combines(int stage, const PrivateLoops& loops);
    bool is_bound_reduce(int loop) const;
    void make_accumulators(int stage, const std::vector<int>& inner_data);

    // Reductions that share a loop (build_stream.cpp).
    bool is_read_complete(int stage) const;
    BufferRef stream_buffer(int stage, const std::string& name, Type type, Memory memory,
                            const std::vector<Expr>& shape);
    Stmt begin_member(int stage);
    Stmt member_part(int stage);
    std::vector<Stmt> end_member(int stage);
    Expr value_mask(int stage);
    enum class ValueOf { Before, SoFar, Reference };
    Stmt value_leaf(int stage, const std::vector<int>& bound, ValueOf which);
    Expr reference_now(int stage, size_t output);
    Stmt used_leaf(int stage, bool is_first);
    void make_reference(int stage);
    Expr last_reference(int stage, const RunningValue& value);
    /// What running values were and are, for corrections, and for which elements those are made.
    struct ChangedValues {
        Substitution before;                     // the values before
        std::vector<std::pair<Expr, Expr>> now;  // Reads, and what stands for them
        Expr mask, moves;                        // there are values; lazy ones have changed
    };
    ChangedValues changed_values(int stage, const StreamLink& link, bool at_last);
    Stmt cleared_leaf(int stage);
    Stmt join_leaf(int stage);
    int step_of_stream(int stage) const;
    bool is_corrected_at_last(int stage) const;
    std::vector<Stmt> corrections(int stage, const PrivateLoops& loops, bool at_last);
    Expr common_factor(int stage, size_t accumulator, const Expr& by, const PrivateLoops& loops, const Expr& mask,
                       bool at_last, std::vector<Stmt>& stmts);

    // Leaves.
    Leaf leaf(int stage, Leaf::Kind kind, Expr mask) const;
    Stmt init_leaf(int stage);
    Stmt update_leaf(int stage);
    Stmt combine_leaf(int stage, int loop);
    Stmt finish_leaf(int stage, const std::vector<int>& bound = {}, const Substitution& results = {});
    Leaf finishing_leaf(int stage, const std::vector<Expr>& conditions);
    Stmt update_target(int stage, std::vector<Expr> conditions, const Substitution& results);
    Expr lower(int stage, const Expr& expr, bool in_update = false);
    Expr inputs_loaded(const Expr& expr);
    Expr load(int stage, bool in_update, Type type, const Read& read);
    static std::vector<Expr> place_in(const Storage& storage, const std::vector<Expr>& element);
    static std::vector<Expr> simplified(std::vector<Expr> exprs);
    BufferRef input_buffer(const std::shared_ptr<const Operation>& operation);

    // The whole tree.
    void check_complete() const;
    void check_complete(const Stmt& stmt, std::set<const BufferNode*>& written) const;
    void finish_tree();
    void collect_parameters();
    void see_scalars(const Expr& expr, const std::function<void(const Expr&)>& see) const;

    const State& state_;
    std::source_location where_;
    Tree tree_;
    std::vector<int> order_;
    std::map<int, Prepared> prepared_;
    std::map<const Operation*, BufferRef> inputs_;
    std::map<std::string, int> names_;
    std::map<int, std::vector<BufferRef>> stream_buffers_;  // by the shared loop
};

}  // namespace tw
