#include "ops/normalization.h"

#include <algorithm>

#include "schedules/choose.h"
#include "support/error.h"

namespace tw::nn {

Tensor batch_norm(const Tensor& x, const Tensor& gain, const Tensor& bias, double epsilon, std::source_location where) {
    return operator_with("batch_norm", fmt::format("{}", epsilon), [epsilon](const std::vector<tw::Tensor>& in) {
        return schedules::batch_norm("y", in[0], {in[1], in[2]}, epsilon);
    })({x, gain, bias}, where);
}

Tensor batch_norm_by(const Tensor& mean, const Tensor& variance, const Tensor& x, const Tensor& gain,
                     const Tensor& bias, double epsilon, std::source_location where) {
    return operator_with("batch_norm_by", fmt::format("{}", epsilon), [epsilon](const std::vector<tw::Tensor>& in) {
        return schedules::batch_norm_by("y", {in[0], in[1]}, in[2], {in[3], in[4]}, epsilon);
    })({mean, variance, x, gain, bias}, where);
}

Tensor group_norm(const Tensor& x, int64_t groups, const Tensor& gain, const Tensor& bias, double epsilon,
                  std::source_location where) {
    return operator_with("group_norm", fmt::format("{} {}", groups, epsilon),
                         [groups, epsilon](const std::vector<tw::Tensor>& in) {
                             return schedules::group_norm("y", in[0], groups, {in[1], in[2]}, epsilon);
                         })({x, gain, bias}, where);
}

Tensor layer_norm(const Tensor& x, const Tensor& gain, const Tensor& bias, double epsilon, std::source_location where) {
    return operator_with("layer_norm", fmt::format("{}", epsilon), [epsilon](const std::vector<tw::Tensor>& in) {
        return schedules::layer_norm("y", in[0], in[1].rank(), {in[1], in[2]}, epsilon);
    })({x, gain, bias}, where);
}

BatchNorm::BatchNorm(const std::shared_ptr<Backend>& backend, int64_t channels, double momentum, double epsilon)
    : momentum_(momentum),
      epsilon_(epsilon),
      gain_(constant_parameter(backend, {channels}, 1, "gain")),
      bias_(constant_parameter(backend, {channels}, 0, "bias")),
      mean_(constant_tensor(backend, {channels}, 0, "running_mean")),
      variance_(constant_tensor(backend, {channels}, 1, "running_variance")) {}

Tensor BatchNorm::operator()(const Tensor& x, std::source_location where) const {
    Tensor y = batch_norm(x, gain_, bias_, epsilon_, where);
    follow(x, where);
    return y;
}

Tensor BatchNorm::infer(const Tensor& x, std::source_location where) const {
    return batch_norm_by(mean_, variance_, x, gain_, bias_, epsilon_, where);
}

void BatchNorm::follow(const Tensor& x, std::source_location where) const {
    const std::string key = fmt::format("running moments {} {}{}", momentum_, name_of(x.type()), shape_text(x.shape()));
    const Executable& update = x.backend()->built(key, [&](const Target& target) {
        CalledFrom caller(where);
        const tw::Tensor batch = input("x", x.type(), {x.shape().begin(), x.shape().end()});
        const schedules::Moments now = schedules::channel_moments("batch", batch);
        const Expr channels = batch.shape().back();
        int64_t count = 1;
        for (size_t d = 0; d + 1 < x.shape().size(); ++d) count *= x.shape()[d];
        const double unbiased = static_cast<double>(count) / static_cast<double>(std::max<int64_t>(count - 1, 1));
        auto follows = [&](const char* name, const tw::Tensor& old, const tw::Tensor& moment, double factor) {
            return compute(name, {channels}, [&](Expr c) {
                return old(c) * (1 - momentum_) + cast(f32, moment(c)) * (momentum_ * factor);
            });
        };
        const tw::Tensor mean = input("mean", f32, {channels}), variance = input("variance", f32, {channels});
        const tw::Tensor new_mean = follows("new_mean", mean, now.mean, 1);
        const tw::Tensor new_variance = follows("new_variance", variance, now.variance, unbiased);
        Schedule s = schedules::choose_schedule({new_mean, new_variance}, target, where);
        s.in_place(new_mean, mean);
        s.in_place(new_variance, variance);
        return s;
    });
    x.backend()->run(update, {.buffers = {{"x", x.data()}, {"mean", mean_.data()}, {"variance", variance_.data()}},
                              .sizes = {},
                              .scalars = {}});
}

GroupNorm::GroupNorm(const std::shared_ptr<Backend>& backend, int64_t groups, int64_t channels, double epsilon)
    : groups_(groups),
      epsilon_(epsilon),
      gain_(constant_parameter(backend, {channels}, 1, "gain")),
      bias_(constant_parameter(backend, {channels}, 0, "bias")) {}

LayerNorm::LayerNorm(const std::shared_ptr<Backend>& backend, const std::vector<int64_t>& shape, double epsilon)
    : epsilon_(epsilon),
      gain_(constant_parameter(backend, shape, 1, "gain")),
      bias_(constant_parameter(backend, shape, 0, "bias")) {}

}  // namespace tw::nn
