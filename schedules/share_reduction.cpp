#include "schedules/share_reduction.h"

#include <algorithm>

#include "dsl/simplify.h"
#include "schedules/choices.h"
#include "schedules/long_reductions.h"

namespace tw::schedules {
namespace {

constexpr int64_t Threads = 256, WarpThreads = 32, MostThreads = 1024;
constexpr int64_t FewResults = 4096, SomeResults = 1 << 17;
constexpr int64_t ThreadsWanted = 1024, TermsOfThread = 16;  // of a multiprocessor, and each at least

/// Loops over terms, those that are equally long everywhere.
std::vector<Loop> even_reduce_loops(const Schedule& s, Stage stage) {
    std::vector<Loop> loops = s.all_loops(stage);
    const auto data = static_cast<std::ptrdiff_t>(s.data_loops(stage).size());
    loops.erase(loops.begin(), loops.begin() + data);
    std::erase_if(loops, [&](const Loop& loop) { return !as_constant(s.extent(loop)); });
    return loops;
}

void spread(Schedule& s, const std::vector<Loop>& loops, int64_t results) {
    if (loops.empty()) return;
    auto [block, inside] = s.split(s.fuse(loops, "all"), results, Tail::Mask, {"block", "result"});
    s.bind(block, grid.x);
    s.bind(inside, thread);
}

}  // namespace

bool may_reorder(const std::vector<Tensor>& outputs) {
    bool commutative = true;
    for (const auto& operation : operations_of(outputs))
        for (const auto& output : operation->outputs) {
            if (operation->is_input()) continue;
            visit(output.body, [&](const Expr& expr) {
                if (const Reduce* reduce = expr.as<Reduce>()) commutative &= reduce->reducer->commutative;
            });
        }
    return commutative;
}

void spread_results(Schedule& s, Stage stage, int64_t results) {
    if (!s.data_loops(stage).empty())
        spread(s, s.data_loops(stage), pick(s.name(stage), "results", {32, 64, 128, 256, 512}, results));
}

namespace {

/// How many, SomeResults + 1 if there are more or it is not known.
int64_t results_of(const Schedule& s, Stage stage) {
    int64_t results = 1;
    for (Loop loop : s.data_loops(stage)) {
        const int64_t extent = as_constant(s.extent(loop)).value_or(SomeResults + 1);
        results = std::min(results * std::min(extent, SomeResults + 1), SomeResults + 1);
    }
    return results;
}

/// A warp each, or more threads where results alone leave multiprocessors idle and terms are many.
int64_t sharers_of(const Schedule& s, Stage stage, int64_t terms) {
    const int64_t wanted = std::max(s.target().multiprocessors, 1) * ThreadsWanted,
                  results = std::max<int64_t>(results_of(s, stage), 1);
    int64_t sharers = WarpThreads;
    while (sharers < Threads && sharers * results < wanted && terms >= 2 * sharers * TermsOfThread) sharers *= 2;
    return sharers;
}

}  // namespace

bool has_few_results(const Schedule& s, Stage stage) { return results_of(s, stage) <= FewResults; }

bool is_worth_sharing(const Schedule& s, Stage stage) {
    const std::vector<Loop> even = even_reduce_loops(s, stage);
    int64_t terms = 1;
    for (const Loop& loop : even) terms = std::min(terms * *as_constant(s.extent(loop)), WarpThreads);
    const bool has_one_axis = s.all_loops(stage).size() == s.data_loops(stage).size() + 1;
    return has_one_axis || terms == WarpThreads;
}

void share_reduction(Schedule& s, Stage stage) {
    Loop terms = s.reduce(stage);
    const std::vector<Loop> even = even_reduce_loops(s, stage);
    if (even.size() > 1 || (even.size() == 1 && even[0].id != terms.id)) {
        std::vector<Loop> order = s.data_loops(stage);
        order.insert(order.end(), even.begin(), even.end());
        for (const Loop& loop : s.all_loops(stage))
            if (std::ranges::none_of(order, [&](const Loop& known) { return known.id == loop.id; }))
                order.push_back(loop);
        s.order(order);
        terms = even.size() > 1 ? s.fuse(even, "term") : even[0];
    }
    const int64_t sharers = pick(s.name(stage), "sharers", {4, 8, 16, 32, 64, 128, 256},
                                 sharers_of(s, stage, as_constant(s.extent(terms)).value_or(0)));
    auto [step, share] = s.split(terms, sharers, Tail::Mask, {"step", "share"});
    std::vector<int64_t> reductions{1, 2, 4, 8, 16};
    std::erase_if(reductions, [&](int64_t each) { return each * sharers > MostThreads; });
    spread(s, s.data_loops(stage),
           pick(s.name(stage), "reductions", reductions, std::max<int64_t>(Threads / sharers, 1)));
    s.bind(share, thread);
}

bool reduce_together(Schedule& s, Stage stage) {
    const int64_t results = results_of(s, stage);
    const bool is_shared = results <= SomeResults && is_worth_sharing(s, stage);
    const std::string by_rule = results <= FewResults || !is_shared ? "together" : "by_one";
    const std::string way = pick(s.name(stage), "reduced", {"together", "by_warps", "by_one"}, by_rule);
    if (way == "by_one") return false;
    if (way == "together" && take_full_reduction(s, stage)) return true;
    if (is_shared) share_reduction(s, stage);
    return is_shared;
}

}  // namespace tw::schedules
