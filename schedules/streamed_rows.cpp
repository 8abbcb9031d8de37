#include "schedules/streamed_rows.h"

#include <algorithm>
#include <numeric>

#include "schedules/cooperative_rows.h"
#include "schedules/producers.h"
#include "schedules/require_sizes.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

constexpr int64_t bytes_of_chunk = 64;  // of a thread, in flight: four vectors of 16
constexpr int64_t least_threads = 128;  // a block

class StreamedRows {
public:
    StreamedRows(Schedule& s, const std::vector<Tensor>& results, const std::vector<Stage>& made,
                 const RowChunks& shape, const Tensor& aligned, std::source_location where)
        : s_(s), y_(s[results.at(0)]), shape_(shape), aligned_(aligned), where_(where) {
        for (const Tensor& result : results) results_.push_back(s[result]);
        for (const Stage& stage : s.all_stages())
            if (!holds(made, stage)) others_.push_back(stage);
    }

    void run() {
        const std::vector<Stage> reducing = reductions();
        user_check(!reducing.empty() || s_.data_loops(y_).size() > 1, where_,
                   "schedule_streamed_rows: '{}' reduces nothing and has no columns; use schedule_elementwise",
                   s_.name(y_));
        rank_ = reducing.empty() ? s_.data_loops(y_).size() - 1 : s_.data_loops(reducing[0]).size();
        inline_elements();
        if (reducing.empty())
            share_elements();
        else
            reduce_in_chunks();
        for (const Stage& stage : behind_) s_.at(stage, row_);
        for (const Stage& stage : behind_) spread(stage);
        for (const std::vector<Stage>& stages : {parts_, behind_})
            for (const Stage& stage : stages)
                if (!holds(results_, stage)) s_.set_memory(stage, Memory::Registers);
    }

private:
    static bool holds(const std::vector<Stage>& stages, const Stage& stage) {
        return std::ranges::any_of(stages, [&](const Stage& each) { return each.id == stage.id; });
    }

    /// What the results are made of, as it is now, producers first.
    std::vector<Stage> made() const {
        std::vector<Stage> needed, found = s_.all_stages();
        for (const Stage& result : results_)
            for (const Stage& stage : producers_of(s_, result)) needed.push_back(stage);
        std::erase_if(found, [&](const Stage& stage) { return holds(others_, stage) || !holds(needed, stage); });
        return found;
    }

    std::vector<Stage> reductions() const {
        std::vector<Stage> found = made();
        std::erase_if(found, [&](const Stage& stage) { return !s_.reduces(stage); });
        return found;
    }

    /// What has more elements than rows, and numbers of rows that data choose.
    void inline_elements() {
        for (const Stage& stage : made())
            if (!holds(results_, stage) && !s_.reduces(stage) &&
                (s_.data_loops(stage).size() > rank_ || reads_by_data(s_, stage)))
                s_.inline_stage(stage);
    }

    /// Values of rows are there before their elements.
    void share_elements() {
        std::vector<Loop> loops = s_.data_loops(y_);
        const Expr columns = s_.extent(loops.back());
        const Loop column = aligned(loops.back());
        const bool shifts = !equal(s_.extent(column), columns);
        loops.pop_back();
        row_ = bind_rows(s_, loops, shape_.rows);
        spread(y_, column, columns, shape_.neighbours, shifts);
        behind_ = made();
        std::erase_if(behind_, [&](const Stage& stage) { return stage.id == y_.id; });
    }

    void reduce_in_chunks() {
        const std::vector<Stage> whole = reductions();
        const std::vector<StageRef> named(whole.begin(), whole.end());
        const Expr columns = s_.extent(s_.reduce(named.back()));
        behind_ = made();
        const Loop terms = aligned(s_.reduce(named.back()));
        const bool shifts = !equal(s_.extent(terms), columns);
        auto [step, in_step] = s_.split(terms, shape_.elements(), Tail::Mask, {"step", "in_step"});
        auto [chunk, in_chunk] = s_.split(in_step, shape_.threads * shape_.neighbours, {"chunk", "in_chunk"});
        auto [share, element] = s_.split(in_chunk, shape_.neighbours, {"share", "element"});
        const std::vector<Stage> parts = s_.rfactor(named, share);
        const Stage owner = parts.back();
        std::vector<Loop> loops = s_.data_loops(owner);  // the share, then rows
        loops.erase(loops.begin());
        row_ = bind_rows(s_, loops, shape_.rows);
        s_.order({row_, share, step, chunk, element});
        s_.bind(share, thread);
        if (parts.size() > 1) s_.stream({parts.begin(), parts.end()}, step);
        for (const Stage& part : parts) unroll_chunk(part);
        parts_ = made();
        std::erase_if(parts_, [&](const Stage& stage) { return holds(behind_, stage); });
        cut_ends(step, owner, columns, shape_.elements(), shifts);
    }

