// hoist(): terms are taken apart into what is the same for all of them and what is left, by the algebra of factors, or
// of summands.
#include "dsl/hoist.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>

#include "dsl/deep.h"
#include "dsl/signs.h"
#include "dsl/stage.h"
#include "dsl/walk.h"
#include "support/error.h"

namespace tw {
namespace {

constexpr size_t most_parts = 16;  // of one term; shared factors of long products would double with each level

/// What is taken out: factors, of maxima and minima positive ones alone, or summands.
enum class Rule { Factors, PositiveFactors, Summands };

BinaryOp join(Rule rule) { return rule == Rule::Summands ? BinaryOp::Add : BinaryOp::Mul; }
BinaryOp part(Rule rule) { return rule == Rule::Summands ? BinaryOp::Sub : BinaryOp::Div; }
Expr neutral(Rule rule, Type type) { return constant(type, rule == Rule::Summands ? 0.0 : 1.0); }

/// A term: rest * joined.. / parted.., or rest + joined.. - parted..
struct Parts {
    std::vector<Expr> joined = {}, parted = {};
    Expr rest = {};  ///< undefined: nothing is left

    bool found() const { return !joined.empty() || !parted.empty(); }
};

Expr whole(Rule rule, const Parts& parts, Expr rest) {
    for (const Expr& each : parts.joined) rest = binary(join(rule), rest, each);
    for (const Expr& each : parts.parted) rest = binary(part(rule), rest, each);
    return rest;
}

/// Change of all parts alike.
template <class Change>
Parts changed(Parts parts, Change&& change) {
    for (std::vector<Expr>* exprs : {&parts.joined, &parts.parted})
        for (Expr& expr : *exprs) expr = change(expr);
    if (parts.rest.defined()) parts.rest = change(parts.rest);
    return parts;
}

/// Tensors that are made on the way, and what is known of those that terms read.
struct Made {
    /// Output of an operation, which of its axes differ from term to term, whether a select stands around, the rule.
    using Key = std::tuple<const Operation*, int, std::vector<bool>, bool, Rule>;

    /// A tensor like the operation's, of another body over the same axes.
    Tensor like(const Operation& operation, const std::string& name, const Expr& body) {
        tensors.push_back(compute(
            name, {operation.shape.begin(), operation.shape.end()},
            [&](const std::vector<Expr>& axes) {
                Substitution rename;
                for (size_t d = 0; d < axes.size(); ++d) rename.emplace_back(operation.axes[d], axes[d]);
                return substitute(body, rename);
            },
            where));
        return tensors.back();
    }
    std::string fresh_name(const std::string& wish) {
        std::string name = wish;
        for (int n = 2; !names.insert(name).second; ++n) name = fmt::format("{}_{}", wish, n);
        return name;
    }

    std::source_location where;
    std::set<std::string> names;
    std::vector<Tensor> tensors;  ///< all that were made: keys are addresses
    std::map<Key, Parts> known;   ///< over the operation's axes
};

/// The terms of a reduction, or elements that they read.
class Terms {
public:
    /// `differ`: variables that differ from term to term.
    Terms(Made& made, Rule rule, const std::vector<Expr>& differ, bool is_chosen = false)
        : made_(made), rule_(rule), is_chosen_(is_chosen) {
        for (const Expr& variable : differ) differs_[variable.id()] = true;
    }

    Parts apart(const Expr& term) {
        return with_room_for(term, [&] { return parts(term); });
    }

    bool differs(const Expr& expr) {
        if (auto known = differs_.find(expr.id()); known != differs_.end()) return known->second;
        bool found = false;
        for_each_child(*expr, [&](const Expr& kid) { found = differs(kid) || found; });
        if (auto reduce = expr.as<Reduce>())
            for (const Expr& axis : reduce->axes) found = differs(axis.as<Variable>()->extent) || found;
        return differs_[expr.id()] = found;
    }

private:
    Parts parts(const Expr& expr) {
        auto [known, is_new] = known_.try_emplace({expr.id(), is_chosen_});
        if (!is_new) return known->second;
        Parts result;
        if (!differs(expr))
            result = may_leave(expr) ? Parts{.joined = {expr}} : Parts{};
        else if (!info(expr.type()).is_storage_only)  // of which nothing is computed
            result = std::visit([&](const auto& node) { return parts_of(expr, node); }, (*expr).kind);
        if (!result.found() || result.joined.size() + result.parted.size() > most_parts) result = {.rest = expr};
        return known_[{expr.id(), is_chosen_}] = result;
    }

