#include "ops/optimizers/loss_scale.h"

#include <cmath>
#include <limits>

#include "ops/operator.h"
#include "ops/parameters.h"
#include "support/error.h"

namespace tw::nn {
namespace {

constexpr double least_scale = 0x1p-24, most_scale = 0x1p100;  // 1 / scale stays a normal f32

const Operator& scaled_operator() {
    static const Operator op("scaled_loss", [](const std::vector<tw::Tensor>& in) {
        return compute("scaled_loss", {}, [&] { return in[0]() * in[1](); });
    });
    return op;
}

bool is_power_of_two(double value) {
    int exponent = 0;
    return std::frexp(value, &exponent) == 0.5;
}

void check(const LossScaleOptions& options, std::source_location where) {
    const auto is_between = [](double value, double low, double high) { return value >= low && value <= high; };
    user_check(is_between(options.initial, least_scale, most_scale), where,
               "LossScale: it begins with {}; give a power of two from 2^-24 to 2^100, say 65536", options.initial);
    user_check(is_between(options.growth, 1, 1e6), where,
               "LossScale: growth is {}; give a power of two from 1 on, say 2", options.growth);
    user_check(options.backoff > 0 && options.backoff < 1, where,
               "LossScale: backoff is {}, outside of (0, 1); give what is left of a scale that was too large, say 0.5",
               options.backoff);
    for (const auto& [name, value] :
         {std::pair("initial", options.initial), {"growth", options.growth}, {"backoff", options.backoff}})
        user_check(is_power_of_two(value), where,
                   "LossScale: {} is {}, no power of two: losses and gradients would be rounded; give one", name,
                   value);
    user_check(options.interval >= 1 && options.interval < 1 << 24, where,
               "LossScale: an interval of {} steps; give at least 1, and less than 2^24", options.interval);
}

/// [scale, good_steps] of these and norms.
std::vector<tw::Tensor> declare_change(const std::vector<tw::Tensor>& old, const std::vector<tw::Tensor>& norms,
                                       const LossScaleOptions& options) {
    return compute_tuple("loss_scale", {"scale_next", "good_steps_next"}, {}, [&](const std::vector<Expr>&) {
        Expr is_good = is_a_step(norms.at(0)());
        for (size_t k = 1; k < norms.size(); ++k) is_good = is_good && is_a_step(norms[k]());
        const Expr scale = old[0](), count = old[1]() + 1.0;
        const Expr grows = count >= static_cast<double>(options.interval);
        const Expr grown = min(scale * options.growth, constant(f32, most_scale));
        const Expr shrunk = max(scale * options.backoff, constant(f32, least_scale));
        return std::vector{select(is_good, select(grows, grown, scale), shrunk),
                           select(is_good && !grows, count, constant(f32, 0.0))};
    });
}

}  // namespace

LossScale::LossScale(const std::shared_ptr<Backend>& backend, const LossScaleOptions& options,
                     std::source_location where)
    : scale_((check(options, where), constant_tensor(backend, {}, options.initial, "loss_scale"))),
      good_steps_(constant_tensor(backend, {}, 0, "good_steps")),
      change_({{"scale", scale_}, {"good_steps", good_steps_}},
              [options](const std::vector<tw::Tensor>& old, const std::vector<tw::Tensor>& norms) {
                  return declare_change(old, norms, options);
              }) {}

Tensor LossScale::operator()(const Tensor& loss, std::source_location where) const {
    user_check(loss.type() == f32 && loss.shape().empty(), where,
               "LossScale: the loss must be an f32 scalar, '{}' is {} {}; reduce it first", loss.name(),
               name_of(loss.type()), shape_text(loss.shape()));
    return scaled_operator()({loss, scale_}, where);
}

void LossScale::step(std::source_location where) {
    if (norms_.empty())
        user_error(where,
                   "LossScale: no optimizer has stepped with it; call optimizer.step(scale) before scale.step()");
    std::vector<NamedTensor> read;
    for (const Tensor& norm : norms_) read.push_back({fmt::format("norm{}", read.size()), norm});
    norms_.clear();
    change_.run(read);
}

Expr is_a_step(const Expr& norm) { return norm <= static_cast<double>(std::numeric_limits<float>::max()); }

}  // namespace tw::nn
