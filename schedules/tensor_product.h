// Matrix products on tensor cores: block tiles in shared memory, copied ahead asynchronously, warp tiles in registers.
#pragma once
#include <array>
#include <variant>
#include <vector>

#include "dsl/schedule.h"

namespace tw::schedules {

constexpr int64_t piece_bytes = 16;   ///< of the widest access
constexpr int64_t sector_bytes = 32;  ///< of what memory and caches read at once
constexpr int64_t gated_columns = 8;  ///< side by side; a tensor core's threads share as many

enum class Activation {
    None,
    Gelu,
    GeluTanh,
    SwiGlu,  ///< silu(gate) * up: columns come in eights by turns, gates and what they gate; c has half of them
};

/// Which of the k terms a row sums, in blocks of 128 rows and terms; k is a multiple of 128 unless all.
enum class RowTerms {
    All,
    Masked,  ///< of a batch, whose matrix e has rows[e] rows: blocks of rows behind them sum nothing
    Lower,   ///< a is lower triangular: row i sums the first i / 128 * 128 + 128 terms
};

/// c[m, n] = epilogue(sum_k a[m, k] * b[k, n]), summed in f32 (i8: i32). All matrices get a leading dimension if batch
/// is not 0; a and b may be stored transposed. With experts, rows come in blocks of 128, each of which `expert` gives
/// one of so many matrices b: a[m / 128, 128, k], expert[m / 128], b[experts, k, n], c[m / 128, 128, n].
struct TensorProductShape {
    int64_t m, n, k;
    int64_t batch = 0;
    Type operand = bf16;  ///< bf16, f16, i8, e4m3, e5m2, or tf32: f32 elements, which the product truncates
    Type result = bf16;
    bool transpose_a = false;                  ///< a is stored [k, m]
    bool transpose_b = false;                  ///< b is stored [n, k]
    bool add_bias = false;                     ///< adds bias[n], of the result's type
    Activation activation = Activation::None;  ///< after the bias
    int64_t experts = 0;                       ///< 0: one b for all rows
    RowTerms row_terms = RowTerms::All;
    bool block_scales = false;  ///< of fp8: of 128 terms of a row of a, and of 128 x 128 elements of b; see scales
    /// The product reads copies of what of a and b is not as wgmma takes it: rows that are no whole pieces of 16 bytes
    /// get zeros behind them, and terms of operands that are not 16 bits are put side by side.
    bool copy_operands = false;
    /// In the last dimension of a batch, if that has several: blocks have neighbours of one dimension. 0: all.
    int64_t neighbours = 0;
    double made = 0;  ///< instructions that an element takes behind its sum, besides what is said above

