#include "schedules/attention_backward.h"

#include <algorithm>

#include "schedules/elementwise.h"
#include "schedules/gradient_nest.h"
#include "schedules/loading_roles.h"
#include "schedules/whole_tiles.h"

namespace tw::schedules {
namespace {

constexpr int64_t rows_of_warpgroup = 64, bytes_of_rings = 196608, neighbours = 8, threads_of_delta = 128;

}  // namespace

double flops_of_gradients(const AttentionShape& shape) {
    // Of queries and keys: scores, dk and dq. Of values: dp and dv.
    return shape.flops() / as_double(shape.depth + shape.width) * as_double(3 * shape.depth + 2 * shape.width);
}

double bytes_of_gradients(const AttentionShape& shape) {
    const double lse = as_double(shape.batch * shape.heads * shape.rows) * 4;
    return 2 * (shape.bytes() - lse) + lse;
}

namespace {

class GradientSchedule {
public:
    GradientSchedule(const AttentionGradients& gradients, const AttentionShape& shape, const GradientTiles& tiles,
                     const Target& target, std::source_location where)
        : shape_(shape), tiles_(tiles), a_(gradients), s_(results(gradients), target), where_(where) {}

    Schedule run() {
        schedule_delta();
        for (const RowNumber& each : a_.row_numbers)
            if (!each.of_keys.same(each.saved)) schedule_each_element(s_, each.of_keys, threads_of_delta, where_);
        if (!tiles_.passes.kept && !tiles_.passes.added) schedule_queries();
        schedule_keys();
        if (tiles_.passes.kept) schedule_kept();
        if (!tiles_.passes.together) schedule_values();
        if (a_.d_sinks.defined()) schedule_sinks();
        for (size_t k = 0; k < a_.gradients_of_pairs.size(); ++k)
            schedule_pairs(a_.of_pairs[k], a_.gradients_of_pairs[k], a_.adjoints_of_pairs[k]);
        for (const Tensor& operand : {a_.q, a_.k, a_.v}) inline_view(s_, operand, where_);
        return std::move(s_);
    }

private:
    static std::vector<Tensor> results(const AttentionGradients& a) {
        std::vector<Tensor> all{a.dq, a.dk, a.dv};
        all.insert(all.end(), a.gradients_of_pairs.begin(), a.gradients_of_pairs.end());
        if (a.d_sinks.defined()) all.push_back(a.d_sinks);
        return all;
    }

    /// A row is summed by threads side by side, each with a few neighbours of it.
    void schedule_delta() {
        const auto [b, h, i] = s_.loops<3>(a_.delta, where_);
        Loop rows = s_.fuse({b, h, i}, "all_rows", where_);
        const int64_t vectors = divided(shape_.width, neighbours);
        int64_t lanes = 1;
        while (lanes < vectors && lanes < 32) lanes *= 2;
        auto [block, row] = s_.split(rows, threads_of_delta / lanes, Tail::Mask, {"row_block", "row"}, where_);
        auto [part, lane, element] = s_.split(s_.reduce(a_.delta), {lanes * neighbours, neighbours}, Tail::Mask,
                                              {"part", "lane", "element"}, where_);
        s_.bind(block, grid.x, where_);
        s_.bind({row, lane}, thread, where_);
        s_.unroll(element, where_);
    }

    /// A block for each head and sequence, then one for each head.
    void schedule_sinks() {
        const Stage of_batch = s_.rfactor(a_.d_sinks, s_.reduce(a_.d_sinks, 0), Combine::Workspace, where_);
        share_terms(of_batch, s_.reduce(of_batch), "sinks_of_batch");
        share_terms(a_.d_sinks, s_.reduce(a_.d_sinks), "sinks");
    }
    void share_terms(const StageRef& sums, const Loop& terms, const std::string& block) {
        constexpr int64_t threads = 256;
        const std::vector<Loop> of_sums = s_.data_loops(sums, where_);
        s_.order(of_sums, where_);
        s_.bind(s_.fuse(of_sums, block, where_), grid.x, where_);
        auto [step, in_step] = s_.split(terms, threads, Tail::Mask, {"step", "in_step"}, where_);
        s_.bind(in_step, thread, where_);
    }

