#include "schedules/share_reduction.h"

#include <algorithm>
#include <numeric>

#include "dsl/simplify.h"
#include "schedules/choices.h"
#include "schedules/long_reductions.h"

namespace tw::schedules {
namespace {

constexpr int64_t Threads = 256, WarpThreads = 32, MostThreads = 1024;
constexpr int64_t FewResults = 4096, SomeResults = 1 << 17;
constexpr int64_t ManyTerms = 1024, ResultsOfThread = 4;     // of those that have their terms in common
constexpr int64_t ThreadsWanted = 1024, TermsOfThread = 16;  // of a multiprocessor, and each at least

/// Loops over terms, those that are equally long everywhere.
std::vector<Loop> even_reduce_loops(const Schedule& s, Stage stage) {
    std::vector<Loop> loops = s.all_loops(stage);
    const auto data = static_cast<std::ptrdiff_t>(s.data_loops(stage).size());
    loops.erase(loops.begin(), loops.begin() + data);
    std::erase_if(loops, [&](const Loop& loop) { return !as_constant(s.extent(loop)); });
    return loops;
}

/// So many threads a block, each of which has `each` neighbouring results, inside of its loops over terms.
void spread(Schedule& s, Stage stage, int64_t results, int64_t each) {
    const std::vector<Loop> loops = s.data_loops(stage);
    if (loops.empty()) return;
    auto [block, inside] = s.split(s.fuse(loops, "all"), results * each, Tail::Mask, {"block", "result"});
    s.bind(block, grid.x);
    if (each == 1) return s.bind(inside, thread);
    auto [result, own] = s.split(inside, each, {"result", "own"});
    std::vector<Loop> order = s.all_loops(stage);
    std::erase_if(order, [own_id = own.id](const Loop& loop) { return loop.id == own_id; });
    order.push_back(own);
    s.order(order);
    s.bind(result, thread);
    s.unroll(own);
}

/// Results of a thread: several share what they read of the terms.
int64_t pick_each(const Schedule& s, Stage stage, int64_t by_rule) {
    return pick(s.name(stage), "each", {1, 2, 4, 8}, by_rule);
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
        spread(s, stage, pick(s.name(stage), "results", {32, 64, 128, 256, 512}, results),
               s.reduces(stage) ? pick_each(s, stage, 1) : 1);
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

/// Of many terms that lie side by side, as many as make a vector wherever it begins.
int64_t neighbours_of_loop(const Schedule& s, Stage stage) {
    const std::vector<Loop> even = even_reduce_loops(s, stage);
    int64_t terms = 1;
    for (const Loop& loop : even) terms *= *as_constant(s.extent(loop));
    return terms < ManyTerms ? 1 : std::gcd(neighbours_of_terms(s, stage), *as_constant(s.extent(even.back())));
}

/// Loads of what the loops around a leaf of the stage make of terms: whether one reads of each result another element.
void see_loads(const Stmt& stmt, int stage, std::vector<Expr>& data, std::vector<Expr>& terms, bool& found) {
    if (const For* loop = stmt.as<For>()) {
        std::vector<Expr>& own = loop->reduces ? terms : data;
        own.push_back(loop->variable);
        see_loads(loop->body, stage, data, terms, found);
        return own.pop_back();
    }
    if (const Allocate* allocation = stmt.as<Allocate>()) return see_loads(allocation->body, stage, data, terms, found);
    if (const Sequence* sequence = stmt.as<Sequence>()) {
        for (const Stmt& each : sequence->stmts) see_loads(each, stage, data, terms, found);
        return;
    }
    const Leaf* leaf = stmt.as<Leaf>();
    if (!leaf || leaf->stage != stage || leaf->kind != Leaf::Kind::Update) return;
    auto mentions = [](const Load& load, const std::vector<Expr>& variables) {
        return std::ranges::any_of(load.indices, [&](const Expr& index) {
            return std::ranges::any_of(variables, [&](const Expr& each) { return contains(index, each); });
        });
    };
    for (const StoreTo& store : leaf->stores)
        visit(store.value, [&](const Expr& e) {
            const Load* load = e.as<Load>();
            found = found || (load && mentions(*load, terms) && mentions(*load, data));
        });
}

/// Whether all results read the same of each term, many of them: a thread's results share it.
bool have_terms_in_common(const Schedule& s, Stage stage) {
    int64_t count = 1;
    for (const Loop& loop : even_reduce_loops(s, stage)) count *= as_constant(s.extent(loop)).value_or(1);
    if (count < ManyTerms) return false;
    bool found = false;
    std::vector<Expr> data, terms;
    for (const Nest& nest : s.tree().nests) see_loads(nest.body, stage.id, data, terms, found);
    return !found;
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
    const int64_t neighbours = neighbours_of_loop(s, stage);
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
    Loop share = terms;
    if (neighbours > 1) {
        const auto [step, in_step] = s.split(terms, sharers * neighbours, Tail::Mask, {"step", "in_step"});
        const auto [own, term] = s.split(in_step, neighbours, {"share", "neighbour"});
        share = own;
        s.unroll(term);
    } else {
        share = s.split(terms, sharers, Tail::Mask, {"step", "share"})[1];
    }
    std::vector<int64_t> reductions{1, 2, 4, 8, 16};
    std::erase_if(reductions, [&](int64_t each) { return each * sharers > MostThreads; });
    const bool has_several = results_of(s, stage) > FewResults && have_terms_in_common(s, stage);
    spread(s, stage, pick(s.name(stage), "reductions", reductions, std::max<int64_t>(Threads / sharers, 1)),
           pick_each(s, stage, has_several ? ResultsOfThread : 1));
    s.bind(share, thread);
}

bool reduce_together(Schedule& s, Stage stage) {
    const int64_t results = results_of(s, stage);
    const bool is_shared = results <= SomeResults && is_worth_sharing(s, stage);
    const bool is_by_rule = results <= FewResults || !is_shared || have_terms_in_common(s, stage);
    const std::string by_rule = is_by_rule ? "together" : "by_one";
    const std::string way = pick(s.name(stage), "reduced", {"together", "by_warps", "by_one"}, by_rule);
    if (way == "by_one") return false;
    if (way == "together" && take_full_reduction(s, stage)) return true;
    took(s.name(stage), "reduced", is_shared ? "by_warps" : "by_one");
    if (is_shared) share_reduction(s, stage);
    return is_shared;
}

}  // namespace tw::schedules
