// Norms of a network. The declarations, their shapes, types and errors: schedules/normalization.h.
#pragma once
#include <memory>
#include <vector>

#include "ops/operator.h"
#include "ops/parameters.h"
#include "schedules/normalization.h"

namespace tw::nn {

/// x [..., C] by the mean and the variance of each channel; gain and bias [C].
Tensor batch_norm(const Tensor& x, const Tensor& gain, const Tensor& bias, double epsilon = 1e-5, TW_HERE);
/// ... by a mean and a variance [C] that are given, say, running ones.
Tensor batch_norm_by(const Tensor& mean, const Tensor& variance, const Tensor& x, const Tensor& gain,
                     const Tensor& bias, double epsilon = 1e-5, TW_HERE);
/// x [N, ..., C] by those of each of so many groups of channels of each image; gain and bias [C].
Tensor group_norm(const Tensor& x, int64_t groups, const Tensor& gain, const Tensor& bias, double epsilon = 1e-5,
                  TW_HERE);
/// x by those of its last dimensions, as many as gain and bias have.
Tensor layer_norm(const Tensor& x, const Tensor& gain, const Tensor& bias, double epsilon = 1e-5, TW_HERE);

/// Gain 1 and bias 0 at the start.
class BatchNorm {
public:
    BatchNorm(const std::shared_ptr<Backend>& backend, int64_t channels, double momentum = 0.1, double epsilon = 1e-5);

    /// In training: by the moments of x. Enqueues the update of the running ones, outside of the tape:
    /// running = (1 - momentum) running + momentum of the batch, the variance of the batch with one element less
    /// counted.
    Tensor operator()(const Tensor& x, TW_HERE) const;
    /// By the running moments.
    Tensor infer(const Tensor& x, TW_HERE) const;
    std::vector<Tensor> parameters() const { return {gain_, bias_}; }
    const Tensor& running_mean() const { return mean_; }
    const Tensor& running_variance() const { return variance_; }

private:
    void follow(const Tensor& x, std::source_location where) const;

    double momentum_, epsilon_;
    Tensor gain_, bias_, mean_, variance_;
};

class GroupNorm {
public:
    GroupNorm(const std::shared_ptr<Backend>& backend, int64_t groups, int64_t channels, double epsilon = 1e-5);
    Tensor operator()(const Tensor& x, TW_HERE) const { return group_norm(x, groups_, gain_, bias_, epsilon_, where); }
    std::vector<Tensor> parameters() const { return {gain_, bias_}; }

private:
    int64_t groups_;
    double epsilon_;
    Tensor gain_, bias_;
};

class LayerNorm {
public:
    /// `shape`: of the last dimensions of x.
    LayerNorm(const std::shared_ptr<Backend>& backend, const std::vector<int64_t>& shape, double epsilon = 1e-5);
    Tensor operator()(const Tensor& x, TW_HERE) const { return layer_norm(x, gain_, bias_, epsilon_, where); }
    std::vector<Tensor> parameters() const { return {gain_, bias_}; }

private:
    double epsilon_;
    Tensor gain_, bias_;
};

}  // namespace tw::nn
