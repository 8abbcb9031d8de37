#include "schedules/catalog.h"
#include "schedules/attention_entries.h"

#include <algorithm>
#include <map>
#include <optional>
#include <regex>

#include <fmt/format.h>

#include "dsl/edit.h"
#include "schedules/choose.h"
#include "schedules/convolution_entries.h"
#include "schedules/elementwise.h"
#include "schedules/families.h"
#include "schedules/fused_training.h"
#include "schedules/linear_cross_entropy.h"
#include "schedules/product_tiles.h"
#include "schedules/row_operators.h"
#include "schedules/rows.h"
#include "schedules/scattered.h"
#include "schedules/tensor_product_names.h"
#include "schedules/tuned_records.h"

namespace tw::schedules {
namespace {

std::string product_name(const ProductShape& shape) {
    return fmt::format("product_{}x{}x{}{}{}{}{}", shape.m, shape.n, shape.k, shape.transpose_a ? "_ta" : "",
                       shape.transpose_b ? "_tb" : "", shape.add_c ? "_ab" : "", shape.a_stride ? "_strided" : "");
}

CatalogEntry product_entry(const ProductShape& shape, const std::optional<ProductTiles>& tiles = {}) {
    return {product_name(shape) + (tiles ? "_tile" + tiling_text(*tiles) : ""),
            shape.add_c ? "c = alpha a b + beta c_in, fp32" : "c = a b, fp32", 2.0 * shape.m * shape.n * shape.k,
            [=](const Target& target) { return product_schedule(declare_product(shape), target, tiles); }};
}

/// y = gelu(x * scale + bias) + residual, scale and bias along rows and columns.
CatalogEntry elementwise_entry(int64_t rows, int64_t columns) {
    return {fmt::format("elementwise_{}x{}", rows, columns), "y = relu(x * scale[row] + bias[column]) + residual, fp32",
            4.0 * rows * columns, [=](const Target& target) {
                Tensor x = input("x", f32, {rows, columns}), scale = input("scale", f32, {rows});
                Tensor bias = input("bias", f32, {columns}), residual = input("residual", f32, {rows, columns});
                Tensor affine =
                    compute("affine", {rows, columns}, [&](Expr i, Expr j) { return x(i, j) * scale(i) + bias(j); });
                Tensor y =
                    compute("y", {rows, columns}, [&](Expr i, Expr j) { return relu(affine(i, j)) + residual(i, j); });
                Schedule s({y}, target);
                schedule_elementwise(s, y);
                return s;
            }};
}

CatalogEntry bf16_entry(int64_t count) {
    return {fmt::format("gelu_bf16_{}", count), "y = gelu(x), bf16 storage, f32 arithmetic", 8.0 * count,
            [=](const Target& target) {
                Tensor x = input("x", bf16, {count});
                Tensor y = compute("y", {count}, [&](Expr i) { return cast(bf16, gelu(cast(f32, x(i)))); });
                Schedule s({y}, target);
                schedule_elementwise(s, y, 256, 8);
                return s;
            }};
}

CatalogEntry transpose_entry(int64_t rows, int64_t columns) {
    return {fmt::format("transpose_{}x{}", rows, columns), "y = transpose of x through shared memory, fp32", 0,
            [=](const Target& target) {
                Tensor x = input("x", f32, {rows, columns});
                Tensor y = compute("y", {columns, rows}, [&](Expr i, Expr j) { return x(j, i); });
                Schedule s({y}, target);
                auto [i, j] = s.loops<2>(y);
                auto [bi, ti] = s.split(i, 32, Tail::Mask, {"block_i", "tile_i"});
                auto [bj, tj] = s.split(j, 32, Tail::Mask, {"block_j", "tile_j"});
                auto [ri, wi] = s.split(ti, 8, {"step", "row"});
                s.order({bi, bj, ri, wi, tj});
                s.bind(bi, grid.y);
                s.bind(bj, grid.x);
                s.bind(wi, thread);
                s.bind(tj, thread);
                s.stage(y, x, Memory::Shared, bj);
                return s;
            }};
}

CatalogEntry rows_entry(const std::string& what, int64_t rows, int64_t columns, const RowOperator& declare) {
    return {fmt::format("{}_{}x{}", what, rows, columns), "along rows, one thread a row, fp32", 3.0 * rows * columns,
            [=](const Target& target) {
                Tensor x = input("x", f32, {rows, columns});
                Tensor y = declare(x, reduce_axis("k", columns), f32)[0];
                Schedule s({y}, target);
                schedule_serial_rows(s, y);
                return s;
            }};
}

/// Tiles of both operands on their way for three iterations ahead.
CatalogEntry async_product_entry(int64_t m, int64_t n, int64_t k) {
    return {fmt::format("async_product_{}x{}x{}", m, n, k), "c = a b, fp32, tiles copied asynchronously",
            2.0 * m * n * k, [=](const Target& target) {
                Product p = declare_product({.m = m, .n = n, .k = k});
                Schedule s({p.c}, target);
                schedule_product(
                    s, p.c, p.a, p.b,
                    {.block_m = 32, .block_n = 32, .block_k = 8, .thread_m = 4, .thread_n = 4, .stages = 4});
                return s;
            }};
}

/// The entry that the name asks of the tensor cores.
std::optional<CatalogEntry> tensor_product_entry(const std::string& name) {
    auto named = parse_tensor_product(name);
    if (!named) return {};
    const TensorProductShape& shape = named->shape;
    double batch = static_cast<double>(std::max<int64_t>(shape.batch, 1));
    return CatalogEntry{name, "c = a b on tensor cores",
                        2 * batch * terms_of_rows(shape) * static_cast<double>(shape.n),
                        [named = *named](const Target& target) {
                            ProductTiling tiling = named.tiling ? *named.tiling : best_tiling(named.shape, target);
                            Schedule s = tensor_product_schedule(declare_tensor_product(named.shape), tiling, target);
                            const bool is_tuned = tuned_tiling(named.shape, target).has_value();
                            if (!named.tiling)
                                Edit::note(s, fmt::format("tiling {}, {}", tiling_text(tiling),
                                                          is_tuned ? "from its record" : "by the model of its time"));
                            return s;
                        },
                        bytes_of_product(shape)};
}

std::optional<CatalogEntry> linear_cross_entropy_entry(const std::string& name) {
    auto named = parse_linear_cross_entropy(name);
    if (!named) return {};
    const LinearCrossEntropyShape& shape = named->shape;
    if (named->gradients)
        return CatalogEntry{name, "dx, dw and dlogits of linear cross-entropy, from what the forward pass saved",
                            2 * shape.flops_of_product(),
                            [shape, parts = named->parts](const Target& target) {
                                return linear_cross_entropy_gradients_schedule(
                                    shape, parts, linear_gradient_tilings(shape, parts, target), target);
                            },
                            shape.bytes_of_gradients()};
    return CatalogEntry{name, "cross-entropy of x w' and labels, its sums, and the logits", shape.flops_of_product(),
                        [shape](const Target& target) {
                            return linear_cross_entropy_schedule(shape, linear_cross_entropy_tiles(shape), target);
                        },
                        shape.bytes()};
}

/// Few tiles, many terms: blocks along k add their parts to c.
CatalogEntry split_k_entry(int64_t m, int64_t n, int64_t k) {
    return {fmt::format("split_k_product_{}x{}x{}", m, n, k), "c = a b, fp32, blocks along k adding to c atomically",
            2.0 * m * n * k, [=](const Target& target) {
                Product p = declare_product({.m = m, .n = n, .k = k});
                Schedule s({p.c}, target);
                auto [chunk, inside] = s.split(s.reduce(p.c), 64, Tail::Mask, {"chunk", "k_in_chunk"});
                Stage parts = s.rfactor(p.c, chunk, Combine::Atomic);
                auto [row, column] = std::pair(s.data_loops(parts)[1], s.data_loops(parts)[2]);
                auto [bi, ti] = s.split(row, 16, Tail::Mask, {"block_m", "m"});
                auto [bj, tj] = s.split(column, 16, Tail::Mask, {"block_n", "n"});
                s.order({chunk, bi, bj, ti, tj, inside});
                s.bind(chunk, grid.z);
                s.bind(bi, grid.y);
                s.bind(bj, grid.x);
                s.bind(ti, thread);
                s.bind(tj, thread);
                schedule_fill(s, p.c);
                return s;
            }};
}

CatalogEntry family_entry(const Family& family, const std::string& name, const KernelRequest& request) {
    return {name, family.description, family.flops(request),
            [make = family.make, request](const Target& target) { return make(request, target); },
            family.bytes(request)};
}

/// The entry that the name asks one of the families for.
std::optional<CatalogEntry> entry_by_family(const std::string& name) {
    for (const Family& family : families())
        if (auto request = parse_request(family, name)) return family_entry(family, name, *request);
    return {};
}

/// Small and awkward extents: odd, prime, 1, empty, aligned, pitched.
const char* const family_names[] = {
    "row_sum_5x1000_bf16",
    "row_sum_130x64_f32",
    "row_sum_7x37_bf16",
    "row_sum_1x1_f32",
    "row_sum_4x200_bf16_pitch208",
    "softmax_5x1000_f32",
    "softmax_3x2048_bf16",
    "softmax_130x64_bf16",
    "softmax_7x37_f32",
    "softmax_2x33000_bf16",
    "softmax_3x0_f32",
    "layernorm_5x1000_bf16",
    "layernorm_3x2048_f32",
    "layernorm_7x768_bf16",
    "layernorm_1x1_f32",
    "rmsnorm_5x1000_f32",
    "rmsnorm_9x768_bf16",
    "rmsnorm_2x41_f32_pitch43",
    "softmax_gradient_5x1000_f32",
    "softmax_gradient_9x768_bf16",
    "layernorm_gradient_5x1000_f32",
    "layernorm_gradient_9x768_bf16",
    "rmsnorm_gradient_3x37_f32",
    "cross_entropy_5x1000_f32",
    "cross_entropy_3x2051_bf16",
    "cross_entropy_2x17000_bf16",
    "cross_entropy_4x1_f32",
    "cross_entropy_gradient_5x999_bf16",
    "cross_entropy_gradient_4x96_f32",
    "argmax_5x1000_f32",
    "argmax_9x64_bf16",
    "argmax_3x1_f32",
    "moments_5x1000_bf16",
    "moments_7x37_f32",
    "similarity_9x1024_bf16",
    "similarity_5x131_f32",
    "column_sum_300x96_bf16",
    "column_sum_1100x67_f32",
    "column_sum_1x5_f32",
    "column_sum_0x8_f32",
    "column_sum_70x40_bf16_pitch48",
    "full_sum_70001_f32",
    "full_sum_100_bf16",
    "full_sum_0_f32",
    "full_sum_1_f32",
    "dot_40000_f32",
    "dot_33_bf16",
    "transpose_128x192_bf16",
    "transpose_128x64_f32",
    "transpose_67x131_bf16",
    "transpose_1x9_f32",
    "gelu_bias_16x768_bf16",
    "gelu_bias_7x37_f32",
    "dropout_16x768_bf16",
    "dropout_7x37_f32",
    "embedding_90x9x96_bf16",
    "embedding_13x8x9_f32",
    "embedding_gradient_50x9x64_bf16",
    "embedding_gradient_13x8x9_f32",
    "embedding_gradient_1500x300x9_f32",
    "embedding_gradient_13x8x0_f32",
    "embedding_gradient_atomic_50x9x64_bf16",
    "embedding_gradient_atomic_13x8x9_f32",
    "dot_atomic_40000_f32",
    "dot_atomic_33_bf16",
    "adamw_4096_f32",
    "adamw_1003_f32",
};

/// Each type, transposition and epilogue; even and ragged, one warp and several, k in parts, batches, nothing to sum.
const char* const tensor_product_names[] = {
    "gemm_bf16_256x192x128",
    "gemm_bf16_64x64x64_tb_tile32x32x16w16x16s3",
    "gemm_bf16_37x50x61_ta",
    "gemm_bf16_45x24x70_ta_tb_tile32x16x32w16x8s4r",
    "gemm_bf16_1x40x96_tb_bias_gelu",
    "gemm_bf16_3x33x20x40_tb_f32",
    "gemm_bf16_20x24x100_tile16x16x16w16x8s2p3",
    "gemm_bf16_5x7x0",
    "gemm_bf16_37x33x61_tb_pad_tile32x32x32w16x16s3",
    "gemm_f16_33x21x43_ta_f32_pad",
    "gemm_f16_40x48x48_tb_bias_tile32x32x16w32x16s3r",
    "gemm_tf32_40x24x80_tb_tile32x16x32w16x16s3",
    "gemm_tf32_72x48x40_tb_bias",
    "gemm_tf32_33x20x44_ta_tile32x16x16w16x8s3p2",
    "gemm_i8_40x24x80_tb_tile32x16x32w16x16s3",
    "gemm_i8_20x33x50",
    "gemm_bf16_40x96x72_tb_bias_gelu_tanh_tile32x32x32w16x16s3r",
    "gemm_bf16_64x96x80_tb_swiglu_tile32x32x32w16x16s3",
    "gemm_bf16_200x384x136_tb_swiglu_tile128x192x64g2s3r",
    "gemm_bf16_136x136x80_tb_bias_tile64x128x64g1u2s3r64b",
    "gemm_e4m3_72x80x256_tb_scaled_tile32x32x64w32x16s3",
    "gemm_e4m3_200x144x384_tb_scaled_tile128x128x128g2s3",
    "gemm_bf16_256x72x96_tb_experts8_tile128x64x32w32x32s3",
    "gemm_bf16_384x136x160_tb_experts8_tile128x64x64g2s3r",
    "gemm_bf16_3x40x72x128_tb_masked_tile32x32x32w16x16s3",
    "gemm_f16_5x136x80x256_masked_tile128x64x64g2s3r",
    "gemm_bf16_200x40x256_tb_lower_tile32x32x32w16x16s3",
    "gemm_bf16_300x72x384_bias_lower_tile64x64x64g1u2s3r",
};

std::vector<CatalogEntry> make_catalog() {
    std::vector<CatalogEntry> entries;
    for (auto [m, n, k] : {std::array<int64_t, 3>{256, 256, 512},
                           {64, 48, 40},
                           {127, 131, 61},
                           {1, 300, 70},
                           {300, 1, 70},
                           {1, 1, 1},
                           {0, 5, 7},
                           {5, 7, 0},
                           {130, 129, 17}})
        entries.push_back(product_entry({.m = m, .n = n, .k = k}));
    for (bool ta : {false, true})
        for (bool tb : {false, true}) {
            entries.push_back(
                product_entry({.m = 128, .n = 192, .k = 80, .transpose_a = ta, .transpose_b = tb, .add_c = true}));
            entries.push_back(
                product_entry({.m = 67, .n = 71, .k = 37, .transpose_a = ta, .transpose_b = tb, .add_c = true}));
        }
    entries.push_back(product_entry({.m = 96, .n = 64, .k = 48, .a_stride = 64, .b_stride = 80}));
    for (auto [rows, columns] : {std::array<int64_t, 2>{64, 256}, {37, 53}, {1, 1}, {0, 8}}) {
        entries.push_back(elementwise_entry(rows, columns));
        entries.push_back(transpose_entry(rows, columns));
    }
    entries.push_back(split_k_entry(37, 50, 300));
    entries.push_back(async_product_entry(96, 80, 100));
    entries.push_back(async_product_entry(37, 50, 61));
    for (int64_t count : {4096, 1003}) entries.push_back(bf16_entry(count));
    for (auto [rows, columns] : {std::array<int64_t, 2>{256, 64}, {131, 37}, {1, 1}, {3, 0}}) {
        entries.push_back(rows_entry("row_sum", rows, columns, row_sum));
        entries.push_back(rows_entry("softmax", rows, columns, softmax));
        entries.push_back(rows_entry("standardise", rows, columns, standardise));
    }
    for (const char* name : family_names) entries.push_back(entry_by_family(name).value());
    for (const char* name : tensor_product_names) entries.push_back(tensor_product_entry(name).value());
    return entries;
}

}  // namespace

namespace {

/// What the entry of the name before "_automatic" declares, as choose_schedule schedules it.
std::optional<CatalogEntry> automatic_entry(const std::string& name) {
    constexpr std::string_view suffix = "_automatic";
    if (!name.ends_with(suffix)) return {};
    const CatalogEntry* by_hand = find_library_kernel(name.substr(0, name.size() - suffix.size()));
    if (!by_hand) return {};
    CatalogEntry entry = *by_hand;
    entry.name = name;
    entry.description += ", scheduled by rule";
    entry.make = [make = by_hand->make](const Target& target) {
        return choose_schedule(make(target).outputs(), target);
    };
    return entry;
}

}  // namespace

const std::vector<CatalogEntry>& catalog() {
    static const std::vector<CatalogEntry> entries = make_catalog();
    return entries;
}

const CatalogEntry* find_library_kernel(const std::string& name) {
    for (const CatalogEntry& entry : catalog())
        if (entry.name == name) return &entry;
    static std::map<std::string, CatalogEntry> made;
    for (const auto entry_of :
         {automatic_entry, entry_by_family, tensor_product_entry, attention_kind_entry, convolution_entry,
          fused_convolution_entry, depthwise_entry, linear_cross_entropy_entry, fused_entry})
        if (auto entry = entry_of(name)) return &made.try_emplace(name, *entry).first->second;
    static const std::regex product("product_([0-9]{1,6})x([0-9]{1,6})x([0-9]{1,6})(_ta)?(_tb)?(_ab)?(_tile(.+))?");
    std::smatch match;
    if (!std::regex_match(name, match, product)) return nullptr;
    ProductShape shape{.m = std::stoll(match[1]),
                       .n = std::stoll(match[2]),
                       .k = std::stoll(match[3]),
                       .transpose_a = match[4].matched,
                       .transpose_b = match[5].matched,
                       .add_c = match[6].matched};
    std::optional<ProductTiles> tiles;
    if (match[7].matched && !(tiles = parse_product_tiles(match[8]))) return nullptr;
    return &made.try_emplace(name, product_entry(shape, tiles)).first->second;
}

}  // namespace tw::schedules
