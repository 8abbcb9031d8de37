#include "schedules/share_reduction.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "dsl/simplify.h"
#include "schedules/choices.h"
#include "schedules/long_reductions.h"

namespace tw::schedules {
namespace {

constexpr int64_t Threads = 256, WarpThreads = 32, MostThreads = 1024;
constexpr int64_t FewResults = 4096, SomeResults = 1 << 17;
constexpr int64_t ManyTerms = 1024, ResultsOfThread = 4;     // of those that have their terms in common
constexpr int64_t MostWithCommonTerms = 8;                   // sums that a thread has in registers, of one distance
constexpr int64_t ThreadsWanted = 1024, TermsOfThread = 16;  // of a multiprocessor, and each at least

/// Loops over terms, those that are equally long everywhere.
std::vector<Loop> even_reduce_loops(const Schedule& s, Stage stage) {
    std::vector<Loop> loops = s.all_loops(stage);
    const auto data = static_cast<std::ptrdiff_t>(s.data_loops(stage).size());
    loops.erase(loops.begin(), loops.begin() + data);
    std::erase_if(loops, [&](const Loop& loop) { return !as_constant(s.extent(loop)); });
    return loops;
}

/// Whether data, or the place of a result, decide how many terms it has: results side by side have their own numbers.
bool has_own_lengths(const Schedule& s, Stage stage) {
    bool found = false;
    for (const Loop& loop : s.all_loops(stage))
        visit(s.extent(loop), [&](const Expr& e) {
            const Variable* variable = e.as<Variable>();
            found = found || e.as<Load>() || e.as<Read>() || (variable && variable->kind != VariableKind::Size);
        });
    return found;
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

/// What adds a term to a result, and the variables of the loops around it, outermost first.
struct Update {
    Leaf leaf;
    std::vector<Expr> data, terms;
};

void find_updates(const Stmt& stmt, int stage, Update& around, std::vector<Update>& found) {
    if (const For* loop = stmt.as<For>()) {
        std::vector<Expr>& own = loop->reduces ? around.terms : around.data;
        own.push_back(loop->variable);
        find_updates(loop->body, stage, around, found);
        return own.pop_back();
    }
    if (const Allocate* allocation = stmt.as<Allocate>()) return find_updates(allocation->body, stage, around, found);
    if (const Sequence* sequence = stmt.as<Sequence>())
        for (const Stmt& each : sequence->stmts) find_updates(each, stage, around, found);
    const Leaf* leaf = stmt.as<Leaf>();
    if (leaf && leaf->stage == stage && leaf->kind == Leaf::Kind::Update)
        found.push_back({*leaf, around.data, around.terms});
}

std::vector<Update> updates_of(const Schedule& s, Stage stage) {
    std::vector<Update> found;
    Update around;
    for (const Nest& nest : s.tree().nests) find_updates(nest.body, stage.id, around, found);
    return found;
}

/// Operations on floats of a term: those that depend on a variable, and all others.
struct TermOperations {
    explicit TermOperations(Expr of) : variable(std::move(of)) {}

    bool count(const Expr& expr) {
        if (auto known = depends.find(expr.id()); known != depends.end()) return known->second;
        bool own = expr.same(variable);
        for (const Expr& kid : children(expr)) own = count(kid) || own;
        const bool computes = is_float(expr.type()) && !children(expr).empty() && !expr.as<Load>();
        if (computes) (own ? with_it : without_it) += cost_of(expr);
        return depends[expr.id()] = own;
    }
    static int64_t cost_of(const Expr& expr) {
        constexpr int64_t of_function = 8;  // about
        const Unary* unary = expr.as<Unary>();
        const Binary* binary = expr.as<Binary>();
        const bool is_long = (unary && unary->op >= UnaryOp::Sqrt) || (binary && binary->op == BinaryOp::Div);
        return is_long ? of_function : 1;
    }

    Expr variable;
    std::map<const ExprNode*, bool> depends;
    int64_t with_it = 0, without_it = 0;
};

/// How many results that differ in their last index only have most of each term in common, as the components of a force
/// have a distance: 1 if they do not.
int64_t results_with_common_terms(const Schedule& s, Stage stage) {
    const std::vector<Loop> loops = s.data_loops(stage);
    const int64_t last = loops.empty() ? 1 : as_constant(s.extent(loops.back())).value_or(1);
    if (last < 2 || last > MostWithCommonTerms) return 1;
    for (const Update& update : updates_of(s, stage)) {
        if (update.data.empty()) return 1;
        TermOperations operations(update.data.back());
        for (const StoreTo& store : update.leaf.stores) operations.count(store.value);
        if (operations.without_it < operations.with_it) return 1;
    }
    return last;
}

/// Results of a thread: several share what they read of the terms, or compute for them.
int64_t pick_each(const Schedule& s, Stage stage, int64_t by_rule) {
    if (has_own_lengths(s, stage)) return 1;
    std::vector<int64_t> options{1, 2, 4, 8};
    const int64_t together = results_with_common_terms(s, stage);
    if (together > 1 && std::ranges::find(options, together) == options.end()) options.push_back(together);
    return pick(s.name(stage), "each", options, together > 1 ? together : by_rule);
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

/// How many, SomeResults + 1 if there are more or it is not known; those of one thread count once.
int64_t results_of(const Schedule& s, Stage stage, bool of_threads = false) {
    int64_t results = 1;
    std::vector<Loop> loops = s.data_loops(stage);
    if (of_threads && results_with_common_terms(s, stage) > 1) loops.pop_back();
    for (Loop loop : loops) {
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

/// Whether all results, but those of one thread, read the same of each term, many of them: a thread's results share it.
bool have_terms_in_common(const Schedule& s, Stage stage) {
    int64_t count = 1;
    for (const Loop& loop : even_reduce_loops(s, stage)) count *= as_constant(s.extent(loop)).value_or(1);
    if (count < ManyTerms) return false;
    const bool differ_in_last = results_with_common_terms(s, stage) > 1;
    auto mentions = [](const Load& load, const std::vector<Expr>& variables) {
        return std::ranges::any_of(load.indices, [&](const Expr& index) {
            return std::ranges::any_of(variables, [&](const Expr& each) { return contains(index, each); });
        });
    };
    bool found = false;
    for (Update& update : updates_of(s, stage)) {
        if (differ_in_last) update.data.pop_back();
        for (const StoreTo& store : update.leaf.stores)
            visit(store.value, [&](const Expr& e) {
                const Load* load = e.as<Load>();
                found = found || (load && mentions(*load, update.terms) && mentions(*load, update.data));
            });
    }
    return !found;
}

/// A warp each, or more threads where results alone leave multiprocessors idle and terms are many.
int64_t sharers_of(const Schedule& s, Stage stage, int64_t terms) {
    const int64_t wanted = std::max(s.target().multiprocessors, 1) * ThreadsWanted,
                  results = std::max<int64_t>(results_of(s, stage, true), 1);
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
    const bool is_shared = results_of(s, stage, true) <= SomeResults && is_worth_sharing(s, stage);
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
