#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <set>

#include "codegen/barriers/conflict_question.h"
#include "dsl/evaluate.h"
#include "dsl/simplify.h"

namespace tw::codegen {
namespace {

/// What is true whenever the indices of a dimension are equal; nothing, if they are no numbers in mixed radix.
struct EqualDigits {
    std::vector<Expr> of_thread = {};  ///< functions of a's thread that have equal values
    bool never = false;                ///< they are not: a digit differs
};

using Terms = std::vector<std::pair<Expr, int64_t>>;

/// Terms, the smallest factor first.
Terms by_factor(const Affine& index) {
    Terms terms(index.terms.begin(), index.terms.end());
    std::ranges::stable_sort(terms, {}, [](const auto& term) { return std::abs(term.second); });
    return terms;
}

/// With a zero for each factor that only the other has.
void fill_up(Affine& index, const Affine& other) {
    for (const auto& [atom, factor] : other.terms)
        if (std::ranges::none_of(index.terms, [&](const auto& own) { return own.second == factor; }))
            index.terms.emplace_back(constant(Type::I64, int64_t{0}), factor);
}

/// By how many one index is ahead, as whole values of its digits, `rounded` to the nearest or cut off; what is left of
/// it is one more digit, below.
std::vector<int64_t> digits_of_distance(int64_t ahead, Terms& x, Terms& y, bool rounded) {
    std::vector<int64_t> of_digit(x.size());
    for (size_t t = x.size(); t-- > 0;) {
        const int64_t factor = x[t].second;
        of_digit[t] = rounded ? std::llround(static_cast<double>(ahead) / static_cast<double>(factor)) : ahead / factor;
        ahead -= of_digit[t] * factor;
    }
    if (ahead == 0) return of_digit;
    const Expr none = constant(Type::I64, int64_t{0});
    x.insert(x.begin(), {none, std::abs(ahead)});
    y.insert(y.begin(), {none, std::abs(ahead)});
    of_digit.insert(of_digit.begin(), ahead > 0 ? 1 : -1);
    return of_digit;
}

EqualDigits equal_digits(const ConflictQuestion& q, size_t d, bool rounded) {
    Affine a = q.a.indices[d], b = q.b.indices[d];
    fill_up(a, b);
    fill_up(b, a);
    Terms x = by_factor(a), y = by_factor(b);
    if (x.size() != y.size()) return {};
    const auto of_digit = digits_of_distance(a.offset - b.offset, x, y, rounded);
    int64_t reach = std::max(q.a.width_in(d), q.b.width_in(d)) - 1;  // of the digits below
    EqualDigits found;
    for (size_t t = 0; t < x.size(); ++t) {
        auto [atom, factor] = x[t];
        if (y[t].second != factor || std::abs(factor) <= reach) return {};
        Expr other = substitute(y[t].first, {{q.b.thread, q.a.thread}});
        if (of_digit[t] == 0 && only_over(atom, {q.a.own[0]}) && equal(atom, other)) found.of_thread.push_back(atom);
        const Interval bounds = bounds_of(simplify(atom + of_digit[t]), q.known),
                       others = bounds_of(y[t].first, q.known);
        const bool known = count(bounds) && count(others);
        found.never = found.never || (known && (*bounds.min > *others.max || *bounds.max < *others.min));
        if (t + 1 == x.size()) break;  // the top digit may be of any size
        if (!known) return {};
        int64_t low = std::min(*bounds.min, *others.min), high = std::max(*bounds.max, *others.max);
        if (high - low > (int64_t{1} << 40) / std::abs(factor)) return {};
        reach += std::abs(factor) * (high - low);
    }
    return found;
}

EqualDigits equal_digits(const ConflictQuestion& q, size_t d) {
    const EqualDigits cut_off = equal_digits(q, d, false), rounded = equal_digits(q, d, true);
    return cut_off.never || (!rounded.never && !cut_off.of_thread.empty()) ? cut_off : rounded;
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
        const EqualDigits found = equal_digits(question, d);
        if (found.never) return true;
        functions.insert(functions.end(), found.of_thread.begin(), found.of_thread.end());
    }
    return !functions.empty() && tell_threads_apart(question, functions);
}

}  // namespace tw::codegen
