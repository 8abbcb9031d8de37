// Optimizers: from gradients to new parameters. They know nothing of the tape.
#pragma once
#include <initializer_list>
#include <optional>
#include <vector>

#include "ops/optimizers/ema.h"
#include "ops/optimizers/joint_update.h"
#include "ops/optimizers/loss_scale.h"
#include "ops/optimizers/rate_schedule.h"
#include "ops/optimizers/update_rule.h"
#include "ops/tensor.h"

namespace tw::nn {

/// Parameters that are updated alike.
struct ParameterGroup {
    std::vector<Tensor> parameters;
    double rate_factor = 1;                   ///< times the optimizer's rate
    std::optional<double> weight_decay = {};  ///< the optimizer's if it is not given
};

/// What an optimizer takes: a list of parameters, or of groups.
struct ParameterGroups {
    ParameterGroups() = default;
    ParameterGroups(std::vector<Tensor> parameters) : groups{{std::move(parameters)}} {}
    ParameterGroups(std::initializer_list<Tensor> parameters) : ParameterGroups(std::vector<Tensor>(parameters)) {}
    ParameterGroups(std::vector<ParameterGroup> each) : groups(std::move(each)) {}
    ParameterGroups(std::initializer_list<ParameterGroup> each) : groups(each) {}

    std::vector<ParameterGroup> groups;
};

/// What holds for all parameters.
struct OptimizerOptions {
    double weight_decay = 0;  ///< of groups that have none of their own
    double max_norm = 0;      ///< gradients are clipped so that the norm of all together is this at most; 0: never
    /// Parameters of a group that have at most 2^20 elements become parts of one tensor, and so do their states, which
    /// one operation updates. They are the same tensors as before, in other memory: those whose memory a view, a
    /// compiled step or a Buffer has, too, stay where they are. In a step that is captured, what overwrites one of them
    /// besides the optimizer is refused.
    bool together = true;
};

/// Updates parameters by a rule, by operations that make states and parameters in place, one for the small ones of a
/// group and one for each other one: kernels, or what a captured step (compile_step.h) makes of them; there, rules
/// without states have one for each parameter, which may stand behind the product that makes its gradient. The bits
/// are the same. What changes from step to step, the rate and the number of steps, lies in device memory: recorded and
/// captured steps follow set_rate(), and count. All else is constant in the kernels.
class Optimizer {
public:
    /// Throws Error without parameters, if one is undefined, given twice, a scalar, no f32 or of another backend than
    /// the first, and if the rate, a factor, a decay or the norm is negative or not finite.
    Optimizer(const ParameterGroups& parameters, double rate, UpdateRule rule, const OptimizerOptions& options = {},
              TW_HERE);

    /// Waits for the device. Throws Error if the rate is negative or not finite, and while a step is recorded or
    /// captured, of which it would be no part: set it between runs, which read it.
    void set_rate(double rate, TW_HERE);
    /// Enqueues the update of all parameters but those that are frozen (Tensor::set_requires_grad()), whose states stay
    /// as they are, too. Throws Error, before anything is enqueued, if all are, or one that is not has no gradient:
    /// call backward() before, of a loss that is made of it. Throws Error if the rule makes another number of values
    /// than it has states, and a parameter.
    void step(TW_HERE);
    /// The same of gradients of a scaled loss, which are divided by the scale before anything else. If their norm is
    /// not finite, nothing changes, nor is the step counted. Throws Error as step() does.
    void step(LossScale& scale, TW_HERE);

    /// What the next step depends on besides parameters and rate, to be saved and restored: the states of each
    /// parameter in turn, and then, if the rule counts them, the number of steps, an f32 scalar.
    std::vector<Tensor> states() const;
    /// The norm of all gradients in the last step(), before clipping and without a loss' scale, an f32 scalar;
    /// undefined without max_norm and without a scale. A captured step may return it.
    const Tensor& gradient_norm() const { return norm_; }

private:
    struct Updated {
        Tensor parameter;
        std::vector<Tensor> states;
        Overwriting update, scaled_update;
        std::optional<size_t> joint;  ///< which joint update it is a part of
    };
    void add(const ParameterGroup& group);
    Updated updated(const Tensor& parameter, const std::vector<Tensor>& states, ElementUpdate update) const;
    Overwriting counting() const;
    void write_rate(double rate, std::source_location where) const;
    void require_gradients(std::source_location where) const;
    void step_by(const Tensor* scale, std::source_location where);

    UpdateRule rule_;
    OptimizerOptions options_;
    std::vector<Updated> updated_;
    std::vector<JointUpdate> joint_;
    Tensor rate_, steps_, norm_;        // f32 scalars
    uint64_t num_backward_before_ = 0;  // calls of backward() before it was made
    std::optional<Overwriting> counting_, scaled_counting_;
};

/// Stochastic gradient descent, with momentum, Nesterov's too (update_rule.h).
class Sgd : public Optimizer {
public:
    /// Throws what Optimizer and sgd_rule() throw.
    Sgd(const ParameterGroups& parameters, double rate, double momentum = 0, TW_HERE);
    Sgd(const ParameterGroups& parameters, double rate, const SgdOptions& options, TW_HERE);
};

/// Weight decay is a part of the gradient (update_rule.h).
class Adam : public Optimizer {
public:
    /// Throws what Optimizer and adam_rule() throw.
    Adam(const ParameterGroups& parameters, double rate, const AdamOptions& options = {}, TW_HERE);
};

/// Weight decay stands beside the moments (update_rule.h).
class AdamW : public Optimizer {
public:
    /// Throws what Optimizer and adamw_rule() throw.
    AdamW(const ParameterGroups& parameters, double rate, const AdamOptions& options = {.weight_decay = 0.01}, TW_HERE);
};

/// The sign of an average of gradients (update_rule.h).
class Lion : public Optimizer {
public:
    /// Throws what Optimizer and lion_rule() throw.
    Lion(const ParameterGroups& parameters, double rate, const LionOptions& options = {}, TW_HERE);
};

}  // namespace tw::nn
