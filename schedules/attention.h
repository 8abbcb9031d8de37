// Scaled dot-product attention from its formula, one pass over the keys of each row (flash attention; Dao et al. 2022).
#pragma once
#include <array>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dsl/schedule.h"
#include "schedules/score_rules.h"

namespace tw::schedules {

/// q is [batch, rows, heads, depth], k [batch, keys, heads / group, depth], v [batch, keys, heads / group, width], all
/// of `type`, as projections of tokens give them; or each with its heads in front of rows and keys.
struct AttentionShape {
    int64_t batch, heads, rows, keys, depth, width;
    int64_t group = 1;         ///< heads that share a head of keys and values (grouped-query attention)
    bool causal = false;       ///< row i sees keys up to i + keys_before
    Type type = bf16;          ///< or f16
    int64_t keys_before = 0;   ///< keys - rows: the last row sees all; of a negative one, the first rows see none
    bool heads_first = false;  ///< [batch, heads, rows, depth], and so on, results like operands

    /// Whether causal rows may see no key: o is 0 there, and lse -infinity.
    bool has_empty_rows() const { return causal && keys_before < 0; }
    /// The extents of an operand or a result: `count` rows or keys of so many heads.
    Shape of_tokens(int64_t count, int64_t of_heads, int64_t of_head) const;
    /// Its element of a row or a key.
    Expr at(const Tensor& of_tokens, const Expr& b, const Expr& token, const Expr& head, const Expr& x) const;
    /// Its loops: over batches, rows or keys, heads, and elements of a head.
    std::array<Loop, 4> loops_of(const Schedule& s, const Tensor& of_tokens, TW_HERE) const;
    /// Of a row, its place among the keys: a single row that sees all of them stands at the last.
    Expr position(const Expr& row) const;
    /// Products and sums of both products of matrices in one run; of causal ones, of the half that counts.
    double flops() const;
    /// Each operand and result once.
    double bytes() const;
};

/// What tells a row's weights again where lse, a single number, would lose them: a weight is
/// exp2((s - top) * log2(e) - spread). Of a row that sees no key, 0 and infinity.
struct SavedSoftmax {
    Tensor top;     ///< f32, the largest of the row's scores
    Tensor spread;  ///< f32, the logarithm to base 2 of what the softmax divides by, beside that of exp(top)

    bool defined() const { return spread.defined(); }
};
/// o and lse, then what else a forward pass saves.
std::vector<Tensor> results_of(const Tensor& o, const Tensor& lse, const SavedSoftmax& softmax);
/// o[b, i, h, e] = sum_j softmax_j(q[b, i, h, :] k[b, j, h / group, :]' / sqrt(depth)) v[b, j, h / group, e], and
/// lse[b, h, i], the logarithm to base 2 of the sum that the softmax divides by. Each member is a computation.
struct Attention {
    Tensor q, k, v, s, m, p, l, o, lse;
    SavedSoftmax softmax;             ///< by a rule that may add far, as may_add_far says
    Tensor w;                         ///< what values are multiplied by: p, or what a rule makes of it
    std::vector<PairInput> of_pairs;  ///< what the rule reads for each row and key
    LineInputs of_lines;              ///< what it reads for each row or each key
    double to_base_2 = 1;             ///< times a score: the exponent of p, to base 2
    double offset = 0;                ///< what natural scores have beside that, which the softmax does not see
    int missing = 0;                  ///< as of the operands
    std::optional<std::vector<Tensor>> of_rows = {};  ///< results beside o, made of m and l, in the place of lse
    bool skips = false;               ///< the places of rows and keys alone mask whole tiles, which are left out
    std::string suffix;               ///< of the names of all
    AttentionRules rules;             ///< as declared

