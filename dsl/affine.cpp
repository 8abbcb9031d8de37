// Sums of coefficient * atom, and what follows from them.
#include <algorithm>
#include <limits>
#include <numeric>
#include <unordered_map>

#include "dsl/deep.h"
#include "dsl/simplifier.h"
#include "dsl/walk.h"
#include "support/error.h"

namespace tw {

namespace {

thread_local int64_t overflows = 0;

}  // namespace

int64_t num_overflows() { return overflows; }

void throw_overflow() {
    ++overflows;
    throw Overflow(nullptr, "an index leaves 64 bits; give smaller extents, strides or factors");
}

int64_t checked_add(int64_t a, int64_t b) {
    int64_t sum = 0;
    if (__builtin_add_overflow(a, b, &sum)) throw_overflow();
    return sum;
}
int64_t checked_mul(int64_t a, int64_t b) {
    int64_t result = 0;
    if (__builtin_mul_overflow(a, b, &result)) throw_overflow();
    return result;
}

const Binary* as_binary(const Expr& expr, BinaryOp op) {
    auto* node = expr.as<Binary>();
    return node && node->op == op ? node : nullptr;
}

std::optional<ByConstant> by_constant(const Expr& atom, BinaryOp op) {
    auto* node = as_binary(atom, op);
    int64_t divisor = node ? as_constant(node->b).value_or(0) : 0;
    if (divisor <= 0) return {};
    return ByConstant{node->a, divisor};
}

bool is_linear(const Expr& expr) {
    if (!is_index(expr.type())) return false;
    if (auto* node = expr.as<Binary>())
        return node->op == BinaryOp::Add || node->op == BinaryOp::Sub || node->op == BinaryOp::Mul;
    auto* node = expr.as<Unary>();
    return node && node->op == UnaryOp::Negate;
}

// A canonical order.

namespace {

int three_way(auto a, auto b) { return a < b ? -1 : b < a; }

int compare_ops(const ExprNode& a, const ExprNode& b) {
    if (auto* node = std::get_if<Variable>(&a.kind)) return node->name.compare(std::get<Variable>(b.kind).name);
    if (auto* node = std::get_if<IntConstant>(&a.kind))
        return three_way(node->value, std::get<IntConstant>(b.kind).value);
    if (auto* node = std::get_if<Unary>(&a.kind)) return three_way(node->op, std::get<Unary>(b.kind).op);
    if (auto* node = std::get_if<Binary>(&a.kind)) return three_way(node->op, std::get<Binary>(b.kind).op);
    return 0;
}

}  // namespace

int compare(const Expr& a, const Expr& b) {
    if (a.same(b)) return 0;
    if (int kinds = three_way((*a).kind.index(), (*b).kind.index())) return kinds;
    if (int types = three_way(a.type(), b.type())) return types;
    if (int ops = compare_ops(*a, *b)) return ops;
    constexpr int flat = 8;  // levels in which shared nodes may be met again
    if (depth_of(a) > flat && equal(a, b)) return 0;
    std::vector<Expr> ours = children(a), theirs = children(b);
    if (int sizes = three_way(ours.size(), theirs.size())) return sizes;
    for (size_t i = 0; i < ours.size(); ++i)
        if (int kids = compare(ours[i], theirs[i])) return kids;
    return 0;
}

// Sums.

void add_term(Affine& sum, const Expr& atom, int64_t coefficient) {
    if (coefficient == 0) return;
    auto same = [&](const auto& term) { return equal(term.first, atom); };
    auto found = std::find_if(sum.terms.begin(), sum.terms.end(), same);
    if (found == sum.terms.end()) {
        sum.terms.emplace_back(atom, coefficient);
        return;
    }
    found->second = checked_add(found->second, coefficient);
    if (found->second == 0) sum.terms.erase(found);
}

void add_scaled(Affine& sum, const Affine& addend, int64_t factor) {
    for (const auto& [atom, coefficient] : addend.terms) add_term(sum, atom, checked_mul(coefficient, factor));
    sum.offset = checked_add(sum.offset, checked_mul(addend.offset, factor));
}

Affine scaled(const Affine& affine, int64_t factor) {
    Affine result;
    add_scaled(result, affine, factor);
    return result;
}

Affine minus(const Affine& a, const Affine& b) {
    Affine result = a;
    add_scaled(result, b, -1);
    return result;
}

bool wrap_to(Affine& affine, Type type) {
    bool changed = false;
    auto wrap = [&](int64_t& value) {
        int64_t wrapped = wrap_to_type(type, value);
        changed = changed || wrapped != value;
        value = wrapped;
    };
    for (auto& term : affine.terms) wrap(term.second);
    wrap(affine.offset);
    if (changed) erase_terms(affine, [](const auto& term) { return term.second == 0; });
    return changed;
}

namespace {

void decompose_into(const Expr& expr, int64_t factor, Affine& sum);

/// A sum whose terms would leave 64 bits stays one atom.
void decompose_scaled(const Expr& expr, int64_t factor, Affine& sum) {
    if (!is_linear(expr)) return decompose_into(expr, factor, sum);
    Affine part;
    try {
        decompose_into(expr, factor, part);
    } catch (const Overflow&) {
        part = {{{expr, factor}}, 0};
    }
    add_scaled(sum, part, 1);
}

void decompose_into(const Expr& expr, int64_t factor, Affine& sum) {
    if (auto value = as_constant(expr)) {
        sum.offset = checked_add(sum.offset, checked_mul(*value, factor));
        return;
    }
    if (!is_linear(expr)) return add_term(sum, expr, factor);
    if (auto* negation = expr.as<Unary>()) return decompose_into(negation->a, checked_mul(factor, -1), sum);
    const Binary& node = *expr.as<Binary>();
    if (node.op == BinaryOp::Mul) {
        if (auto value = as_constant(node.b)) return decompose_scaled(node.a, checked_mul(factor, *value), sum);
        if (auto value = as_constant(node.a)) return decompose_scaled(node.b, checked_mul(factor, *value), sum);
        return add_term(sum, expr, factor);
    }
    decompose_into(node.a, factor, sum);
    decompose_into(node.b, node.op == BinaryOp::Add ? factor : checked_mul(factor, -1), sum);
}

constexpr size_t most_factors = 16;  // larger products stay as they are: squares of squares have too many

/// Up to most_factors + 1, or a little above.
size_t degree(const Expr& atom, size_t most = most_factors) {
    auto* node = as_binary(atom, BinaryOp::Mul);
    if (!node) return 1;
    size_t left = degree(node->a, most);
    return left > most ? left : left + degree(node->b, most - left);
}

}  // namespace

Affine decompose(const Expr& simple) {
    Affine result;
    decompose_into(simple, 1, result);
    return result;
}

void sort_terms(Affine& affine) {
    auto before = [](const auto& x, const auto& y) {
        size_t degree_x = degree(x.first), degree_y = degree(y.first);
        if (degree_x != degree_y) return degree_x > degree_y;
        uint64_t size_x = x.second < 0 ? -uint64_t(x.second) : x.second;
        uint64_t size_y = y.second < 0 ? -uint64_t(y.second) : y.second;
        if (size_x != size_y) return size_x > size_y;
        return compare(x.first, y.first) < 0;
    };
    // Insertion: stable, and most sums have a handful of terms.
    auto& terms = affine.terms;
    for (size_t i = 1; i < terms.size(); ++i)
        for (size_t j = i; j > 0 && before(terms[j], terms[j - 1]); --j) std::swap(terms[j], terms[j - 1]);
}

std::vector<Expr> factors_of(const Expr& atom) {
    auto* node = as_binary(atom, BinaryOp::Mul);
    if (!node || !is_index(atom.type()) || degree(atom) > most_factors) return {atom};
    std::vector<Expr> factors = factors_of(node->a);
    for (Expr& factor : factors_of(node->b)) factors.push_back(std::move(factor));
    return factors;
}

Expr product_of(std::vector<Expr> factors) {
    std::stable_sort(factors.begin(), factors.end(), [](const Expr& a, const Expr& b) { return compare(a, b) < 0; });
    Expr result = factors.at(0);
    for (size_t i = 1; i < factors.size(); ++i) result = binary(BinaryOp::Mul, result, factors[i]);
    return result;
}

namespace {

Expr multiply_atoms(const Expr& a, const Expr& b) {
    if (degree(a) + degree(b) > most_factors) return binary(BinaryOp::Mul, a, b);
    std::vector<Expr> factors = factors_of(a);
    for (Expr& factor : factors_of(b)) factors.push_back(std::move(factor));
    return product_of(std::move(factors));
}

size_t num_addends(const Affine& affine) { return affine.terms.size() + (affine.offset != 0); }

}  // namespace

constexpr size_t most_addends = 6;  // larger products stay factored

Affine product(const Affine& a, const Affine& b, Type type) {
    if (a.terms.empty()) return scaled(b, a.offset);
    if (b.terms.empty()) return scaled(a, b.offset);
    Affine result;
    if (num_addends(a) * num_addends(b) > most_addends) {
        add_term(result, multiply_atoms(to_expr(a, type), to_expr(b, type)), 1);
        return result;
    }
    for (const auto& [x, cx] : a.terms)
        for (const auto& [y, cy] : b.terms) add_term(result, multiply_atoms(x, y), checked_mul(cx, cy));
    for (const auto& [x, cx] : a.terms) add_term(result, x, checked_mul(cx, b.offset));
    for (const auto& [y, cy] : b.terms) add_term(result, y, checked_mul(cy, a.offset));
    result.offset = checked_mul(a.offset, b.offset);
    return result;
}

namespace {

Affine expanded(Affine result, const std::vector<Affine>& factors, Type type) {
    for (const Affine& factor : factors) {
        result = product(result, factor, type);
        wrap_to(result, type);
    }
    return result;
}

}  // namespace

Affine product(Affine constant, const std::vector<Affine>& factors, Type type) {
    if (constant.offset == 0 || factors.empty()) return constant;
    size_t addends = 1;
    for (const Affine& factor : factors) addends = std::min(addends * num_addends(factor), most_addends + 1);
    try {
        if (addends <= most_addends) return expanded(constant, factors, type);
    } catch (const Overflow&) {  // stays factored, too
    }
    std::vector<Expr> atoms;
    for (const Affine& factor : factors) atoms.push_back(to_expr(factor, type));
    Affine result;
    add_term(result, product_of(std::move(atoms)), constant.offset);
    return result;
}

namespace {

Expr times(const Expr& atom, int64_t factor) {
    return factor == 1 ? atom : binary(BinaryOp::Mul, atom, constant(atom.type(), factor));
}

}  // namespace

/// Positive terms first, so that "64 - i * 8" needs no negation. Of the type's least integer there is no opposite: it
/// is added.
Expr to_expr(const Affine& affine, Type type) {
    Expr sum;
    auto has_opposite = [&](int64_t value) {
        return value > 0 || wrap_to_type(type, static_cast<int64_t>(-uint64_t(value))) > 0;
    };
    auto add = [&](const Expr& term) { sum = sum.defined() ? binary(BinaryOp::Add, sum, term) : term; };
    for (const auto& [atom, coefficient] : affine.terms)
        if (coefficient > 0) add(times(atom, coefficient));
    bool offset_first = !sum.defined() && (affine.offset > 0 || affine.terms.empty());
    if (offset_first) sum = constant(type, affine.offset);
    for (const auto& [atom, coefficient] : affine.terms) {
        if (coefficient > 0) continue;
        if (!has_opposite(coefficient))
            add(times(atom, coefficient));
        else if (sum.defined())
            sum = binary(BinaryOp::Sub, sum, times(atom, -coefficient));
        else
            sum = coefficient == -1 ? unary(UnaryOp::Negate, atom) : times(atom, coefficient);
    }
    if (offset_first || affine.offset == 0) return sum;
    if (affine.offset > 0 || !has_opposite(affine.offset))
        return binary(BinaryOp::Add, sum, constant(type, affine.offset));
    return binary(BinaryOp::Sub, sum, constant(type, -affine.offset));
}

namespace {

Type type_of(const Affine& affine) { return affine.terms.empty() ? Type::I64 : affine.terms[0].first.type(); }

/// The expression as one atom.
Affine opaque(const Expr& expr) { return {{{expr, 1}}, 0}; }

/// a + factor * b; where a coefficient leaves 64 bits, that sum as one atom.
Affine combined(const Affine& a, const Affine& b, int64_t factor) {
    try {
        Affine result = a;
        add_scaled(result, b, factor);
        sort_terms(result);
        return result;
    } catch (const Overflow&) {
        return opaque(binary(factor < 0 ? BinaryOp::Sub : BinaryOp::Add, to_expr(a), to_expr(b)));
    }
}

}  // namespace

Expr to_expr(const Affine& affine) { return to_expr(affine, type_of(affine)); }

Affine affine_of(const Expr& expr) {
    Expr simple = simplify(expr);
    try {
        Affine result = decompose(simple);
        sort_terms(result);
        return result;
    } catch (const Overflow&) {
        return opaque(simple);
    }
}

Affine operator+(const Affine& a, const Affine& b) { return combined(a, b, 1); }
Affine operator-(const Affine& a, const Affine& b) { return combined(a, b, -1); }

std::optional<int64_t> coefficient(const Affine& affine, const Expr& variable) {
    int64_t result = 0;
    for (const auto& [atom, factor] : affine.terms) {
        if (atom.same(variable))
            result = factor;
        else if (contains(atom, variable))
            return {};
    }
    return result;
}

// Divisors.

namespace {

/// Sums and products that may wrap keep only the power of two of their divisor.
struct Divisor {
    bool may_wrap;
    std::unordered_map<const ExprNode*, int64_t>& known;  // of shared nodes deep inside

