// Layers of a network and the functional calls that they are made of.
#pragma once
#include <cstdint>
#include <vector>

#include "ops/elementwise.h"
#include "ops/modules/module.h"
#include "ops/operator.h"

namespace tw::nn {

/// x w^T + b. x [..., in], w [out, in], b [out] -> [..., out], of one float type, summed in f32 if that is a storage
/// type. Throws Error with both shapes, or both types, where they do not fit.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias, TW_HERE);
/// max(x, 0), of any shape. The slope at 0 is 0.
Tensor relu(const Tensor& x, TW_HERE);
/// x/2 * (1 + erf(x / sqrt 2)), of any shape (Hendrycks, Gimpel: Gaussian error linear units).
Tensor gelu(const Tensor& x, TW_HERE);
/// x / (1 + exp(-x)), of any shape (Elfwing et al.: Sigmoid-weighted linear units; also called swish).
Tensor silu(const Tensor& x, TW_HERE);
/// The hyperbolic tangent, of any shape.
Tensor tanh(const Tensor& x, TW_HERE);
/// 1 / (1 + exp(-x)), of any shape.
Tensor sigmoid(const Tensor& x, TW_HERE);
/// log(1 + exp(x)), of floats of any shape; exact to a few roundings also where exp(x) is small or overflows.
Tensor softplus(const Tensor& x, TW_HERE);
/// x where it is more than 0, else slope x; of floats. The slope at 0 is that of negative ones.
Tensor leaky_relu(const Tensor& x, double slope = 0.01, TW_HERE);
/// x where it is more than 0, else alpha (exp(x) - 1), of floats (Clevert et al.: Exponential linear units).
Tensor elu(const Tensor& x, double alpha = 1, TW_HERE);
/// x [batch, extents...] as rows [batch, product of the extents]. Throws Error if there is no extent.
Tensor flatten(const Tensor& x, TW_HERE);
/// table[ids[n]] + places[n % length], rows of sequences of `length` one behind the other: table [words, width], ids
/// [rows] i32, places [length, width] -> [rows, width], f32. Ids outside of the table are the caller's mistake. Throws
/// Error with all three shapes where they do not fit.
Tensor embedding(const Tensor& table, const Tensor& ids, const Tensor& places, TW_HERE);
/// table[ids[n]]: table [words, width], ids [...] i32 -> [..., width], f32. Ids outside of the table are the caller's
/// mistake. Throws Error with both shapes where they do not fit.
Tensor embedding(const Tensor& table, const Tensor& ids, TW_HERE);
/// Mean over the batch of -log softmax(logits)[label]. logits [batch, classes] f32, labels [batch] i32 -> scalar.
/// Throws Error with both shapes where they do not fit. Labels outside of 0..classes-1 are the caller's mistake: see
/// check_labels().
Tensor cross_entropy(const Tensor& logits, const Tensor& labels, TW_HERE);

/// Mean of the squares of x - y, both of one shape, f32 -> scalar. Throws Error with both shapes where they differ.
Tensor mse_loss(const Tensor& x, const Tensor& y, TW_HERE);

/// Throws Error naming the first label outside of 0..classes-1.
void check_labels(const std::vector<int32_t>& labels, int64_t classes, TW_HERE);
/// The share of the rows of logits [batch, classes] whose largest element is at the label.
double accuracy(const HostArray& logits, const std::vector<int32_t>& labels, TW_HERE);

/// A fully connected layer. Weights and biases start uniform in +-1/sqrt(in): the same seed, the same values anywhere.
class Linear : public Module {
public:
    Linear(std::shared_ptr<Backend> backend, int64_t in, int64_t out, uint64_t seed);
    Tensor operator()(const Tensor& x, TW_HERE) const {
        const Scope here = scope();
        return linear(x, weight_, bias_, where);
    }

private:
    Tensor weight_, bias_;
};

/// Rows of a table, `weight`, that starts uniform in +-1/sqrt(width).
class Embedding : public Module {
public:
    Embedding(const std::shared_ptr<Backend>& backend, int64_t words, int64_t width, uint64_t seed);
    Tensor operator()(const Tensor& ids, TW_HERE) const {
        const Scope here = scope();
        return embedding(weight_, ids, where);
    }

private:
    Tensor weight_;
};

}  // namespace tw::nn
