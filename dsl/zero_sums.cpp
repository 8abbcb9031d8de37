// without_zero_sums(): terms are taken apart into summands; one adds up to zero if it is linear in a difference from a
// mean over all axes of the sum.
#include "dsl/zero_sums.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <unordered_map>

#include "dsl/deep.h"
#include "dsl/simplify.h"
#include "dsl/stage.h"
#include "dsl/walk.h"

namespace tw {
namespace {

constexpr int most_levels = 8;  // of tensors that are looked through: each may have to be computed again

const Expr& extent_of(const Expr& axis) { return axis.as<Variable>()->extent; }

std::optional<double> number_in(const Expr& expr) {
    if (auto real = expr.as<FloatConstant>()) return real->value;
    if (auto integer = expr.as<IntConstant>()) return static_cast<double>(integer->value);
    auto cast = expr.as<Cast>();
    return cast ? number_in(cast->a) : std::nullopt;
}

bool is_sum(const Reduce& reduce) {
    return reduce.values.size() == 1 && combining_operation(*reduce.reducer) == BinaryOp::Add;
}
bool is_widening(const Expr& expr) {
    auto cast = expr.as<Cast>();
    return cast && expr.type() == Type::F64 && cast->a.type() == Type::F32;
}

/// What an element is computed as; undefined if that is no element, an input's, one that may lie outside, or one with a
/// gradient of its own, which further gradients are to follow.
Expr definition_of(const Expr& expr) {
    auto read = expr.as<Read>();
    if (!read || read->guarded || read->operation->is_input() || read->operation->gradient) return {};
    const Operation& operation = *read->operation;
    Substitution there;
    for (size_t d = 0; d < operation.axes.size(); ++d) there.emplace_back(operation.axes[d], read->indices[d]);
    return substitute(operation.outputs[static_cast<size_t>(read->output)].body, there);
}
/// ... undefined, too, if that reduces something.
Expr elementwise_definition_of(const Expr& expr) {
    const Expr definition = definition_of(expr);
    bool reduces = false;
    if (definition.defined()) visit(definition, [&](const Expr& e) { reduces = reduces || e.as<Reduce>(); });
    return reduces ? Expr() : definition;
}

/// rest * factor / count
struct Scaled {
    Expr rest;
    double factor = 1;
    Expr count = {};  ///< an integer expression of named sizes; undefined: 1

    /// Takes a factor, a divisor or a cast off the rest, or writes an element out; false if there is none.
    bool peel(bool through_sums) {
        if (is_widening(rest)) return put(rest.as<Cast>()->a, factor);
        if (rest.as<Read>()) return put(through_sums ? definition_of(rest) : elementwise_definition_of(rest), factor);
        if (auto one = rest.as<Unary>()) return one->op == UnaryOp::Negate && put(one->a, -factor);
        auto two = rest.as<Binary>();
        if (!two) return false;
        if (two->op == BinaryOp::Mul) {
            if (auto number = number_in(two->a)) return put(two->b, factor * *number);
            auto number = number_in(two->b);
            return number && put(two->a, factor * *number);
        }
        if (two->op != BinaryOp::Div) return false;
        if (auto number = number_in(two->b)) return put(two->a, factor / *number);
        auto cast = two->b.as<Cast>();
        if (!cast || !is_integer(cast->a.type()) || count.defined()) return false;
        count = cast->a;
        return put(two->a, factor);
    }

private:
    bool put(Expr next, double scale) {
        if (!next.defined()) return false;
        rest = std::move(next), factor = scale;
        return true;
    }
};
Scaled scaled(const Expr& expr, bool through_sums = false) {
    Scaled result{expr};
    while (result.peel(through_sums)) {
    }
    return result;
}

/// Which axes of a sum stand for which of another one.
class Counterparts {
public:
    /// Of a sum whose terms are the elements at all points of the axes.
    Counterparts(const Reduce& sum, const Expr& term, const std::vector<Expr>& axes, const Expr& element) {
        visit(term, [&](const Expr& e) {
            auto one = e.as<Read>();
            if (!one) return;
            visit(element, [&](const Expr& other) {
                auto read = other.as<Read>();
                if (!read || read->operation != one->operation || read->output != one->output) return;
                for (size_t d = 0; d < one->indices.size(); ++d)
                    if (is_among(sum.axes, one->indices[d]) && is_among(axes, read->indices[d]))
                        put(one->indices[d], read->indices[d]);
            });
        });
        for (const Expr& axis : sum.axes)  // those that stand in sums of indices: in their order
            for (const Expr& own : axes) put(axis, own);
        are_all_ =
            sum.axes.size() == axes.size() && places_.size() == axes.size() &&
            std::ranges::all_of(places_, [](const auto& pair) {
                return !mentions_index(extent_of(pair.first)) && equal(extent_of(pair.first), extent_of(pair.second));
            });
    }
    bool are_all() const { return are_all_; }
    Expr apply(const Expr& term) const { return simplify(substitute(term, places_)); }

private:
    static bool is_among(const std::vector<Expr>& variables, const Expr& expr) {
        return std::ranges::any_of(variables, [&](const Expr& each) { return each.same(expr); });
    }
    /// Unless either has a counterpart.
    void put(const Expr& axis, const Expr& place) {
        const auto is_known = [&](const auto& pair) { return pair.first.same(axis) || pair.second.same(place); };
        if (std::ranges::none_of(places_, is_known)) places_.emplace_back(axis, place);
    }

