#include "schedules/joined_terms.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "dsl/simplify.h"
#include "dsl/stage.h"
#include "schedules/declared_as.h"
#include "schedules/element_reads.h"
#include "schedules/joined_axes.h"
#include "schedules/replace_tensors.h"
#include "schedules/unit_product.h"
#include "schedules/window_terms.h"

namespace tw::schedules {
namespace {

/// The elements that are multiplied: not those that only choose what is read.
std::vector<const Read*> factors_in(const Expr& term) {
    std::vector<const Read*> reads;
    visit(term, [&](const Expr& e) {
        const Read* read = e.as<Read>();
        if (read && (is_float(e.type()) || bytes_of(e.type()) == 1)) reads.push_back(read);
    });
    return reads;
}

/// The axes, that one last along which most of the factors lie side by side.
std::vector<Expr> ordered_axes(const Reduce& sum) {
    std::vector<Expr> axes = sum.axes;
    const std::vector<const Read*> factors = factors_in(sum.values[0]);
    std::ranges::stable_sort(axes, {}, [&](const Expr& axis) {
        return std::ranges::count_if(
            factors, [&](const Read* read) { return !read->indices.empty() && contains(read->indices.back(), axis); });
    });
    return axes;
}

/// The sum over one axis, which counts through all of them.
Expr over_one_axis(const Reduce& sum, const std::vector<Expr>& axes) {
    const Axis all = reduce_axis("k", points_of(axes));
    return tw::sum(substitute(sum.values[0], digits(axes, all)), all);
}

}  // namespace

Tensor with_joined_terms(const Tensor& tensor) {
    const Reduce* sum = only_reduction(body_of(tensor));
    if (!sum || sum->axes.size() < 2 || sum->values.size() != 1 || atomic_operation(*sum->reducer) != BinaryOp::Add ||
        points_of(sum->axes) == 0)
        return {};
    const Tensor found = declared_as(tensor, with_reduction(body_of(tensor), over_one_axis(*sum, ordered_axes(*sum))));
    auto product = unit_product(found);
    if (!product) product = product_of_joined_axes(found);
    if (!product) return {};
    const std::vector<const Read*> factors = factors_in(sum->values[0]);
    const bool gathers = std::ranges::any_of(factors, [](const Read* read) { return is_chosen_by_data(*read); });
    const bool lies_together = !product->joined.empty() && product->terms_of_block == 0;
    return gathers || product->rows_of_matrix > 0 || lies_together ? found : Tensor();
}

Redeclared joined_terms(const std::vector<Tensor>& outputs) {
    Redeclared result;
    Replacement whole;
    for (const auto& operation : operations_of(outputs)) {
        if (operation->is_input() || operation->outputs.size() != 1 || operation->axes.size() < 2) continue;
        const Tensor given(operation, 0);
        const Tensor found = with_joined_terms(whole.of(given));
        if (!found.defined()) continue;
        whole.put(given, found);
        result.notes.push_back(
            fmt::format("the terms of '{}', over several axes, are one axis of a product", given.name()));
    }
    for (const Tensor& output : outputs) result.outputs.push_back(whole.of(output));
    return result;
}

}  // namespace tw::schedules