    /// Gradients of keys are sums over the heads of a group, too, and the first of them have the most causal terms; of
    /// queries the last.
    GradientNest nest_of(const Tensor& gradient, int64_t rows, int64_t step_extent, bool of_keys,
                         const std::string& name) {
        auto [b, i, h, columns] = shape_.loops_of(s_, gradient, where_);
        const bool of_group = of_keys && shape_.group > 1;
        const auto [x_tile, x] = filled_up(columns, {"x_tile", "x"});
        auto [block, group, row] =
            s_.split(i, {rows, rows_of_warpgroup}, Tail::Mask, {"block", "group", "row"}, where_);
        auto [step, term] =
            s_.split(s_.reduce(gradient, of_group ? 1 : 0), step_extent, Tail::Mask, {"step", "term"}, where_);
        const int64_t side_by_side = heads_side_by_side(of_keys);
        std::vector<Loop> heads{h, block};
        if (side_by_side > 1) {
            auto [h_group, h_in_group] = s_.split(h, side_by_side, {"h_group", "h_in_group"}, where_);
            heads = {h_group, block, h_in_group};
        }
        std::vector<Loop> tiles = heads;
        tiles.insert(shares_pairs(of_keys) ? tiles.end() : tiles.begin(), b);
        std::vector<Loop> order = tiles;
        order.insert(order.end(), x_tile.begin(), x_tile.end());
        if (!shares_steps(of_keys)) order.push_back(group);
        if (of_group) order.push_back(s_.reduce(gradient, 0));
        order.push_back(step);
        if (shares_steps(of_keys)) order.push_back(group);
        order.insert(order.end(), {row, x, term});
        s_.order(order, where_);
        Loop tile = tiles.back();
        if (shape_.causal && !of_keys) {
            const int64_t blocks = divided(shape_.rows, rows);
            const int64_t all = shape_.batch * shape_.heads * blocks;
            s_.persistent(tiles, {.blocks = static_cast<int>(all), .longest_first = true}, where_);
        } else {
            tile = s_.fuse(tiles, name, where_);
            s_.bind(tile, grid.x, where_);
        }
        s_.bind(group, warpgroup, where_);
        return {tile, group, step, row, x, term};
    }

    /// What warpgroups make in a step, they add up together.
    bool shares_steps(bool of_keys) const { return of_keys && tiles_.passes.added; }

    /// Of keys that each warpgroup has 64 of in a step.
    void share_keys(const Loop& keys) {
        std::vector<Loop> around;
        rows_of_group(keys, around);
    }
    /// The loop over these, behind that over warpgroups, if they are shared.
    Loop rows_of_group(const Loop& keys, std::vector<Loop>& around) {
        if (!tiles_.passes.added) return keys;
        auto [group, row] = s_.split(keys, rows_of_warpgroup, {"group", "row"}, where_);
        s_.bind(group, warpgroup, where_);
        around.push_back(group);
        return row;
    }

    /// Batches that share what rules read are neighbours, so that all but one find it in L2.
    bool shares_pairs(bool of_keys) const {
        return of_keys && tiles_.stage_pairs &&
               std::ranges::any_of(a_.of_pairs, [](const PairInput& input) { return input.dimension[0] < 0; });
    }

    /// Of causal ones, so that the longest tiles are the first.
    int64_t heads_side_by_side(bool of_keys) const {
        if (!shape_.causal) return 1;
        const int64_t group = of_keys ? shape_.group : 1;
        const int64_t bytes =
            (shape_.rows * group + shape_.keys) * (shape_.depth + shape_.width) * bytes_of(shape_.type);
        return heads_in_l2(shape_.heads / group, bytes);
    }

    /// Elements of a head, as many as tiles have: with a loop over tiles around, if these are larger.
    struct FilledUp {
        std::vector<Loop> tiles;
        Loop inside;
    };
    FilledUp filled_up(const Loop& loop, const SplitNames& names) {
        const int64_t extent = as_constant(s_.extent(loop)).value(), padded = padded_head(extent);
        if (extent == padded) return {{}, loop};
        auto [tile, inside] = s_.split(loop, padded, Tail::Mask, names, where_);
        return {{tile}, inside};
    }

