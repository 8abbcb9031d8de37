#include "schedules/find_attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include "dsl/constant_factors.h"
#include "dsl/scaled_product.h"
#include "dsl/signs.h"
#include "dsl/simplify.h"
#include "dsl/stage.h"
#include "schedules/declared_as.h"
#include "schedules/row_groups.h"
#include "schedules/whole_tiles.h"

namespace tw::schedules {
namespace {

bool is_half(Type type) { return type == bf16 || type == f16; }
const Binary* binary_of(const Expr& e, BinaryOp op) {
    const Binary* own = e.as<Binary>();
    return own && own->op == op ? own : nullptr;
}
const Reduce* reduction_by(const Expr& e, BinaryOp op) {
    const Reduce* own = e.as<Reduce>();
    return own && own->values.size() == 1 && own->axes.size() == 1 && atomic_operation(*own->reducer) == op ? own
                                                                                                            : nullptr;
}
std::vector<Expr> reductions_in(const Expr& body) {
    std::vector<Expr> found;
    visit(body, [&](const Expr& e) {
        if (e.as<Reduce>() && std::ranges::none_of(found, [&](const Expr& each) { return equal(each, e); }))
            found.push_back(e);
    });
    return found;
}
/// f32 elements without what rounds them to 16 bits on the way.
Expr unrounded(const Expr& body) {
    return transform(body, [](const Expr& e) -> Expr {
        const Cast* outer = e.as<Cast>();
        const Cast* inner = outer && is_half(outer->a.type()) ? outer->a.as<Cast>() : nullptr;
        return inner && inner->a.type() == e.type() ? inner->a : Expr();
    });
}

/// A quotient of products.
struct Fraction {
    std::vector<Expr> above, below;
};
void factor(const Expr& e, Fraction& found) {
    if (const Binary* product = binary_of(e, BinaryOp::Mul)) {
        factor(product->a, found), factor(product->b, found);
    } else if (const Binary* quotient = binary_of(e, BinaryOp::Div)) {
        Fraction below;
        factor(quotient->a, found), factor(quotient->b, below);
        found.below.insert(found.below.end(), below.above.begin(), below.above.end());
        found.above.insert(found.above.end(), below.below.begin(), below.below.end());
    } else if (const FloatConstant* one = e.as<FloatConstant>(); !one || one->value != 1) {
        found.above.push_back(e);
    }
}

/// An element of 16 bits that a factor is, in f32.
const Read* half_read(const Expr& factor) {
    const Cast* cast = factor.as<Cast>();
    const Read* read = cast && factor.type() == f32 ? cast->a.as<Read>() : nullptr;
    return read && is_half(cast->a.type()) && !read->guarded ? read : nullptr;
}
Expr element_of(const Expr& factor) { return factor.as<Cast>()->a; }

class Search {
public:
    Search(const Tensor& o, const std::vector<Tensor>& outputs) : outputs_(outputs) { found_.o = o; }

    std::optional<FoundAttention> run() {
        const Operation& own = *found_.o.operation();
        if (own.is_input() || own.outputs.size() != 1 || own.axes.size() < 2 || own.axes.size() > 4 ||
            !is_half(found_.o.type()))
            return {};
        if (!is_weighted_sum() || !is_softmax() || !is_of_product() || !has_axes()) return {};
        find_group();
        take_mask();
        found_.shape.type = found_.o.type();
        const AttentionShape& shape = found_.shape;
        constexpr int64_t most = 256, of_boxes = 8, least_rows = 16;
        for (const int64_t head : {shape.depth, shape.width})
            if (head % of_boxes != 0 || head > most || head < 1) return {};
        if (shape.rows < least_rows || shape.keys < least_rows || shape.batch < 1 || shape.heads < 1) return {};
        for (const Expr& element : {found_.q, found_.k, found_.v})
            if (element.type() != shape.type) return {};
        if (!has_own_inside() || !find_operands()) return {};
        return std::move(found_);
    }

private:
    /// What the expression is made of, down to reductions, whatever tensors stand between.
    Expr opened(const Expr& e) {
        if (e.as<Reduce>()) return e;
        if (const Read* read = e.as<Read>()) {
            const Operation& from = *read->operation;
            if (from.is_input() || from.outputs.size() != 1 || read->guarded) return e;
            inside_.insert(read->operation);
            std::vector<std::pair<Expr, Expr>>& known = opened_[read->operation];
            for (const auto& [element, own] : known)
                if (equal(element, e)) return own;
            const Expr own = opened(over(from.axes, from.outputs[0].body, read->indices));
            known.emplace_back(e, own);
            return own;
        }
        std::vector<Expr> kids = children(e);
        for (Expr& kid : kids) kid = opened(kid);
        return with_children(e, kids);
    }
    Expr made_of(const Expr& e) { return unrounded(opened(e)); }

