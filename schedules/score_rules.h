// What becomes of attention's scores before their softmax, as users vary it: "score_mod" and "mask_mod" of flex
// attention (Dong et al. 2024). A rule is any function of expressions; these are the usual ones.
#pragma once
#include <array>
#include <functional>
#include <vector>

#include "dsl/tensor.h"

namespace tw::schedules {

/// Where a score stands.
struct ScorePlace {
    Expr batch, head, row, key;
};
/// Of q k' / sqrt(depth), f32: what the softmax takes. -infinity leaves a key out of a row. Tensors that it reads are
/// inputs of the kernel. A row that sees no key has no softmax: its results are NaN, as the formula says.
using ScoreRule = std::function<Expr(const Expr& score, const ScorePlace& at)>;

/// An input of which a rule reads an element of a row for each key, such as a bias, in rows that boxes can be made of.
struct PairInput {
    Tensor tensor;
    /// The dimensions that follow the batch, the head, the row and the key, which is the last; -1 if it is the same for
    /// all of them.
    std::array<int, 4> dimension;
};
/// Those that the score reads so, once each.
std::vector<PairInput> inputs_of_pairs(const Expr& score, const ScorePlace& at);

/// One rule behind another.
ScoreRule in_turn(std::vector<ScoreRule> rules);

/// cap * tanh(score / cap), to cap * 2^-22: scores stay between -cap and cap (Gemma 2).
ScoreRule soft_cap(double cap);
/// Linear biases (ALiBi; Press et al. 2022): score + slopes[head] * (key - row). slopes: [heads], a float type.
ScoreRule linear_bias(const Tensor& slopes);
/// score + bias[batch, head, row, key]; dimensions of extent 1 are the same for all. bias: of 4 dimensions, a float
/// type.
ScoreRule additive_bias(const Tensor& bias);
/// Row i sees keys up to i, of the last `width` ones only.
ScoreRule sliding_window(int64_t width);
/// Rows see the keys of their own document. Numbers of documents: of_rows [batch, rows], of_keys [batch, keys],
/// integers.
ScoreRule documents(const Tensor& of_rows, const Tensor& of_keys);

}  // namespace tw::schedules
