// Norms of a network. The declarations, their shapes, types and errors: schedules/normalization.h.
#pragma once
#include <memory>
#include <vector>

#include "ops/modules/module.h"
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
/// x / sqrt(mean of x^2 along the last dimension + epsilon) times gain, [extent of that dimension], made in f32; of x's
/// shape and type (Zhang, Sennrich: Root mean square layer normalization, 2019). Throws Error with both shapes where
/// they do not fit.
Tensor rms_norm(const Tensor& x, const Tensor& gain, double epsilon = 1e-5, TW_HERE);

// Gains, registered as "weight" as elsewhere, start as 1, and biases as 0.

class BatchNorm : public Module {
public:
    BatchNorm(const std::shared_ptr<Backend>& backend, int64_t channels, double momentum = 0.1, double epsilon = 1e-5);

    /// In training by the moments of x, and enqueues the update of the running ones, outside of the tape:
    /// running = (1 - momentum) running + momentum of the batch, the variance of the batch with one element less
    /// counted. These are buffers, "running_mean" and "running_var". In evaluation infer(x).
    Tensor operator()(const Tensor& x, TW_HERE) const;
    /// By the running moments.
    Tensor infer(const Tensor& x, TW_HERE) const;
    const Tensor& running_mean() const { return mean_; }
    const Tensor& running_variance() const { return variance_; }

private:
    void follow(const Tensor& x, std::source_location where) const;

    double momentum_, epsilon_;
    Tensor gain_, bias_, mean_, variance_;
};

class GroupNorm : public Module {
public:
    GroupNorm(const std::shared_ptr<Backend>& backend, int64_t groups, int64_t channels, double epsilon = 1e-5);
    Tensor operator()(const Tensor& x, TW_HERE) const {
        const Scope here = scope();
        return group_norm(x, groups_, gain_, bias_, epsilon_, where);
    }

private:
    int64_t groups_;
    double epsilon_;
    Tensor gain_, bias_;
};

class LayerNorm : public Module {
public:
    /// `shape`: of the last dimensions of x.
    LayerNorm(const std::shared_ptr<Backend>& backend, const std::vector<int64_t>& shape, double epsilon = 1e-5);
    Tensor operator()(const Tensor& x, TW_HERE) const {
        const Scope here = scope();
        return layer_norm(x, gain_, bias_, epsilon_, where);
    }

private:
    double epsilon_;
    Tensor gain_, bias_;
};

class RMSNorm : public Module {
public:
    RMSNorm(const std::shared_ptr<Backend>& backend, int64_t width, double epsilon = 1e-5);
    Tensor operator()(const Tensor& x, TW_HERE) const {
        const Scope here = scope();
        return rms_norm(x, gain_, epsilon_, where);
    }

private:
    double epsilon_;
    Tensor gain_;
};

}  // namespace tw::nn
