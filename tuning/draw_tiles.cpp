#include "tuning/draw_tiles.h"

#include <algorithm>
#include <bit>
#include <set>

#include "dsl/edit.h"
#include "dsl/simplify.h"

namespace tw::tuning {
namespace {

constexpr int64_t many = 1 << 20;  // iterations of a loop that no constant tells

/// Loops of one axis.
struct Tiled {
    std::vector<Loop> block = {}, thread = {}, result = {};  // none or one each
    bool side_by_side = false;                               // a thread's results
};

class TileDrawer {
public:
    TileDrawer(Schedule& s, const Stage& stage, Random& random) : s_(s), stage_(stage), random_(random) {}

    void draw() {
        for (const Loop& loop : s_.all_loops(stage_))
            (Edit::state_of(s_)->loops[static_cast<size_t>(loop.id)].reduces ? terms_ : data_).push_back(loop);
        if (!terms_.empty() && random_.chance(0.4)) return share_terms();
        tile();
    }

private:
    int64_t extent_of(const Loop& loop) const { return as_constant(s_.extent(loop)).value_or(many); }

    /// So many, a power of two, spread over the axes: the last one mostly has the most.
    std::vector<int64_t> spread(int64_t count, double of_last) {
        std::vector<int64_t> parts(data_.size(), 1);
        if (data_.empty()) return parts;
        const int64_t last = power_of_two_from(extent_of(data_.back()));
        if (random_.chance(of_last)) {
            const int64_t wanted = random_.pick(std::vector<int64_t>{8, 16, 32, 64, count});
            parts.back() = std::min({last, count, wanted});
            count /= parts.back();
        }
        for (int tries = 24; tries > 0 && count > 1; --tries) {
            const auto d = static_cast<size_t>(random_.below(static_cast<int64_t>(data_.size())));
            if (2 * parts[d] > power_of_two_from(extent_of(data_[d]))) continue;
            parts[d] *= 2, count /= 2;
        }
        return parts;
    }

    Tiled split_axis(const Loop& loop, int64_t threads, int64_t results) {
        Tiled made;
        if (threads * results == 1) {
            made.block = {loop};
            return made;
        }
        const auto [block, inside] = s_.split(loop, threads * results, Tail::Mask);
        made.block = {block};
        made.side_by_side = random_.chance(0.5);
        if (results == 1) {
            made.thread = {inside};
        } else if (threads == 1) {
            made.result = {inside};
        } else {
            const auto [outer, inner] = s_.split(inside, made.side_by_side ? results : threads, Tail::Mask);
            made.thread = {made.side_by_side ? outer : inner};
            made.result = {made.side_by_side ? inner : outer};
        }
        return made;
    }

    std::vector<Tiled> split_data(const std::vector<int64_t>& threads, const std::vector<int64_t>& results) {
        std::vector<Tiled> all;
        for (size_t d = 0; d < data_.size(); ++d) all.push_back(split_axis(data_[d], threads[d], results[d]));
        return all;
    }

    static std::vector<Loop> all_of(const std::vector<Tiled>& tiled, std::vector<Loop> Tiled::*part) {
        std::vector<Loop> loops;
        for (const Tiled& each : tiled) loops.insert(loops.end(), (each.*part).begin(), (each.*part).end());
        return loops;
    }

    static void append(std::vector<Loop>& loops, const std::vector<Loop>& more) {
        loops.insert(loops.end(), more.begin(), more.end());
    }

    /// The last one on grid.x; all as one where grid.y and grid.z have no room.
    void bind_blocks(const std::vector<Loop>& blocks) {
        if (blocks.empty()) return;
        const std::vector<Level> levels{grid.x, grid.y, grid.z};
        bool fits = blocks.size() <= levels.size();
        for (size_t k = 0; fits && k + 1 < blocks.size(); ++k) fits = extent_of(blocks[k]) <= s_.target().max_grid_yz;
        if (!fits) return s_.bind(s_.fuse(blocks, "block"), grid.x);
        for (size_t k = 0; k < blocks.size(); ++k) s_.bind(blocks[k], levels[blocks.size() - 1 - k]);
    }

    /// Terms in steps: loops of steps, loops of a step's terms.
    std::pair<std::vector<Loop>, std::vector<Loop>> split_terms() {
        std::vector<Loop> steps, inside;
        for (const Loop& loop : terms_) {
            const int64_t size = random_.pick(std::vector<int64_t>{1, 4, 8, 16, 32, 64}), extent = extent_of(loop);
            if (size == 1 || !as_constant(s_.extent(loop))) {
                steps.push_back(loop);
            } else if (size >= extent) {
                inside.push_back(loop);
            } else {
                const auto [step, term] = s_.split(loop, size, Tail::Mask);
                steps.push_back(step), inside.push_back(term);
            }
        }
        return {steps, inside};
    }

