#include "ops/optimizers/rate_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "support/error.h"

namespace tw::nn {
namespace {

void check_rate(const char* who, double rate, std::source_location where) {
    user_check(rate >= 0 && std::isfinite(rate), where, "{}: a rate of {}; give a finite one that is not negative", who,
               rate);
}

RateSchedule counted(RateSchedule rate_of) {
    return [rate_of = std::move(rate_of)](int64_t step) {
        if (step < 0) throw_error(Error, "the learning rate of step {}; steps are counted from 0 on", step);
        return rate_of(step);
    };
}

/// `left`: of how much of peak - last is left where a share of the steps behind the warm-up is done.
RateSchedule warmed_up(const char* who, const WarmupOptions& options, double (*left)(double done),
                       std::source_location where) {
    check_rate(who, options.peak, where);
    check_rate(who, options.last, where);
    user_check(options.warmup >= 0 && options.warmup < options.steps, where,
               "{}: {} of {} steps are warm-up; leave at least one step behind it", who, options.warmup, options.steps);
    return counted([=](int64_t step) {
        const auto n = static_cast<double>(step), warmup = static_cast<double>(options.warmup);
        if (step < options.warmup) return options.peak * (n + 1) / (warmup + 1);
        const double done = std::min(1.0, (n - warmup) / (static_cast<double>(options.steps) - warmup));
        return options.last + (options.peak - options.last) * left(done);
    });
}

}  // namespace

RateSchedule constant_rate(double rate, std::source_location where) {
    check_rate("constant_rate", rate, where);
    return counted([=](int64_t) { return rate; });
}

RateSchedule cosine_rate(const WarmupOptions& options, std::source_location where) {
    return warmed_up(
        "cosine_rate", options, [](double done) { return (1 + std::cos(std::numbers::pi * done)) / 2; }, where);
}

RateSchedule linear_rate(const WarmupOptions& options, std::source_location where) {
    return warmed_up(
        "linear_rate", options, [](double done) { return 1 - done; }, where);
}

RateSchedule stepped_rate(double rate, int64_t every, double factor, std::source_location where) {
    check_rate("stepped_rate", rate, where);
    user_check(every >= 1 && factor > 0 && std::isfinite(factor), where,
               "stepped_rate: times {} every {} steps; give a finite, positive factor, and a number of steps from 1",
               factor, every);
    return counted([=](int64_t step) { return rate * std::pow(factor, static_cast<double>(step / every)); });
}

}  // namespace tw::nn
