#include "schedules/walked_gradients.h"

#include <algorithm>
#include <regex>

#include "schedules/elementwise.h"
#include "schedules/gradient_nest.h"
#include "schedules/loading_roles.h"
#include "schedules/whole_tiles.h"

namespace tw::schedules {
namespace {

constexpr int64_t threads_of_delta = 128;

class WalkedGradientSchedule {
public:
    WalkedGradientSchedule(const WalkedGradients& gradients, const WalkedShape& shape, const GradientTiles& tiles,
                           const Target& target, std::source_location where)
        : shape_(shape), tiles_(tiles), a_(gradients), s_(results(gradients), target), where_(where) {}

    Schedule run() {
        schedule_delta();
        for (const RowNumber& each : a_.row_numbers)
            if (!each.of_keys.same(each.saved)) schedule_each_element(s_, each.of_keys, threads_of_delta, where_);
        schedule_queries();
        schedule_keys();
        if (!tiles_.passes.together) schedule_values();
        if (a_.d_sinks.defined()) schedule_sinks();
        for (const Tensor& operand : {a_.q, a_.k, a_.v}) inline_view(s_, operand, where_);
        return std::move(s_);
    }

private:
    static std::vector<Tensor> results(const WalkedGradients& a) {
        std::vector<Tensor> all{a.dq, a.dk, a.dv};
        if (a.d_sinks.defined()) all.push_back(a.d_sinks);
        return all;
    }

    /// A block for each head and part of the rows of a batch, then one for each head.
    void schedule_sinks() {
        constexpr int64_t threads = 256, rows_of_part = 16 * threads;
        Loop part = s_.split(s_.all_loops(a_.d_sinks).back(), rows_of_part, Tail::Mask, {"part", "in_part"}, where_)[0];
        if (shape_.batches) part = s_.fuse(s_.reduce(a_.d_sinks, 0), part, "part_of_batch", where_);
        const Stage of_part = s_.rfactor(a_.d_sinks, part, Combine::Workspace, where_);
        for (const StageRef& sums : {StageRef(of_part), StageRef(a_.d_sinks)}) {
            const std::vector<Loop> of_sums = s_.data_loops(sums, where_);
            s_.order(of_sums, where_);
            s_.bind(s_.fuse(of_sums, "sums", where_), grid.x, where_);
            auto [step, in_step] = s_.split(s_.reduce(sums), threads, Tail::Mask, {"step", "in_step"}, where_);
            s_.bind(in_step, thread, where_);
        }
    }

    /// A stage that reads what a tensor's element is made of.
    struct Maker {
        Tensor made;
        StageRef stage;
    };
    Maker maker(const Tensor& made) const { return {made, StageRef(made, where_)}; }
    static std::vector<StageRef> readers_of(const Tensor& tensor, const std::vector<Maker>& makers) {
        std::vector<StageRef> readers;
        for (const Maker& each : makers)
            if (reads(each.made, tensor)) readers.push_back(each.stage);
        return readers;
    }

    /// What makers read of a thread's row, or key, the thread keeps; what they read of those that a step goes through
    /// is loaded, if boxes can begin at any row of it.
    void move_lines(const WalkedScores& of, const std::vector<Maker>& makers, const GradientNest& n,
                    std::vector<StageRef>& loaded) {
        for (const Tensor& line : of.kept)
            if (const auto readers = readers_of(line, makers); !readers.empty()) {
                s_.stage(readers, line, Memory::Registers, n.group, where_);
                if (!line.operation()->is_input()) s_.inline_stage(line, where_);
            }
        for (const Tensor& line : of.brought)
            if (const auto readers = readers_of(line, makers); !readers.empty()) {
                if (has_boxes(line)) loaded.push_back(s_.stage(readers, line, Memory::Shared, n.step, where_));
                s_.inline_stage(line, where_);
            }
    }
    /// Of the rows of the input that a view reads.
    static bool has_boxes(const Tensor& view) {
        bool has = true;
        visit(view.operation()->outputs[0].body, [&](const Expr& e) {
            const Read* read = e.as<Read>();
            if (!read || !read->guarded) return;
            const auto extent = as_constant(read->operation->shape.back());
            has = has && read->operation->strides.empty() && extent && *extent * bytes_of(e.type()) % bytes_of_box == 0;
        });
        return has;
    }

