#include "schedules/channel_sums.h"

#include <algorithm>
#include <optional>

#include "dsl/simplify.h"
#include "schedules/unit_product.h"
#include "schedules/window_terms.h"

namespace tw::schedules {
namespace {

/// Of f32, each component of its own.
bool adds(const ReducerNode& reducer) {
    for (size_t k = 0; k < reducer.combined.size(); ++k) {
        const Binary* plus = reducer.combined[k].as<Binary>();
        if (!plus || plus->op != BinaryOp::Add || !plus->a.same(reducer.left[k]) || !plus->b.same(reducer.right[k]) ||
            !is_zero(reducer.identity[k]) || reducer.combined[k].type() != f32)
            return false;
    }
    return reducer.commutative;
}

/// Of an input [channels].
bool is_of_channel(const Read& read) { return read.operation->is_input() && read.indices.size() == 1; }

Expr with_element(const Expr& term, const Expr& element) {
    return transform(term, [&](const Expr& e) {
        const Read* read = e.as<Read>();
        return read && !is_of_channel(*read) ? element : Expr();
    });
}
bool reads_channel(const Expr& term) {
    bool found = false;
    visit(term, [&](const Expr& e) {
        const Read* read = e.as<Read>();
        found = found || (read && is_of_channel(*read));
    });
    return found;
}

bool is_zero_of_zeros(const Expr& term, Type type) {
    return is_zero(simplify(with_element(term, constant(type, 0.0))));
}

/// Whether all that the term reads is the tensor's element at the axes, each once, and the channel, and inputs at that.
bool is_of_elements(const Expr& term, const Tensor& of, const std::vector<Expr>& axes, const Expr& channel) {
    bool only_elements = true, any = false;
    std::vector<Expr> at;
    visit(term, [&](const Expr& e) {
        const Read* read = e.as<Read>();
        if (!read) return;
        if (is_of_channel(*read)) {
            only_elements = only_elements && read->indices[0].same(channel);
            return;
        }
        only_elements = only_elements && read->operation == of.operation() && read->output == of.output() &&
                        (!any || std::ranges::equal(read->indices, at, equal));
        at = read->indices;
        any = true;
    });
    if (!any || !only_elements || !at.back().same(channel)) return false;
    size_t used = 0;
    for (size_t d = 0; d + 1 < at.size(); ++d) {
        const auto extent = as_constant(of.shape()[d]);
        if (extent == 1 && is_constant(at[d], 0)) continue;
        const bool is_axis = std::ranges::any_of(axes, [&](const Expr& axis) { return axis.same(at[d]); });
        const bool is_first = std::none_of(at.begin(), at.begin() + static_cast<std::ptrdiff_t>(d),
                                           [&](const Expr& other) { return other.same(at[d]); });
        const Variable* axis = at[d].as<Variable>();
        if (!is_axis || !is_first || !extent || !axis->extent.defined() || as_constant(axis->extent) != extent)
            return false;
        ++used;
    }
    if (used != axes.size()) return false;
    const std::vector<Expr> left = variables_of(with_element(term, constant(of.type(), 1.5)));
    if (reads_channel(term)) return left.size() == 1 && left[0].same(channel);
    return left.empty() && is_zero_of_zeros(term, of.type());
}

std::optional<ChannelSum> channel_sum(const std::shared_ptr<const Operation>& operation, size_t output,
                                      const Tensor& of, const std::vector<Tensor>& whole) {
    ChannelSum found{
        operation, static_cast<int>(output), with_elements(operation->outputs[output].body, whole, false), {}};
    const Reduce* sum = only_reduction(found.body);
    if (!sum || !adds(*sum->reducer)) return {};
    found.term = sum->values[static_cast<size_t>(sum->component)];
    if (!is_of_elements(found.term, of, sum->axes, operation->axes[0])) return {};
    found.of_zeros = is_zero_of_zeros(found.term, of.type());
    found.ends_with_sum = true;
    visit(with_reduction(found.body, constant(f32, 0.0)), [&](const Expr& e) {
        const Read* read = e.as<Read>();
        found.ends_with_sum = found.ends_with_sum && (!read || read->operation->is_input());
    });
    return found;
}

}  // namespace

std::vector<ChannelSum> channel_sums(const Tensor& of, const std::vector<Tensor>& outputs) {
    std::vector<ChannelSum> found;
    if (of.rank() < 2 || !is_float(of.type())) return found;
    std::vector<Tensor> whole = outputs;
    whole.push_back(of);
    for (const auto& operation : operations_of(outputs)) {
        if (operation->is_input() || operation->axes.size() != 1 || !equal(operation->shape[0], of.shape().back()))
            continue;
        std::vector<ChannelSum> own;
        for (size_t k = 0; k < operation->outputs.size(); ++k)
            if (auto sum = channel_sum(operation, k, of, whole)) own.push_back(std::move(*sum));
        const bool together =
            own.size() == 1 || std::ranges::all_of(own, [](const ChannelSum& sum) { return sum.ends_with_sum; });
        if (own.size() == operation->outputs.size() && together) found.insert(found.end(), own.begin(), own.end());
    }
    return found;
}

Tensor declare_channel_sums(const std::vector<ChannelSum>& sums, const std::string& name,
                            const std::vector<std::string>& names, const std::vector<Axis>& axes,
                            const std::function<Expr(const Expr& channel)>& element) {
    const Expr zero = constant(f32, 0.0);
    const Reducer together =
        make_reducer("sums", std::vector<Expr>(sums.size(), zero), [](const auto& a, const auto& b) {
            std::vector<Expr> added;
            for (size_t k = 0; k < a.size(); ++k) added.push_back(a[k] + b[k]);
            return added;
        });
    auto bodies = [&](const std::vector<Expr>& at) {
        std::vector<Operand> terms;
        for (const ChannelSum& sum : sums)
            terms.emplace_back(substitute(with_element(sum.term, element(at[0])), {{sum.operation->axes[0], at[0]}}));
        const std::vector<Expr> added = terms.size() == 1 ? std::vector<Expr>{tw::sum(terms[0], axes)}
                                                          : reduce(together, {terms.begin(), terms.end()}, axes);
        std::vector<Expr> made;
        for (size_t k = 0; k < sums.size(); ++k)
            made.push_back(
                sums[k].ends_with_sum
                    ? with_reduction(substitute(sums[k].body, {{sums[k].operation->axes[0], at[0]}}), added[k])
                    : added[k]);
        return made;
    };
    return compute_tuple(name, names, {sums[0].operation->shape[0]}, bodies, sums[0].operation->where)[0];
}

}  // namespace tw::schedules
