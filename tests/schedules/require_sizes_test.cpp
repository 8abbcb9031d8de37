// Sizes that schedules are given: none of those that make no sense crashes, or passes without a word.
#include "schedules/require_sizes.h"

#include <functional>

#include <gtest/gtest.h>

#include "dsl/declare_scatter.h"
#include "dsl/differentiate.h"
#include "schedules/attention_backward.h"
#include "schedules/attention_decode.h"
#include "schedules/attention_fp8.h"
#include "schedules/attention_paged.h"
#include "schedules/convolution_tilings.h"
#include "schedules/depthwise.h"
#include "schedules/elementwise.h"
#include "schedules/halo_convolution.h"
#include "schedules/linear_cross_entropy.h"
#include "schedules/long_reductions.h"
#include "schedules/product.h"
#include "schedules/scattered.h"
#include "schedules/streamed_rows.h"
#include "schedules/tensor_product.h"
#include "schedules/varlen_gradients.h"
#include "tests/support/expect_error.h"

namespace tw::schedules {
namespace {

template <class Sizes>
struct Field {
    const char* name;
    std::function<void(Sizes&, int)> set;
    int least = 1;
};
#define TW_FIELD(Sizes, name)                                       \
    {                                                               \
#name, [](Sizes & sizes, int value) { sizes.name = value; } \
    }

/// Each field less than it is at least, and far below.
template <class Sizes>
void expect_refusals(const Sizes& right, const std::vector<Field<Sizes>>& fields,
                     const std::function<void(const Sizes&)>& use) {
    EXPECT_NO_THROW(use(right));
    for (const Field<Sizes>& field : fields)
        for (int value : {field.least - 1, -7}) {
            Sizes wrong = right;
            field.set(wrong, value);
            EXPECT_ERROR(use(wrong), fmt::format("{} = {}; give at least {}", field.name, value, field.least));
        }
}

const Target gpu = target("sm_90a");

TEST(SizesOfAttention, AreRefusedWhereTheyMakeNoSense) {
    const AttentionShape shape{.batch = 1, .heads = 2, .rows = 64, .keys = 64, .depth = 16, .width = 16};
    AttentionShape one_row = shape;
    one_row.rows = 1;
    using A = AttentionTiles;
    Field<A> rows = TW_FIELD(A, rows);
    rows.least = 64;
    expect_refusals<A>({.rows = 64, .keys = 64},
                       {rows, TW_FIELD(A, keys), TW_FIELD(A, stages), TW_FIELD(A, query_stages), TW_FIELD(A, heads)},
                       [&](const A& tiles) { attention_schedule(shape, tiles, gpu); });
    using G = GradientTiles;
    const std::vector<Field<G>> of_gradients = {TW_FIELD(G, key_rows), TW_FIELD(G, key_step), TW_FIELD(G, query_rows),
                                                TW_FIELD(G, query_step), TW_FIELD(G, stages)};
    expect_refusals<G>({.key_rows = 64, .query_rows = 64}, of_gradients,
                       [&](const G& tiles) { attention_gradients_schedule(shape, tiles, gpu); });
    using D = DecodeTiles;
    const std::vector<Field<D>> of_decode = {TW_FIELD(D, keys), TW_FIELD(D, stages), TW_FIELD(D, parts)};
    expect_refusals<D>({}, of_decode, [&](const D& tiles) { decode_schedule(one_row, tiles, gpu); });
    expect_refusals<D>({}, of_decode, [&](const D& tiles) {
        declare_paged_attention({.attention = one_row, .pages = 2, .page_size = 64}, tiles);
    });
    EXPECT_ERROR(declare_attention_in_parts(one_row, 0), "attention in parts: keys_of_part = 0; give at least 1");
    using F = Fp8Tiles;
    Field<F> rows_of_fp8 = TW_FIELD(F, rows);
    rows_of_fp8.least = 64;
    AttentionShape of_fp8 = shape;
    of_fp8.depth = of_fp8.width = 32;
    expect_refusals<F>({}, {rows_of_fp8, TW_FIELD(F, keys), TW_FIELD(F, stages)},
                       [&](const F& tiles) { declare_fp8_attention(of_fp8, tiles); });
}

TEST(SizesOfPackedSequences, AreRefusedWhereTheyMakeNoSense) {
    using S = VarlenShape;
    const S shape{.rows = 8, .keys = 8, .heads = 2, .depth = 8, .width = 8};
    const std::vector<Field<S>> of_shape = {TW_FIELD(S, rows), TW_FIELD(S, keys), TW_FIELD(S, heads),
                                            TW_FIELD(S, depth), TW_FIELD(S, width)};
    expect_refusals<S>(shape, of_shape, [](const S& wrong) { declare_varlen_attention(wrong, {}); });
    expect_refusals<S>(shape, of_shape, [](const S& wrong) { declare_varlen_gradients(wrong, {}); });
    S of_floats = shape;
    of_floats.type = f32;
    for (const auto& declare : std::vector<std::function<void()>>{[&] { declare_varlen_attention(of_floats, {}); },
                                                                  [&] { declare_varlen_gradients(of_floats, {}); }})
        EXPECT_ERROR(declare(), "require_sizes_test.cpp:");
    EXPECT_ERROR(declare_varlen_attention(of_floats, {}),
                 "varlen attention: operands of f32; tensor cores multiply bf16 or f16 here, so cast them");
    using T = VarlenTiles;
    expect_refusals<T>({}, {TW_FIELD(T, rows), TW_FIELD(T, keys), TW_FIELD(T, stages), TW_FIELD(T, heads)},
                       [&](const T& tiles) { declare_varlen_attention(shape, tiles); });
    using G = GradientTiles;
    expect_refusals<G>({},
                       {TW_FIELD(G, key_rows), TW_FIELD(G, key_step), TW_FIELD(G, query_rows), TW_FIELD(G, query_step),
                        TW_FIELD(G, stages)},
                       [&](const G& tiles) { declare_varlen_gradients(shape, tiles); });
    for (int64_t of_tile : {0, -1}) {
        const std::string text = fmt::format("varlen tables: of_tile = {}; give at least 1", of_tile);
        EXPECT_ERROR(varlen_tables({0, 5}, {0, 5}, true, of_tile), text);
        EXPECT_ERROR(declare_varlen_tables(2, 10, 10, true, of_tile), text);
    }
    EXPECT_ERROR(declare_varlen_tables(0, 10, 10, true, 64), "varlen tables: sequences = 0; give at least 1");
    EXPECT_ERROR(declare_varlen_tables(2, 0, 10, true, 64), "varlen tables: rows = 0; give at least 1");
}

TEST(SizesOfProducts, AreRefusedWhereTheyMakeNoSense) {
    using P = ProductTiles;
    expect_refusals<P>(
        {.split_k = 2},
        {TW_FIELD(P, block_m), TW_FIELD(P, block_n), TW_FIELD(P, block_k), TW_FIELD(P, thread_m), TW_FIELD(P, thread_n),
         TW_FIELD(P, stages), TW_FIELD(P, split_k)},
        [](const P& tiles) { product_schedule(declare_product({.m = 10, .n = 10, .k = 100}), gpu, tiles); });
    const TensorProductShape shape{.m = 256, .n = 256, .k = 256};
    using T = TensorTiles;
    expect_refusals<T>({},
                       {TW_FIELD(T, block_m), TW_FIELD(T, block_n), TW_FIELD(T, block_k), TW_FIELD(T, warp_m),
                        TW_FIELD(T, warp_n), TW_FIELD(T, stages), TW_FIELD(T, split_k), TW_FIELD(T, raster_group)},
                       [&](const T& tiles) { tensor_product_schedule(declare_tensor_product(shape), tiles, gpu); });
    using W = WarpgroupTiles;
    std::vector<Field<W>> fields = {TW_FIELD(W, block_m),     TW_FIELD(W, block_n),    TW_FIELD(W, block_k),
                                    TW_FIELD(W, cluster),     TW_FIELD(W, warpgroups), TW_FIELD(W, cluster_columns),
                                    TW_FIELD(W, stages),      TW_FIELD(W, ping_pong),  TW_FIELD(W, split_k),
                                    TW_FIELD(W, raster_group)};
    for (Field<W> field : {Field<W>(TW_FIELD(W, epilogue_columns)), Field<W>(TW_FIELD(W, promotion_interval))}) {
        field.least = 0;
        fields.push_back(field);
    }
    expect_refusals<W>({}, fields,
                       [&](const W& tiles) { tensor_product_schedule(declare_tensor_product(shape), tiles, gpu); });
    const LinearCrossEntropyShape layer{.rows = 128, .depth = 64, .vocabulary = 256};
    expect_refusals<W>(linear_cross_entropy_tiles(layer), {TW_FIELD(W, block_n), TW_FIELD(W, warpgroups)},
                       [&](const W& tiles) { linear_cross_entropy_schedule(layer, tiles, gpu); });
    EXPECT_ERROR(declare_linear_cross_entropy(layer, 0), "columns = 0; give at least 1");
}

TEST(SizesOfConvolutions, AreRefusedWhereTheyMakeNoSense) {
    const ConvolutionShape shape{.images = 2,
                                 .height = 14,
                                 .width = 14,
                                 .channels = 64,
                                 .filters = 64,
                                 .kernel_h = 3,
                                 .kernel_w = 3,
                                 .padding = 1};
    using C = ConvolutionTiles;
    std::vector<Field<C>> fields = {TW_FIELD(C, rows),       TW_FIELD(C, columns), TW_FIELD(C, terms),
                                    TW_FIELD(C, warpgroups), TW_FIELD(C, stages),  TW_FIELD(C, parts),
                                    TW_FIELD(C, ping_pong),  TW_FIELD(C, taps),    TW_FIELD(C, box_stages)};
    Field<C> box_columns = TW_FIELD(C, box_columns);
    box_columns.least = 0;
    fields.push_back(box_columns);
    for (ConvolutionPass pass : {ConvolutionPass::Forward, ConvolutionPass::WeightGradient}) {
        C right{.rows = 64, .columns = 64, .warpgroups = 1};
        expect_refusals<C>(right, fields, [&](const C& tiles) { convolution_schedule(shape, pass, tiles, gpu); });
    }
    using H = HaloTiles;
    std::vector<Field<H>> of_halo = {TW_FIELD(H, leaving), TW_FIELD(H, stages), TW_FIELD(H, ping_pong),
                                     TW_FIELD(H, warpgroups), TW_FIELD(H, parts)};
    Field<H> weight_stages = TW_FIELD(H, weight_stages);
    weight_stages.least = 0;
    of_halo.push_back(weight_stages);
    const HaloConvolution halo = declare_halo_convolution(shape, ConvolutionPass::Forward, H().whole_places());
    expect_refusals<H>({}, of_halo, [&](const H& tiles) { halo_schedule(halo, tiles, gpu); });
    using D = DepthwiseTiles;
    const DepthwiseShape depthwise{
        .images = 1, .height = 8, .width = 8, .channels = 8, .kernel_h = 3, .kernel_w = 3, .padding = 1};
    expect_refusals<D>({},
                       {TW_FIELD(D, thread_rows), TW_FIELD(D, thread_columns), TW_FIELD(D, rows), TW_FIELD(D, columns),
                        TW_FIELD(D, lanes), TW_FIELD(D, steps), TW_FIELD(D, taps)},
                       [&](const D& tiles) { declare_depthwise(depthwise, ConvolutionPass::Forward, tiles); });
}

TEST(SizesOfRows, AreRefusedWhereTheyMakeNoSense) {
    const Tensor x = input("x", f32, {20, 8}), ids = input("ids", i32, {20});
    const Axis a = reduce_axis("a", 8), p = reduce_axis("p", 20), j = reduce_axis("j", 8);
    const Tensor y = compute("y", {20}, [&](Expr i) { return sum(x(i, a), a); });
    const Tensor columns = compute("columns", {8}, [&](Expr c) { return sum(x(p, c), p); });
    const Tensor all = compute("all", {}, [&] { return sum(x(p, a), {p, a}); });
    const Tensor twice = compute("twice", {20, 8}, [&](Expr i, Expr c) { return x(i, c) * 2.0; });
    const Tensor d = scatter("d", {5, 8}, sum, {ids(p), j}, x(p, j), {p, j});
    EXPECT_ERROR(row_chunks(8, 0, f32), "require_sizes_test.cpp:");
    EXPECT_ERROR(row_chunks(8, 0, f32), "row_chunks: neighbours = 0; give at least 1");
    EXPECT_ERROR(row_chunks(-1, 4, f32), "row_chunks: columns = -1; give at least 0");
    using R = RowChunks;
    expect_refusals<R>({.threads = 32, .neighbours = 4, .vectors = 1},
                       {TW_FIELD(R, threads), TW_FIELD(R, rows), TW_FIELD(R, neighbours), TW_FIELD(R, vectors)},
                       [&](const R& chunks) {
                           Schedule s({y}, gpu);
                           schedule_streamed_rows(s, y, chunks);
                       });
    EXPECT_ERROR(column_threads(8, 8, 0), "column_threads: neighbours = 0; give at least 1");
    using C = ColumnThreads;
    expect_refusals<C>({}, {TW_FIELD(C, lanes), TW_FIELD(C, rows), TW_FIELD(C, neighbours), TW_FIELD(C, chunk)},
                       [&](const C& threads) {
                           Schedule s({columns}, gpu);
                           schedule_column_reduction(s, columns, 20, threads);
                       });
    Schedule s({columns, twice, d}, gpu);
    EXPECT_ERROR(schedule_full_reduction(s, columns, 160, 0), "full reduction: neighbours = 0; give at least 1");
    for (Combine combine : {Combine::Workspace, Combine::Atomic})
        EXPECT_ERROR(schedule_scattered_rows(s, d, 8, -1, combine), "scattered rows: width = -1; give at least 0");
    EXPECT_ERROR(schedule_scattered_rows(s, d, -1, 4, Combine::Workspace), "rows = -1; give at least 0");
    EXPECT_ERROR(schedule_elementwise(s, twice, 0), "elementwise: threads = 0; give at least 1");
    EXPECT_ERROR(schedule_elementwise(s, twice, 256, 0), "elementwise: per_thread = 0; give at least 1");
    EXPECT_ERROR(schedule_elementwise(s, twice, 256, 4, -1), "elementwise: vectors = -1; give at least 1");
}

// An adjoint has its output's shape, which needs no other words.
TEST(Inputs, HaveTheShapeOfAnotherTensor) {
    const Expr rows = size("rows", {.min = 1, .max = 9});
    const Tensor x = input("x", f32, {rows, 8});
    const Tensor c = compute("c", {rows, 8}, [&](Expr i, Expr j) { return x(i, j) * x(i, j); });
    const Tensor dc = input("dc", f32, c.shape());
    ASSERT_EQ(dc.rank(), 2);
    EXPECT_TRUE(dc.shape()[0].same(rows));
    EXPECT_EQ(as_constant(dc.shape()[1]), 8);
    EXPECT_EQ(gradients(c, dc, {x})[0].rank(), 2);
    EXPECT_EQ(input("y", f32, std::vector<int64_t>{4, 5}).rank(), 2);
    EXPECT_EQ(input("z", f32, std::span<const int64_t>()).rank(), 0);
    EXPECT_EQ(input("w", f32, {}).rank(), 0);
}

#undef TW_FIELD

}  // namespace
}  // namespace tw::schedules
