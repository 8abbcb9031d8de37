// Optimizers: from gradients to new parameters. They know nothing of the tape.
#pragma once
#include <vector>

#include "ops/autograd.h"

namespace tw::nn {

/// Stochastic gradient descent: velocity = momentum * velocity + grad; parameter -= rate * velocity. One kernel for
/// each parameter; the rate lives in device memory, so that a recorded step follows set_rate().
class Sgd {
public:
    /// Throws Error without parameters, or if one is a scalar.
    Sgd(std::vector<Tensor> parameters, double rate, double momentum = 0);

    /// Waits for the device.
    void set_rate(double rate);
    /// Enqueues the update. Throws Error if a parameter has no gradient: call backward() before.
    void step();

private:
    std::vector<Tensor> parameters_, velocities_;
    Tensor hyper_;  // [rate, momentum]
    double momentum_;
};

}  // namespace tw::nn
