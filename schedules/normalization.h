// Elements by their mean and variance, as expressions: batch, group and layer norm. Channels come last.
#pragma once
#include <vector>

#include "dsl/schedule.h"

namespace tw::schedules {

/// What a norm is scaled and shifted by; either may be undefined. Of x's type or of f32.
struct Affinity {
    Tensor gain, bias;
};

/// Of each channel of x [..., C], over all other dimensions: mean and variance (sum of squared deviations over their
/// number), [C] in f32, of f64 in f64.
struct Moments {
    Tensor mean, variance;
};
Moments channel_moments(const std::string& name, const Tensor& x, TW_HERE);

/// y = (x - mean) / sqrt(variance + epsilon) gain[c] + bias[c], with the moments of each channel of x; of x's shape
/// [..., C] and type. The gradient goes through the moments, too. Throws Error with both shapes where gain or bias is
/// not [C].
Tensor batch_norm(const std::string& name, const Tensor& x, const Affinity& affinity, double epsilon = 1e-5, TW_HERE);
/// The same with moments that are given, [C].
Tensor batch_norm_by(const std::string& name, const Moments& moments, const Tensor& x, const Affinity& affinity,
                     double epsilon = 1e-5, TW_HERE);

/// ... with the moments of each of `groups` equal groups of channels of each image of x [N, ..., C]; gain and bias are
/// [C]. Throws Error, too, where groups do not divide the channels.
Tensor group_norm(const std::string& name, const Tensor& x, int64_t groups, const Affinity& affinity,
                  double epsilon = 1e-5, TW_HERE);

/// ... with the moments of the last `dimensions` dimensions, of whose shape gain and bias are.
Tensor layer_norm(const std::string& name, const Tensor& x, int64_t dimensions, const Affinity& affinity,
                  double epsilon = 1e-5, TW_HERE);

}  // namespace tw::schedules