    /// The probabilities, and what dv reads of them, or of what a rule makes of them: that is added to the makers.
    void keep_for_values(const WalkedScores& of, const Loop& step, std::vector<Maker>& makers) {
        if (of.w.same(of.p)) {
            keep(of.p, step);
            round_for(a_.dv, of.p, step);
            return;
        }
        makers.push_back({of.w, round_for(a_.dv, of.w, step)});
        s_.inline_stage(of.w, where_);
        keep(of.p, step);
    }

    /// A row is summed by threads side by side, each with a few neighbours of it.
    void schedule_delta() {
        const Loop rows = s_.fuse(s_.data_loops(a_.delta, where_), "all_rows", where_);
        int64_t lanes = 1;
        while (lanes < divided(shape_.width, piece) && lanes < 32) lanes *= 2;
        auto [block, row] = s_.split(rows, threads_of_delta / lanes, Tail::Mask, {"row_block", "row"}, where_);
        auto [part, in_part] = s_.split(s_.reduce(a_.delta), lanes * piece, Tail::Mask, {"part", "in_part"}, where_);
        auto [lane, element] = s_.split(in_part, piece, {"lane", "element"}, where_);
        s_.bind(block, grid.x, where_);
        s_.bind(row, thread, where_);
        s_.bind(lane, thread, where_);
        s_.unroll(element, where_);
    }

    /// Of an operand or a gradient: tokens and heads in the order in which they lie.
    struct TokenLoops {
        std::vector<Loop> batch;
        Loop token, head, x;
    };
    TokenLoops loops_of(const Tensor& of_tokens) const {
        const std::vector<Loop> all = s_.data_loops(of_tokens, where_);
        const size_t first = shape_.batches ? 1 : 0, head = shape_.heads_first ? first : first + 1;
        return {{all.begin(), all.begin() + static_cast<std::ptrdiff_t>(first)},
                all[shape_.heads_first ? first + 1 : first],
                all[head],
                all.back()};
    }

    GradientNest nest_of(const Tensor& gradient, int64_t rows, int64_t step_extent, bool of_keys) {
        auto [batch, i, h, columns] = loops_of(gradient);
        const bool of_group = of_keys && shape_.group > 1;
        const int64_t width = as_constant(s_.extent(columns)).value();
        auto [x_tile, x] = s_.split(columns, padded_head(width), Tail::Mask, {"x_tile", "x"}, where_);
        auto [block, in_block] = s_.split(i, rows, Tail::Mask, {"block", "in_block"}, where_);
        auto [group, row] = s_.split(in_block, rows_of_unit, {"group", "row"}, where_);
        auto [step, term] = s_.split(s_.reduce(gradient, of_group ? 1 : 0), step_extent, {"step", "term"}, where_);
        std::vector<Loop> tiles = batch;
        tiles.insert(tiles.end(), {h, block});
        std::vector<Loop> order = tiles;
        order.insert(order.end(), {x_tile, group});
        if (of_group) order.push_back(s_.reduce(gradient, 0));
        order.insert(order.end(), {step, row, x, term});
        s_.order(order, where_);
        // Of causal sequences the last rows see the most keys, and the first keys are seen by the most rows.
        int64_t blocks = 1;
        for (const Loop& tile : tiles) blocks *= as_constant(s_.extent(tile)).value();
        s_.persistent(tiles, {.blocks = static_cast<int>(blocks), .longest_first = !of_keys}, where_);
        s_.bind(group, warpgroup, where_);
        return {block, group, step, row, x, term};
    }

    /// The tile of scores or of their adjoints under a step, in registers; of keys by rows if `transposed`.
    MmaLoops product_under(const Loop& step, const Tensor& product, int64_t terms, bool transposed) {
        keep(product, step);
        std::vector<Loop> order = s_.data_loops(product, where_);
        const Loop i = order[order.size() - 2], j = order.back();
        auto [k_tile, k] = s_.split(s_.reduce(product), padded_head(terms), Tail::Mask, {"k_tile", "k"}, where_);
        const Loop m = transposed ? j : i, n = transposed ? i : j;
        order.resize(order.size() - 2);
        order.insert(order.end(), {k_tile, m, n, k});
        s_.order(order, where_);
        return {.m = m, .n = n, .k = k};
    }

