#include "ops/optimizers/update_rule.h"

#include <cmath>

#include "support/error.h"

namespace tw::nn {
namespace {

void check_average(const std::string& optimizer, const char* what, double value, std::source_location where) {
    user_check(value >= 0 && value < 1, where,
               "{}: {} is {}, outside of [0, 1); give the share of the old value that a step keeps", optimizer, what,
               value);
}

Expr averaged(double kept, const Expr& old, const Expr& value) { return kept * old + (1 - kept) * value; }

/// With the gradient of weight_decay / 2 * |parameter|^2.
Expr decayed_gradient(const UpdateElements& now) {
    return now.weight_decay == 0 ? now.gradient : now.gradient + now.weight_decay * now.parameter;
}

/// beta^steps in f64: near 1, of which this is taken off, f32 would leave few digits.
Expr power(double beta, const Expr& steps) {
    return beta == 0 ? constant(f64, 0.0) : exp2(cast(f64, steps) * std::log2(beta));
}

/// parameter -= rate * (direction + decay * parameter)
Expr moved(const UpdateElements& now, const Expr& direction, double decay) {
    return now.parameter - now.rate * (decay == 0 ? direction : direction + decay * now.parameter);
}

UpdateRule adam(const std::string& name, const AdamOptions& options, bool is_decoupled, std::source_location where) {
    check_average(name, "beta1", options.beta1, where);
    check_average(name, "beta2", options.beta2, where);
    user_check(options.epsilon > 0 && std::isfinite(options.epsilon), where,
               "{}: epsilon is {}; give a positive number, it keeps the quotient finite where gradients are 0", name,
               options.epsilon);
    return {.name = name,
            .states = {"first_moment", "second_moment"},
            .next =
                [=](const UpdateElements& now) {
                    const Expr gradient = is_decoupled ? now.gradient : decayed_gradient(now);
                    const Expr mean = averaged(options.beta1, now.states[0], gradient);
                    const Expr square = averaged(options.beta2, now.states[1], gradient * gradient);
                    const Expr direction = mean * now.numbers[0] / (sqrt(square) * now.numbers[1] + options.epsilon);
                    return std::vector{mean, square, moved(now, direction, is_decoupled ? now.weight_decay : 0)};
                },
            .numbers =
                [=](const Expr& steps) {
                    return std::vector{cast(f32, 1.0 / (1.0 - power(options.beta1, steps))),
                                       cast(f32, 1.0 / sqrt(1.0 - power(options.beta2, steps)))};
                }};
}

}  // namespace

UpdateRule sgd_rule(const SgdOptions& options, std::source_location where) {
    const double momentum = options.momentum;
    check_average("Sgd", "momentum", momentum, where);
    user_check(!options.nesterov || momentum > 0, where,
               "Sgd: nesterov without momentum looks ahead nowhere; give a momentum, say 0.9");
    if (momentum == 0)
        return {.name = "Sgd",
                .next = [](const UpdateElements& now) { return std::vector{moved(now, decayed_gradient(now), 0)}; }};
    return {
        .name = "Sgd", .states = {"velocity"}, .next = [=](const UpdateElements& now) {
            const Expr gradient = decayed_gradient(now), velocity = momentum * now.states[0] + gradient;
            return std::vector{velocity, moved(now, options.nesterov ? gradient + momentum * velocity : velocity, 0)};
        }};
}

UpdateRule adam_rule(const AdamOptions& options, std::source_location where) {
    return adam("Adam", options, false, where);
}
UpdateRule adamw_rule(const AdamOptions& options, std::source_location where) {
    return adam("AdamW", options, true, where);
}

UpdateRule lion_rule(const LionOptions& options, std::source_location where) {
    check_average("Lion", "beta1", options.beta1, where);
    check_average("Lion", "beta2", options.beta2, where);
    return {.name = "Lion", .states = {"first_moment"}, .next = [=](const UpdateElements& now) {
                const Expr ahead = averaged(options.beta1, now.states[0], now.gradient);
                const Expr sign = select(ahead > 0.0, 1.0, select(ahead < 0.0, -1.0, ahead));  // of NaN it is NaN
                return std::vector{averaged(options.beta2, now.states[0], now.gradient),
                                   moved(now, sign, now.weight_decay)};
            }};
}

}  // namespace tw::nn