    /// Whether it can be computed apart from the term: also where a select keeps the term from being computed.
    bool may_leave(const Expr& expr) const {
        if (is_infinite(expr) || changes_nothing(expr)) return false;
        if (rule_ == Rule::PositiveFactors && !is_positive(expr)) return false;
        bool is_there = true;
        visit(expr, [&](const Expr& e) {
            auto read = e.as<Read>();
            is_there = is_there && !(read && (read->guarded || std::ranges::any_of(read->indices, reads_elements)));
        });
        return is_there || !is_chosen_;
    }
    bool changes_nothing(const Expr& expr) const {
        auto number = expr.as<FloatConstant>();
        return number && std::abs(number->value) == (rule_ == Rule::Summands ? 0 : 1);
    }
    static bool reads_elements(const Expr& index) {
        bool found = false;
        visit(index, [&](const Expr& e) { found = found || e.as<Read>(); });
        return found;
    }

    template <class Node>
    Parts parts_of(const Expr&, const Node&) {
        return {};
    }

    Parts parts_of(const Expr& expr, const Unary& node) {
        if (node.op != UnaryOp::Negate) return {};
        Parts inside = parts(node.a);
        if (rule_ == Rule::Summands)
            std::swap(inside.joined, inside.parted);
        else if (!inside.rest.defined())
            inside.rest = neutral(rule_, expr.type());
        if (inside.rest.defined()) inside.rest = unary(UnaryOp::Negate, inside.rest);
        return inside;
    }

    Parts parts_of(const Expr& expr, const Binary& node) {
        if (node.op == join(rule_)) return joined(parts(node.a), parts(node.b));
        if (node.op == part(rule_)) return parted(expr.type(), parts(node.a), parts(node.b));
        switch (node.op) {
            case BinaryOp::Mul:
                return differs(node.b) ? scaled(node.op, node.b, node.a) : scaled(node.op, node.a, node.b);
            case BinaryOp::Div: return differs(node.b) ? Parts{} : scaled(node.op, node.a, node.b);
            case BinaryOp::Min:
            case BinaryOp::Max:
                if (rule_ == Rule::Factors) return {};  // of which one may be negative
                [[fallthrough]];
            case BinaryOp::Add:
            case BinaryOp::Sub:
                return common(expr.type(), node.a, node.b,
                              [&](const Expr& a, const Expr& b) { return binary(node.op, a, b); });
            default: return {};
        }
    }

    Parts joined(Parts a, const Parts& b) const {
        a.joined.insert(a.joined.end(), b.joined.begin(), b.joined.end());
        a.parted.insert(a.parted.end(), b.parted.begin(), b.parted.end());
        a.rest = !a.rest.defined() ? b.rest : !b.rest.defined() ? a.rest : binary(join(rule_), a.rest, b.rest);
        return a;
    }
    Parts parted(Type type, const Parts& a, Parts b) const {
        const Expr rest = std::exchange(b.rest, Expr());
        std::swap(b.joined, b.parted);
        Parts result = joined(a, b);
        if (!rest.defined()) return result;
        if (a.rest.defined() || rule_ != Rule::Summands)
            result.rest = binary(part(rule_), a.rest.defined() ? a.rest : neutral(rule_, type), rest);
        else
            result.rest = unary(UnaryOp::Negate, rest);
        return result;
    }

    /// Summands of a sum that is multiplied or divided by what is the same for all terms.
    Parts scaled(BinaryOp op, const Expr& sum, const Expr& by) {
        if (differs(by) || !may_leave(by)) return {};
        return changed(parts(sum), [&](const Expr& e) { return binary(op, e, by); });
    }

