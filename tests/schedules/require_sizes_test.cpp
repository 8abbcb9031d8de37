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
#include "schedules/ranged_gradients.h"
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

/// Tiles that no matrix instruction has, where they are scheduled.
TEST(SizesOfAttention, AreThoseOfMatrixInstructions) {
    const AttentionShape shape{.batch = 1, .heads = 4, .rows = 64, .keys = 64, .depth = 32, .width = 32};
    auto dense = [&](const AttentionTiles& tiles) { attention_schedule(shape, tiles, gpu); };
    EXPECT_ERROR(dense({.rows = 100}), "attention tiles: rows = 100; give a multiple of 64 from 64 to 256");
    EXPECT_ERROR(dense({.rows = 320}), "attention tiles: rows = 320; give a multiple of 64 from 64 to 256");
    EXPECT_ERROR(dense({.keys = 40}), "attention tiles: keys = 40; give a multiple of 16 from 16 to 256");
    EXPECT_ERROR(dense({.keys = 272}), "attention tiles: keys = 272; give a multiple of 16 from 16 to 256");
    EXPECT_ERROR(dense({.heads = 3}), "attention tiles: heads = 3, which side by side are not all 4; give a divisor");
    EXPECT_ERROR(dense({.rows = 64, .exclusive = true}),
                 "attention tiles: in exclusive sections warpgroups take turns, and rows = 64 are one; give 128 or "
                 "more, or leave `exclusive` out");
    EXPECT_ERROR(dense({.rows = 100}), "require_sizes_test.cpp:");
    const VarlenShape packed{.rows = 64, .keys = 64, .heads = 4, .depth = 32, .width = 32};
    auto varlen = [&](const VarlenTiles& tiles) {
        varlen_schedule(declare_varlen_attention(packed, tiles), packed, tiles, gpu);
    };
    auto ranged = [&](const VarlenTiles& tiles) {
        ranged_schedule(declare_ranged_attention(shape, tiles, {}), shape, tiles, gpu);
    };
    const std::vector<std::pair<std::function<void(const VarlenTiles&)>, std::string>> by_tables{
        {varlen, "varlen tiles"}, {ranged, "tiles of ranges"}};
    for (const auto& each : by_tables) {
        const auto& schedule = each.first;
        const std::string& name = each.second;
        EXPECT_ERROR(schedule({.rows = 16}), name + ": rows = 16; give at least 64");
        EXPECT_ERROR(schedule({.rows = 96}), name + ": rows = 96; give a multiple of 64 from 64 to 256");
        EXPECT_ERROR(schedule({.keys = 24}), name + ": keys = 24; give a multiple of 16 from 16 to 256");
        EXPECT_ERROR(schedule({.heads = 3}), name + ": heads = 3, which side by side are not all 4");
        EXPECT_ERROR(schedule({.rows = 96}), "require_sizes_test.cpp:");
    }
    auto of_gradients = [&](const GradientTiles& tiles) { attention_gradients_schedule(shape, tiles, gpu); };
    auto of_varlen = [&](const GradientTiles& tiles) {
        varlen_gradients_schedule(declare_varlen_gradients(packed, tiles), packed, tiles, gpu);
    };
    auto of_ranged = [&](const GradientTiles& tiles) {
        ranged_gradients_schedule(declare_ranged_gradients(shape, tiles, {}), shape, tiles, gpu);
    };
    for (const std::function<void(const GradientTiles&)>& schedule :
         std::vector<std::function<void(const GradientTiles&)>>{of_gradients, of_varlen, of_ranged}) {
        EXPECT_ERROR(schedule({.key_rows = 32}), "tiles of gradients: key_rows = 32; give a multiple of 64 from 64");
        EXPECT_ERROR(schedule({.key_step = 72}), "tiles of gradients: key_step = 72; give a multiple of 16 from 16");
        EXPECT_ERROR(schedule({.query_rows = 65}), "tiles of gradients: query_rows = 65; give a multiple of 64 from");
        EXPECT_ERROR(schedule({.query_step = 512}), "query_step = 512; give a multiple of 16 from 16 to 256");
        EXPECT_ERROR(schedule({.key_rows = 32}), "require_sizes_test.cpp:");
    }
    AttentionShape one_row = shape;
    one_row.rows = 1;
    EXPECT_ERROR(decode_schedule(one_row, {.keys = 24}, gpu), "decode tiles: keys = 24; give a multiple of 16");
    auto fp8 = [&](const Fp8Tiles& tiles) {
        fp8_attention_schedule(declare_fp8_attention(shape, tiles), shape, tiles, gpu);
    };
    EXPECT_ERROR(fp8({.rows = 100}), "fp8 tiles: rows = 100; give a multiple of 64 from 64 to 256");
    EXPECT_ERROR(fp8({.keys = 48}), "fp8 tiles: keys = 48; give a multiple of 32 from 32 to 256");
}