    Loop aligned(const Loop& loop) { return aligned_.defined() ? s_.align(loop, aligned_, shape_.neighbours) : loop; }

    /// Whole steps need no masks, so that their accesses do not wait for conditions.
    void cut_ends(const Loop& step, const Stage& stage, const Expr& columns, int64_t elements, bool shifts) {
        const auto count = as_constant(columns);
        if (!count || (*count > elements && (shifts || *count % elements != 0))) s_.cut(step, where_partial(stage));
    }

    /// Its loops along the vectors of a chunk and their elements.
    void unroll_chunk(const Stage& part) {
        s_.unroll(s_.reduce(part, 1));
        s_.unroll(s_.reduce(part, 2));
    }

    /// Of what stands behind: parts come from all threads, and elements go to all of them.
    void spread(const Stage& stage) {
        if (s_.reduces(stage)) return s_.bind(s_.reduce(stage), thread);
        if (s_.data_loops(stage).size() == rank_) return;
        const std::vector<Loop> loops = s_.data_loops(stage);
        const Loop column = loops.size() == rank_ + 1
                                ? loops.back()
                                : s_.fuse({loops.begin() + static_cast<std::ptrdiff_t>(rank_), loops.end()}, "column");
        const Expr columns = s_.extent(column);
        const int64_t all = aligned_.defined() ? as_constant(columns).value_or(1) : 0;
        spread(stage, column, columns, std::gcd(shape_.neighbours, all), false);
    }

    void spread(const Stage& stage, const Loop& column, const Expr& columns, int64_t neighbours, bool shifts) {
        const int64_t vectors = shape_.threads * neighbours, elements = vectors * shape_.vectors;
        auto [step, in_step] = s_.split(column, elements, Tail::Mask, {"step", "in_step"});
        auto [chunk, in_chunk] = s_.split(in_step, vectors, {"chunk", "in_chunk"});
        auto [share, element] = s_.split(in_chunk, neighbours, {"share", "element"});
        s_.unroll(chunk);
        s_.bind(share, thread);
        if (neighbours > 1) s_.bind(element, vector);
        cut_ends(step, stage, columns, elements, shifts);
    }

    Schedule& s_;
    Stage y_;
    std::vector<Stage> results_, others_;
    const RowChunks shape_;
    const Tensor aligned_;
    std::source_location where_;
    size_t rank_ = 0;  // of rows
    Loop row_;
    std::vector<Stage> parts_, behind_;  // what a thread makes, and what is made of that
};

}  // namespace

RowChunks row_chunks(int64_t columns, int64_t neighbours, Type type, std::source_location where) {
    require_sizes("row_chunks", {{"columns", columns, 0}, {"neighbours", neighbours}}, where);
    const int64_t chunk = bytes_of_chunk / bytes_of(type);
    RowChunks shape{.threads = 32, .rows = 1, .neighbours = neighbours, .vectors = 1};
    while (shape.threads < 256 && shape.threads * chunk < columns) shape.threads *= 2;
    const int64_t vectors = (columns + shape.threads * neighbours - 1) / (shape.threads * neighbours);
    shape.vectors = std::clamp<int64_t>(vectors, 1, chunk / neighbours);
    shape.rows = std::max<int64_t>(least_threads / shape.threads, 1);
    return shape;
}

void schedule_streamed_rows(Schedule& s, const Tensor& y, const RowChunks& shape, const Tensor& aligned,
                            std::source_location where) {
    CalledFrom caller(where);
    schedule_streamed_rows(s, {y}, producers_of(s, s[y]), shape, aligned, where);
}

void schedule_streamed_rows(Schedule& s, const std::vector<Tensor>& results, const std::vector<Stage>& made,
                            const RowChunks& shape, const Tensor& aligned, std::source_location where) {
    CalledFrom caller(where);
    require_sizes("row chunks",
                  {{"threads", shape.threads},
                   {"rows", shape.rows},
                   {"neighbours", shape.neighbours},
                   {"vectors", shape.vectors}},
                  where);
    StreamedRows(s, results, made, shape, aligned, where).run();
}

}  // namespace tw::schedules