    void tile() {
        const std::vector<int64_t> threads = spread(random_.pick(std::vector<int64_t>{32, 64, 128, 256, 512}), 0.8),
                                   results = spread(random_.pick(std::vector<int64_t>{1, 1, 2, 4, 8, 16, 32, 64}), 0.3);
        const std::vector<Tiled> tiled = split_data(threads, results);
        const auto [steps, inside] = split_terms();
        const std::vector<Loop> blocks = all_of(tiled, &Tiled::block), bound = all_of(tiled, &Tiled::thread),
                                own = all_of(tiled, &Tiled::result);
        std::vector<Loop> order = blocks;
        append(order, bound);
        const int64_t place = random_.below(5);  // of a thread's results: mostly inside of all terms
        if (place == 0) append(order, own);
        append(order, steps);
        if (place == 1) append(order, own);
        append(order, inside);
        if (place > 1) append(order, own);
        if (order.empty()) return;
        s_.order(order);
        bind_blocks(blocks);
        if (!bound.empty()) s_.bind(bound, thread);
        if (place > 1 && !tiled.empty() && tiled.back().side_by_side && !own.empty() && random_.chance(0.5))
            try_step(s_, [&](Schedule& s) { s.bind(own.back(), vector); });
        if (!steps.empty() && random_.chance(0.6)) copy_operands(steps.back());
        if (steps.empty() && !blocks.empty() && random_.chance(0.3)) copy_operands(s_.all_loops(stage_)[0]);
    }

    void copy_operands(const Loop& loop) {
        bool copies = false;
        for (const StageRef& operand : operands_of(s_, stage_))
            if (random_.chance(0.7))
                copies |= try_step(s_, [&](Schedule& s) { s.stage(stage_, operand, Memory::Shared, loop); });
        if (copies && random_.chance(0.3))
            try_step(s_, [&](Schedule& s) { s.pipeline(loop, {.stages = static_cast<int>(random_.between(2, 4))}); });
    }

    /// The terms of the last reduce loop are shared by threads; others are steps.
    void share_terms() {
        const std::vector<int64_t> rows = spread(random_.pick(std::vector<int64_t>{1, 1, 4, 8, 32}), 0.9),
                                   results = spread(random_.pick(std::vector<int64_t>{1, 1, 1, 2, 4}), 0.5);
        const std::vector<Tiled> tiled = split_data(rows, results);
        int64_t in_rows = 1;
        for (const int64_t each : rows) in_rows *= each;
        const int64_t sharers = std::max<int64_t>(
            2, std::min<int64_t>(random_.pick(std::vector<int64_t>{8, 32, 128, 256, 512}), 1024 / in_rows));
        const int64_t side_by_side = random_.pick(std::vector<int64_t>{1, 1, 2, 4, 8});
        auto [step, share] = s_.split(terms_.back(), sharers * side_by_side, Tail::Mask);
        std::vector<Loop> inside;
        if (side_by_side > 1) {
            const auto [sharer, term] = s_.split(share, side_by_side, Tail::Mask);
            share = sharer, inside = {term};
        }
        const std::vector<Loop> blocks = all_of(tiled, &Tiled::block), bound = all_of(tiled, &Tiled::thread),
                                own = all_of(tiled, &Tiled::result);
        std::vector<Loop> order = blocks;
        append(order, bound);
        append(order, {terms_.begin(), terms_.end() - 1});
        append(order, {step, share});
        append(order, own);
        append(order, inside);
        s_.order(order);
        bind_blocks(blocks);
        const bool terms_first = random_.chance(0.5);  // the first bound are slowest
        if (terms_first) s_.bind(share, thread);
        if (!bound.empty()) s_.bind(bound, thread);
        if (!terms_first) s_.bind(share, thread);
        if (!inside.empty()) s_.bind(inside[0], unrolled);
    }

    Schedule& s_;
    const Stage stage_;
    Random& random_;
    std::vector<Loop> data_, terms_;
};

}  // namespace

void draw_tiles(Schedule& s, const Stage& stage, Random& random) { TileDrawer(s, stage, random).draw(); }

void share_elements(Schedule& s, const Stage& stage, int64_t threads) {
    const std::vector<Loop> loops = s.data_loops(stage);
    if (loops.empty()) return;
    const auto [turn, shared] = s.split(s.fuse(loops, "all"), threads, Tail::Mask);
    s.bind(shared, thread);
}

std::vector<StageRef> operands_of(Schedule& s, const Stage& stage) {
    const Schedule::State& state = *Edit::state_of(s);
    std::vector<StageRef> found;
    std::set<std::pair<const Operation*, int>> seen;
    for (const ReadSite& site : reads_of(state.stages[static_cast<size_t>(stage.id)].definition)) {
        const Operation* operation = site.read->operation.get();
        if (!seen.emplace(operation, site.read->output).second) continue;
        const int source = state.stage_of(operation);
        if (source >= 0)
            found.push_back(state.handle_of_stage(source));
        else if (operation->is_input())
            found.push_back(Tensor(site.read->operation, site.read->output));
    }
    return found;
}

int64_t power_of_two_from(int64_t least) {
    return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(least, 1))));
}

}  // namespace tw::tuning
