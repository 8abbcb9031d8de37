// Conjunctions and disjunctions: parts that others imply, exclude or complete.
#include <algorithm>

#include "dsl/simplifier.h"
#include "dsl/simplify.h"
#include "dsl/walk.h"

namespace tw {

namespace {

constexpr size_t most_parts = 64;  // that are compared with each other

/// Stops when there are too many.
void flatten(const Expr& expr, BinaryOp op, std::vector<Expr>& parts) {
    if (parts.size() > most_parts) return;
    if (auto* node = as_binary(expr, op)) {
        flatten(node->a, op, parts);
        flatten(node->b, op, parts);
    } else {
        parts.push_back(expr);
    }
}

/// d where the condition says d <= 0.
std::optional<Affine> at_most_zero_form(const Expr& condition, Simplifier& simplifier) {
    auto* node = condition.as<Binary>();
    if (!node || !is_index(node->a.type())) return {};
    if (node->op != BinaryOp::Less && node->op != BinaryOp::LessEqual) return {};
    if (!simplifier.is_exact(node->a) || !simplifier.is_exact(node->b)) return {};
    Affine d = minus(decompose(node->a), decompose(node->b));
    if (node->op == BinaryOp::Less) d.offset = checked_add(d.offset, 1);
    return d;
}

bool are_opposite(const Expr& a, const Expr& b) {
    auto* not_a = a.as<Unary>();
    auto* not_b = b.as<Unary>();
    if (not_a && not_a->op == UnaryOp::Not && equal(not_a->a, b)) return true;
    if (not_b && not_b->op == UnaryOp::Not && equal(not_b->a, a)) return true;
    auto *x = a.as<Binary>(), *y = b.as<Binary>();
    if (!x || !y || !equal(x->a, y->a) || !equal(x->b, y->b)) return false;
    return (x->op == BinaryOp::Equal && y->op == BinaryOp::NotEqual) ||
           (x->op == BinaryOp::NotEqual && y->op == BinaryOp::Equal);
}

bool reads_memory(const Expr& expr) {
    bool found = false;
    visit(expr, [&](const Expr& node) { found = found || node.as<Read>() || node.as<Load>(); });
    return found;
}

enum class Entailment { None, Same, FirstImplies, SecondImplies, Exclusive, Exhaustive, Complementary };

/// How two conditions on indices relate: d1 <= 0 and d2 <= 0 with a constant distance.
Entailment relate(const Expr& a, const Expr& b, Simplifier& simplifier) {
    if (equal(a, b)) return Entailment::Same;
    if (are_opposite(a, b)) return Entailment::Complementary;
    auto d = at_most_zero_form(a, simplifier);
    auto e = d ? at_most_zero_form(b, simplifier) : std::nullopt;
    if (!e) return Entailment::None;
    if (d->terms.size() != e->terms.size()) return Entailment::None;
    if (Affine distance = minus(*e, *d); distance.terms.empty())
        return distance.offset <= 0 ? Entailment::FirstImplies : Entailment::SecondImplies;
    Affine sum = minus(*e, scaled(*d, -1));
    if (!sum.terms.empty()) return Entailment::None;
    // d <= 0, and d >= the sum
    if (sum.offset == 1) return Entailment::Complementary;
    return sum.offset > 1 ? Entailment::Exclusive : Entailment::Exhaustive;
}

/// A list of conditions joined by one operation, without the redundant ones. Order is kept: what stands first may guard
/// the reads of what follows.
struct JoinedConditions {
    BinaryOp op;
    Simplifier& simplifier;
    std::vector<Expr> parts = {};
    bool decided = false;  // false for And, true for Or

    bool is_and() const { return op == BinaryOp::And; }
    Entailment contradiction() const { return is_and() ? Entailment::Exclusive : Entailment::Exhaustive; }
    Entailment redundant_first() const { return is_and() ? Entailment::SecondImplies : Entailment::FirstImplies; }
    Entailment redundant_second() const { return is_and() ? Entailment::FirstImplies : Entailment::SecondImplies; }

    void add(const Expr& part) {
        if (auto value = as_constant(part)) {
            decided = decided || (*value != 0) != is_and();
            return;
        }
        for (size_t i = 0; i < parts.size(); ++i) {
            Entailment relation = relate(parts[i], part, simplifier);
            if (relation == Entailment::Complementary || relation == contradiction()) decided = true;
            if (relation == redundant_second() || relation == Entailment::Same) return;
            if (relation != redundant_first() || reads_memory(part)) continue;
            parts[i] = part;  // the stronger condition may be redundant itself, or make others redundant
            std::vector<Expr> again;
            again.swap(parts);
            for (const Expr& each : again) add(each);
            return;
        }
        parts.push_back(part);
    }
};

}  // namespace

Expr Simplifier::connect(const Expr& node, const Binary& binary_node) {
    std::vector<Expr> parts;
    flatten(node, binary_node.op, parts);
    if (parts.size() > most_parts) return node;
    JoinedConditions chain{binary_node.op, *this};
    for (const Expr& part : parts) chain.add(part);
    if (chain.decided) return Expr(!chain.is_and());
    if (chain.parts.empty()) return Expr(chain.is_and());
    Expr result = chain.parts[0];
    for (size_t i = 1; i < chain.parts.size(); ++i) result = binary(chain.op, result, chain.parts[i]);
    return equal(result, node) ? node : result;
}

}  // namespace tw
