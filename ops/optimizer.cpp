#include "ops/optimizer.h"

#include <algorithm>
#include <cmath>
#include <ranges>

#include "ops/optimizers/check_parameters.h"
#include "ops/optimizers/gradient_norm.h"
#include "ops/parameters.h"
#include "ops/tape/tape.h"
#include "support/error.h"

namespace tw::nn {
namespace {

void check_number(const std::string& who, const std::string& what, double value, std::source_location where) {
    user_check(value >= 0 && std::isfinite(value), where, "{}: {} is {}; give a finite number that is not negative",
               who, what, value);
}

std::vector<Tensor> listed(const ParameterGroups& parameters) {
    std::vector<Tensor> all;
    for (const ParameterGroup& group : parameters.groups)
        all.insert(all.end(), group.parameters.begin(), group.parameters.end());
    return all;
}

/// Of old states and the parameter, and of [gradient, scalars...].
Overwriting::Declare declared_by(const ElementUpdate& update) {
    return [=](const std::vector<tw::Tensor>& old, const std::vector<tw::Tensor>& read) {
        const Shape shape(old.back().shape().begin(), old.back().shape().end());
        return compute_tuple(update.name(), update.outputs(), shape, [&](const std::vector<Expr>& indices) {
            const std::vector<Operand> at(indices.begin(), indices.end());
            std::vector<Expr> elements;
            for (const tw::Tensor& tensor : old) elements.push_back(tensor.read(at));
            return update.next(elements, read[0].read(at), {read.begin() + 1, read.end()});
        });
    };
}

/// What these have in common.
OptimizerOptions common(const auto& options) {
    return {.weight_decay = options.weight_decay, .max_norm = options.max_norm, .together = options.together};
}

/// What is frozen is not.
constexpr auto is_moved = [](const auto& updated) { return updated.parameter.requires_grad(); };

/// [steps, numbers...], of which the first overwrites. A norm tells whether this is a step.
std::vector<tw::Tensor> declare_counting(const tw::Tensor& steps, const std::vector<tw::Tensor>& norm,
                                         const UpdateRule& rule) {
    return compute_tuple("count_steps", {}, [&](const std::vector<Expr>&) {
        std::vector<Expr> values{norm.empty() ? steps() + 1.0 : select(is_a_step(norm[0]()), steps() + 1.0, steps())};
        for (const Expr& number : rule.numbers(values[0])) values.push_back(number);
        return values;
    });
}

}  // namespace

Optimizer::Optimizer(const ParameterGroups& parameters, double rate, UpdateRule rule, const OptimizerOptions& options,
                     std::source_location where)
    : rule_(std::move(rule)), options_(options), num_backward_before_(Tape::num_backward()) {
    const std::vector<Tensor> all = listed(parameters);
    check_parameters(rule_.name, all, where);
    check_number(rule_.name, "max_norm", options_.max_norm, where);
    rate_ = Tensor(all[0].backend(), f32, {}, "rate");
    write_rate(rate, where);
    for (ParameterGroup group : parameters.groups) {
        group.weight_decay = group.weight_decay.value_or(options_.weight_decay);
        check_number(rule_.name, "the factor of a group's rate", group.rate_factor, where);
        check_number(rule_.name, "the weight decay", *group.weight_decay, where);
        add(group);
    }
    if (!rule_.numbers) return;
    steps_ = constant_tensor(all[0].backend(), {}, 0, "steps");
    counting_ = counting();
    scaled_counting_ = counting();
}

Overwriting Optimizer::counting() const {
    return {{{"steps", steps_}},
            [rule = rule_](const std::vector<tw::Tensor>& old, const std::vector<tw::Tensor>& norm) {
                return declare_counting(old[0], norm, rule);
            }};
}

void Optimizer::add(const ParameterGroup& group) {
    const std::vector<Tensor>& parameters = group.parameters;
    const ElementUpdate update{.rule = rule_,
                               .rate_factor = group.rate_factor,
                               .weight_decay = *group.weight_decay,
                               .max_norm = options_.max_norm};
    std::vector<std::vector<Tensor>> joint_states(parameters.size());
    std::vector<std::optional<size_t>> joint(parameters.size());
    const auto together = options_.together ? updated_together(parameters) : std::vector<std::vector<size_t>>();
    for (const std::vector<size_t>& places : together) {
        std::vector<Tensor> tensors;
        for (const size_t p : places) tensors.push_back(parameters[p]);
        joint_.emplace_back(tensors, update);
        for (size_t k = 0; k < places.size(); ++k) {
            joint_states[places[k]] = joint_.back().states_of(k);
            joint[places[k]] = joint_.size() - 1;
        }
    }
    for (size_t p = 0; p < parameters.size(); ++p) {
        if (!joint[p])
            for (const std::string& name : rule_.states)
                joint_states[p].push_back(constant_tensor(parameters[p].backend(), parameters[p].shape(), 0, name));
        updated_.push_back(updated(parameters[p], joint_states[p], update));
        updated_.back().joint = joint[p];
    }
}

Optimizer::Updated Optimizer::updated(const Tensor& parameter, const std::vector<Tensor>& states,
                                      ElementUpdate update) const {
    std::vector<NamedTensor> overwritten;
    for (size_t k = 0; k < states.size(); ++k) overwritten.push_back({rule_.states[k], states[k]});
    overwritten.push_back({"parameter", parameter});
    Overwriting plain(overwritten, declared_by(update));
    update.is_scaled = true;
    return {parameter, states, std::move(plain), Overwriting(overwritten, declared_by(update)), {}};
}

void Optimizer::write_rate(double rate, std::source_location where) const {
    check_number(rule_.name, "the rate", rate, where);
    const auto number = static_cast<float>(rate);
    rate_.data().copy_from_host(&number);
}

void Optimizer::set_rate(double rate, std::source_location where) {
    rate_.backend()->refuse_in_step(rule_.name + ": the rate is set", "set it between runs, which read it", where);
    write_rate(rate, where);
}

void Optimizer::require_gradients(std::source_location where) const {
    const bool is_before = Tape::num_backward() == num_backward_before_;
    user_check(std::ranges::any_of(updated_, is_moved), where,
               "{}: all parameters are frozen, and none is updated; call set_requires_grad() on some", rule_.name);
    for (const Updated& each : updated_ | std::views::filter(is_moved)) {
        const Tensor& parameter = each.parameter;
        user_check(parameter.grad().defined(), where, "{}: parameter '{}' {} has no gradient; {}", rule_.name,
                   parameter.name(), shape_text(parameter.shape()),
                   is_before ? "call backward() before step()"
                             : "backward() was called, but of no loss that is made of it: make the loss of it, as a "
                               "tensor that requires a gradient, or give the optimizer other parameters");
        if (!parameter.backend()->capture()) parameter.grad().require_data(where);
    }
}

void Optimizer::step(std::source_location where) { step_by(nullptr, where); }

void Optimizer::step(LossScale& scale, std::source_location where) {
    step_by(&scale.value(), where);
    scale.note_norm(norm_);
}

void Optimizer::step_by(const Tensor* scale, std::source_location where) {
    const CalledFrom caller(where);
    require_gradients(where);
    std::vector<NamedTensor> read{{}, {"rate", rate_}}, counted;
    if (scale || options_.max_norm > 0) {
        std::vector<Tensor> gradients;
        for (const Updated& each : updated_ | std::views::filter(is_moved)) gradients.push_back(each.parameter.grad());
        norm_ = scale ? global_norm(gradients, *scale) : global_norm(gradients);
        read.push_back({"norm", norm_});
    }
    if (scale) {
        read.push_back({"scale", *scale});
        counted.push_back({"norm", norm_});
    }
    if (counting_)
        for (const Tensor& number : (scale ? scaled_counting_ : counting_)->run(counted))
            read.push_back({fmt::format("number{}", read.size()), number});
    for (JointUpdate& joint : joint_)
        if (!joint.is_one_by_one()) joint.run({read.begin() + 1, read.end()}, scale != nullptr);
    for (Updated& each : updated_ | std::views::filter(is_moved)) {
        if (each.joint && !joint_[*each.joint].is_one_by_one()) continue;
        read[0] = {"gradient", each.parameter.grad()};
        (scale ? each.scaled_update : each.update).run(read);
    }
}

std::vector<Tensor> Optimizer::states() const {
    std::vector<Tensor> all;
    for (const Updated& each : updated_) all.insert(all.end(), each.states.begin(), each.states.end());
    if (steps_.defined()) all.push_back(steps_);
    return all;
}

Sgd::Sgd(const ParameterGroups& parameters, double rate, double momentum, std::source_location where)
    : Sgd(parameters, rate, SgdOptions{.momentum = momentum}, where) {}
Sgd::Sgd(const ParameterGroups& parameters, double rate, const SgdOptions& options, std::source_location where)
    : Optimizer(parameters, rate, sgd_rule(options, where), common(options), where) {}

Adam::Adam(const ParameterGroups& parameters, double rate, const AdamOptions& options, std::source_location where)
    : Optimizer(parameters, rate, adam_rule(options, where), common(options), where) {}

AdamW::AdamW(const ParameterGroups& parameters, double rate, const AdamOptions& options, std::source_location where)
    : Optimizer(parameters, rate, adamw_rule(options, where), common(options), where) {}

Lion::Lion(const ParameterGroups& parameters, double rate, const LionOptions& options, std::source_location where)
    : Optimizer(parameters, rate, lion_rule(options, where), common(options), where) {}

}  // namespace tw::nn
