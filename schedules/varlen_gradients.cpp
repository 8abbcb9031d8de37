#include "schedules/varlen_gradients.h"

#include <algorithm>
#include <regex>

#include "schedules/elementwise.h"
#include "schedules/gradient_nest.h"
#include "schedules/loading_roles.h"
#include "schedules/whole_tiles.h"

namespace tw::schedules {
namespace {

constexpr int64_t threads_of_delta = 128;

class VarlenGradientSchedule {
public:
    VarlenGradientSchedule(const VarlenGradients& gradients, const VarlenShape& shape, const GradientTiles& tiles,
                           const Target& target, std::source_location where)
        : shape_(shape), tiles_(tiles), a_(gradients), s_(results(gradients), target), where_(where) {}

    Schedule run() {
        schedule_delta();
        if (!a_.lse_of_keys.same(a_.lse)) schedule_each_element(s_, a_.lse_of_keys, threads_of_delta, where_);
        schedule_queries();
        schedule_keys();
        if (!tiles_.passes.together) schedule_values();
        if (a_.d_sinks.defined()) schedule_sinks();
        return std::move(s_);
    }

private:
    static std::vector<Tensor> results(const VarlenGradients& a) {
        std::vector<Tensor> all{a.dq, a.dk, a.dv};
        if (a.d_sinks.defined()) all.push_back(a.d_sinks);
        return all;
    }

