#include "ops/optimizers/rate_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "support/error.h"

namespace tw::nn {
namespace {

void check_rate(const char* who, double rate) {
    if (!(rate >= 0 && std::isfinite(rate)))
        throw_error(Error, "{}: a rate of {}; give a finite one that is not negative", who, rate);
}

RateSchedule counted(RateSchedule rate_of) {
    return [rate_of = std::move(rate_of)](int64_t step) {
        if (step < 0) throw_error(Error, "the learning rate of step {}; steps are counted from 0 on", step);
        return rate_of(step);
    };
}

/// `left`: of how much of peak - last is left where a share of the steps behind the warm-up is done.
RateSchedule warmed_up(const char* who, const WarmupOptions& options, double (*left)(double done)) {
    check_rate(who, options.peak);
    check_rate(who, options.last);
    if (options.warmup < 0 || options.warmup >= options.steps)
        throw_error(Error, "{}: {} of {} steps are warm-up; leave at least one step behind it", who, options.warmup,
                    options.steps);
    return counted([=](int64_t step) {
        const auto n = static_cast<double>(step), warmup = static_cast<double>(options.warmup);
        if (step < options.warmup) return options.peak * (n + 1) / (warmup + 1);
        const double done = std::min(1.0, (n - warmup) / (static_cast<double>(options.steps) - warmup));
        return options.last + (options.peak - options.last) * left(done);
    });
}

}  // namespace

RateSchedule constant_rate(double rate) {
    check_rate("constant_rate", rate);
    return counted([=](int64_t) { return rate; });
}

RateSchedule cosine_rate(const WarmupOptions& options) {
    return warmed_up("cosine_rate", options, [](double done) { return (1 + std::cos(std::numbers::pi * done)) / 2; });
}

RateSchedule linear_rate(const WarmupOptions& options) {
    return warmed_up("linear_rate", options, [](double done) { return 1 - done; });
}

RateSchedule stepped_rate(double rate, int64_t every, double factor) {
    check_rate("stepped_rate", rate);
    if (every < 1 || !(factor > 0 && std::isfinite(factor)))
        throw_error(
            Error,
            "stepped_rate: times {} every {} steps; give a finite, positive factor, and a number of steps from 1",
            factor, every);
    return counted([=](int64_t step) { return rate * std::pow(factor, static_cast<double>(step / every)); });
}

}  // namespace tw::nn
