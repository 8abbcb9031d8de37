// The parts of simplify() that its files share. One Simplifier serves one call: it remembers shared nodes.
#pragma once
#include <optional>
#include <unordered_map>

#include "dsl/integers.h"
#include "dsl/node_table.h"
#include "dsl/simplify.h"
#include "support/error.h"

namespace tw {

/// Thrown where an integer leaves 64 bits, or its type where that matters; the simplifier then keeps the expression as
/// it is, and nothing of it leaves this library.
class Overflow : public Error {
public:
    using Error::Error;
};
[[noreturn]] void throw_overflow();
/// How many this thread has thrown.
int64_t num_overflows();
int64_t checked_add(int64_t a, int64_t b);
int64_t checked_mul(int64_t a, int64_t b);

/// Types whose sums and products are put into affine forms. Those hold as forms of a ring that wraps; where the order
/// of the integers counts (comparisons, quotients, bounds), Simplifier::is_exact must say that nothing wraps. u32 has
/// no affine forms.
inline bool is_index(Type type) { return type == Type::I32 || type == Type::I64; }
/// An index expression that is a sum, a difference, a product or a negation.
bool is_linear(const Expr& expr);
const Binary* as_binary(const Expr& expr, BinaryOp op);
/// x / c or x % c with a positive constant c.
struct ByConstant {
    Expr dividend;
    int64_t divisor;
};
std::optional<ByConstant> by_constant(const Expr& atom, BinaryOp op);

// Affine forms.
void add_term(Affine& sum, const Expr& atom, int64_t coefficient);
void add_scaled(Affine& sum, const Affine& addend, int64_t factor);
Affine scaled(const Affine& affine, int64_t factor);
/// a - b, unsorted; Overflow where a coefficient leaves 64 bits.
Affine minus(const Affine& a, const Affine& b);
/// Takes coefficients and offset modulo the width of the type; whether that changed any.
bool wrap_to(Affine& affine, Type type);
/// A simplified expression's form.
Affine decompose(const Expr& simple);
void sort_terms(Affine& affine);
Expr to_expr(const Affine& affine, Type type);
/// The factors of a product atom, or the atom itself.
std::vector<Expr> factors_of(const Expr& atom);
Expr product_of(std::vector<Expr> factors);
Affine product(const Affine& a, const Affine& b, Type type);
/// The product of a constant and sums: expanded if that is short and stays within 64 bits, else all of them in one
/// atom.
Affine product(Affine constant, const std::vector<Affine>& factors, Type type);
/// A total order of expressions up to variables of one name.
int compare(const Expr& a, const Expr& b);

// Constants and rules (fold.cpp, rules.cpp).
/// The value of an operation on constants, where that is exact or rounded as IEEE says.
Expr fold(const Expr& node);

class Simplifier {
public:
    explicit Simplifier(const BoundsOverride* overrides = nullptr) : overrides_(overrides) {}

    Expr simplify(const Expr& expr);
    /// A node whose children are simplified.
    Expr rewrite(const Expr& node);

    Affine linear(const Expr& expr);
    /// The least and the largest value of a simplified expression.
    Interval bounds(const Expr& expr);
    Interval bounds(const Affine& affine);
    /// As bounds(), but through symbolic extents and floor divisions too: i < n for an index of extent n; and through
    /// the sides of minima and maxima, so many of them inside of each other: each doubles what there is to do.
    std::optional<int64_t> upper(const Affine& affine, int sides = 2);
    std::optional<int64_t> lower(const Affine& affine);
    /// An i64 without data: made of loops, axes, named sizes and constants that leave room. Such expressions are
    /// mathematical: none of them wraps.
    bool is_place(const Expr& expr);
    /// An i64 made of integers of narrower types and of a place's parts, whose bounds show that none of it wraps.
    bool is_bounded(const Expr& expr);
    /// Does a simplified expression of an index type have the value that the integers give: none of the sums, products
    /// and quotients that it is made of wraps?
    bool is_exact(const Expr& expr);
    /// Does the type hold every value of an integer expression?
    bool is_within(const Expr& expr, Type type);
    /// Whether the operation may leave its type; its parts need not be simplified.
    bool may_wrap(const Expr& operation);

private:
    std::optional<int64_t> upper_by_sides(const Affine& affine, int sides);
    Expr simplify_linear(const Expr& expr);
    /// The form as an exact expression; Overflow if it is none.
    Expr exact_expr(const Affine& affine, Type type);
    void collect(const Expr& expr, int64_t factor, Affine& sum);
    void collect_parts(const Expr& expr, int64_t factor, Affine& sum);
    void collect_factors(const Expr& expr, int64_t& constant, std::vector<Affine>& factors);
    void combine_quotients(Affine& affine);
    /// Where a modulus is given, only what is left by it counts.
    bool combine_once(Affine& affine, int64_t modulus = 0);

    Expr rewrite_binary(const Expr& node, const Binary& binary);
    Expr min_or_max(const Expr& node, const Binary& binary);
    Expr compare_indices(const Binary& binary);
    Expr at_most_zero(Affine d, Type type);
    Expr equals_zero(Affine d, Type type);
    Expr connect(const Expr& node, const Binary& binary);
    Expr rewrite_cast(const Expr& node, const Expr& from);

    Expr divide(const Expr& node, const Binary& binary);
    Expr modulo(const Expr& node, const Binary& binary);
    Affine divide(const Affine& dividend, int64_t divisor, Type type);
    Affine modulo(Affine dividend, int64_t divisor, Type type);
    Expr exact_quotient(const Expr& atom, int64_t divisor);
    /// As the integers have it, before anything wraps.
    Interval unwrapped_bounds(const Expr& expr);
    Interval bounds_of_node(const Expr& expr);
    Expr in_64_bits(const Expr& expr);
    Interval bounds_of_variable(const Expr& expr, const Variable& variable);
    bool raise_once(Affine& affine);
    bool raise_index(Affine& affine, size_t term);
    bool raise_quotient(Affine& affine, size_t term);
    bool raise_difference_of_quotients(Affine& affine, size_t term);

    struct Known {
        Expr key;  // keeps the node alive: addresses are not reused
        Expr result;
    };
    struct KnownBounds {
        Expr key;
        Interval result;
    };
    const BoundsOverride* overrides_;
    const int64_t overflows_before_ = num_overflows();
    NodeTable<Known> known_;
    NodeTable<KnownBounds> known_bounds_;
    std::unordered_map<const ExprNode*, std::pair<Expr, bool>> known_exact_, known_places_, known_bounded_;
};

/// Whether simplify(), without other bounds than those of variables, is known to leave the node as it is.
bool is_simple(const Expr& expr);
void mark_simple(const Expr& expr);

/// The first rule of the table that matches, applied; undefined if none does.
Expr apply_rules(const Expr& node, Simplifier& simplifier);

}  // namespace tw
