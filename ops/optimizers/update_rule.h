// How optimizers move a parameter: expressions of elements, of which an operation has one parameter or several.
//
//   UpdateRule rule{.name = "SignSgd", .next = [](const UpdateElements& now) {
//       return std::vector{now.parameter - now.rate * select(now.gradient > 0.0, 1.0, -1.0)};
//   }};
//   Optimizer optimizer(parameters, /*rate=*/1e-3, rule);
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "dsl/schedule_options.h"
#include "dsl/tensor.h"

namespace tw::nn {

/// What an element of a parameter is updated from, all f32.
struct UpdateElements {
    Expr parameter;
    Expr gradient;             ///< clipped, if the optimizer clips
    Expr rate;                 ///< of the parameter's group; read from device memory
    std::vector<Expr> states;  ///< in the order of their names
    std::vector<Expr> numbers;
    double weight_decay = 0;  ///< of the parameter's group
};

/// An optimizer as expressions. What does not change from step to step (betas, epsilon, decay) are constants of these:
/// optimizers that differ in one have kernels of their own.
struct UpdateRule {
    std::string name;                      ///< "AdamW"; the operation is called "adamw"
    std::vector<std::string> states = {};  ///< f32 tensors like the parameter, which begin with zeros
    /// What the states become, in their order, and then the parameter.
    std::function<std::vector<Expr>(const UpdateElements& now)> next;
    /// What is computed once for a step from how many there have been with this one, an f32 in device memory; empty:
    /// steps are not counted.
    std::function<std::vector<Expr>(const Expr& steps)> numbers = {};
};

struct SgdOptions {
    double momentum = 0;  ///< 0 keeps no velocity
    bool nesterov = false;
    double weight_decay = 0;
    double max_norm = 0;   ///< of all gradients together; 0 clips none
    bool together = true;  ///< as of OptimizerOptions (optimizer.h)
};

struct AdamOptions {
    double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
    double weight_decay = 0;
    double max_norm = 0;   ///< of all gradients together; 0 clips none
    bool together = true;  ///< as of OptimizerOptions (optimizer.h)
};

struct LionOptions {
    double beta1 = 0.9, beta2 = 0.99;
    double weight_decay = 0;
    double max_norm = 0;   ///< of all gradients together; 0 clips none
    bool together = true;  ///< as of OptimizerOptions (optimizer.h)
};

/// g = gradient + weight_decay * parameter; velocity = momentum * velocity + g; parameter -= rate * velocity, or with
/// nesterov rate * (g + momentum * velocity) (Sutskever et al., On the importance of initialization and momentum in
/// deep learning, 2013, as PyTorch writes it). Throws Error unless 0 <= momentum < 1, and of nesterov without momentum.
UpdateRule sgd_rule(const SgdOptions& options, TW_HERE);

/// m = beta1 m + (1 - beta1) g, v = beta2 v + (1 - beta2) g^2; parameter -= rate * m' / (sqrt(v') + epsilon) with
/// m' = m / (1 - beta1^t), v' = v / (1 - beta2^t) in step t, from 1 on; g = gradient + weight_decay * parameter
/// (Kingma, Ba: Adam, a method for stochastic optimization, 2015). 1 - beta^t is made in f64, once for a step. Throws
/// Error unless 0 <= beta < 1 for both and epsilon > 0.
UpdateRule adam_rule(const AdamOptions& options, TW_HERE);

/// The same of g = gradient, with parameter -= rate * weight_decay * parameter besides (Loshchilov, Hutter: Decoupled
/// weight decay regularization, 2019).
UpdateRule adamw_rule(const AdamOptions& options, TW_HERE);

/// parameter -= rate * (sign(beta1 m + (1 - beta1) g) + weight_decay * parameter), then m = beta2 m + (1 - beta2) g;
/// the sign of 0 is 0 (Chen et al., Symbolic discovery of optimization algorithms, 2023). Throws Error unless 0 <= beta
/// < 1 for both.
UpdateRule lion_rule(const LionOptions& options, TW_HERE);

}  // namespace tw::nn