    /// sum_j weight v, perhaps divided, rounded, or 0 for a row without keys.
    bool is_weighted_sum() {
        Expr whole = made_of(body_of(found_.o));
        if (const Cast* rounded = whole.as<Cast>(); rounded && is_half(whole.type())) whole = rounded->a;
        if (const Select* seen = whole.as<Select>(); seen && is_zero(seen->yes)) {
            const Binary* none = binary_of(seen->condition, BinaryOp::Equal);
            if (!none || !is_infinity(none->b, -1)) return false;
            top_of_empty_ = none->a;
            whole = seen->no;
        }
        Fraction parts;
        factor(whole, parts);
        if (parts.above.size() != 1 || parts.below.size() > 1) return false;
        if (!parts.below.empty()) found_.sum = parts.below[0];
        const Reduce* values = reduction_by(parts.above[0], BinaryOp::Add);
        if (!values) return false;
        key_ = values->axes[0];
        Fraction term;
        factor(values->values[0], term);
        std::vector<Expr> weights;
        const Expr width = found_.o.operation()->axes.back();
        for (const Expr& each : term.above) {
            if (!contains(each, width)) {
                weights.push_back(each);
            } else if (half_read(each) && !found_.v.defined()) {
                found_.v = element_of(each);
            } else {
                return false;
            }
        }
        if (!found_.v.defined()) return false;
        Fraction weight;
        for (const Expr& each : weights) factor(made_of(each), weight);
        weight.below.insert(weight.below.end(), term.below.begin(), term.below.end());
        if (weight.above.size() != 1 || weight.below.size() + parts.below.size() != 1) return false;
        if (!weight.below.empty()) found_.sum = made_of(weight.below[0]);
        exponential_ = weight.above[0];
        return true;
    }

    /// exp(x - max_j x), divided by its sum over j.
    bool is_softmax() {
        const Unary* own = exponential_.as<Unary>();
        if (!own || (own->op != UnaryOp::Exp && own->op != UnaryOp::Exp2)) return false;
        const double base = own->op == UnaryOp::Exp ? 1 : std::log(2.0);
        for (const Expr& each : reductions_in(own->a))
            if (reduction_by(each, BinaryOp::Max)) found_.top = each;
        if (!found_.top.defined()) return false;
        const Reduce& top = *found_.top.as<Reduce>();
        const Expr largest = found_.top, x = made_of(substitute(top.values[0], {{top.axes[0], key_}}));
        const auto scale = scale_of_difference(own->a, x, largest);
        if (!scale || (top_of_empty_.defined() && !equal(top_of_empty_, largest))) return false;
        found_.to_natural = *scale * base;
        found_.score = x;
        const Reduce* sum = reduction_by(found_.sum, BinaryOp::Add);
        if (!sum || !has_all_keys(*sum) || !has_all_keys(top)) return false;
        return equal(made_of(substitute(sum->values[0], {{sum->axes[0], key_}})), exponential_);
    }

