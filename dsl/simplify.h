// Simplification and integer reasoning over expressions.
#pragma once
#include <algorithm>
#include <map>
#include <optional>

#include <boost/container/small_vector.hpp>

#include "dsl/expr.h"

namespace tw {

/// An equal expression, smaller or simpler. Rules on floats are exact (NaN and -0 included). Indices, i64 without data,
/// are mathematical: they are proven not to overflow elsewhere. All other integers wrap; what bounds show to stay in
/// its type is simplified like an index, the rest as far as a ring goes. Idempotent. Uses the bounds of Variables, and
/// `divides` facts (Variable::multiple_of).
Expr simplify(const Expr& expr);

/// Inclusive bounds of an integer expression over all values of its variables; unknown sides are empty. Data have the
/// bounds of their type, i64 none.
struct Interval {
    std::optional<int64_t> min, max;
    bool operator==(const Interval&) const = default;
};
Interval bounds_of(const Expr& expr);
/// As above, where the given variables have these bounds instead of their own.
using BoundsOverride = std::map<const ExprNode*, Interval>;
Interval bounds_of(const Expr& expr, const BoundsOverride& bounds);

/// May a sum, difference, product, negation or absolute value of i32 or i64 leave its type, as far as these bounds
/// tell?
bool may_wrap(const Expr& operation, const BoundsOverride& bounds);

/// true or false if the boolean expression is decided by bounds and algebra, empty otherwise.
std::optional<bool> prove(const Expr& condition);

/// An integer expression as sum of coefficient * atom + constant, atoms being variables or non-affine parts, in a
/// canonical order; the difference of two affine forms cancels equal atoms.
struct Affine {
    using Terms = boost::container::small_vector<std::pair<Expr, int64_t>, 3>;
    Terms terms;  // no zero coefficient, no two structurally equal atoms
    int64_t offset = 0;
};
/// Drops the terms, an atom and its coefficient, of which that holds.
template <class Predicate>
void erase_terms(Affine& affine, const Predicate& is_one) {
    affine.terms.erase(std::remove_if(affine.terms.begin(), affine.terms.end(), is_one), affine.terms.end());
}
Affine affine_of(const Expr& expr);
Expr to_expr(const Affine& affine);
Affine operator+(const Affine& a, const Affine& b);
Affine operator-(const Affine& a, const Affine& b);
/// The coefficient of the variable, 0 if absent; empty if the variable also stands inside a non-affine atom.
std::optional<int64_t> coefficient(const Affine& affine, const Expr& variable);

/// A range of values in terms of outer variables: lo (an expression of the fixed variables only) and a constant upper
/// bound of hi - lo + 1.
struct Span {
    Expr lo;
    int64_t extent;
};
/// The values that `expr` takes while each variable in `ranged` runs over its interval, all others fixed. The span may
/// be larger than exact; empty if no constant extent can be given (data-dependent, unbounded).
std::optional<Span> span_of(const Expr& expr, const BoundsOverride& ranged);
/// The least common span of both, or empty if the distance of the two lo is no bounded constant.
std::optional<Span> unite(const Span& a, const Span& b);

/// The largest known constant that divides the integer expression's every value (0 for the constant 0).
int64_t divisor_of(const Expr& expr);

}  // namespace tw