    /// The tiles of scores and of their adjoints under a step, in registers; of keys by queries if `transposed`.
    void products_under(const Loop& step, const std::vector<StageRef>& products, bool transposed) {
        s_.at(products, step, Memory::Registers, where_);
        for (const StageRef& product : products) {
            auto [b, h, i, j] = s_.loops<4>(product, where_);
            const auto [k_tile, k] = filled_up(s_.reduce(product), {"k_tile", "k"});
            if (!transposed && k_tile.empty()) continue;
            std::vector<Loop> order{b, h};
            const Loop m = transposed ? rows_of_group(j, order) : i, n = transposed ? i : j;
            order.insert(order.end(), k_tile.begin(), k_tile.end());
            order.insert(order.end(), {m, n, k});
            s_.order(order, where_);
        }
    }

    /// A rule's masks stand in the probabilities, others in the scores.
    void skip_masked(const Loop& step, const AttentionScores& of) {
        const Tensor& masked = a_.by_rule ? of.p : of.s;
        s_.skip(step, masked, where_);
        if (!a_.by_rule && !tiles_.passes.added) s_.cut(step, where_partial(masked), where_);
    }

    bool keys_skip() const { return a_.skips && shape_.keys > rounded_up(tiles_.key_rows, tiles_.key_step); }

    void keep(const std::vector<StageRef>& made, const Loop& step) {
        s_.at(made, step, Memory::Registers, where_);
        for (const StageRef& each : made) share_keys(s_.data_loops(each).back());
    }
    /// What gradients read of it is rounded to the operands' type, in registers.
    void round_for(const std::vector<CopyOf>& copies, const Loop& step) {
        for (const Stage& rounded : s_.stage(copies, Memory::Registers, step, shape_.type, where_))
            share_keys(s_.data_loops(rounded).back());
    }

    /// The adjoints of scores for dk, and the probabilities, or what a rule makes of them, for dv, if it is made
    /// together with it.
    void keep_for_keys(const AttentionScores& of, const Loop& step) {
        const bool by_rule = of.w.operation() != of.p.operation();
        std::vector<StageRef> adjoints;
        for (const Tensor& each : a_.adjoints_of_pairs)  // they read what ds is made of
            if (!each.same(a_.ds_kept)) adjoints.emplace_back(each, where_);
        const bool is_read = !adjoints.empty() || (by_rule && tiles_.passes.together);
        if (is_read) keep({of.ds}, step);
        for (const StageRef& each : adjoints) s_.at(each, step, where_);
        if (of.dc.defined()) keep({of.dc}, step);
        if (by_rule && tiles_.passes.together) inline_weights(of, step);
        keep(is_read ? std::vector<StageRef>{of.p} : std::vector<StageRef>{of.ds, of.p}, step);
        std::vector<CopyOf> rounded{{a_.dk, of.ds}};
        if (tiles_.passes.together && !by_rule) rounded.insert(rounded.begin(), {a_.dv, of.p});
        round_for(rounded, step);
    }
    void keep_for_values(const AttentionScores& of, const Loop& step) {
        const bool by_rule = of.w.operation() != of.p.operation();
        if (by_rule) inline_weights(of, step);
        keep({of.p}, step);
        if (!by_rule) round_for({{a_.dv, of.p}}, step);
    }
    void inline_weights(const AttentionScores& of, const Loop& step) {
        round_for({{a_.dv, of.w}}, step);
        s_.inline_stage(of.w, where_);
    }

    void schedule_queries() {
        const AttentionScores& of = a_.of_queries;
        const GradientNest n = nest_of(a_.dq, tiles_.query_rows, tiles_.query_step, false, "query_tile");
        keep({of.ds, of.p}, n.step);
        round_for({{a_.dq, of.ds}}, n.step);
        s_.mma(a_.dq, wgmma, {.m = n.row, .n = n.column, .k = n.term}, where_);
        products_under(n.step, {of.s, of.dp}, false);
        if (a_.skips && shape_.keys > rounded_up(tiles_.query_rows, tiles_.query_step)) skip_masked(n.step, of);
        auto [queries, given] = s_.stage({{of.s, a_.q}, {of.dp, a_.g}}, Memory::Shared, n.tile, {}, where_);
        auto [keys, values] = s_.stage({{{of.s, a_.dq}, a_.k}, {of.dp, a_.v}}, Memory::Shared, n.step, {}, where_);
        std::vector<CopyOf> of_rows;
        for (const RowNumber& each : a_.row_numbers) of_rows.emplace_back(of.p, each.of_queries);
        of_rows.emplace_back(of.ds, a_.delta);
        s_.stage(of_rows, Memory::Registers, n.group, {}, where_);
        std::vector<StageRef> loaded{queries, given, keys, values};
        move_lines(of, of.lines.of_keys, of.lines.of_rows, n, loaded);
        s_.mma({of.s, of.dp}, wgmma, where_);
        s_.pipeline(n.step, {.stages = tiles_.stages}, where_);
        s_.roles(loading_roles(s_.target(), loaded, a_.dq, {.warpgroups = tiles_.query_rows / rows_of_warpgroup}),
                 where_);
    }