    bool has_all_keys(const Reduce& reduction) const {
        auto extent = [](const Expr& axis) {
            const Expr& own = axis.as<Variable>()->extent;
            return own.defined() ? as_constant(own) : std::nullopt;
        };
        return extent(reduction.axes[0]) && extent(reduction.axes[0]) == extent(key_);
    }

    /// c of x - m, (x - m) * c, or x * c - m * c.
    static std::optional<double> scale_of_difference(const Expr& e, const Expr& x, const Expr& top) {
        auto scaled = [](const Expr& product) -> std::pair<Expr, double> {
            const Binary* own = binary_of(product, BinaryOp::Mul);
            const FloatConstant *first = own ? own->a.as<FloatConstant>() : nullptr,
                                *second = own ? own->b.as<FloatConstant>() : nullptr;
            if (second) return {own->a, second->value};
            return first ? std::pair{own->b, first->value} : std::pair{product, 1.0};
        };
        if (const Binary* difference = binary_of(e, BinaryOp::Sub)) {
            if (equal(difference->a, x) && equal(difference->b, top)) return 1.0;
            const auto [a, of_a] = scaled(difference->a);
            const auto [b, of_b] = scaled(difference->b);
            return equal(a, x) && equal(b, top) && of_a == of_b && of_a > 0 ? std::optional(of_a) : std::nullopt;
        }
        const auto [rest, factor] = scaled(e);
        return factor > 0 && !rest.same(e) && binary_of(rest, BinaryOp::Sub) && scale_of_difference(rest, x, top) == 1.0
                   ? std::optional(factor)
                   : std::nullopt;
    }

    /// Scores are made of one sum of products.
    bool is_of_product() {
        const std::vector<Expr> sums = reductions_in(found_.score);
        const Reduce* own = sums.size() == 1 ? reduction_by(sums[0], BinaryOp::Add) : nullptr;
        const auto product = own ? scaled_product(own->values[0]) : std::nullopt;
        if (!product || !half_read(product->a) || !half_read(product->b)) return false;
        found_.product = sums[0];
        found_.scale = product->scale;
        found_.q = element_of(product->a), found_.k = element_of(product->b);
        depth_ = own->axes[0];
        if (contains(found_.q, key_)) std::swap(found_.q, found_.k);
        return contains(found_.k, key_) && !contains(found_.q, key_);
    }

    static std::optional<int64_t> extent_of(const Expr& axis) {
        const Expr& extent = axis.as<Variable>()->extent;
        return extent.defined() ? as_constant(extent) : std::nullopt;
    }

    /// Which of o's axes are rows, batches and heads.
    bool has_axes() {
        const Operation& own = *found_.o.operation();
        const Expr width = own.axes.back();
        if (contains(found_.score, width)) return false;
        std::optional<size_t> row;
        for (size_t d = 0; d + 1 < own.axes.size(); ++d) {
            const Expr& axis = own.axes[d];
            if (contains(found_.k, axis) || contains(found_.v, axis) || !contains(found_.q, axis)) continue;
            if (row) return false;
            row = d;
        }
        if (!row) return false;
        found_.missing = 4 - static_cast<int>(own.axes.size());
        const size_t place = *row + static_cast<size_t>(found_.missing);  // among all four
        if (place != 1 && place != 2) return false;
        AttentionShape& shape = found_.shape;
        shape.heads_first = place == 2;
        std::vector<Expr> around;
        std::vector<int64_t> extents;
        for (size_t d = 0; d + 1 < own.axes.size(); ++d) {
            const auto extent = as_constant(own.shape[d]);
            if (!extent) return false;
            if (d == *row) {
                shape.rows = *extent;
            } else {
                around.push_back(own.axes[d]), extents.push_back(*extent);
            }
        }
        while (around.size() < 2) around.insert(around.begin(), Expr()), extents.insert(extents.begin(), 1);
        shape.batch = extents[0], shape.heads = extents[1];
        const auto keys = extent_of(key_), depth = extent_of(depth_), of_values = as_constant(own.shape.back());
        if (!keys || !depth || !of_values) return false;
        shape.keys = *keys, shape.depth = *depth, shape.width = *of_values;
        found_.axes = {around[0], around[1], own.axes[*row], key_, depth_, width};
        return true;
    }