    int64_t kept(int64_t divisor) const { return may_wrap ? divisor & -divisor : divisor; }

    int64_t operator()(const IntConstant& n) const {
        if (n.value == std::numeric_limits<int64_t>::min()) return int64_t{1} << 62;
        return n.value < 0 ? -n.value : n.value;
    }
    int64_t operator()(const Variable& n) const { return n.multiple_of; }
    int64_t operator()(const Unary& n) const {
        return n.op == UnaryOp::Negate || n.op == UnaryOp::Abs ? kept(of(n.a)) : 1;
    }
    int64_t operator()(const Binary& n) const {
        switch (n.op) {
            case BinaryOp::Add:
            case BinaryOp::Sub: return kept(std::gcd(of(n.a), of(n.b)));
            case BinaryOp::Min:
            case BinaryOp::Max: return std::gcd(of(n.a), of(n.b));
            case BinaryOp::Mul: return of_product(kept(of(n.a)), kept(of(n.b)));
            case BinaryOp::Div: return of_quotient(n);
            case BinaryOp::Mod: return std::gcd(of(n.a), of(n.b));
            default: return 1;
        }
    }
    /// The second factor alone where the product of both leaves 64 bits.
    static int64_t of_product(int64_t a, int64_t b) {
        int64_t both = 0;
        return __builtin_mul_overflow(a, b, &both) ? b : both;
    }
    int64_t of_quotient(const Binary& n) const {
        int64_t dividend = of(n.a), divisor = as_constant(n.b).value_or(0);
        return divisor > 0 && dividend % divisor == 0 ? dividend / divisor : 1;
    }
    int64_t operator()(const Select& n) const { return std::gcd(of(n.yes), of(n.no)); }
    int64_t operator()(const Cast& n) const {  // what narrower types hold may have wrapped
        std::unordered_map<const ExprNode*, int64_t> inside;
        const int64_t divisor = is_index(n.a.type()) ? Divisor{true, inside}.of(n.a) : 1;
        return divisor & -divisor;
    }
    int64_t operator()(const auto&) const { return 1; }

    int64_t of(const Expr& expr) const {
        if (!is_index(expr.type())) return 1;  // u32 wraps, and narrower types saturate
        constexpr int flat = 4;
        if (depth_of(expr) <= flat) return of_node(expr);
        auto found = known.find(expr.id());
        return found != known.end() ? found->second : known[expr.id()] = of_node(expr);
    }
    int64_t of_node(const Expr& expr) const { return std::visit(*this, (*expr).kind); }
};

}  // namespace

int64_t divisor_of(const Expr& expr) {
    if (!is_index(expr.type())) return 1;  // u32 wraps, and narrower types saturate
    std::unordered_map<const ExprNode*, int64_t> known;
    return with_room_for(expr, [&] {
        Simplifier simplifier;
        return Divisor{!simplifier.is_place(expr) && !simplifier.is_bounded(expr), known}.of(expr);
    });
}

}  // namespace tw
