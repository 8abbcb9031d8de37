#include "ops/step/compiled_function.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "ops/number_of_type.h"
#include "ops/operator.h"
#include "ops/tape/tape.h"
#include "support/error.h"

namespace tw::nn {
namespace {

/// x, and `fill` behind its ends, in a larger shape.
const Operator& filled_operator(const std::vector<int64_t>& shape, double fill) {
    return operator_with(
        "filled", fmt::format("{} {}", fmt::join(shape, ","), fill), [=](const std::vector<tw::Tensor>& in) {
            return compute("filled", {shape.begin(), shape.end()}, [&](const std::vector<Expr>& at) {
                const Type type = in[0].type();
                const Expr beyond =
                    is_float(type) ? constant(type, fill) : cast(type, integer(static_cast<int64_t>(fill)));
                return padded(in[0], beyond).read({at.begin(), at.end()});
            });
        });
}

}  // namespace

CompiledFunction::CompiledFunction(std::shared_ptr<Backend> backend, Function function, CompiledFunctionOptions options,
                                   std::source_location where)
    : backend_(std::move(backend)), function_(std::move(function)), options_(std::move(options)) {
    for (const ShapeBuckets& buckets : options_.buckets)
        user_check(!buckets.sizes.empty() && buckets.sizes[0] > 0 &&
                       std::ranges::is_sorted(buckets.sizes, std::ranges::less_equal()),
                   where,
                   "CompiledFunction: the buckets of dimension {} of input {} are [{}]; give positive sizes, ascending",
                   buckets.dimension, buckets.input, fmt::join(buckets.sizes, ", "));
}

const std::vector<Tensor>& CompiledFunction::operator()(const std::vector<Tensor>& inputs, std::source_location where) {
    backend_->refuse_in_step("CompiledFunction: it is called", "call the function that it is made of", where);
    const std::vector<Operand> operands = operands_of(inputs, where);
    Planned& planned = plan_for(operands, inputs, where);
    for (size_t k = 0; k < inputs.size(); ++k) bring(inputs[k], planned.inputs[k], k, where);
    planned.step.run(where);
    last_ = &planned;
    return planned.step.results();
}

const CompiledStep& CompiledFunction::step() const {
    if (!last_) throw_error(Error, "CompiledFunction: it was not called yet; its step is planned by the first call");
    return last_->step;
}

std::vector<CompiledFunction::Operand> CompiledFunction::operands_of(const std::vector<Tensor>& inputs,
                                                                     std::source_location where) const {
    user_check(!inputs.empty(), where,
               "CompiledFunction: no inputs; a function that takes none is compiled by nn::compile()");
    std::vector<Operand> operands;
    for (size_t k = 0; k < inputs.size(); ++k) {
        user_check(inputs[k].defined() && inputs[k].backend() == backend_, where,
                   "CompiledFunction: input {} {}; give tensors of the function's own", k,
                   inputs[k].defined() ? "is of another backend" : "is an undefined tensor");
        user_check(
            !Tape::has_hooks(inputs[k]), where,
            "CompiledFunction: input {}, '{}', has hooks of on_gradient(), which are not called in the function; "
            "register them there, of its inputs",
            k, inputs[k].name());
        const auto same = [&](const Tensor& other) { return other.same(inputs[k]); };
        const auto first = static_cast<size_t>(std::ranges::find_if(inputs, same) - inputs.begin());
        operands.push_back({inputs[k].type(), inputs[k].shape(), inputs[k].requires_grad(), first});
    }
    for (const ShapeBuckets& buckets : options_.buckets) round_up(operands, buckets, where);
    for (Operand& operand : operands)
        if (operands[operand.same_as].shape != operand.shape)  // by a bucket that the other one does not have
            operand.same_as = static_cast<size_t>(&operand - operands.data());
    return operands;
}

void CompiledFunction::round_up(std::vector<Operand>& operands, const ShapeBuckets& buckets,
                                std::source_location where) const {
    const bool is_there = buckets.input < operands.size() && buckets.dimension >= 0 &&
                          buckets.dimension < static_cast<int>(operands[buckets.input].shape.size());
    user_check(is_there, where, "CompiledFunction: there are buckets for dimension {} of input {}, which is not there",
               buckets.dimension, buckets.input);
    int64_t& extent = operands[buckets.input].shape[static_cast<size_t>(buckets.dimension)];
    const auto size = std::ranges::lower_bound(buckets.sizes, extent);
    user_check(size != buckets.sizes.end(), where,
               "CompiledFunction: dimension {} of input {} is {}, the largest bucket {}; add a larger one",
               buckets.dimension, buckets.input, extent, buckets.sizes.back());
    extent = *size;
    const Type type = operands[buckets.input].type;
    user_check(is_number_of(type, buckets.fill), where,
               "CompiledFunction: what fills dimension {} of input {} up is {}, which is no {}; give a number that the "
               "type has",
               buckets.dimension, buckets.input, buckets.fill, name_of(type));
}

CompiledFunction::Planned& CompiledFunction::plan_for(const std::vector<Operand>& operands,
                                                      const std::vector<Tensor>& inputs, std::source_location where) {
    const auto known = std::ranges::find(plans_, operands, &Planned::operands);
    if (known != plans_.end()) return *known;
    if (options_.on_plan) options_.on_plan(difference(operands));
    Planned planned{operands, {}, {}};
    for (size_t k = 0; k < operands.size(); ++k) {
        if (operands[k].same_as < k) {
            planned.inputs.push_back(planned.inputs[operands[k].same_as]);
            continue;
        }
        planned.inputs.emplace_back(backend_, operands[k].type, operands[k].shape, inputs[k].name());
        if (operands[k].requires_grad) planned.inputs[k].set_requires_grad();
    }
    planned.step = compile(
        backend_, [&] { return function_(planned.inputs); }, options_.step, where);
    return plans_.emplace_back(std::move(planned));
}

/// From the plan that has most in common.
std::string CompiledFunction::difference(const std::vector<Operand>& operands) const {
    std::vector<std::string> fewest;
    bool is_first = true;
    for (const Planned& planned : plans_) {
        std::vector<std::string> found;
        if (planned.operands.size() != operands.size())
            found.push_back(fmt::format("{} inputs, not {}", operands.size(), planned.operands.size()));
        for (size_t k = 0; k < std::min(operands.size(), planned.operands.size()); ++k) {
            const Operand &own = operands[k], &other = planned.operands[k];
            if (own.type != other.type)
                found.push_back(fmt::format("input {} is {}, not {}", k, name_of(own.type), name_of(other.type)));
            if (own.requires_grad != other.requires_grad)
                found.push_back(fmt::format("input {} requires {} gradient", k, own.requires_grad ? "a" : "no"));
            if (own.same_as != other.same_as)
                found.push_back(fmt::format(
                    "input {} is {}", k,
                    own.same_as == k ? "a tensor of its own" : fmt::format("the same as input {}", own.same_as)));
            if (own.shape.size() != other.shape.size())
                found.push_back(
                    fmt::format("input {} has {} dimensions, not {}", k, own.shape.size(), other.shape.size()));
            else
                for (size_t d = 0; d < own.shape.size(); ++d)
                    if (own.shape[d] != other.shape[d])
                        found.push_back(
                            fmt::format("dimension {} of input {} is {}, not {}", d, k, own.shape[d], other.shape[d]));
        }
        if (is_first || found.size() < fewest.size()) fewest = std::move(found);
        is_first = false;
    }
    return is_first ? "first call" : fmt::format("{}", fmt::join(fewest, "; "));
}

void CompiledFunction::bring(const Tensor& from, const Tensor& to, size_t input, std::source_location where) const {
    from.require_data(where);
    if (from.shape() == to.shape()) return backend_->device()->copy(to.data(), from.data(), {}, where);
    double fill = 0;
    for (const ShapeBuckets& buckets : options_.buckets)
        if (buckets.input == input) fill = buckets.fill;
    backend_->device()->copy(to.data(), filled_operator(to.shape(), fill)({from}).data(), {}, where);
}

}  // namespace tw::nn
