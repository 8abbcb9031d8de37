#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>

#include "codegen/barriers/conflict_question.h"
#include "dsl/evaluate.h"

namespace tw::codegen {
namespace {

/// Functions of a's thread that have equal values whenever the indices of dimension `d` are equal.
std::vector<Expr> equal_digits(const ConflictQuestion& q, size_t d) {
    Affine x = q.a.indices[d], y = q.b.indices[d];
    if (x.offset != y.offset || x.terms.size() != y.terms.size()) return {};
    auto by_factor = [](const auto& p, const auto& q) { return std::abs(p.second) < std::abs(q.second); };
    std::stable_sort(x.terms.begin(), x.terms.end(), by_factor);
    std::stable_sort(y.terms.begin(), y.terms.end(), by_factor);
    int64_t reach = std::max(q.a.width_in(d), q.b.width_in(d)) - 1;  // of the digits below
    std::vector<Expr> found;
    for (size_t t = 0; t < x.terms.size(); ++t) {
        auto [atom, factor] = x.terms[t];
        if (y.terms[t].second != factor || std::abs(factor) <= reach) return {};
        Expr other = substitute(y.terms[t].first, {{q.b.thread, q.a.thread}});
        if (only_over(atom, {q.a.own[0]}) && equal(atom, other)) found.push_back(atom);
        if (t + 1 == x.terms.size()) break;  // the top digit may be of any size
        Interval bounds = bounds_of(atom, q.known), others = bounds_of(y.terms[t].first, q.known);
        if (!count(bounds) || !count(others)) return {};
        int64_t low = std::min(*bounds.min, *others.min), high = std::max(*bounds.max, *others.max);
        if (high - low > (int64_t{1} << 40) / std::abs(factor)) return {};
        reach += std::abs(factor) * (high - low);
    }
    return found;
}

/// Threads of a and of b that have equal values are one and the same.
bool tell_threads_apart(const ConflictQuestion& q, const std::vector<Expr>& functions) {
    SlotMap slots;
    int slot = slots.slot(q.a.thread);
    std::vector<CompiledExpr> code;
    for (const Expr& function : functions) code.emplace_back(function, slots, [](const ExprNode&) { return nullptr; });
    std::vector<Register> values(slots.size());
    auto values_of = [&](int thread) {
        values[slot].integer = thread;
        std::vector<int64_t> key;
        for (const CompiledExpr& function : code) key.push_back(function.run_integer(values));
        return key;
    };
    std::map<std::vector<int64_t>, std::set<int>> threads_of;
    for (int thread : threads_that_run(q.a, q.threads)) threads_of[values_of(thread)].insert(thread);
    return std::ranges::all_of(threads_that_run(q.b, q.threads), [&](int thread) {
        const auto same = threads_of.find(values_of(thread));
        return same == threads_of.end() || same->second == std::set{thread};
    });
}

}  // namespace

bool same_thread_by_coordinates(const ConflictQuestion& question) {
    std::vector<Expr> functions;
    for (size_t d = 0; d < question.a.indices.size(); ++d) {
        auto found = equal_digits(question, d);
        functions.insert(functions.end(), found.begin(), found.end());
    }
    return !functions.empty() && tell_threads_apart(question, functions);
}

}  // namespace tw::codegen