    void keep(const Tensor& made, const Loop& step) {
        s_.at(made, step, where_);
        s_.set_memory(made, Memory::Registers, where_);
    }
    /// What a gradient reads of it is rounded to the operands' type, in registers.
    Stage round_for(const Tensor& gradient, const Tensor& made, const Loop& step) {
        const Stage rounded = s_.stage(gradient, made, Memory::Registers, step, where_);
        s_.round_to(rounded, shape_.type, where_);
        return rounded;
    }
    Stage load(const std::vector<StageRef>& readers, const Tensor& operand, const Loop& loop) {
        return s_.stage(readers, operand, Memory::Shared, loop, where_);
    }
    void finish(const GradientNest& n, const Tensor& gradient, const std::vector<StageRef>& loaded, int64_t rows) {
        s_.pipeline(n.step, {.stages = tiles_.stages}, where_);
        s_.roles(loading_roles(s_.target(), loaded, gradient, {.warpgroups = rows / rows_of_unit}), where_);
    }

    void schedule_queries() {
        const WalkedScores& of = a_.of_queries;
        const GradientNest n = nest_of(a_.dq, tiles_.query_rows, tiles_.query_step, false);
        keep(of.ds, n.step);
        keep(of.p, n.step);
        round_for(a_.dq, of.ds, n.step);
        s_.mma(a_.dq, wgmma, {.m = n.row, .n = n.column, .k = n.term}, where_);
        const MmaLoops of_s = product_under(n.step, of.s, shape_.depth, false),
                       of_dp = product_under(n.step, of.dp, shape_.width, false);
        std::vector<StageRef> loaded{load({of.s}, a_.q, n.tile), load({of.dp}, a_.g, n.tile),
                                     load({of.s, a_.dq}, a_.k_tile, n.step), load({of.dp}, a_.v_tile, n.step)};
        for (const Tensor& view : {a_.k_tile, a_.v_tile}) s_.inline_stage(view, where_);
        for (const RowNumber& each : a_.row_numbers)
            s_.stage(of.p, each.of_queries, Memory::Registers, n.group, where_);
        move_lines(of, {maker(of.p), maker(of.ds)}, n, loaded);
        s_.stage(of.ds, a_.delta, Memory::Registers, n.group, where_);
        s_.mma(of.s, wgmma, of_s, where_);
        s_.mma(of.dp, wgmma, of_dp, where_);
        finish(n, a_.dq, loaded, tiles_.query_rows);
    }

    /// Views of rows, once all kernels that read them have their copies.
    void inline_rows() {
        for (const Tensor& view : {a_.q_tile, a_.g_tile}) s_.inline_stage(view, where_);
        for (const RowNumber& each : a_.row_numbers) s_.inline_stage(each.tile, where_);
    }

    /// Rows, columns and terms of dv, which is made beside dk.
    void order_values() {
        auto [batch, j, h, x] = loops_of(a_.dv);
        std::vector<Loop> order = batch;
        order.push_back(h);
        if (shape_.group > 1) order.push_back(s_.reduce(a_.dv, 0));
        order.insert(order.end(), {j, x, s_.all_loops(a_.dv).back()});
        s_.order(order, where_);
    }

