// Reverse accumulation through the expression of one element.
#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "dsl/adjoints.h"
#include "dsl/deep.h"
#include "dsl/walk.h"
#include "support/error.h"

namespace tw {
namespace {

bool is_number(const Expr& expr, double value) {
    auto* real = expr.as<FloatConstant>();
    return real && real->value == value;
}

/// `value` where `guard` holds, 0 elsewhere. No guard: everywhere. Factors go to the value alone, so that one that is
/// infinite or NaN where the guard fails does no harm.
struct Adjoint {
    Expr value = {}, guard = {};

    bool defined() const { return value.defined(); }
    Expr everywhere() const { return guard.defined() ? where_true(guard, value) : value; }
};

Expr both(const Expr& a, const Expr& b) { return a.defined() ? binary(BinaryOp::And, a, b) : b; }

/// Where the condition holds, which is asked only where the guard does.
Adjoint where(const Expr& condition, const Adjoint& adjoint) {
    return adjoint.defined() ? Adjoint{adjoint.value, both(adjoint.guard, condition)} : adjoint;
}

Adjoint adjoint_of(Expr value) {
    Expr guard;
    for (auto* choice = value.as<Select>(); choice && is_number(choice->no, 0); choice = value.as<Select>()) {
        guard = both(guard, choice->condition);
        value = Expr(choice->yes);
    }
    return {value, guard};
}

Adjoint sum(const Adjoint& a, const Adjoint& b) {
    if (!a.defined() || !b.defined()) return a.defined() ? a : b;
    bool alike = a.guard.same(b.guard);
    return alike ? Adjoint{a.value + b.value, a.guard} : Adjoint{a.everywhere() + b.everywhere()};
}

template <class F>
Adjoint inside(const Adjoint& adjoint, const F& f) {
    return adjoint.defined() ? Adjoint{f(adjoint.value), adjoint.guard} : adjoint;
}

Adjoint times(const Adjoint& adjoint, const Expr& factor) {
    if (is_number(factor, 1)) return adjoint;
    return inside(adjoint, [&](const Expr& a) { return a * factor; });
}
Adjoint divided(const Adjoint& adjoint, const Expr& divisor) {
    return inside(adjoint, [&](const Expr& a) { return a / divisor; });
}
Adjoint negated(const Adjoint& adjoint) {
    return inside(adjoint, [](const Expr& a) { return -a; });
}

constexpr double ln2 = 0.69314718055994530942, two_over_sqrt_pi = 1.12837916709551257390,
                 reciprocal_sqrt_2_pi = 0.39894228040143267794;

/// The operand's adjoint from the result's adjoint, operand x and result y.
Adjoint through_unary(UnaryOp op, const Adjoint& adjoint, const Expr& x, const Expr& y) {
    switch (op) {
        case UnaryOp::Negate: return negated(adjoint);
        case UnaryOp::Abs: return sum(where(x > 0, adjoint), where(x < 0, negated(adjoint)));
        case UnaryOp::TruncateTf32: return adjoint;  // as a cast
        case UnaryOp::Sqrt: return divided(times(adjoint, constant(x.type(), 0.5)), y);
        case UnaryOp::Rsqrt: return times(adjoint, y * y * y * -0.5);
        case UnaryOp::Exp:
        case UnaryOp::ExpNonpositive: return times(adjoint, y);
        case UnaryOp::Exp2: return times(adjoint, y * ln2);
        case UnaryOp::Log: return divided(adjoint, x);
        case UnaryOp::Log2: return divided(adjoint, x * ln2);
        case UnaryOp::Tanh:
        case UnaryOp::TanhApprox: return times(adjoint, 1 - y * y);
        case UnaryOp::Erf:
        case UnaryOp::ErfUnbranched: return times(adjoint, exp(-(x * x)) * two_over_sqrt_pi);
        case UnaryOp::NormalCdf: return times(adjoint, exp(x * x * -0.5) * reciprocal_sqrt_2_pi);
        case UnaryOp::Sigmoid: return times(adjoint, y * (1 - y));
        case UnaryOp::Logistic2: return times(adjoint, y * (y - 1) * ln2);
        case UnaryOp::Not:
        case UnaryOp::Floor:
        case UnaryOp::Ceil:
        case UnaryOp::Round: return {};  // constant pieces
    }
    return {};
}

struct Both {
    Adjoint a, b;
};

/// Whether the value of a side is taken somewhere in it. Conditions of adjoints would nest: each in those outside of
/// it.
bool chooses(const Expr& expr) {
    bool found = false;
    visit(expr, [&](const Expr& e) {
        const Binary* binary = e.as<Binary>();
        const bool extreme = binary && (binary->op == BinaryOp::Min || binary->op == BinaryOp::Max);
        found = found || e.as<Select>() || (extreme && is_float(e.type()));
    });
    return found;
}

/// Where the operands of min or max are equal, the second receives the adjoint: relu, max(x, 0), has slope 0 at 0. If
/// that is a number, the result tells, too, where it is kept: what it was made of need not be.
Both through_binary(BinaryOp op, const Adjoint& adjoint, const Expr& a, const Expr& b, const Expr& y, bool is_kept) {
    const Expr telling = is_kept && b.as<FloatConstant>() ? y : a;
    switch (op) {
        case BinaryOp::Add: return {adjoint, adjoint};
        case BinaryOp::Sub: return {adjoint, negated(adjoint)};
        case BinaryOp::Mul: return {times(adjoint, b), times(adjoint, a)};
        case BinaryOp::Div: return {divided(adjoint, b), negated(divided(times(adjoint, y), b))};
        case BinaryOp::Min: return {where(telling < b, adjoint), where(!(telling < b), adjoint)};
        case BinaryOp::Max: return {where(telling > b, adjoint), where(!(telling > b), adjoint)};
        default: return {};
    }
}

/// Parents before children.
std::vector<Expr> parents_first(const Expr& root) {
    std::vector<Expr> order;
    std::unordered_set<const ExprNode*> seen;
    auto walk = [&](auto& self, const Expr& expr) -> void {
        if (!seen.insert(expr.id()).second) return;
        if (!expr.as<Read>()) for_each_child(*expr, [&](const Expr& kid) { self(self, kid); });
        order.push_back(expr);
    };
    with_room_for(root, [&] { walk(walk, root); });
    std::reverse(order.begin(), order.end());
    return order;
}

class Reverse {
public:
    Reverse(const Expr& root, const Expr& adjoint, const Expr& result) {
        adjoints_[root.id()] = adjoint_of(adjoint);
        for (const Expr& node : parents_first(root)) {
            Adjoint incoming = adjoints_[node.id()];
            if (incoming.defined()) pass(node, incoming, node.same(root) ? result : node);
        }
    }
    std::vector<ReadAdjoint> reads;

private:
    void give(const Expr& kid, const Adjoint& adjoint) {
        if (!is_float(kid.type()) || kid.as<FloatConstant>() || !adjoint.defined()) return;
        Adjoint& total = adjoints_[kid.id()];
        total = sum(total, adjoint);
    }

