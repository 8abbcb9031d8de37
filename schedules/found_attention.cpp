// What was found, declared as declare_attention() does.
#include <algorithm>
#include <cmath>

#include "dsl/constant_factors.h"
#include "dsl/signs.h"
#include "schedules/declared_as.h"
#include "schedules/find_attention.h"
#include "schedules/whole_tiles.h"

namespace tw::schedules {
namespace {

enum { Batch, Head, Row, Key, Depth, Width };

/// The expression over other tensors.
Expr reading(const Expr& body, const std::vector<Tensor>& operands, const std::vector<Tensor>& instead) {
    return transform(body, [&](const Expr& e) -> Expr {
        const Read* read = e.as<Read>();
        for (size_t k = 0; read && k < operands.size(); ++k)
            if (read->operation == operands[k].operation()) {
                Read own = *read;
                own.operation = instead[k].operation();
                own.output = instead[k].output() + read->output;
                return make_expr(e.type(), own);
            }
        return {};
    });
}

/// With other expressions in the place of axes, if there are such.
Expr at_places(const Expr& body, const Substitution& places) {
    Substitution known;
    for (const auto& [axis, place] : places)
        if (axis.defined()) known.emplace_back(axis, place);
    return substitute(body, known);
}

/// Queries, keys or values as AttentionShape has them: `element` is of an operand.
Tensor by_tokens(const FoundAttention& found, const std::string& name, const Expr& element, int token, int of_head) {
    const AttentionShape& shape = found.shape;
    const int64_t heads = token == Row ? shape.heads : shape.heads / shape.group;
    const Expr head = index_variable("head", 0, heads - 1);
    Expr own = element;
    if (heads == 1)
        own = at_places(own, {{found.axes[Head], integer(0)}});
    else if (heads < shape.heads)
        own = exchanged(own, found.axes[Head] / shape.group, head);
    auto at = [&](const Expr& b, const Expr& t, const Expr& h, const Expr& x) {
        return at_places(own, {{head, h},
                               {found.axes[static_cast<size_t>(token)], t},
                               {found.axes[static_cast<size_t>(of_head)], x},
                               {found.axes[Batch], b},
                               {found.axes[Head], h}});
    };
    const Tensor view = compute(
        name,
        shape.of_tokens(token == Row ? shape.rows : shape.keys, heads, of_head == Depth ? shape.depth : shape.width),
        [&](Expr b, Expr y, Expr z, Expr x) { return shape.heads_first ? at(b, z, y, x) : at(b, y, z, x); });
    const Read& read = *body_of(view).as<Read>();
    const Tensor whole(read.operation, read.output);
    const bool is_whole = std::ranges::equal(read.indices, view.operation()->axes, equal) &&
                          std::ranges::equal(whole.shape(), view.shape(), equal);
    return is_whole ? whole : view;
}

/// Products times the factor, within what f32 tells apart, and nothing else.
bool is_product_times(const FoundAttention& found, double factor) {
    if (found.scale.defined() && !found.scale.as<FloatConstant>()) return false;
    const Expr product = scalar("product", f32);
    const Expr sums = found.scale.defined() ? product * found.scale : product;
    const ScaledExpr own = take_constants(exchanged(found.score, found.product, sums));
    constexpr double apart = 1e-6;
    return own.rest.same(product) && own.offset == 0 &&
           std::abs(own.factor * found.to_natural - factor) <= apart * factor;
}

/// Whether a condition on rows and keys alone leaves scores out.
bool is_masked_by_place(const FoundAttention& found) {
    const Select* masked = found.score.as<Select>();
    if (!masked || (!is_infinity(masked->yes, -1) && !is_infinity(masked->no, -1))) return false;
    bool by_place = true;
    visit(masked->condition, [&](const Expr& e) {
        by_place =
            by_place && !e.as<Read>() && (!e.as<Variable>() || e.same(found.axes[Row]) || e.same(found.axes[Key]));
    });
    return by_place;
}

/// What was made of maxima and sums, of those of `declared`, which are of scores without factor and offset.
Tensor made_of_rows(const FoundAttention& found, const FoundAttention::OfRow& row, const Attention& declared,
                    bool may_be_empty) {
    auto index = [&](int axis) {
        return found.axes[static_cast<size_t>(axis)].defined() ? found.axes[static_cast<size_t>(axis)] : integer(0);
    };
    const Expr b = index(Batch), h = index(Head), i = index(Row);
    const Expr m = declared.m(b, h, i);
    Expr top = ScaledExpr{m, declared.to_base_2 / std::log2(std::exp(1.0)) / found.to_natural,
                          declared.offset / found.to_natural}
                   .value();
    const Expr sum = may_be_empty ? select(m == -infinity, 0.0, declared.l(b, h, i)) : declared.l(b, h, i);
    const Expr made = exchanged(exchanged(row.made, found.top, top), found.sum, sum);
    const Operation& given = *row.given.operation();
    return compute(given.name, {given.shape.begin(), given.shape.end()}, [&](const std::vector<Expr>& at) {
        Substitution places;
        for (size_t k = 0; k < at.size(); ++k) places.emplace_back(row.axes[k], at[k]);
        return cast(row.given.type(), substitute(made, places));
    });
}

}  // namespace

Attention FoundAttention::declare(const std::vector<Tensor>& given) const {
    const std::string suffix = "_" + o.name();
    const double to_score = 1 / std::sqrt(as_double(shape.depth));
    const bool is_plain = is_product_times(*this, to_score);
    ScoreRule rule;
    if (!is_plain)
        rule = [own = *this, given, to_score](const Expr& of_product, const ScorePlace& at) {
            Expr sums = of_product * (1 / to_score);
            if (own.scale.defined()) sums = sums * own.scale;
            const Expr whole = at_places(reading(exchanged(own.score, own.product, sums), own.operands, given),
                                         {{own.axes[Batch], at.batch},
                                          {own.axes[Head], at.head},
                                          {own.axes[Row], at.row},
                                          {own.axes[Key], at.key}});
            return own.to_natural == 1 ? whole : whole * own.to_natural;
        };
    auto operand = [&](const char* name, const Expr& element, int token, int of_head) {
        return by_tokens(*this, name + suffix, reading(element, operands, given), token, of_head);
    };
    Attention found = declare_attention(shape, rule, !is_plain && is_masked_by_place(*this), {}, {},
                                        {.q = operand("q", q, Row, Depth),
                                         .k = operand("k", k, Key, Depth),
                                         .v = operand("v", v, Key, Width),
                                         .suffix = suffix,
                                         .o = o.name(),
                                         .missing = missing});
    found.of_rows.emplace();
    for (const OfRow& row : of_rows)
        found.of_rows->push_back(made_of_rows(*this, row, found, rule || shape.has_empty_rows()));
    return found;
}

}  // namespace tw::schedules
