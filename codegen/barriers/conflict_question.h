// Inside of conflict_of: what is asked, and the ways to answer it. Not for others.
#pragma once
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "codegen/barriers/placed_access.h"

namespace tw::codegen {

struct Ranged {
    Expr variable;
    Interval bounds;
};
bool among(const std::vector<Ranged>& list, const Expr& variable);
bool only_over(const Expr& expr, const std::vector<Ranged>& list);
/// The number of values, if known.
std::optional<int64_t> count(const Interval& bounds);

/// One of the two accesses: its indices and conditions with variables of its own for what the other does not share.
struct Side {
    std::vector<Affine> indices;
    std::vector<Expr> conditions;
    int width;
    Expr thread;
    std::vector<Ranged> own;  // the thread first, then loops

    /// Neighbouring elements in this dimension.
    int width_in(size_t dimension) const { return dimension + 1 == indices.size() ? width : 1; }
};

/// Do two threads make `a` and `b` access one element? Terms that are the same on both sides have been cancelled.
struct ConflictQuestion {
    int threads;
    BoundsOverride known;
    Side a, b;
    bool all_conditions = true;  // none depends on data
};

/// Takes indices apart that are made of all digits of a number, which masks keep within their places: equal ones belong
/// to equal numbers.
///
///     m / 57 * 3584 + m % 57 * 64 + v, where m % 57 < 56 and v < 64    m, v
void join_digits(ConflictQuestion& question);

/// Takes an index apart that has several dimensions of an array in one, as far as bounds and conditions keep the lower
/// ones within their extents. Returns whether there were any.
///
///     (4 i + r) * 9 + 5 j + c, where 5 j + c < 9    4 i + r, 5 j + c
bool separate_dimensions(ConflictQuestion& question);

Affine scaled(Affine value, int64_t factor);
/// Of values of the sum, as far as bounds and conditions such as `sum / 8 < number` say, each of them for a part of it.
std::optional<int64_t> largest(const Affine& sum, std::span<const Expr> conditions, const BoundsOverride& known);

/// The threads that the conditions over nothing but the thread let through.
std::set<int> threads_that_run(const Side& side, int threads);

/// Conditions of the thread alone leave one and the same thread, or none.
bool same_thread_by_conditions(const ConflictQuestion& question);

/// Digits: if an index is a number in mixed radix, equal indices have equal digits; if those that are functions of the
/// thread are the same functions on both sides and tell apart all threads that run, only one thread touches an element;
/// and none, where one digit differs.
bool same_thread_by_coordinates(const ConflictQuestion& question);

/// Tries all values of all variables; Possible if there are too many.
Conflict conflict_by_enumeration(const ConflictQuestion& question);

}  // namespace tw::codegen