    /// What both sides have in common.
    template <class Combine>
    Parts common(Type type, const Expr& a, const Expr& b, Combine&& combine) {
        Parts left = parts(a), right = parts(b), both;
        for (auto side : {&Parts::joined, &Parts::parted})
            std::erase_if(left.*side, [&](const Expr& each) {
                auto found = std::ranges::find_if(right.*side, [&](const Expr& other) { return equal(each, other); });
                if (found == (right.*side).end()) return false;
                (both.*side).push_back(each);
                (right.*side).erase(found);
                return true;
            });
        if (!both.found()) return {};
        auto left_over = [&](const Parts& parts) {
            return whole(rule_, parts, parts.rest.defined() ? parts.rest : neutral(rule_, type));
        };
        both.rest = combine(left_over(left), left_over(right));
        return both;
    }

    /// A condition that is the same for all terms guards what they have in common, too.
    Parts parts_of(const Expr& expr, const Select& node) {
        if (guards_element(node.condition)) return {};
        const bool before = std::exchange(is_chosen_, true);
        auto choose = [&](const Expr& a, const Expr& b) { return select_unchecked(node.condition, a, b); };
        Parts result;
        if (absorbs(node.no)) {
            result = parts(node.yes);
            result.rest = choose(result.rest.defined() ? result.rest : neutral(rule_, expr.type()), node.no);
        } else if (absorbs(node.yes)) {
            result = parts(node.no);
            result.rest = choose(node.yes, result.rest.defined() ? result.rest : neutral(rule_, expr.type()));
        } else {
            result = common(expr.type(), node.yes, node.no, choose);
        }
        is_chosen_ = before;
        return result;
    }
    /// Whether factors, or summands, leave it as it is.
    bool absorbs(const Expr& expr) const {
        return (rule_ != Rule::Summands && is_zero(expr)) || (rule_ != Rule::Factors && is_infinite(expr));
    }
    bool guards_element(const Expr& condition) {
        if (!differs(condition)) return true;
        if (auto one = condition.as<Unary>()) return guards_element(one->a);
        auto two = condition.as<Binary>();
        const bool joins = two && (two->op == BinaryOp::And || two->op == BinaryOp::Or);
        return joins && (guards_element(two->a) || guards_element(two->b));
    }

    /// A cast to a type that holds all values; others round.
    Parts parts_of(const Expr& expr, const Cast& node) {
        if (node.a.type() != Type::F32 || expr.type() != Type::F64) return {};
        return changed(parts(node.a), [](const Expr& e) { return cast_unchecked(Type::F64, e); });
    }

    /// What all elements that terms read have in common.
    Parts parts_of(const Expr&, const Read& node) {
        const Operation& operation = *node.operation;
        if (operation.is_input() || operation.gradient || node.guarded) return {};
        Substitution there;
        std::vector<bool> along;
        for (size_t d = 0; d < operation.axes.size(); ++d) {
            there.emplace_back(operation.axes[d], node.indices[d]);
            along.push_back(differs(node.indices[d]));
        }
        if (!is_elementwise(operation.outputs[node.output].body, operation.axes, along, node.indices)) return {};
        auto [known, is_new] = made_.known.try_emplace({&operation, node.output, along, is_chosen_, rule_});
        if (is_new) known->second = elements_apart(node, along);
        Parts result = changed(known->second, [&](const Expr& e) { return substitute(e, there); });
        for (const std::vector<Expr>* exprs : {&result.joined, &result.parted})
            for (const Expr& expr : *exprs)
                if (!may_leave(expr)) return {};
        return result;
    }

    static std::vector<Expr> chosen(const std::vector<Expr>& axes, const std::vector<bool>& along) {
        std::vector<Expr> result;
        for (size_t d = 0; d < axes.size(); ++d)
            if (along[d]) result.push_back(axes[d]);
        return result;
    }

