// What becomes of attention's scores before their softmax, as users vary it: "score_mod" and "mask_mod" of flex
// attention (Dong et al. 2024). A rule is any function of expressions; these are the usual ones.
#pragma once
#include <array>
#include <functional>
#include <string>
#include <vector>

#include "dsl/schedule.h"

namespace tw::schedules {

/// Where a score stands. Of packed sequences rows and keys count from the first of their sequence, whose number `batch`
/// is; `head` is one of queries. Elements that are read at a place are those of tensors by batch, row and key.
struct ScorePlace {
    Expr batch, head, row, key;
    /// The row's place among the keys, from which distances count: that of its own token. Causal rows see keys up to
    /// it; rows of packed sequences, and the row of decoding, stand so that the last one is at the last key.
    Expr position = row;
};
/// Of q k' / sqrt(depth), f32: what the softmax takes. -infinity leaves a key out of a row. Tensors that it reads are
/// inputs of the kernel. A row that sees no key has no softmax: its result is 0, and its lse -infinity.
using ScoreRule = std::function<Expr(const Expr& score, const ScorePlace& at)>;

/// An input of which a rule reads an element of a row for each key, such as a bias, in rows that boxes can be made of.
struct PairInput {
    Tensor tensor;
    /// The dimensions that follow the batch, the head, the row and the key, which is the last; -1 if it is the same for
    /// all of them.
    std::array<int, 4> dimension;
};
/// Those that the score reads so, and at no other place.
std::vector<PairInput> inputs_of_pairs(const Expr& score, const ScorePlace& at);

/// Inputs of which a rule reads an element for each row, or for each key, such as numbers of documents, and views of
/// them as tensors of their own: what a tile needs of one a schedule copies, and then inlines the view.
struct LineInput {
    Tensor input, view;
};
struct LineInputs {
    std::vector<LineInput> of_rows, of_keys;
};
/// What the rule makes of a score, reading views in the place of inputs: those that are there, or new ones, whose names
/// end with the suffix.
Expr with_line_inputs(const Expr& score, const ScorePlace& at, LineInputs& lines, const std::string& suffix = "");
/// The view's numbers of an iteration in shared memory, for these readers, in boxes: where rows of the input are none,
/// a kernel of its own copies them to a workspace.
Stage stage_line(Schedule& s, const LineInput& line, const std::vector<StageRef>& readers, Loop loop, TW_HERE);
/// Those of a thread in its registers.
void keep_line(Schedule& s, const LineInput& line, const std::vector<StageRef>& readers, Loop loop, TW_HERE);

/// Of exp(score - the row's maximum), f32: what values are multiplied by, while rows are divided by the sum of what it
/// is given. A linear function of that.
using WeightRule = std::function<Expr(const Expr& weight, const ScorePlace& at)>;

/// What users vary of attention: as declare_attention is given it.
struct AttentionRules {
    ScoreRule score = {};
    bool skips = false;  ///< the places of rows and keys alone mask whole tiles, which are left out
    WeightRule weights = {};
    Tensor sinks = {};  ///< f32 [heads]
};
/// What the rule makes of a score, constants put together, or of a weight. Throws Error if that is no f32, or if no
/// score is part of it at any place.
Expr changed_by(const ScoreRule& rule, const Expr& score, const ScorePlace& at, TW_HERE);
Expr weighed_by(const WeightRule& rule, const Expr& weight, const ScorePlace& at, TW_HERE);
/// What rules make the adjoint of an argument, an element of `argument`, of the adjoint of their result.
Expr adjoint_of_argument(const Expr& result, const Expr& adjoint, const Tensor& argument);
/// Whether the stage that computes the tensor reads the other one.
bool reads(const Tensor& tensor, const Tensor& other);

/// Whether what the rule makes the adjoint of a score of that of its result goes by the score, as of a soft cap.
bool slope_depends_on_score(const ScoreRule& rule);

/// Whether the rule may make all scores of a row so large that f32 loses what they differ by once they are scaled: as
/// a mask does that adds a large number instead of leaving keys out. Not of what it adds up to 2^12, nor of what it
/// does not add to a row's own key, as distances are. Such scores are subtracted before they are scaled, for one
/// instruction an element more.
bool may_add_far(const ScoreRule& rule);

/// One rule behind another.
ScoreRule in_turn(std::vector<ScoreRule> rules);

/// cap * tanh(score / cap), to cap * 2^-22: scores stay between -cap and cap (Gemma 2).
ScoreRule soft_cap(double cap, TW_HERE);
/// The same to a relative 2^-11, by one instruction instead of several.
ScoreRule soft_cap_approx(double cap, TW_HERE);
/// Linear biases (ALiBi; Press et al. 2022): score + slopes[head] * (key - position). slopes: [heads], a float type.
ScoreRule linear_bias(const Tensor& slopes, TW_HERE);
/// score + bias[batch, head, row, key]; dimensions of extent 1 are the same for all. bias: of 4 dimensions, a float
/// type.
ScoreRule additive_bias(const Tensor& bias, TW_HERE);
/// A row sees keys up to its position, of the last `width` ones only.
ScoreRule sliding_window(int64_t width, TW_HERE);
/// Rows see the keys of their own document. Numbers of documents: of_rows [batch, rows], of_keys [batch, keys],
/// integers.
ScoreRule documents(const Tensor& of_rows, const Tensor& of_keys, TW_HERE);

/// A share of `probability` of the weights is 0, the others are divided by what is left of 1: dropout of
/// `dsl/philox.h`. seed: u32, a scalar or an element. Two rows by two keys share a call of philox, whose number is, in
/// row-major order, theirs among those of batch, heads, rows and keys; heads, rows and keys: how many there are.
WeightRule weight_dropout(double probability, const Expr& seed, int64_t heads, int64_t rows, int64_t keys);

}  // namespace tw::schedules