    /// Heads of keys and values: those that are read at h / G.
    void find_group() {
        const Expr head = found_.axes[1];
        if (head.defined() && !contains(found_.k, head) && !contains(found_.v, head)) {
            found_.shape.group = found_.shape.heads;
            return;
        }
        std::optional<int64_t> group;
        bool is_shared = head.defined();
        for (const Expr& element : {found_.k, found_.v}) {
            visit(element, [&](const Expr& e) {
                const Binary* quotient = binary_of(e, BinaryOp::Div);
                if (!quotient || !head.defined() || !quotient->a.same(head)) return;
                const auto by = as_constant(quotient->b);
                is_shared = is_shared && by && (!group || group == by);
                group = by;
            });
        }
        if (!is_shared || !group || *group < 1 || found_.shape.heads % *group != 0) return;
        const Expr of_keys = index_variable("head", 0, found_.shape.heads / *group - 1);
        for (const Expr& element : {found_.k, found_.v})
            if (contains(exchanged(element, head / *group, of_keys), head)) return;
        found_.shape.group = *group;
    }

    /// select(j <= i + c, x, -infinity), whichever way it is written.
    void take_mask() {
        const Select* masked = found_.score.as<Select>();
        if (!masked) return;
        const Binary* order = masked->condition.as<Binary>();
        const bool is_kept = is_infinity(masked->no, -1);
        if (!order || is_kept == is_infinity(masked->yes, -1) ||
            (order->op != BinaryOp::LessEqual && order->op != BinaryOp::Less))
            return;
        // first - second <= 0 where the key is seen
        Affine ahead = affine_of(order->a) - affine_of(order->b);
        if (!is_kept) ahead = affine_of(order->b) - affine_of(order->a);
        const bool is_strict = (order->op == BinaryOp::Less) == is_kept;
        ahead.offset += is_strict ? 1 : 0;
        const Expr &row = found_.axes[2], &key = found_.axes[3];
        if (coefficient(ahead, key) != 1 || coefficient(ahead, row) != -1 || ahead.terms.size() != 2) return;
        found_.shape.causal = true;
        found_.shape.keys_before = -ahead.offset;
        found_.score = is_kept ? masked->yes : masked->no;
    }

    /// Nothing outside reads what stands between, but for what is made of rows' maxima and sums.
    bool has_own_inside() {
        keep_inside_of_product();
        auto is_outside = [&](const OperationRef& each) {
            return each != found_.o.operation() && !each->is_input() && !inside_.contains(each) && !is_of_rows(each);
        };
        for (const OperationRef& each : operations_of(outputs_))
            if (is_outside(each) && reads_inside(*each)) take_of_row(each);
        std::set<OperationRef> asked;
        for (const Tensor& output : outputs_) asked.insert(output.operation());
        for (const OperationRef& each : operations_of(outputs_)) {
            if (!is_outside(each)) continue;
            for (const OperationRef& read : read_by(*each)) asked.insert(read);
        }
        for (const OperationRef& each : operations_of(outputs_))
            if (inside_.contains(each)) found_.inside.push_back(each);
        return std::ranges::all_of(
            found_.inside, [&](const OperationRef& each) { return !asked.contains(each) || take_of_row(each); });
    }
    /// What reads the product, through others; the rest of what was opened is just computed again.
    void keep_inside_of_product() {
        std::set<OperationRef> kept;
        size_t before = 0;
        do {
            before = kept.size();
            for (const OperationRef& each : inside_) {
                bool has_product = false;
                visit(each->outputs[0].body, [&](const Expr& e) {
                    const Reduce* reduction = e.as<Reduce>();
                    const Read* read = e.as<Read>();
                    has_product = has_product || (reduction && reduction->axes[0].same(depth_)) ||
                                  (read && kept.contains(read->operation));
                });
                if (has_product) kept.insert(each);
            }
        } while (kept.size() != before);
        inside_ = kept;
    }
    bool is_of_rows(const OperationRef& operation) const {
        return std::ranges::any_of(
            found_.of_rows, [&](const FoundAttention::OfRow& each) { return each.given.operation() == operation; });
    }
    bool take_of_row(const OperationRef& operation) {
        const std::set<OperationRef> before = inside_;
        const Tensor tensor(operation, 0);
        const auto made = operation->outputs.size() == 1 ? of_row(tensor) : std::nullopt;
        inside_ = before;
        if (made) found_.of_rows.push_back(*made);
        return made.has_value();
    }
    static std::set<OperationRef> read_by(const Operation& operation) {
        std::set<OperationRef> found;
        for (const Operation::Output& output : operation.outputs)
            visit_with_extents(output.body, [&](const Expr& e) {
                if (const Read* read = e.as<Read>()) found.insert(read->operation);
            });
        return found;
    }
    bool reads_inside(const Operation& operation) const {
        return std::ranges::any_of(read_by(operation),
                                   [&](const OperationRef& each) { return inside_.contains(each); });
    }