    /// Whether all reductions in the body are the same for all terms, and none has an axis that stands in an index.
    bool is_elementwise(const Expr& body, const std::vector<Expr>& axes, const std::vector<bool>& along,
                        const std::vector<Expr>& indices) {
        Terms elements(made_, rule_, chosen(axes, along));
        bool result = true;
        visit(body, [&](const Expr& e) {
            auto reduce = e.as<Reduce>();
            if (!reduce) return;
            result = result && !elements.differs(e);
            for (const Expr& axis : reduce->axes)
                result = result && std::ranges::none_of(indices, [&](const Expr& i) { return contains(i, axis); });
        });
        return result;
    }

    static bool repeats_another(const Expr& expr) {
        if (auto converted = expr.as<Cast>()) return repeats_another(converted->a);
        auto read = expr.as<Read>();
        return read && !read->guarded;
    }

    /// Over the operation's axes; what is left is a tensor of its own, unless it just repeats another one.
    Parts elements_apart(const Read& read, const std::vector<bool>& along) {
        const Operation& operation = *read.operation;
        Parts result =
            Terms(made_, rule_, chosen(operation.axes, along), is_chosen_).apart(operation.outputs[read.output].body);
        if (!result.found()) return {};
        if (!result.rest.defined() || repeats_another(result.rest)) return result;
        const std::string& name = Tensor(read.operation, read.output).name();
        const char* without = rule_ == Rule::Summands ? "unshifted" : "unscaled";
        Tensor left = made_.like(operation, made_.fresh_name(fmt::format("{}_{}", name, without)), result.rest);
        result.rest = make_expr(left.type(), Read{left.operation(), 0, operation.axes});
        return result;
    }

    Made& made_;
    Rule rule_;
    bool is_chosen_;  // by a select, which may leave it out
    std::unordered_map<const ExprNode*, bool> differs_;
    std::map<std::pair<const ExprNode*, bool>, Parts> known_;
};

std::vector<Rule> rules_of(const ReducerNode& reducer) {
    const auto operation = combining_operation(reducer);
    if (operation == BinaryOp::Add) return {Rule::Factors};
    if (operation == BinaryOp::Max || operation == BinaryOp::Min) return {Rule::Summands, Rule::PositiveFactors};
    return {};
}

/// The reduction of what is left, and behind it what was taken out; undefined if nothing was.
Expr taken_out(Made& made, const Expr& expr) {
    Reduce left = *expr.as<Reduce>();
    if (!is_float(expr.type())) return {};
    std::vector<std::pair<Rule, Parts>> taken;
    for (const Rule rule : rules_of(*left.reducer)) {
        const Parts parts = Terms(made, rule, left.axes).apart(left.values[0]);
        if (!parts.rest.defined()) return {};  // a sum of equal terms is left as it is
        if (!parts.found()) continue;
        left.values[0] = parts.rest;
        taken.emplace_back(rule, parts);
    }
    if (taken.empty()) return {};
    Expr result = make_expr(expr.type(), left);
    for (size_t n = taken.size(); n-- > 0;) result = whole(taken[n].first, taken[n].second, result);
    return result;
}

}  // namespace

Tensor hoist(const Tensor& tensor, std::source_location where) {
    user_check(tensor.defined(), where, "hoist: the tensor is undefined; declare it with compute() first");
    const Operation& operation = *tensor.operation();
    if (operation.is_input()) return tensor;
    Made made{.where = where, .names = {}, .tensors = {}, .known = {}};
    for (const auto& each : operations_of({tensor})) made.names.insert(each->name);
    const Expr& body = operation.outputs[tensor.output()].body;
    const Expr hoisted = transform(body, [&](const Expr& e) { return e.as<Reduce>() ? taken_out(made, e) : Expr(); });
    if (hoisted.same(body)) return tensor;
    Tensor result = made.like(operation, tensor.name(), hoisted);
    if (!operation.gradient) return result;
    auto ruled = std::make_shared<Operation>(*result.operation());
    ruled->gradient = operation.gradient;
    return {ruled, 0};
}

}  // namespace tw
