// The gradients of scaled dot-product attention from its formula, with scores made again from what the forward pass
// saved (flash attention; Dao et al. 2022), in kernels that each sum along one loop: the same bits in every run.
#pragma once
#include <optional>
#include <string>

#include "schedules/row_numbers.h"

namespace tw::schedules {

/// Products and sums of the five products of matrices, each once; of causal ones, of the half that counts.
double flops_of_gradients(const AttentionShape& shape);
/// Operands, results and gradients, each once.
double bytes_of_gradients(const AttentionShape& shape);

/// Scores, probabilities, and their adjoints: of each kernel that needs them, its own.
struct AttentionScores {
    Tensor s, p, dp, ds;
    Tensor dc;         ///< the adjoints of what the rule makes of scores, where more than ds reads them
    Tensor w;          ///< what values are multiplied by, as of declare_attention
    LineInputs lines;  ///< what the rule reads for each row or each key
};
/// What the kernels of gradients share.
struct GradientPasses {
    bool together = true;  ///< dk and dv in one pass: scores are made once for both
    /// The adjoints of scores are made once, by the kernel of dk, and written down for dq: batch x heads x rows x keys
    /// elements of the operands' type.
    bool kept = false;
    /// dq is added up in f32, in no fixed order, by boxes of the kernel of dk and dv, whose scores and adjoints are
    /// made once for all three. Rows and keys are whole steps and blocks.
    bool added = false;
    /// Also the gradients of what the rule reads for each row and key, such as a bias; kept.
    bool of_pairs = false;
};
/// Given q, k and v as of declare_attention, its results o and lse, and g = dL/do of o's shape: dq, dk and dv, the
/// gradients of L, of the shapes and the type of q, k and v. delta[b, h, i] = sum_e g[b, i, h, e] o[b, i, h, e]. The
/// tensor memory accelerator takes rows of 16 bytes: where rows are no multiple of 4, delta has a few more. By a rule
/// that may add far, weights are made of top and spread instead of lse, which only sinks read then.
struct AttentionGradients {
    Tensor q, k, v, g, o, lse, delta;
    std::vector<RowNumber> row_numbers;
    AttentionScores of_queries, of_keys, of_values;
    Tensor dq, dk, dv;
    Tensor ds_kept;                   ///< [batch, heads, keys, rows], if it is
    std::vector<PairInput> of_pairs;  ///< what the rule reads for each row and key
    /// Of these, if they are asked for, in their order: adjoints [batch, heads, keys, rows], and one gradient of each,
    /// however often the rule reads it, of its shape and type. Names are d_, the tensor's name and the suffix: d_bias.
    std::vector<Tensor> adjoints_of_pairs, gradients_of_pairs;
    Tensor d_sinks;  ///< f32 [heads], if there are sinks: of a score without a value; named likewise
    bool by_rule = false, skips = false;
};
/// What gradients are made of: what is not given is an input. With a suffix for all names.
struct AttentionSaved {
    Tensor q = {}, k = {}, v = {}, g = {}, o = {}, lse = {};
    SavedSoftmax softmax = {};
    std::string suffix = {};
};
/// With a rule as of declare_attention: `s` is what it is given then, and
/// `ds` the adjoint of that, by the rule's derivative; likewise with a rule for weights. Sinks count in lse. Throws
/// Error if heads are no multiple of the group, or sinks as declare_attention says.
AttentionGradients declare_attention_gradients(const AttentionShape& shape, const GradientPasses& passes = {},
                                               const ScoreRule& rule = {}, bool rule_skips = false,
                                               const WeightRule& weight_rule = {}, const Tensor& sinks = {},
                                               const AttentionSaved& saved = {}, TW_HERE);
/// o of attention that was declared for the shape, with these gradients of q, k and v, of sinks, and of what its rule
/// reads for each row and key if passes.of_pairs says so, all by the rules that it was declared with: gradients()
/// passes them on, and takes lse and o as they are saved. Of what else the rule reads gradients() refuses to make any.
/// Throws Error as declare_attention_gradients, or if of_pairs is asked for and there is nothing of that kind.
Tensor with_attention_gradients(const Attention& attention, const AttentionShape& shape,
                                const GradientPasses& passes = {}, TW_HERE);

struct GradientTiles {
    int64_t key_rows = 128;    ///< keys of a block, 64 a warpgroup, in the kernel of dk and dv
    int64_t key_step = 64;     ///< queries of a step there
    int64_t query_rows = 128;  ///< queries of a block, 64 a warpgroup, in the kernel of dq
    int64_t query_step = 64;   ///< keys of a step there
    int stages = 2;            ///< of what steps read
    GradientPasses passes = {};
    bool stage_pairs = false;  ///< what rules read for each row and key arrives in shared memory with the queries
};
/// `rule_skips` as of declare_attention_gradients. Adjoints of scores are kept where that is faster and they take at
/// most so many bytes of a workspace; with 0 scores are made again for each kernel, and memory grows with the rows
/// alone.
GradientTiles gradient_tiles(const AttentionShape& shape, const Target& target, bool rule_skips = false,
                             int64_t most_kept_bytes = int64_t{8} << 30);
/// Of a rule for scores.
GradientTiles gradient_tiles(const AttentionShape& shape, const Target& target, const ScoreRule& rule,
                             bool rule_skips = false, int64_t most_kept_bytes = int64_t{8} << 30);
/// Throws Error if a size is not positive.
void require_gradient_tiles(const GradientTiles& tiles, TW_HERE);
/// Throws Error if no kernel can have them: blocks have a multiple of 64 rows or keys up to 256, steps a multiple of 16
/// up to 256.
void require_tiles_of_units(const GradientTiles& tiles, TW_HERE);
/// For sm_90a: warpgroup products with scores and their adjoints in registers, loads by a warp of its own. Throws Error
/// as require_tiles_of_units.
Schedule attention_gradients_schedule(const AttentionShape& shape, const GradientTiles& tiles, const Target& target,
                                      TW_HERE);
/// Of gradients declared for the shape, by any rule, together as the tiles say.
Schedule attention_gradients_schedule(const AttentionGradients& gradients, const AttentionShape& shape,
                                      const GradientTiles& tiles, const Target& target, TW_HERE);

struct NamedAttentionGradients {
    NamedAttention forward;              ///< without tiles
    std::optional<GradientTiles> tiles;  ///< if the name tells them
};
/// Reads "attention_gradients_bf16_BATCHxHEADSxROWSxDEPTH" as parse_attention reads the forward pass, but for the
/// tiles: "_tile128x64q128x64s2", rows and steps of keys and of queries, and stages, then "a" for dk and dv apart, "k"
/// for adjoints of scores that are kept, "u" for dq as updates, and "b" for what rules read for each row and key in
/// shared memory.
std::optional<NamedAttentionGradients> parse_attention_gradients(const std::string& name);

}  // namespace tw::schedules