/// Shapes and rules are refused at the line of who declares.
TEST(SizesOfAttention, AreRefusedAtTheCallersLine) {
    AttentionShape shape{.batch = 1, .heads = 3, .rows = 8, .keys = 8, .depth = 8, .width = 8, .group = 2};
    const std::string here = "require_sizes_test.cpp:", heads = "3 heads are no multiple of a group of 2";
    const std::vector<std::function<void()>> declarations{
        [&] { declare_attention(shape); },
        [&] { declare_attention_gradients(shape); },
        [&] { declare_ranged_attention(shape, {}, {}); },
        [&] { declare_ranged_gradients(shape, {}, {}); },
        [&] { declare_key_ranges(shape, {}, 64); },
        [&] { attention_schedule(shape, {}, gpu); },
        [&] { attention_gradients_schedule(shape, {}, gpu); },
        [&] { declare_fp8_attention(shape, {}); },
    };
    for (const auto& declare : declarations) {
        EXPECT_ERROR(declare(), here);
        EXPECT_ERROR(declare(), heads);
    }
    shape.heads = 4;
    const ScoreRule no_rule = [](const Expr&, const ScorePlace&) { return Expr(); };
    const Tensor sinks = input("sinks", f32, {3}), bias = input("bias", f32, {8, 8});
    const std::vector<std::pair<std::function<void()>, std::string>> others{
        {[&] { declare_attention(shape, no_rule); }, "the rule for scores returns nothing"},
        {[&] { declare_ranged_attention(shape, {}, {.score = no_rule}); }, "the rule for scores returns nothing"},
        {[&] { declare_attention(shape, {}, false, {}, sinks); }, "give a score for each head, f32 [4]"},
        {[&] { declare_ranged_gradients(shape, {}, {.sinks = sinks}); }, "give a score for each head, f32 [4]"},
        {[&] { declare_attention(shape, {}, false, {}, {}, {.q = bias}); }, "'bias' is f32 [8, 8], where the shape"},
        {[&] { soft_cap(0); }, "soft_cap(0): scores stay between"},
        {[&] { soft_cap_approx(-1); }, "soft_cap_approx(-1): scores stay between"},
        {[&] { linear_bias(bias); }, "linear_bias(bias): slopes have one dimension"},
        {[&] { additive_bias(bias); }, "additive_bias(bias): it has 4 dimensions"},
        {[&] { sliding_window(0); }, "sliding_window(0): rows see at least themselves"},
        {[&] { documents(sinks, sinks); }, "numbers have two dimensions"},
        {[&] { varlen_tables({1}, {0}, true, 64); }, "offsets begin with 0 and grow"},
        {[&] {
             varlen_pairs({0, 1}, {0}, true);
         },
         "offsets of 1 sequences of rows, of 0 of keys"},
    };
    for (const auto& each : others) {
        EXPECT_ERROR(each.first(), here);
        EXPECT_ERROR(each.first(), each.second);
    }
}

TEST(SizesOfProducts, AreRefusedWhereTheyMakeNoSense) {
    using P = ProductTiles;
    expect_refusals<P>(
        {.split_k = 2},
        {TW_FIELD(P, block_m), TW_FIELD(P, block_n), TW_FIELD(P, block_k), TW_FIELD(P, thread_m), TW_FIELD(P, thread_n),
         TW_FIELD(P, stages), TW_FIELD(P, split_k), TW_FIELD(P, blocks), TW_FIELD(P, chunk_n)},
        [](const P& tiles) { product_schedule(declare_product({.m = 10, .n = 10, .k = 100}), gpu, tiles); });
    const TensorProductShape shape{.m = 256, .n = 256, .k = 256};
    using T = TensorTiles;
    expect_refusals<T>({},
                       {TW_FIELD(T, block_m), TW_FIELD(T, block_n), TW_FIELD(T, block_k), TW_FIELD(T, warp_m),
                        TW_FIELD(T, warp_n), TW_FIELD(T, block_b), TW_FIELD(T, warp_b), TW_FIELD(T, stages),
                        TW_FIELD(T, split_k), TW_FIELD(T, raster_group)},
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
    expect_refusals<C>(
        {}, {TW_FIELD(C, lanes), TW_FIELD(C, rows), TW_FIELD(C, neighbours), TW_FIELD(C, chunk), TW_FIELD(C, steps)},
        [&](const C& threads) {
            Schedule s({columns}, gpu);
            schedule_column_reduction(s, columns, 20, threads);
        });
    Schedule s({columns, twice, d}, gpu);
    EXPECT_ERROR(schedule_full_reduction(s, columns, 160, 0), "full reduction: neighbours = 0; give at least 1");
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