    bool operator==(const TensorProductShape&) const = default;
};
constexpr int64_t rows_of_block = 128;   ///< that have one expert, or sum equally many terms
constexpr int64_t block_of_scale = 128;  ///< elements along k, and rows of b
struct TensorProduct {
    Tensor a, b, bias, c;                   ///< bias is undefined without add_bias
    Tensor left, right;                     ///< what the product reads: a and b, or their copies
    bool turns_a = false, turns_b = false;  ///< these are copies with terms side by side
    Tensor expert = {};                     ///< of each block of rows, i32; undefined without experts
    Tensor rows = {};                       ///< of each matrix of the batch, i32; undefined unless rows are masked
    /// What c multiplies matrices of `product` by before it adds them: with block_scales f32 [k / 128, m] for a, and
    /// [n / 128, k / 128] for b.
    std::vector<Tensor> scales = {};
    Tensor product = {};   ///< what c computes with, if it does not itself sum all products
    bool growing = false;  ///< later rows sum more terms
    /// Rows and columns of further products over the same terms, which c adds to its sums, or subtracts.
    std::vector<std::array<Tensor, 2>> more = {};
    /// What is made of c in its kernel, by tiles that stage it (elements_of_product.h).
    std::vector<Tensor> elements = {};
};
TensorProduct declare_tensor_product(const TensorProductShape& shape);
/// Instructions that an element of the result takes behind its sum.
double instructions_behind(const TensorProductShape& shape);
/// From how many on they count beside multiplications, and a record of the sums alone says little.
constexpr double many_instructions_behind = 7;
/// Clock cycles of an H200 that kernels take which make such copies; 0 where there are none.
double copy_cycles(const TensorProductShape& shape);
/// What kernels sum that share k, if there are several: gated columns are made behind their sums, which are f32 then.
TensorProductShape shape_of_parts(TensorProductShape shape);
/// Clock cycles of an H200 that the kernel behind them takes; 0 where there is none.
double gating_cycles(const TensorProductShape& shape);
/// Whether such copies pay, by the models of an H200's time: rows that start anywhere allow no wide and no asynchronous
/// access, and terms of 8 and of 32 bits that do not lie side by side no wgmma.
bool wants_copied_operands(const TensorProductShape& shape);
/// The product with the transposes of what it reads: of a and b, or of their copies.
TensorProductShape with_read_transposes(TensorProductShape shape);

/// Sizes of the tiles; block_m / warp_m * block_n / warp_n * block_b / warp_b warps a block.
struct TensorTiles {
    int64_t block_m = 128, block_n = 128, block_k = 32;
    int64_t warp_m = 64, warp_n = 64;
    int64_t block_b = 1;        ///< tiles of neighbouring matrices of a batch in a block, as small ones fill none
    int64_t warp_b = 1;         ///< of these in a warp, which sums them together; divides block_b
    int stages = 4;             ///< of the pipeline over k; 1: none, where a step has all terms
    int64_t split_k = 1;        ///< parts of k, each by blocks of its own; a second kernel adds them in order
    bool stage_result = false;  ///< leaves through shared memory, 16 bytes at once
    /// At most so many rows of blocks walk through the columns together: they share them in L2.
    int64_t raster_group = 16;

    bool operator==(const TensorTiles&) const = default;
};
/// Tiles that suit the extents, by a model of the time of an H200 with as many multiprocessors as the target has.
TensorTiles tensor_tiles(const TensorProductShape& shape, const Target& target);

/// Sizes of the tiles of warpgroups, for wgmma: one role loads boxes ahead, the other multiplies, and blocks take tiles
/// in turn. Shapes that TMA and wgmma take: see takes_warpgroups.
struct WarpgroupTiles {
    int64_t block_m = 128, block_n = 192, block_k = 64;
    int warpgroups = 2;       ///< share the rows of a block
    int cluster = 1;          ///< blocks, one under another, that load b together
    int cluster_columns = 1;  ///< blocks, side by side, that load a together; times `cluster` 8 at most
    int ping_pong = 1;        ///< so many times the warpgroups, which take tiles in turn
    int stages = 4;           ///< of the pipeline over k
    int64_t promotion_interval =
        0;                ///< that the unit sums, before they are added in registers; 0: all. See promotion_interval()
    int64_t split_k = 1;  ///< as in TensorTiles
    bool stage_result = true;      ///< as in TensorTiles
    int64_t epilogue_columns = 0;  ///< that leave through shared memory at once, one such piece after another; 0: all
    bool store_boxes = false;  ///< what is staged leaves as boxes, whose tensor has rows of whole pieces of 16 bytes
    bool swap = false;  ///< the instruction's rows run along n: for small m; warpgroups share the columns of a block
    int64_t raster_group = 8;  ///< as in TensorTiles

