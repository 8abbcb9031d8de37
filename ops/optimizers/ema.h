// An exponential moving average of parameters, to evaluate with.
#pragma once
#include <vector>

#include "ops/overwriting.h"

namespace tw::nn {

/// average = decay * average + (1 - decay) * parameter, of each parameter (Polyak, Juditsky: Acceleration of stochastic
/// approximation by averaging, 1992, with weights that fall off). One operation for all that have at most 2^20
/// elements, whose averages are parts of one tensor, 64 at most, and one for each other one.
class Ema {
public:
    /// Averages begin as copies of the parameters. Throws Error without parameters, if one is undefined, given twice, a
    /// scalar, no f32 or of another backend than the first, and unless 0 <= decay < 1. Waits for the device.
    Ema(std::vector<Tensor> parameters, double decay, TW_HERE);

    /// Enqueues the update, behind that of the optimizer; in a captured step it belongs to the step.
    void step();
    /// In the order of the parameters, and shaped like these.
    const std::vector<Tensor>& averages() const { return averages_; }

private:
    void average_together(const std::vector<size_t>& together, double decay, std::source_location where);

    std::vector<Tensor> parameters_, averages_;
    struct Update {
        std::vector<size_t> averages;
        Overwriting operation;
    };
    std::vector<Update> updates_;
};

}  // namespace tw::nn
