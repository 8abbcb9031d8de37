// Dropout, whose random numbers follow from device memory, so that each run of a recorded or compiled step draws anew.
#pragma once
#include <memory>

#include "ops/modules/module.h"
#include "ops/operator.h"
#include "ops/overwriting.h"

namespace tw::nn {

/// x / (1 - probability) of what stays, 0 of a share of `probability` of the elements (Srivastava et al. 2014), chosen
/// by Philox of their places and of `seed`, a u32 scalar (dsl/philox.h): gradients choose the same ones. Of floats,
/// made in f32 (f64 of f64). Throws Error unless 0 <= probability < 1.
Tensor dropout(const Tensor& x, double probability, const Tensor& seed, TW_HERE);

/// In training dropout(x) with a seed of each call's own, made of two buffers in device memory: "seed", u32 [2], and
/// "calls", u32, which each call counts up; else x. Layers of one network have seeds of their own, or drop the same
/// elements.
class Dropout : public Module {
public:
    Dropout(const std::shared_ptr<Backend>& backend, double probability, uint64_t seed, TW_HERE);
    Tensor operator()(const Tensor& x, TW_HERE) const;

private:
    double probability_;
    Tensor seed_, calls_;
    std::shared_ptr<Overwriting> draw_;
};

}  // namespace tw::nn
