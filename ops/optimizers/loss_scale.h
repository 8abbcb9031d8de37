// Losses scaled so that adjoints in f16 neither vanish nor overflow (Micikevicius et al., Mixed Precision Training,
// 2018).
//
//   nn::LossScale scale(backend);
//   nn::CompiledStep step = nn::compile(backend, [&] {
//       nn::Tensor loss = network(x, labels);
//       nn::backward(scale(loss));     // gradients are larger by the scale
//       adam.step(scale);              // which takes it off; gradients that overflowed are no step
//       scale.step();                  // it grows or shrinks
//       return std::vector{loss};
//   }, {.mixed = {.values = f16}});
#pragma once
#include <cstdint>
#include <memory>
#include <source_location>
#include <vector>

#include "ops/overwriting.h"

namespace tw::nn {

struct LossScaleOptions {
    double initial = 65536;
    double growth = 2;        ///< behind `interval` steps in a row without overflow
    double backoff = 0.5;     ///< behind a step whose gradients overflowed
    int64_t interval = 2000;  ///< steps
};

/// A factor in device memory, which recorded and captured steps read and change themselves.
class LossScale {
public:
    /// Throws Error unless 2^-24 <= initial <= 2^100, growth >= 1, 0 < backoff < 1, all of them powers of two, by which
    /// losses and gradients are multiplied without rounding, and interval >= 1.
    explicit LossScale(const std::shared_ptr<Backend>& backend, const LossScaleOptions& options = {}, TW_HERE);

    /// loss * scale, to call backward() of. Throws Error if the loss is no f32 scalar.
    Tensor operator()(const Tensor& loss, TW_HERE) const;
    /// Enqueues what the scale becomes: less, if the gradients of an optimizer that stepped with it since the last call
    /// overflowed; more, if none have for `interval` steps; 2^-24 at least, 2^100 at most. Throws Error if none has
    /// stepped.
    void step(TW_HERE);

    /// f32, a scalar: what the loss is multiplied by now.
    const Tensor& value() const { return scale_; }
    /// To be saved and restored: the scale, and how many steps in a row had no overflow, f32 scalars.
    std::vector<Tensor> states() const { return {scale_, good_steps_}; }

private:
    friend class Optimizer;
    /// The norm of an optimizer's gradients, without the scale: not finite where they overflowed.
    void note_norm(const Tensor& norm) { norms_.push_back(norm); }

    Tensor scale_, good_steps_;
    Overwriting change_;
    std::vector<Tensor> norms_;
};

/// Whether gradients of this norm can be a step: it is neither infinite nor NaN.
Expr is_a_step(const Expr& norm);

}  // namespace tw::nn