    void schedule_keys() {
        const AttentionScores& of = a_.of_keys;
        const GradientNest n = nest_of(a_.dk, tiles_.key_rows, tiles_.key_step, true, "key_tile");
        if (tiles_.passes.together) s_.stream({a_.dv, a_.dk}, n.step, where_);
        if (tiles_.passes.kept) s_.at(a_.ds_kept, n.step, where_);
        const Stage updates = tiles_.passes.added ? updates_of_queries(n.step) : Stage();
        keep_for_keys(of, n.step);
        if (tiles_.passes.added) round_for_updates(updates, n.step);
        if (!tiles_.passes.together) {
            s_.mma(a_.dk, wgmma, {.m = n.row, .n = n.column, .k = n.term}, where_);
        } else {
            auto [b, j, h, x] = shape_.loops_of(s_, a_.dv, where_);
            const Loop term = s_.all_loops(a_.dv).back();
            std::vector<Loop> order{b, h};
            if (shape_.group > 1) order.push_back(s_.reduce(a_.dv, 0));
            const Loop row = rows_of_group(j, order);
            order.insert(order.end(), {row, x, term});
            s_.order(order, where_);
            s_.mma({a_.dk, a_.dv}, wgmma, where_);
        }
        products_under(n.step, {of.s, of.dp}, true);
        if (keys_skip()) skip_masked(n.step, of);
        std::vector<StageRef> of_keys{of.s}, of_given{of.dp};
        if (tiles_.passes.added) of_keys.emplace_back(updates);
        if (tiles_.passes.together) of_given.emplace_back(a_.dv);
        auto [keys, values] = s_.stage({{of_keys, a_.k}, {of.dp, a_.v}}, Memory::Shared, n.tile, {}, where_);
        std::vector<CopyOf> of_step{{{of.s, a_.dk}, a_.q}, {of_given, a_.g}};
        for (const RowNumber& each : a_.row_numbers) of_step.emplace_back(of.p, each.of_keys);
        of_step.emplace_back(readers_of(of, a_.delta), a_.delta);
        for (const PairInput& input : tiles_.stage_pairs ? a_.of_pairs : std::vector<PairInput>())
            of_step.emplace_back(readers_of(of, input.tensor), input.tensor);
        std::vector<StageRef> loaded{keys, values};
        for (const Stage& copy : s_.stage(of_step, Memory::Shared, n.step, {}, where_)) loaded.emplace_back(copy);
        move_lines(of, of.lines.of_rows, of.lines.of_keys, n, loaded);
        s_.mma({of.s, of.dp}, wgmma, where_);
        if (tiles_.passes.added) add_up(updates);
        s_.pipeline(n.step, {.stages = tiles_.stages}, where_);
        s_.roles(loading_roles(s_.target(), loaded, a_.dk, {.warpgroups = tiles_.key_rows / rows_of_warpgroup}),
                 where_);
    }