    bool operator==(const WarpgroupTiles&) const = default;
};
/// Whether wgmma multiplies the operands as they are stored, with sums as exact as of f32, rows that the product reads
/// are whole pieces of 16 bytes, and the target has it.
bool takes_warpgroups(const TensorProductShape& shape, const Target& target);
/// Whether blocks of their own may share k: not where rows decide how many terms there are.
bool may_split_k(const TensorProductShape& shape);
/// Whether tiles keep together what belongs together: rows of one expert, or of equally many terms, which clusters of
/// rows do not; gated columns, of which an instruction's rows hold no eights, and whose warpgroups all have rows.
bool keeps_together(const WarpgroupTiles& tiles, const TensorProductShape& shape);
/// How many terms a tensor core of Hopper may sum: products of fp8 lose bits in long sums. 0: as many as there are.
int64_t exact_terms(const TensorProductShape& shape);
/// What the tiles' parts of k ask for: 0 where each has no more terms than that, else half of that many, or as many
/// more as leave the fewest over in the last part, which takes as long as others.
int64_t promotion_interval(const WarpgroupTiles& tiles, const TensorProductShape& shape);
/// The same with each way that the result may take out of a block: from registers, through shared memory, from there as
/// boxes, all columns at once or as many as fill 128 bytes. Stages are left as they are.
std::vector<WarpgroupTiles> epilogues(const WarpgroupTiles& tiles, const TensorProductShape& shape);
/// Bytes of shared memory for the bias and for the result on its way out, of all groups that play ping-pong.
int64_t staged_result_bytes(const WarpgroupTiles& tiles, const TensorProductShape& shape);
/// Tiles that suit the extents, by a model of the time of an H200 with as many multiprocessors as the target has.
WarpgroupTiles warpgroup_tiles(const TensorProductShape& shape, const Target& target);
/// Whether a thread of three warpgroups (152 registers) or fewer (232) has room for the sums and what goes with them.
bool sums_fit(const WarpgroupTiles& tiles, const TensorProductShape& shape);
/// Blocks of clusters of so many that run at once, one a multiprocessor. Clusters stay within groups of 14 to 18
/// multiprocessors: 128 blocks in fours took two rounds on the 132 of an H200, 120 in fours and 112 in eights one.
int64_t blocks_at_once(const Target& target, int cluster);
/// The model's clock cycles of the whole product.
double predicted_cycles(const WarpgroupTiles& tiles, const TensorProductShape& shape, const Target& target);

/// Threads of a product of a matrix and few vectors (thin_product.h). The long side is the rows of c, or its columns;
/// the operand that runs along it is the matrix. All vectors are in each thread.
struct ThinTiles {
    int64_t threads_long = 4;    ///< of a block, along the long side
    int64_t threads_terms = 32;  ///< that share the terms of a sum
    int64_t results = 4;         ///< of a thread, along the long side
    int64_t terms = 8;           ///< that a thread takes at once
    int64_t split_k = 1;         ///< as in TensorTiles
    /// Rows of the matrix, whose terms lie side by side, begin anywhere, and are read in whole vectors but for their
    /// ends.
    bool align = false;

    bool operator==(const ThinTiles&) const = default;
};

using ProductTiling = std::variant<TensorTiles, WarpgroupTiles, ThinTiles>;
/// What the tuner measured to be the fastest (tuned_records.h), or else the best of those that the target has by the
/// models.
ProductTiling best_tiling(const TensorProductShape& shape, const Target& target);

/// Schedules a stage whose last two dimensions are the rows and columns of a product of two elements over one reduce
/// axis, whatever its expression does with the sum: `c`, reading `a` and `b`. Dimensions before them are batches.
void schedule_tensor_product(Schedule& s, const Tensor& c, const Tensor& a, const Tensor& b, const TensorTiles& tiles,
                             TW_HERE);
void schedule_tensor_product(Schedule& s, const Tensor& c, const Tensor& a, const Tensor& b,
                             const WarpgroupTiles& tiles, TW_HERE);
void schedule_tensor_product(Schedule& s, const Tensor& c, const Tensor& a, const Tensor& b, const ThinTiles& tiles,
                             TW_HERE);
/// The same, with `product.product` in registers if there is one.
void schedule_tensor_product(Schedule& s, const TensorProduct& product, const TensorTiles& tiles, TW_HERE);
void schedule_tensor_product(Schedule& s, const TensorProduct& product, const WarpgroupTiles& tiles, TW_HERE);
void schedule_tensor_product(Schedule& s, const TensorProduct& product, const ThinTiles& tiles, TW_HERE);

/// The product, scheduled, and its copies.
Schedule tensor_product_schedule(const TensorProduct& product, const ProductTiling& tiling, const Target& target,
                                 TW_HERE);

}  // namespace tw::schedules
