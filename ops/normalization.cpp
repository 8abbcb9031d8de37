#include "ops/normalization.h"

#include <algorithm>

#include "ops/capture.h"
#include "ops/tape/made_again.h"
#include "schedules/choose_in_place.h"
#include "support/error.h"

namespace tw::nn {
namespace {

tw::Tensor declared_rms_norm(const tw::Tensor& x, const tw::Tensor& gain, double epsilon) {
    const Type type = x.type() == f64 ? f64 : f32;
    const Axis c = reduce_axis("c", x.shape().back());
    const tw::Tensor scale =
        compute("scale", {x.shape().begin(), x.shape().end() - 1}, [&](const std::vector<Expr>& row) {
            std::vector<Operand> at(row.begin(), row.end());
            at.emplace_back(c);
            const Expr element = cast(type, x.read(at));
            return rsqrt(sum(element * element, c) / cast(type, c.extent) + epsilon);
        });
    return compute("y", {x.shape().begin(), x.shape().end()}, [&](const std::vector<Expr>& at) {
        const Expr by_root = cast(type, x.read({at.begin(), at.end()})) * scale.read({at.begin(), at.end() - 1});
        return cast(x.type(), by_root * cast(type, gain(at.back())));
    });
}

}  // namespace

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

Tensor rms_norm(const Tensor& x, const Tensor& gain, double epsilon, std::source_location where) {
    user_check(is_float(x.type()) && !x.shape().empty() && gain.shape() == std::vector<int64_t>{x.shape().back()},
               where, "rms_norm: x is {} {}, the gain {}; give floats [..., width] and [width]", name_of(x.type()),
               shape_text(x.shape()), shape_text(gain.shape()));
    return operator_with("rms_norm", fmt::format("{}", epsilon), [epsilon](const std::vector<tw::Tensor>& in) {
        return declared_rms_norm(in[0], in[1], epsilon);
    })({x, gain}, where);
}

BatchNorm::BatchNorm(const std::shared_ptr<Backend>& backend, int64_t channels, double momentum, double epsilon)
    : momentum_(momentum),
      epsilon_(epsilon),
      gain_(register_parameter("weight", constant_parameter(backend, {channels}, 1, "gain"))),
      bias_(register_parameter("bias", constant_parameter(backend, {channels}, 0, "bias"))),
      mean_(register_buffer("running_mean", constant_tensor(backend, {channels}, 0, "running_mean"))),
      variance_(register_buffer("running_var", constant_tensor(backend, {channels}, 1, "running_variance"))) {}

Tensor BatchNorm::operator()(const Tensor& x, std::source_location where) const {
    if (!is_training()) return infer(x, where);
    const Scope here = scope();
    Tensor y = batch_norm(x, gain_, bias_, epsilon_, where);
    follow(x, where);
    return y;
}

Tensor BatchNorm::infer(const Tensor& x, std::source_location where) const {
    const Scope here = scope();
    return batch_norm_by(mean_, variance_, x, gain_, bias_, epsilon_, where);
}

namespace {

/// mean and variance, followed by those of the batch.
schedules::Moments followed(const tw::Tensor& batch, const schedules::Moments& old, double momentum) {
    const schedules::Moments now = schedules::channel_moments("batch", batch);
    const Expr channels = batch.shape().back();
    int64_t count = 1;
    for (int d = 0; d + 1 < batch.rank(); ++d) count *= require_constant(batch.shape()[d]);
    const double unbiased = static_cast<double>(count) / static_cast<double>(std::max<int64_t>(count - 1, 1));
    auto follows = [&](const char* name, const tw::Tensor& was, const tw::Tensor& moment, double factor) {
        return compute(name, {channels},
                       [&](Expr c) { return was(c) * (1 - momentum) + cast(f32, moment(c)) * (momentum * factor); });
    };
    return {follows("new_mean", old.mean, now.mean, 1), follows("new_variance", old.variance, now.variance, unbiased)};
}

}  // namespace

void BatchNorm::follow(const Tensor& x, std::source_location where) const {
    if (Capture* capture = x.backend()->capture()) {
        CalledFrom caller(where);
        const DeclaredIn declared(Scope::path());
        const schedules::Moments next =
            followed(capture->symbol_of(x), {capture->symbol_of(mean_), capture->symbol_of(variance_)}, momentum_);
        capture->overwrite(mean_, next.mean);
        capture->overwrite(variance_, next.variance);
        return;
    }
    const std::string key = fmt::format("running moments {} {}{}", momentum_, name_of(x.type()), shape_text(x.shape()));
    const Executable& update = x.backend()->built(key, [&](const Target& target) {
        CalledFrom caller(where);
        const tw::Tensor batch = input("x", x.type(), {x.shape().begin(), x.shape().end()});
        const schedules::Moments old{input("mean", f32, {batch.shape().back()}),
                                     input("variance", f32, {batch.shape().back()})};
        const schedules::Moments next = followed(batch, old, momentum_);
        return schedules::choose_in_place(
            {{next.mean, next.variance}, {{next.mean, old.mean}, {next.variance, old.variance}}}, target);
    });
    made_once([&] {
        x.backend()->run(update, {.buffers = {{"x", x.data()}, {"mean", mean_.data()}, {"variance", variance_.data()}},
                                  .sizes = {},
                                  .scalars = {}});
        return std::vector<Tensor>();
    });
}

GroupNorm::GroupNorm(const std::shared_ptr<Backend>& backend, int64_t groups, int64_t channels, double epsilon)
    : groups_(groups),
      epsilon_(epsilon),
      gain_(register_parameter("weight", constant_parameter(backend, {channels}, 1, "gain"))),
      bias_(register_parameter("bias", constant_parameter(backend, {channels}, 0, "bias"))) {}

LayerNorm::LayerNorm(const std::shared_ptr<Backend>& backend, const std::vector<int64_t>& shape, double epsilon)
    : epsilon_(epsilon),
      gain_(register_parameter("weight", constant_parameter(backend, shape, 1, "gain"))),
      bias_(register_parameter("bias", constant_parameter(backend, shape, 0, "bias"))) {}

RMSNorm::RMSNorm(const std::shared_ptr<Backend>& backend, int64_t width, double epsilon)
    : epsilon_(epsilon), gain_(register_parameter("weight", constant_parameter(backend, {width}, 1, "gain"))) {}

}  // namespace tw::nn