    /// What a block of keys adds to dq, a step at a time.
    Stage updates_of_queries(const Loop& step) {
        const Loop part = s_.split(s_.reduce(a_.dq), tiles_.key_rows, {"part", "in_part"}, where_)[0];
        const Stage updates = s_.rfactor(a_.dq, part, Combine::Atomic, where_);
        schedule_dense_copy(s_, a_.dq, where_);  // of f32
        s_.at(updates, step, where_);
        return updates;
    }
    /// Rows of the product are terms of it, so that warpgroups go through shared memory.
    void round_for_updates(const StageRef& updates, const Loop& step) {
        const Stage adjoints = s_.stage(updates, a_.of_keys.ds, Memory::Shared, step, where_);
        s_.round_to(adjoints, shape_.type, where_);
        share_keys(s_.data_loops(adjoints).back());
    }
    /// Warpgroups have rows each, or where there are too few, columns; boxes of both add themselves.
    void add_up(const StageRef& updates) {
        const int64_t groups = tiles_.key_rows / rows_of_warpgroup;
        const std::vector<Loop> made = s_.data_loops(updates);
        s_.via(s_.stage(updates, Memory::Shared, made[0], where_), Copy::Tma, where_);
        const auto [part, b, second, third, x] = s_.loops<5>(updates, where_);
        const auto [i, h] = shape_.heads_first ? std::pair(third, second) : std::pair(second, third);
        const bool by_rows = tiles_.key_step % (groups * rows_of_warpgroup) == 0;
        auto [group, in_group] = by_rows ? s_.split(i, tiles_.key_step / groups, {"group", "row"}, where_)
                                         : s_.split(x, padded_head(shape_.depth) / groups, {"group", "column"}, where_);
        auto [k_tile, k] = s_.split(s_.reduce(updates), tiles_.key_rows, {"k_tile", "k"}, where_);
        const Loop row = by_rows ? in_group : i, column = by_rows ? x : in_group;
        s_.order({part, b, h, group, k_tile, row, column, k}, where_);
        s_.bind(group, warpgroup, where_);
        s_.mma(updates, wgmma, {.m = row, .n = column, .k = k}, where_);
    }

    /// A product of matrices, one of which the kernel of dk has written.
    void schedule_kept() {
        const GradientNest n = nest_of(a_.dq, tiles_.query_rows, tiles_.query_step, false, "query_tile");
        if (keys_skip()) s_.skip(n.step, a_.dq, where_);  // as far as there is something written
        auto [adjoints, keys] = s_.stage({{a_.dq, a_.ds_kept}, {a_.dq, a_.k}}, Memory::Shared, n.step, {}, where_);
        s_.mma(a_.dq, wgmma, {.m = n.row, .n = n.column, .k = n.term}, where_);
        const int64_t bytes =
            tiles_.query_step * (tiles_.query_rows + padded_head(shape_.depth)) * bytes_of(shape_.type);
        const int stages = static_cast<int>(std::clamp<int64_t>(bytes_of_rings / bytes, 2, 4));
        s_.pipeline(n.step, {.stages = stages, .in_flight = 1}, where_);
        s_.roles(
            loading_roles(s_.target(), {adjoints, keys}, a_.dq, {.warpgroups = tiles_.query_rows / rows_of_warpgroup}),
            where_);
    }

    std::vector<Loop> reduce_loops(const Tensor& gradient) const {
        if (!s_.reduces(gradient)) return {};
        const std::vector<Loop> all = s_.all_loops(gradient, where_);
        return {all.begin() + gradient.rank(), all.end()};
    }

    /// What the rule reads for each term of a step, and for each row of a thread.
    void move_lines(const AttentionScores& of, const std::vector<LineInput>& of_terms,
                    const std::vector<LineInput>& of_thread, const GradientNest& n, std::vector<StageRef>& loaded) {
        for (const LineInput& line : of_terms)
            if (const auto readers = readers_of(of, line.view); !readers.empty())
                loaded.push_back(stage_line(s_, line, readers, n.step, where_));
        for (const LineInput& line : of_thread)
            if (const auto readers = readers_of(of, line.view); !readers.empty())
                keep_line(s_, line, readers, n.group, where_);
    }

    /// Stages beside the scores that read the tensor.
    std::vector<StageRef> readers_of(const AttentionScores& of, const Tensor& input) const {
        std::vector<Tensor> stages{of.p};
        if (&of != &a_.of_values) stages.push_back(of.ds);
        if (of.dc.defined()) stages.push_back(of.dc);
        if (&of == &a_.of_keys)
            for (const Tensor& adjoints : a_.adjoints_of_pairs)
                if (!adjoints.same(a_.ds_kept)) stages.push_back(adjoints);
        std::vector<StageRef> readers;
        for (const Tensor& stage : stages) {
            bool reads = false;
            visit(stage.operation()->outputs[0].body, [&](const Expr& e) {
                const Read* read = e.as<Read>();
                reads = reads || (read && read->operation == input.operation());
            });
            if (reads) readers.emplace_back(stage, where_);
        }
        return readers;
    }