    Substitution places_;
    bool are_all_;
};

/// The terms of a sum over the axes.
class Terms {
public:
    explicit Terms(const std::vector<Expr>& axes) : axes_(axes) {
        Expr number = integer(1);
        for (const Expr& axis : axes) {
            differs_[axis.id()] = true;
            number = number * extent_of(axis);
        }
        number_ = simplify(number);
    }

    /// The term without what adds up to zero; undefined if that is all.
    Expr left_of(const Expr& term) {
        return with_room_for(term, [&] { return left(term); });
    }

private:
    bool differs(const Expr& expr) {
        if (auto known = differs_.find(expr.id()); known != differs_.end()) return known->second;
        bool found = false;
        for_each_child(*expr, [&](const Expr& kid) { found = differs(kid) || found; });
        kept_.push_back(expr);  // keys are addresses
        return differs_[expr.id()] = found;
    }
    /// ... also where elements that it reads are written out.
    bool is_same_for_all(Expr expr) {
        for (int level = 0; differs(expr); ++level) {
            const Expr before = expr;
            expr = transform(expr, elementwise_definition_of);
            if (expr.same(before) || level == most_levels) return false;
        }
        return true;
    }

    Expr left(const Expr& term) {
        if (is_zero(term)) return {};
        if (!differs(term)) return term;
        if (auto known = left_.find(term.id()); known != left_.end()) return known->second;
        kept_.push_back(term);
        const Expr result = std::visit([&](const auto& node) { return left_of_node(term, node); }, (*term).kind);
        return left_[term.id()] = result;
    }
    /// The same of a term that is linear in a part of it.
    template <class Change>
    Expr changed(const Expr& term, const Expr& part, const Change& change) {
        const Expr inside = left(part);
        if (inside.same(part)) return term;
        return inside.defined() ? change(inside) : Expr();
    }