    std::vector<Tensor> results() const;  ///< what a forward pass computes
};
/// A user's own operands: what is not given is an input. Tensors of the shape and type that AttentionShape says, be
/// they inputs with strides, parts of a larger tensor, `compute("q", .., qkv(b, i, 0, h, d))`, which copies read where
/// it lies, or results of other kernels. With a suffix for the names of what is declared, several stand in one graph.
struct AttentionOperands {
    Tensor q = {}, k = {}, v = {};
    std::string suffix = {};
    std::string o = {};  ///< the name of the result, if it is not "o" and the suffix
    int missing = 0;     ///< dimensions in front of o, of extent 1, that it has not: [heads, rows, width] of 1
};
/// A row that sees no key, be it by its place or a rule, has 0 in o and -infinity in lse.
/// With a rule, scores become what it makes of them; `rule_skips`: it masks by the places of rows and keys alone, so
/// that tiles which it masks are left out. With a rule for weights, values are multiplied by what it makes of p. With
/// sinks, f32 [heads], the softmax of a head divides by exp(sinks[h]) more, which has no value (attention sinks; Xiao
/// et al. 2024), and so does lse. Throws Error, at the caller's line, if heads are no multiple of the group, sinks or
/// operands have another shape or type, a rule gives no f32, or as check_attention_sizes. The formula stands for any
/// float type, f32 too; tensor cores take what check_attention lets pass.
Attention declare_attention(const AttentionShape& shape, const ScoreRule& rule = {}, bool rule_skips = false,
                            const WeightRule& weight_rule = {}, const Tensor& sinks = {},
                            const AttentionOperands& operands = {}, TW_HERE);
/// Throws Error unless sizes are positive, heads a multiple of the group, and keys_before, if it is not 0, that of
/// causal rows.
void check_attention_sizes(const AttentionShape& shape, TW_HERE);
/// Also unless depth and width are multiples of 8 up to 256, and the type bf16 or f16.
void check_attention(const AttentionShape& shape, TW_HERE);
/// `given`, which is an input of that name if it is undefined. Throws Error if it has another shape or type.
Tensor operand_of_attention(const Tensor& given, const std::string& name, Type type, const Shape& shape, TW_HERE);
/// `given`, a table of tiles, likewise: i32. `made_by` says what makes those of its kind.
Tensor table_of_attention(const Tensor& given, const std::string& name, const Shape& shape, const std::string& made_by,
                          TW_HERE);
/// Has copies read through it, if it is another tensor's elements as they are; once all that read it have theirs.
void inline_view(Schedule& s, const Tensor& operand, TW_HERE);

/// What a softmax divides by, 2^top * sum.
struct SoftmaxSum {
    Expr top, sum;
};
/// To base 2, what the exponential takes of a score: below the row's top, both times the scale. Scores that may be far
/// from 0 are subtracted first, exactly.
Expr exponent_of(const Expr& score, const Expr& top, double scale, bool far);
/// The same of a score that may be far from 0: what the softmax divides by, in units of exp(top), of the sum `of_keys`
/// and of a sink, if there is one.
Expr sum_beside_top(const Expr& of_keys, const Expr& top, const Expr& sink);
/// Its logarithm to base 2, in units of 1.
Expr lse_of_sum(const Expr& beside_top, const Expr& top, const Expr& sink);
/// Of the softmax of rows by their indices: m is the largest of a row's scores, `beside_top` what sum_beside_top makes.
SavedSoftmax saved_softmax(const std::string& suffix, const Tensor& m,
                           const std::function<Expr(const std::vector<Expr>& row)>& beside_top);
/// With a score more, in units of the natural exponential.
SoftmaxSum with_score(const SoftmaxSum& of_keys, const Expr& score);
/// Throws Error if sinks, where they are given, are not f32 [heads].
void check_sinks(int64_t heads, const Tensor& sinks, TW_HERE);

/// The elements of 2 bytes that a tile has for a head of so many: the tensor memory accelerator moves wide boxes
/// faster, and fills them up with zeros.
int64_t padded_head(int64_t elements);
/// The most heads, a power of two that divides them, of which blocks that run side by side find in L2 what they share.
int64_t heads_in_l2(int64_t heads, int64_t bytes_each);

struct AttentionTiles {
    int64_t rows = 128;    ///< of a block, 64 a warpgroup
    int64_t keys = 128;    ///< of a step
    int stages = 2;        ///< of keys and values
    bool overlaps = true;  ///< the products of a step run beside the exponentials of the next
    bool persistent = false;
    int query_stages = 1;        ///< of a persistent kernel
    bool longest_first = false;  ///< blocks begin with the last rows
    bool stage_result = false;   ///< results leave through shared memory
    int64_t heads = 1;           ///< whose blocks run side by side, the last rows of all first; divides the heads
    bool stage_pairs = false;    ///< what rules read for each row and key arrives in shared memory with the keys
    bool dynamic = false;        ///< blocks of a persistent kernel take the next rows as they come, not in turn
    bool lazy = false;           ///< sums change to another maximum only from one that is behind by more than 2^8
    bool exclusive = false;      ///< warpgroups take turns at asking for the products of a step
};
/// What matrix instructions ask of tiles: blocks of a multiple of 64 rows, up to 256; steps of a multiple of 16 keys,
/// or as the operands' type says, up to 256; heads that divide those of the shape, so many.
struct UnitTiles {
    int64_t rows, keys;
    int64_t heads = 1, multiple_of_keys = 16;
};
/// Throws Error naming the first that cannot be, of tiles that are called so.
void require_tiles_of_units(const std::string& of, const UnitTiles& tiles, int64_t heads, TW_HERE);
AttentionTiles attention_tiles(const AttentionShape& shape, const Target& target);
/// Of attention declared for the shape: steps of fewer keys make room for what its rule reads.
AttentionTiles attention_tiles(const Attention& attention, const AttentionShape& shape, const Target& target);
/// For sm_90a: warpgroup products with scores and their exponentials in registers, loads by a warp of its own. Throws
/// Error unless tiles have a multiple of 64 rows up to 256, two warpgroups of them for exclusive sections, a multiple
/// of 16 keys up to 256, and heads that divide the shape's.
Schedule attention_schedule(const AttentionShape& shape, const AttentionTiles& tiles, const Target& target, TW_HERE);
/// Of attention declared for the shape, by any rule.
Schedule attention_schedule(const Attention& attention, const AttentionShape& shape, const AttentionTiles& tiles,
                            const Target& target, TW_HERE);

struct NamedAttention {
    AttentionShape shape;
    std::string rules = {};                    ///< as the name lists them
    std::optional<AttentionTiles> tiles = {};  ///< if the name tells them
};
/// Inputs of rules: slopes f32 [heads], bias of the type of q [1, heads, rows, keys], documents i32 [batch, rows],
/// sinks f32 [heads].
AttentionRules rules_of(const NamedAttention& named);
/// Of names that know no batches and rows: without biases and documents.
AttentionRules rules_of(const std::string& rules, int64_t heads);
/// What names have for those: a group of a regular expression.
extern const char* const rules_without_tables;
/// Reads "attention_bf16_BATCHxHEADSxROWSxDEPTH" (or f16), then any of _keys4096 (else as many as rows), _width64 (else
/// depth), _group4, _causal or _causal_lower_right (the last row sees all keys), _heads_first, rules for scores
/// (_softcap30, _softcap30a by an approximation, _alibi, _bias, _documents, _window1024), _sinks, and _tile with the
/// tiles: "128x128s2" (rows, keys, stages), then "n" for no overlap, "p" for a persistent kernel, "q" for two stages of
/// queries, "l" for the longest blocks first, "r" for results that leave through shared memory, "h4" for four heads
/// side by side, "b" for what rules read for each row and key in shared memory, "d" for a persistent kernel whose
/// blocks take rows as they come, "z" for lazy maxima, "e" for exclusive sections, of two or three
/// warpgroups. Depth and width are multiples of 8 up to 256. Nothing if it is
/// no such name.
std::optional<NamedAttention> parse_attention(const std::string& name);

}  // namespace tw::schedules