    /// A transposition in tiles, summed over batches or heads where the input has one for all of them.
    void schedule_pairs(const PairInput& input, const Tensor& gradient, const Tensor& adjoints) {
        constexpr int64_t side = 64, in_vector = 4, rows_at_once = 16;
        const std::vector<Loop> data = s_.data_loops(gradient, where_);
        const std::vector<Loop> reduced = reduce_loops(gradient);
        const auto row_at = static_cast<size_t>(input.dimension[2]);
        auto [block_i, tile_i] = s_.split(data[row_at], side, Tail::Mask, {"block_i", "tile_i"}, where_);
        auto [block_j, tile_j] = s_.split(data.back(), side, Tail::Mask, {"block_j", "tile_j"}, where_);
        auto [step, row] = s_.split(tile_i, rows_at_once, {"step", "row"}, where_);
        auto [lane_of, element] = s_.split(tile_j, in_vector, {"t", "element"}, where_);
        std::vector<Loop> outer;
        for (size_t d = 0; d + 1 < data.size(); ++d)
            if (d != row_at) outer.push_back(data[d]);
        outer.insert(outer.end(), {block_i, block_j});
        std::vector<Loop> all = outer;
        all.insert(all.end(), reduced.begin(), reduced.end());
        all.insert(all.end(), {row, lane_of, step, element});
        s_.order(all, where_);
        const Loop block = s_.fuse(outer, "block", where_);
        const Loop around = reduced.empty() ? block : reduced.back();
        s_.bind(block, grid.x, where_);
        s_.bind(row, thread, where_);
        s_.bind(lane_of, thread, where_);
        s_.unroll(element, where_);
        s_.stage(gradient, adjoints, Memory::Shared, around, where_);
    }

    void schedule_values() {
        const AttentionScores& of = a_.of_values;
        const GradientNest n = nest_of(a_.dv, tiles_.key_rows, tiles_.key_step, true, "value_tile");
        keep_for_values(of, n.step);
        s_.mma(a_.dv, wgmma, {.m = n.row, .n = n.column, .k = n.term}, where_);
        products_under(n.step, {of.s}, true);
        if (keys_skip()) skip_masked(n.step, of);
        Stage keys = s_.stage(of.s, a_.k, Memory::Shared, n.tile, where_);
        std::vector<CopyOf> of_step{{of.s, a_.q}, {a_.dv, a_.g}};
        for (const RowNumber& each : a_.row_numbers) of_step.emplace_back(of.p, each.of_keys);
        std::vector<StageRef> loaded{keys};
        for (const Stage& copy : s_.stage(of_step, Memory::Shared, n.step, {}, where_)) loaded.emplace_back(copy);
        move_lines(of, of.lines.of_rows, of.lines.of_keys, n, loaded);
        s_.mma({of.s}, wgmma, where_);
        s_.pipeline(n.step, {.stages = tiles_.stages}, where_);
        // With masks in the loop twice, registers do not suffice.
        if (!a_.skips) s_.delay(a_.dv, n.step, {.iterations = 1, .before = of.p}, where_);
        s_.roles(loading_roles(s_.target(), loaded, a_.dv, {.warpgroups = tiles_.key_rows / rows_of_warpgroup}),
                 where_);
    }

    const AttentionShape& shape_;
    const GradientTiles& tiles_;
    const AttentionGradients& a_;
    Schedule s_;
    std::source_location where_;
};

}  // namespace

Schedule attention_gradients_schedule(const AttentionShape& shape, const GradientTiles& tiles, const Target& target,
                                      std::source_location where) {
    return attention_gradients_schedule(declare_attention_gradients(shape, tiles.passes, {}, false, {}, {}, {}, where),
                                        shape, tiles, target, where);
}

Schedule attention_gradients_schedule(const AttentionGradients& gradients, const AttentionShape& shape,
                                      const GradientTiles& tiles, const Target& target, std::source_location where) {
    check_attention(shape, where);
    require_tiles_of_units(tiles, where);
    return GradientSchedule(gradients, shape, tiles, target, where).run();
}

}  // namespace tw::schedules