    void schedule_keys() {
        const WalkedScores& of = a_.of_keys;
        const bool together = tiles_.passes.together;
        const GradientNest n = nest_of(a_.dk, tiles_.key_rows, tiles_.key_step, true);
        if (together) s_.stream({a_.dv, a_.dk}, n.step, where_);
        std::vector<Maker> makers{maker(of.p), maker(of.ds)};
        keep(of.ds, n.step);
        if (together)
            keep_for_values(of, n.step, makers);
        else
            keep(of.p, n.step);
        round_for(a_.dk, of.ds, n.step);
        std::vector<StageRef> sums{a_.dk};
        if (together) {
            order_values();
            sums.emplace_back(a_.dv);
        }
        s_.mma(sums, wgmma, where_);
        const MmaLoops of_s = product_under(n.step, of.s, shape_.depth, true),
                       of_dp = product_under(n.step, of.dp, shape_.width, true);
        std::vector<StageRef> of_g{of.dp};
        if (together) of_g.emplace_back(a_.dv);
        std::vector<StageRef> loaded{load({of.s}, a_.k, n.tile), load({of.dp}, a_.v, n.tile),
                                     load({of.s, a_.dk}, a_.q_tile, n.step), load(of_g, a_.g_tile, n.step)};
        for (const RowNumber& each : a_.row_numbers) loaded.push_back(load({of.p}, each.tile, n.step));
        loaded.push_back(load({of.ds}, a_.delta_tile, n.step));
        if (together) inline_rows();
        s_.inline_stage(a_.delta_tile, where_);
        move_lines(of, makers, n, loaded);
        s_.mma(of.s, wgmma, of_s, where_);
        s_.mma(of.dp, wgmma, of_dp, where_);
        finish(n, a_.dk, loaded, tiles_.key_rows);
    }

    void schedule_values() {
        const WalkedScores& of = a_.of_values;
        const GradientNest n = nest_of(a_.dv, tiles_.key_rows, tiles_.key_step, true);
        std::vector<Maker> makers{maker(of.p)};
        keep_for_values(of, n.step, makers);
        s_.mma(a_.dv, wgmma, {.m = n.row, .n = n.column, .k = n.term}, where_);
        const MmaLoops of_s = product_under(n.step, of.s, shape_.depth, true);
        std::vector<StageRef> loaded{load({of.s}, a_.k, n.tile), load({of.s}, a_.q_tile, n.step),
                                     load({a_.dv}, a_.g_tile, n.step)};
        for (const RowNumber& each : a_.row_numbers) loaded.push_back(load({of.p}, each.tile, n.step));
        inline_rows();
        move_lines(of, makers, n, loaded);
        s_.mma(of.s, wgmma, of_s, where_);
        finish(n, a_.dv, loaded, tiles_.key_rows);
    }

    static constexpr int64_t bytes_of_box = 16;

    const WalkedShape& shape_;
    const GradientTiles& tiles_;
    const WalkedGradients& a_;
    Schedule s_;
    std::source_location where_;
};

}  // namespace

Schedule walked_gradients_schedule(const WalkedGradients& gradients, const WalkedShape& shape,
                                   const GradientTiles& tiles, const Target& target, std::source_location where) {
    require_tiles_of_units(tiles, where);
    return WalkedGradientSchedule(gradients, shape, tiles, target, where).run();
}

GradientTiles walked_gradient_tiles(const AttentionShape& shape, int64_t rows, const Target& target) {
    GradientTiles tiles = gradient_tiles(shape, target, false, 0);
    tiles.query_rows = rows;
    tiles.key_rows = GradientTiles().key_rows;
    return tiles;
}

std::optional<WalkedName> parse_walked_tiles(const std::string& name) {
    static const std::regex form("(.*?)(?:_tile(\\d{1,4})x(\\d{1,4})q(\\d{1,4})x(\\d{1,4})s([1-9])(a)?)?");
    std::smatch match;
    if (!std::regex_match(name, match, form)) return {};
    WalkedName named{.forward = match[1], .tiles = {}};
    if (!match[2].matched) return named;
    named.tiles = GradientTiles{.key_rows = std::stoll(match[2]),
                                .key_step = std::stoll(match[3]),
                                .query_rows = std::stoll(match[4]),
                                .query_step = std::stoll(match[5]),
                                .stages = std::stoi(match[6]),
                                .passes = {.together = !match[7].matched}};
    for (int64_t rows : {named.tiles->key_rows, named.tiles->query_rows})
        if (rows % rows_of_unit != 0 || rows > 3 * rows_of_unit || rows == 0) return {};
    for (int64_t step : {named.tiles->key_step, named.tiles->query_step})
        if (step % 16 != 0 || step == 0) return {};
    return named;
}

}  // namespace tw::schedules
