// Learning rates by the number of the step: plain functions on the host.
//
//   const RateSchedule rates = cosine_rate({.peak = 3e-4, .warmup = 100, .steps = 10000, .last = 3e-5});
//   for (int64_t n = 0; n < 10000; ++n) {
//       optimizer.set_rate(rates(n));
//       step.run();
//   }
#pragma once
#include <cstdint>
#include <functional>

#include "dsl/schedule_options.h"

namespace tw::nn {

/// The rate of step n, from 0 on. Throws Error if n is negative.
using RateSchedule = std::function<double(int64_t step)>;

/// Up along a line, then down: in steps n < warmup the rate is peak (n + 1) / (warmup + 1), in step `warmup` it is
/// peak, from step `steps` on `last`.
struct WarmupOptions {
    double peak = 0;
    int64_t warmup = 0;  ///< steps
    int64_t steps = 0;   ///< the warm-up among them
    double last = 0;
};

// All throw Error if a rate is negative or not finite.
RateSchedule constant_rate(double rate, TW_HERE);
/// Down along half a period of a cosine (Loshchilov, Hutter: SGDR, 2017, without restarts). Throws Error unless
/// 0 <= warmup < steps.
RateSchedule cosine_rate(const WarmupOptions& options, TW_HERE);
/// Down along a line (Goyal et al., Accurate, large minibatch SGD, 2017, for the warm-up). Throws Error unless
/// 0 <= warmup < steps.
RateSchedule linear_rate(const WarmupOptions& options, TW_HERE);
/// rate * factor^(n / every, rounded down). Throws Error unless every >= 1 and factor is finite and positive.
RateSchedule stepped_rate(double rate, int64_t every, double factor, TW_HERE);

}  // namespace tw::nn