    /// Nothing unless it is made of maxima and sums alone.
    std::optional<FoundAttention::OfRow> of_row(const Tensor& tensor) {
        const AttentionShape& shape = found_.shape;
        const std::array<int64_t, 3> extents{shape.batch, shape.heads, shape.rows};
        std::vector<Expr> rows;
        std::vector<int64_t> counts;
        for (size_t k = 0; k < extents.size(); ++k)
            if (found_.axes[k].defined()) rows.push_back(found_.axes[k]), counts.push_back(extents[k]);
        const Operation& own = *tensor.operation();
        if (own.axes.size() != rows.size()) return {};
        const Expr body = made_of(own.outputs[0].body);
        std::vector<size_t> order(rows.size());
        for (size_t k = 0; k < order.size(); ++k) order[k] = k;
        do {
            std::vector<Expr> at;
            bool fits = true;
            for (size_t k = 0; k < order.size(); ++k) {
                at.push_back(rows[order[k]]);
                fits = fits && as_constant(own.shape[k]) == counts[order[k]];
            }
            if (!fits) continue;
            const Expr here = over(own.axes, body, at);
            Expr rest = exchanged(here, found_.sum, constant(f32, 1.0));
            rest = exchanged(rest, found_.top, constant(f32, 1.0));
            bool is_known = true;
            visit(rest, [&](const Expr& e) { is_known = is_known && !e.as<Read>() && !e.as<Reduce>(); });
            if (is_known && variables_of(rest).empty()) return FoundAttention::OfRow{tensor, here, at};
        } while (std::ranges::next_permutation(order).found);
        return {};
    }

    bool find_operands() {
        std::set<OperationRef> seen;
        auto add = [&](const Expr& body) {
            visit(body, [&](const Expr& e) {
                const Read* read = e.as<Read>();
                if (read && seen.insert(read->operation).second) found_.operands.emplace_back(read->operation, 0);
            });
        };
        for (const Expr& element : {found_.q, found_.k, found_.v}) add(element);
        add(exchanged(found_.score, found_.product, constant(f32, 0.0)));
        return std::ranges::all_of(found_.operands, [](const Tensor& t) { return t.operation()->outputs.size() == 1; });
    }

    FoundAttention found_;
    const std::vector<Tensor>& outputs_;
    std::set<OperationRef> inside_;
    std::map<OperationRef, std::vector<std::pair<Expr, Expr>>> opened_;  ///< elements, and what they are made of
    Expr exponential_, key_, depth_, top_of_empty_;
};

}  // namespace

std::optional<FoundAttention> find_attention(const Tensor& o, const std::vector<Tensor>& outputs) {
    return Search(o, outputs).run();
}

}  // namespace tw::schedules
