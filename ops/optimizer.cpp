#include "ops/optimizer.h"

#include <algorithm>
#include <cctype>
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

std::string lowered(std::string name) {
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return name;
}

Shape shape_of(const tw::Tensor& tensor) { return {tensor.shape().begin(), tensor.shape().end()}; }

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
        for (const Tensor& parameter : group.parameters) add(parameter, group);
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

void Optimizer::add(const Tensor& parameter, const ParameterGroup& group) {
    std::vector<Tensor> states;
    std::vector<NamedTensor> overwritten;
    for (const std::string& name : rule_.states) {
        states.push_back(constant_tensor(parameter.backend(), parameter.shape(), 0, name));
        overwritten.push_back({name, states.back()});
    }
    overwritten.push_back({"parameter", parameter});
    updated_.push_back({parameter, states, Overwriting(overwritten, declaration(group, false)),
                        Overwriting(overwritten, declaration(group, true))});
}

/// Of old states and the parameter, and of [gradient, rate, norm and scale if the loss was scaled, or the norm if
/// gradients are clipped, numbers...].
Overwriting::Declare Optimizer::declaration(const ParameterGroup& group, bool is_scaled) const {
    return [rule = rule_, max_norm = options_.max_norm, factor = group.rate_factor, decay = *group.weight_decay,
            is_scaled](const std::vector<tw::Tensor>& old, const std::vector<tw::Tensor>& read) {
        std::vector<std::string> names;
        for (const std::string& state : rule.states) names.push_back(state + "_next");
        names.emplace_back("parameter_next");
        return compute_tuple(lowered(rule.name), names, shape_of(old.back()), [&](const std::vector<Expr>& indices) {
            const std::vector<Operand> at(indices.begin(), indices.end());
            UpdateElements now{.parameter = old.back().read(at),
                               .gradient = read[0].read(at),
                               .rate = read[1](),
                               .states = {},
                               .numbers = {},
                               .weight_decay = decay};
            if (factor != 1) now.rate = now.rate * factor;
            if (is_scaled) now.gradient = now.gradient * (1.0 / read[3]());
            if (max_norm > 0) now.gradient = now.gradient * clipping_factor(read[2](), max_norm);
            for (size_t k = 0; k + 1 < old.size(); ++k) now.states.push_back(old[k].read(at));
            for (size_t k = is_scaled ? 4 : max_norm > 0 ? 3 : 2; k < read.size(); ++k)
                now.numbers.push_back(read[k]());
            std::vector<Expr> next = rule.next(now);
            user_check(next.size() == old.size(), std::source_location::current(),
                       "{}: the rule makes {} values of {} states; return what each becomes, and the parameter",
                       rule.name, next.size(), rule.states.size());
            if (is_scaled)
                for (size_t k = 0; k < old.size(); ++k)
                    next[k] = select(is_a_step(read[2]()), next[k], old[k].read(at));
            return next;
        });
    };
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
    for (Updated& each : updated_ | std::views::filter(is_moved)) {
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
    : Optimizer(parameters, rate, sgd_rule(options, where), {options.weight_decay, options.max_norm}, where) {}

Adam::Adam(const ParameterGroups& parameters, double rate, const AdamOptions& options, std::source_location where)
    : Optimizer(parameters, rate, adam_rule(options, where), {options.weight_decay, options.max_norm}, where) {}

AdamW::AdamW(const ParameterGroups& parameters, double rate, const AdamOptions& options, std::source_location where)
    : Optimizer(parameters, rate, adamw_rule(options, where), {options.weight_decay, options.max_norm}, where) {}

Lion::Lion(const ParameterGroups& parameters, double rate, const LionOptions& options, std::source_location where)
    : Optimizer(parameters, rate, lion_rule(options, where), {options.weight_decay, options.max_norm}, where) {}

}  // namespace tw::nn