    template <class Node>
    Expr left_of_node(const Expr& term, const Node&) {
        return term;
    }
    Expr left_of_node(const Expr& term, const Unary& node) {
        if (node.op != UnaryOp::Negate) return term;
        return changed(term, node.a, [](const Expr& a) { return -a; });
    }
    Expr left_of_node(const Expr& term, const Cast& node) {
        if (!is_widening(term)) return term;
        return changed(term, node.a, [](const Expr& a) { return cast_unchecked(Type::F64, a); });
    }
    Expr left_of_node(const Expr& term, const Binary& node) {
        const auto combined = [&](const Expr& a, const Expr& b) { return binary(node.op, a, b); };
        const auto in_front = [&](const Expr& a) { return combined(a, node.b); };
        const auto behind = [&](const Expr& b) { return combined(node.a, b); };
        switch (node.op) {
            case BinaryOp::Add:
            case BinaryOp::Sub: return left_of_sum(term, node);
            case BinaryOp::Mul:
                if (Expr result = changed(term, node.b, behind); !result.same(term) && is_same_for_all(node.a))
                    return result;
                [[fallthrough]];
            case BinaryOp::Div:
                if (Expr result = changed(term, node.a, in_front); !result.same(term) && is_same_for_all(node.b))
                    return result;
                return term;
            default: return term;
        }
    }
    Expr left_of_sum(const Expr& term, const Binary& node) {
        const bool adds = node.op == BinaryOp::Add;
        if (are_differences_from_mean(node.a, node.b, adds) || are_differences_from_mean(node.b, node.a, adds))
            return {};
        const Expr a = left(node.a), b = left(node.b);
        if (a.same(node.a) && b.same(node.b)) return term;
        if (!b.defined()) return a;
        if (!a.defined()) return adds ? b : -b;
        return binary(node.op, a, b);
    }
    Expr left_of_node(const Expr& term, const Select& node) {
        if (differs(node.condition)) return term;
        const Expr yes = left(node.yes), no = left(node.no), zero = constant(term.type(), 0.0);
        const auto is_as_before = [](const Expr& now, const Expr& before) {
            return now.same(before) || is_zero(before);
        };
        if (is_as_before(yes, node.yes) && is_as_before(no, node.no)) return term;
        if (!yes.defined() && !no.defined()) return {};
        return select_unchecked(node.condition, yes.defined() ? yes : zero, no.defined() ? no : zero);
    }
    /// What is left of an element is written out in its place.
    Expr left_of_node(const Expr& term, const Read&) {
        for (const auto& [read, result] : reads_)
            if (equal(read, term)) return result;
        Expr result = term;
        if (const Expr body = level_ < most_levels ? elementwise_definition_of(term) : Expr(); body.defined()) {
            ++level_;
            const Expr inside = left_of(body);
            --level_;
            if (!inside.same(body)) result = inside;
        }
        reads_.emplace_back(term, result);
        return result;
    }

    /// Whether value - other, or value + other, are the differences of values from their mean over the axes.
    bool are_differences_from_mean(const Expr& value, const Expr& other, bool adds) {
        if (!differs(value) || differs(other)) return false;
        const Scaled mean = scaled(other, true), each = scaled(value);
        auto sum = mean.rest.as<Reduce>();
        if (!sum || !is_sum(*sum)) return false;
        const Scaled term = scaled(sum->values[0]);
        const double factor = mean.factor * term.factor / each.factor * (adds ? -1 : 1);
        if (each.count.defined() || !divides_by_number(factor, mean.count, term.count)) return false;
        const Counterparts places(*sum, term.rest, axes_, each.rest);
        return places.are_all() && equal(places.apply(term.rest), simplify(each.rest));
    }
    /// Whether the factor over these counts is 1 over the number of the sum's terms, but for how f32 rounds it.
    bool divides_by_number(double factor, const Expr& outer, const Expr& inner) const {
        const auto number = as_constant(number_);
        const Expr& count = outer.defined() ? outer : inner;
        if (count.defined() && (number || inner.defined() == outer.defined() || !equal(simplify(count), number_)))
            return false;
        if (!count.defined() && !number) return false;
        return std::abs(factor * static_cast<double>(number.value_or(1)) - 1) < 1e-6;
    }

    const std::vector<Expr>& axes_;
    Expr number_;  // of terms
    std::unordered_map<const ExprNode*, bool> differs_;
    std::unordered_map<const ExprNode*, Expr> left_;
    std::vector<std::pair<Expr, Expr>> reads_;  // elements, and what is left of them
    std::vector<Expr> kept_;
    int level_ = 0;
};

}  // namespace

Expr without_zero_sums(const Expr& sum) {
    auto reduce = sum.as<Reduce>();
    if (!reduce || !is_sum(*reduce) || !is_float(sum.type())) return sum;
    const Expr left = Terms(reduce->axes).left_of(reduce->values[0]);
    if (left.same(reduce->values[0])) return sum;
    return left.defined() ? with_children(sum, {left}) : Expr();
}

}  // namespace tw