    /// A block for each head and part of the rows, then one for each head.
    void schedule_sinks() {
        constexpr int64_t threads = 256, rows_of_part = 16 * threads;
        const Loop part = s_.split(s_.reduce(a_.d_sinks), rows_of_part, Tail::Mask, {"part", "in_part"}, where_)[0];
        const Stage of_part = s_.rfactor(a_.d_sinks, part, Combine::Workspace, where_);
        for (const StageRef& sums : {StageRef(of_part), StageRef(a_.d_sinks)}) {
            const std::vector<Loop> of_sums = s_.data_loops(sums, where_);
            s_.order(of_sums, where_);
            s_.bind(of_sums.size() == 1 ? of_sums[0] : s_.fuse(of_sums, "sums", where_), grid.x, where_);
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

    /// What tables say of its rows, or keys, a thread keeps for those that read it.
    void keep_rows(const std::vector<Tensor>& tables, const std::vector<Maker>& makers, const Loop& group) {
        for (const Tensor& table : tables) {
            std::vector<StageRef> readers;
            for (const Maker& each : makers)
                if (reads(each.made, table)) readers.push_back(each.stage);
            if (!readers.empty()) s_.stage(readers, table, Memory::Registers, group, where_);
        }
    }

    /// The probabilities, and what dv reads of them, or of what a rule makes of them: that is added to the makers.
    void keep_for_values(const VarlenScores& of, const Loop& step, std::vector<Maker>& makers) {
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
        const auto [h, i] = s_.loops<2>(a_.delta, where_);
        const Loop rows = s_.fuse({h, i}, "all_rows", where_);
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

    GradientNest nest_of(const Tensor& gradient, int64_t rows, int64_t step_extent, bool of_keys) {
        auto [i, h, columns] = s_.loops<3>(gradient, where_);
        const bool of_group = of_keys && shape_.group > 1;
        const int64_t width = as_constant(s_.extent(columns)).value();
        auto [x_tile, x] = s_.split(columns, padded_head(width), Tail::Mask, {"x_tile", "x"}, where_);
        auto [block, in_block] = s_.split(i, rows, Tail::Mask, {"block", "in_block"}, where_);
        auto [group, row] = s_.split(in_block, rows_of_unit, {"group", "row"}, where_);
        auto [step, term] = s_.split(s_.reduce(gradient, of_group ? 1 : 0), step_extent, {"step", "term"}, where_);
        std::vector<Loop> order{h, block, x_tile, group};
        if (of_group) order.push_back(s_.reduce(gradient, 0));
        order.insert(order.end(), {step, row, x, term});
        s_.order(order, where_);
        // Of causal sequences the last rows see the most keys, and the first keys are seen by the most rows.
        const int64_t blocks = as_constant(s_.extent(h)).value() * as_constant(s_.extent(block)).value();
        s_.persistent({h, block}, {.blocks = static_cast<int>(blocks), .longest_first = !of_keys}, where_);
        s_.bind(group, warpgroup, where_);
        return {block, group, step, row, x, term};
    }

    /// The tile of scores or of their adjoints under a step, in registers; of keys by rows if `transposed`.
    MmaLoops product_under(const Loop& step, const Tensor& product, int64_t terms, bool transposed) {
        keep(product, step);
        auto [h, i, j] = s_.loops<3>(product, where_);
        auto [k_tile, k] = s_.split(s_.reduce(product), padded_head(terms), Tail::Mask, {"k_tile", "k"}, where_);
        const Loop m = transposed ? j : i, n = transposed ? i : j;
        s_.order({h, k_tile, m, n, k}, where_);
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
        const VarlenScores& of = a_.of_queries;
        const GradientNest n = nest_of(a_.dq, tiles_.query_rows, tiles_.query_step, false);
        keep(of.ds, n.step);
        keep(of.p, n.step);
        round_for(a_.dq, of.ds, n.step);
        s_.mma(a_.dq, wgmma, {.m = n.row, .n = n.column, .k = n.term}, where_);
        const MmaLoops of_s = product_under(n.step, of.s, shape_.depth, false),
                       of_dp = product_under(n.step, of.dp, shape_.width, false);
        const std::vector<StageRef> loaded{load({of.s}, a_.q, n.tile), load({of.dp}, a_.g, n.tile),
                                           load({of.s, a_.dq}, a_.k_tile, n.step), load({of.dp}, a_.v_tile, n.step)};
        for (const Tensor& view : {a_.k_tile, a_.v_tile}) s_.inline_stage(view, where_);
        s_.stage(of.p, a_.lse_of_queries, Memory::Registers, n.group, where_);
        keep_rows({a_.seen, a_.places}, {maker(of.p), maker(of.ds)}, n.group);
        s_.stage(of.ds, a_.delta, Memory::Registers, n.group, where_);
        s_.mma(of.s, wgmma, of_s, where_);
        s_.mma(of.dp, wgmma, of_dp, where_);
        finish(n, a_.dq, loaded, tiles_.query_rows);
    }

    /// Views of rows, once all kernels that read them have their copies.
    void inline_rows() {
        for (const Tensor& view : {a_.q_tile, a_.g_tile, a_.lse_tile}) s_.inline_stage(view, where_);
    }
    /// Of keys, by threads that know which rows see theirs.
    void make_scores(const VarlenScores& of, const GradientNest& n, const std::vector<Maker>& makers,
                     const MmaLoops& of_s) {
        keep_rows({a_.seen_of_keys, a_.places_of_keys}, makers, n.group);
        s_.mma(of.s, wgmma, of_s, where_);
    }

    void schedule_keys() {
        const VarlenScores& of = a_.of_keys;
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
        s_.mma(a_.dk, wgmma, {.m = n.row, .n = n.column, .k = n.term}, where_);
        if (together) {
            auto [j, h, x] = s_.loops<3>(a_.dv, where_);
            const Loop term = s_.all_loops(a_.dv).back();
            if (shape_.group > 1)
                s_.order({h, s_.reduce(a_.dv, 0), j, x, term}, where_);
            else
                s_.order({h, j, x, term}, where_);
            s_.mma(a_.dv, wgmma, {.m = j, .n = x, .k = term}, where_);
        }
        const MmaLoops of_s = product_under(n.step, of.s, shape_.depth, true),
                       of_dp = product_under(n.step, of.dp, shape_.width, true);
        std::vector<StageRef> of_g{of.dp};
        if (together) of_g.emplace_back(a_.dv);
        const std::vector<StageRef> loaded{
            load({of.s}, a_.k, n.tile),    load({of.dp}, a_.v, n.tile),       load({of.s, a_.dk}, a_.q_tile, n.step),
            load(of_g, a_.g_tile, n.step), load({of.p}, a_.lse_tile, n.step), load({of.ds}, a_.delta_tile, n.step)};
        if (together) inline_rows();
        s_.inline_stage(a_.delta_tile, where_);
        make_scores(of, n, makers, of_s);
        s_.mma(of.dp, wgmma, of_dp, where_);
        finish(n, a_.dk, loaded, tiles_.key_rows);
    }

    void schedule_values() {
        const VarlenScores& of = a_.of_values;
        const GradientNest n = nest_of(a_.dv, tiles_.key_rows, tiles_.key_step, true);
        std::vector<Maker> makers{maker(of.p)};
        keep_for_values(of, n.step, makers);
        s_.mma(a_.dv, wgmma, {.m = n.row, .n = n.column, .k = n.term}, where_);
        const MmaLoops of_s = product_under(n.step, of.s, shape_.depth, true);
        const std::vector<StageRef> loaded{load({of.s}, a_.k, n.tile), load({of.s}, a_.q_tile, n.step),
                                           load({a_.dv}, a_.g_tile, n.step), load({of.p}, a_.lse_tile, n.step)};
        inline_rows();
        make_scores(of, n, makers, of_s);
        finish(n, a_.dv, loaded, tiles_.key_rows);
    }

    const VarlenShape& shape_;
    const GradientTiles& tiles_;
    const VarlenGradients& a_;
    Schedule s_;
    std::source_location where_;
};

}  // namespace

Schedule varlen_gradients_schedule(const VarlenGradients& gradients, const VarlenShape& shape,
                                   const GradientTiles& tiles, const Target& target, std::source_location where) {
    return VarlenGradientSchedule(gradients, shape, tiles, target, where).run();
}

GradientTiles varlen_gradient_tiles(const VarlenShape& shape, const Target& target) {
    const AttentionShape padded{.batch = 1,
                                .heads = shape.heads,
                                .rows = shape.rows,
                                .keys = shape.keys,
                                .depth = shape.depth,
                                .width = shape.width,
                                .group = shape.group,
                                .type = shape.type};
    GradientTiles tiles = gradient_tiles(padded, target, false, 0);
    tiles.query_rows = varlen_tiles(shape).rows;
    tiles.key_rows = GradientTiles().key_rows;
    // As of gradient_tiles: a single tile that is not full.
    if (shape.heads == shape.group && shape.keys <= tiles.key_rows && shape.keys % rows_of_unit != 0)
        tiles.passes.together = false;
    return tiles;
}

double varlen_gradients_flops(const VarlenShape& shape, const Offsets& of_rows, const Offsets& of_keys,
                              const SeenKeys& seen) {
    // Of queries and keys: scores, dk and dq. Of values: dp and dv.
    return varlen_flops(shape, of_rows, of_keys, seen) / as_double(shape.depth + shape.width) *
           as_double(3 * shape.depth + 2 * shape.width);
}

std::optional<NamedVarlenGradients> parse_varlen_gradients(const std::string& name) {
    static const std::regex form(
        "attention_varlen_gradients(_.*?)(?:_tile(\\d{1,4})x(\\d{1,4})q(\\d{1,4})x(\\d{1,4})s([1-9])(a)?)?");
    std::smatch match;
    if (!std::regex_match(name, match, form)) return {};
    const auto forward = parse_varlen("attention_varlen" + match[1].str());
    if (!forward || forward->tiles) return {};
    NamedVarlenGradients named{.shape = forward->shape, .rules = forward->rules, .tiles = {}};
    if (match[2].matched) {
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
    }
    return named;
}

}  // namespace tw::schedules
