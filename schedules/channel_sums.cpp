#include "schedules/channel_sums.h"

#include <algorithm>
#include <optional>

#include "dsl/simplify.h"
#include "schedules/unit_product.h"
#include "schedules/window_terms.h"

namespace tw::schedules {
namespace {

/// The tensors whose elements a term is made of.
struct Terms {
    const Tensor& of;
    Expr channel;

    static Tensor tensor_of(const Read& read) { return {read.operation, read.output}; }
    bool depends(const std::shared_ptr<const Operation>& operation) const {
        return std::ranges::any_of(operations_of({Tensor(operation, 0)}),
                                   [&](const auto& each) { return each == of.operation(); });
    }
    /// Of a tensor [channels].
    bool is_of_channel(const Read& read) const {
        return read.indices.size() == 1 && read.indices[0].same(channel) && !depends(read.operation);
    }
    bool is_like(const Tensor& other) const {
        return other.type() == of.type() && std::ranges::equal(other.shape(), of.shape(), equal) &&
               !depends(other.operation());
    }
};

/// With others in place of elements that belong to pixels.
Expr with_elements_of(const Expr& term, const std::function<Expr(const Tensor& tensor)>& element) {
    return transform(term, [&](const Expr& e) {
        const Read* read = e.as<Read>();
        return read && read->indices.size() > 1 ? element(Terms::tensor_of(*read)) : Expr();
    });
}

bool is_zero_of_zeros(const Expr& term, Type type) {
    return is_zero(simplify(with_elements_of(term, [&](const Tensor&) { return constant(type, 0.0); })));
}

/// The indices of a pixel that all elements are read at; none if anything else is read.
std::vector<Expr> place_of(const Expr& term, const Terms& terms, Tensor& beside) {
    std::vector<Expr> at;
    bool only_elements = true, any = false;
    visit(term, [&](const Expr& e) {
        const Read* read = e.as<Read>();
        if (!read || terms.is_of_channel(*read)) return;
        const Tensor tensor = Terms::tensor_of(*read);
        const bool is_own = tensor.same(terms.of);
        if (!is_own && !beside.defined() && terms.is_like(tensor)) beside = tensor;
        only_elements = only_elements && (is_own || (beside.defined() && beside.same(tensor))) &&
                        (at.empty() || std::ranges::equal(read->indices, at, equal));
        at = read->indices;
        any = any || is_own;
    });
    return any && only_elements ? at : std::vector<Expr>();
}

/// Whether the indices are all axes, each once, and the channel.
bool is_over_pixels(const std::vector<Expr>& at, const std::vector<Expr>& axes, const Terms& terms) {
    if (at.empty() || !at.back().same(terms.channel)) return false;
    size_t used = 0;
    for (size_t d = 0; d + 1 < at.size(); ++d) {
        const auto extent = as_constant(terms.of.shape()[d]);
        if (extent == 1 && is_constant(at[d], 0)) continue;
        const bool is_axis = std::ranges::any_of(axes, [&](const Expr& axis) { return axis.same(at[d]); });
        const bool is_first = std::none_of(at.begin(), at.begin() + static_cast<std::ptrdiff_t>(d),
                                           [&](const Expr& other) { return other.same(at[d]); });
        const Variable* axis = at[d].as<Variable>();
        if (!is_axis || !is_first || !extent || !axis->extent.defined() || as_constant(axis->extent) != extent)
            return false;
        ++used;
    }
    return used == axes.size();
}

/// Whether all that the term reads are elements at the axes, each once, and what belongs to the channel.
bool is_of_elements(const Expr& term, const std::vector<Expr>& axes, const Terms& terms, Tensor& beside) {
    if (!is_over_pixels(place_of(term, terms, beside), axes, terms)) return false;
    const Type type = terms.of.type();
    const std::vector<Expr> left =
        variables_of(with_elements_of(term, [&](const Tensor&) { return constant(type, 1.5); }));
    if (!left.empty()) return left.size() == 1 && left[0].same(terms.channel);
    return beside.defined() || is_zero_of_zeros(term, type);
}

std::optional<ChannelSum> channel_sum(const std::shared_ptr<const Operation>& operation, size_t output,
                                      const Tensor& of, const std::vector<Tensor>& whole) {
    ChannelSum found{
        operation, static_cast<int>(output), with_elements(operation->outputs[output].body, whole, true), {}};
    const Reduce* sum = only_reduction(found.body);
    if (!sum || !adds_f32(*sum->reducer)) return {};
    found.term = sum->values[static_cast<size_t>(sum->component)];
    const Terms terms{of, operation->axes[0]};
    if (!is_of_elements(found.term, sum->axes, terms, found.beside)) return {};
    found.of_zeros = !found.beside.defined() && is_zero_of_zeros(found.term, of.type());
    found.ends_with_sum = true;
    visit(with_reduction(found.body, constant(f32, 0.0)), [&](const Expr& e) {
        const Read* read = e.as<Read>();
        found.ends_with_sum = found.ends_with_sum && (!read || !terms.depends(read->operation));
    });
    return found;
}

}  // namespace

bool adds_f32(const ReducerNode& reducer) {
    for (size_t k = 0; k < reducer.combined.size(); ++k) {
        const Binary* plus = reducer.combined[k].as<Binary>();
        if (!plus || plus->op != BinaryOp::Add || !plus->a.same(reducer.left[k]) || !plus->b.same(reducer.right[k]) ||
            !is_zero(reducer.identity[k]) || reducer.combined[k].type() != f32)
            return false;
    }
    return reducer.commutative;
}

std::vector<Expr> sums_of(const std::vector<Expr>& terms, const std::vector<Axis>& axes) {
    if (terms.size() == 1) return {sum(terms[0], axes)};
    const std::vector<Expr> zeros(terms.size(), constant(f32, 0.0));
    const Reducer together = make_reducer("sums", zeros, [](const auto& a, const auto& b) {
        std::vector<Expr> added;
        for (size_t k = 0; k < a.size(); ++k) added.push_back(a[k] + b[k]);
        return added;
    });
    return reduce(together, {terms.begin(), terms.end()}, axes);
}

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
                            const std::function<Expr(const Tensor& tensor, const Expr& channel)>& element) {
    auto bodies = [&](const std::vector<Expr>& at) {
        std::vector<Expr> terms;
        for (const ChannelSum& sum : sums) {
            const Expr term = with_elements_of(sum.term, [&](const Tensor& tensor) { return element(tensor, at[0]); });
            terms.push_back(substitute(term, {{sum.operation->axes[0], at[0]}}));
        }
        const std::vector<Expr> added = sums_of(terms, axes);
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