    void pass(const Expr& node, const Adjoint& adjoint, const Expr& value) {
        if (auto* unary = node.as<Unary>()) {
            give(unary->a, through_unary(unary->op, adjoint, unary->a, value));
        } else if (auto* binary = node.as<Binary>()) {
            const bool is_kept = !value.same(node) && !chooses(binary->a);
            auto [a, b] = through_binary(binary->op, adjoint, binary->a, binary->b, value, is_kept);
            give(binary->a, a);
            give(binary->b, b);
        } else if (auto* fma = node.as<Fma>()) {
            give(fma->a, times(adjoint, fma->b));
            give(fma->b, times(adjoint, fma->a));
            give(fma->c, adjoint);
        } else if (auto* select = node.as<Select>()) {
            give(select->yes, where(select->condition, adjoint));
            give(select->no, where(!select->condition, adjoint));
        } else if (auto* cast = node.as<Cast>(); cast && is_float(cast->a.type())) {
            give(cast->a,
                 inside(adjoint, [&](const Expr& a) { return cast_unchecked(adjoint_type(cast->a.type()), a); }));
        } else if (node.as<Read>()) {
            collect(node, adjoint.everywhere());
        }
        internal_check(!node.as<Reduce>() && !node.as<Load>(), "adjoints of {}", to_string(node));
    }

    void collect(const Expr& read, const Expr& adjoint) {
        for (ReadAdjoint& known : reads) {
            if (!equal(known.read, read)) continue;
            known.adjoint = add_adjoints(known.adjoint, adjoint);
            return;
        }
        reads.push_back({read, adjoint});
    }

    std::unordered_map<const ExprNode*, Adjoint> adjoints_;
};

}  // namespace

Expr add_adjoints(const Expr& a, const Expr& b) {
    if (!a.defined()) return b;
    return b.defined() ? a + b : a;
}

Expr where_true(const Expr& condition, const Expr& adjoint) {
    if (!adjoint.defined()) return {};
    return select_unchecked(condition, adjoint, constant(adjoint.type(), 0.0));
}

std::vector<ReadAdjoint> adjoints_of_reads(const Expr& expr, const Expr& adjoint, const Expr& result) {
    return Reverse(expr, adjoint, result).reads;
}

}  // namespace tw
