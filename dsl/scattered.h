// Reductions of terms that each count for one element: sum(select(index(u) == i, x(u), 0), u).
#pragma once
#include <optional>
#include <vector>

#include "dsl/edit.h"

namespace tw {

/// A term: its value counts for the element whose data axes have the `solved` values, where the conditions hold.
struct Scattered {
    Substitution solved;           ///< data axes as expressions of the other axes
    std::vector<Expr> choosing;    ///< the reduce axes in those expressions
    std::vector<Expr> conditions;  ///< what else must hold; solved values may still be outside
    Expr value;

    bool is_solved(const Expr& axis) const;
    /// In place of solved axes their values.
    Expr apply(const Expr& expr) const;
    /// Conditions: each solved value is inside of its dimension.
    std::vector<Expr> inside() const;
};

/// Whether it combines two values, of one component, by one operation.
bool is_one_operation(const ReducerNode& reducer);

/// select(conditions, value, identity), or a condition that is counted: of such a reduction the conditions and the
/// value; nothing is solved.
std::optional<Scattered> conditional_terms(const StageDefinition& reduction);

/// Nothing if no condition of the terms says which element they belong to.
std::optional<Scattered> scattered_terms(const StageDefinition& reduction);

bool is_among(const std::vector<Expr>& variables, const Expr& variable);
bool mentions_any(const Expr& expr, const std::vector<Expr>& variables);

/// What the step of that name is told of a reduction whose terms each count for one element; its loops are taken away.
/// Throws Error if it is none, or has been changed too much.
Scattered terms_to_find(Edit& edit, int reduction, const char* step);

/// Makes the terms updates of their elements in memory, a stage that is returned.
int scatter_atomically(Edit& edit, int reduction, BinaryOp combine, const Scattered& terms);
/// Sorts the terms by element, in stages that are bound already; the reduction runs over the terms of its element.
void sort_terms(Edit& edit, int reduction, const Scattered& terms);
/// Each element looks for its first and its last term, in a stage, and reduces its own of those between.
void search_terms(Edit& edit, int reduction, const Scattered& terms);

}  // namespace tw
