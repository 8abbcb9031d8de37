// What each pass of codegen does, by an example that reviewers read: a kernel in front of it and behind it.
// TW_UPDATE_GOLDEN=1 writes tests/golden/passes/ anew.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include "dsl/declare_scan.h"
#include "ops/program.h"
#include "schedules/catalog.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"

namespace tw {
namespace {

struct Example {
    const char* pass;
    const char* kernel;          ///< that it changes: of the catalogue, or a name of those below
    const char* file = nullptr;  ///< of a second example, beside the pass' own
};

/// Of sums that a tensor core leaves in registers, which lanes share.
constexpr const char* row_sums = "row sums of a product";
Schedule scheduled_row_sums() {
    Tensor a = input("a", bf16, {32, 16}), b = input("b", bf16, {16, 16});
    Axis k = reduce_axis("k", 16), j = reduce_axis("j", 16);
    Tensor product =
        compute("product", {32, 16}, [&](Expr i, Expr j) { return sum(cast(f32, a(i, k)) * cast(f32, b(j, k)), k); });
    Tensor r = compute("r", {32}, [&](Expr i) { return sum(product(i, j), j); });
    Schedule s({r}, target("sm_90a"));
    auto [block, row] = s.split(s.loops<1>(r)[0], 16, {"block", "row"});
    s.order({block, s.reduce(r), row});
    s.bind(block, grid.x);
    s.at(product, block);
    s.set_memory(product, Memory::Registers);
    auto [m, n] = s.loops<2>(product);
    auto [k_tile, k_inner] = s.split(s.reduce(product), 16, {"k_tile", "k_inner"});
    s.order({k_tile, m, n, k_inner});
    s.mma(product, mma_sync, {.m = m, .n = n, .k = k_inner});
    return s;
}

/// Of rows whose blocks take tiles as they come, copied by a role of its own.
constexpr const char* sums_by_tickets = "row sums by tickets";
Schedule scheduled_sums_by_tickets() {
    Tensor x = input("x", f32, {512, 64});
    Axis k = reduce_axis("k", 64);
    Tensor y = compute("y", {512}, [&](Expr i) { return sum(x(i, k), k); });
    Schedule s({y}, target("sm_90a"));
    auto [block, row] = s.split(s.loops<1>(y)[0], 128, {"block", "row"});
    auto [step, term] = s.split(s.reduce(y), 32, {"step", "term"});
    s.order({block, row, step, term});
    s.persistent({block}, {.blocks = 2, .dynamic = true});
    s.bind(row, thread);
    Stage copy = s.stage(y, x, Memory::Shared, step);
    s.pipeline(step, {.stages = 2});
    s.roles({{"load", warps(1), {}, {copy}}, {"sum", warpgroups(1), {}, {y}}});
    return s;
}

/// Of sums so far, which threads tell those behind them.
constexpr const char* prefix_sums = "prefix sums of rows";
Schedule scheduled_prefix_sums() {
    Tensor x = input("x", f32, {3, 512});
    Axis j = reduce_axis("j", 512);
    Tensor y = compute("y", {3, 512}, [&](Expr i, Expr t) { return scan(sum, x(i, j), j, t); });
    Schedule s({y}, target("sm_90a"));
    auto [i, t] = s.loops<2>(y);
    s.bind(i, grid.x);
    auto [step, share, term] = s.split(s.running(y, t), {256, 4}, Tail::Divide, {"step", "share", "term"});
    s.bind(share, thread);
    return s;
}

/// Of rows that three stages in shared memory make, which has room for two of them.
constexpr const char* crowded_rows = "crowded rows";
Schedule scheduled_crowded_rows() {
    Tensor x = input("x", f32, {64, 128});
    auto mirrored = [](const char* name, const Tensor& of) {
        return compute(name, {64, 128}, [&](Expr i, Expr j) { return of(i, 127 - j) + 1.0; });
    };
    Tensor first = mirrored("first", x), second = mirrored("second", first), third = mirrored("third", second),
           y = mirrored("y", third);
    Target small = target("sm_90a");
    small.shared_bytes = 2 * 4 * 128 * 4;
    Schedule s({y}, small);
    auto [i, j] = s.loops<2>(y);
    auto [block, row] = s.split(i, 4, {"block", "row"});
    s.bind(block, grid.x);
    s.bind(j, thread);
    for (const Tensor& stage : {third, second, first}) {
        s.at(stage, block);
        s.set_memory(stage, Memory::Shared);
    }
    return s;
}

/// Of rows of which threads hold many elements, with a function that is long.
constexpr const char* long_functions = "long functions of rows";
Schedule scheduled_long_functions() {
    Tensor x = input("x", f32, {4, 2048});
    Tensor y = compute("y", {4, 2048},
                       [&](Expr i, Expr j) { return erf(erf(erf(erf(erf(erf(x(i, j) * 2) * 2) * 2) * 2) * 2) * 2); });
    Schedule s({y}, target("sm_90a"));
    auto [i, j] = s.loops<2>(y);
    auto [t, element] = s.split(j, 64, {"t", "element"});
    s.bind(i, grid.x);
    s.bind(t, thread);
    s.bind(element, unrolled);
    s.stage(y, x, Memory::Registers, t);
    return s;
}

constexpr const char* boxes = "boxes";
/// How much each of some boxes overlaps with each of others.
Schedule scheduled_boxes() {
    Tensor a = input("a", f32, {64, 4}), b = input("b", f32, {96, 4});
    Tensor common = compute("common", {64, 96}, [&](Expr i, Expr j) {
        const Expr width = min(a(i, 2), b(j, 2)) - max(a(i, 0), b(j, 0));
        const Expr height = min(a(i, 3), b(j, 3)) - max(a(i, 1), b(j, 1));
        return max(width, 0.0) * max(height, 0.0);
    });
    Schedule s({common}, target("sm_90a"));
    auto [i, j] = s.loops<2>(common);
    auto [step, t] = s.split(j, 48, {"step", "t"});
    s.bind(i, grid.x);
    s.bind(step, unrolled);
    s.bind(t, thread);
    return s;
}

/// Sums of vectors, weighted by how far points are from each other.
constexpr const char* weighted_sums = "weighted sums";
Schedule scheduled_weighted_sums() {
    Tensor x = input("x", f32, {96}), z = input("z", f32, {64}), v = input("v", f32, {64, 3});
    Axis j = reduce_axis("j", 64);
    Tensor y =
        compute("y", {96, 3}, [&](Expr i, Expr d) { return sum(exp((x(i) - z(j)) * (z(j) - x(i))) * v(j, d), j); });
    Schedule s({y}, target("sm_90a"));
    auto [i, d] = s.loops<2>(y);
    s.order({i, s.reduce(y), d});
    s.bind(i, thread);
    s.bind(d, unrolled);
    return s;
}

/// Each row by its own number.
constexpr const char* divided_rows = "divided rows";
Schedule scheduled_divided_rows() {
    Tensor x = input("x", f32, {96, 8}), d = input("d", f32, {96});
    Tensor y = compute("y", {96, 8}, [&](Expr i, Expr j) { return exp(x(i, j)) / d(i); });
    Schedule s({y}, target("sm_90a"));
    auto [i, j] = s.loops<2>(y);
    s.bind(i, thread);
    s.bind(j, unrolled);
    return s;
}

constexpr const char* products = "product_64x48x40";
constexpr const char* tensor_core_products = "gemm_bf16_64x64x64_tb_tile32x32x16w16x16s3";
constexpr const char* hopper_products = "gemm_bf16_128x64x128_tb_tile128x64x64g2s2r64b";

constexpr const char* attention = "attention_bf16_1x1x64x64_tile64x32s2";
constexpr const char* attention_by_rule = "attention_bf16_1x1x64x64_alibi_tile64x32s2";

constexpr Example examples[] = {
    {"apply_fragment_layouts", tensor_core_products},
    {"combine_lanes", row_sums},
    {"privatize_registers", "column_sum_1100x301_f32"},
    {"lower_thread_reductions", "softmax_5x1000_f32"},
    {"lower_thread_reductions", prefix_sums, "lower_thread_reductions_prefixes"},
    {"discharge_masks", "gemm_bf16_37x50x61_ta_tile16x64x64w16x16s6r"},
    {"mask_padding", "attention_bf16_1x4x1x64_keys300_group4"},
    {"join_registers", "gemm_bf16_128x128x128_tb_tile64x128x64g1u2s2r64b"},
    {"use_atoms", tensor_core_products},
    {"gather_products", "convolution_weight_gradient_bf16_2x8x8x64_64_3x3_pad1_tile64x64x64w1s2p1t1k3"},
    {"elide_zero_init", hopper_products},
    {"choose_tma", hopper_products},
    {"select_behind", "convolution_fused_bf16_2x8x8x64_64_3x3_pad1_tile64x64x64w1s2p1t1_prologue"},
    {"distribute", products},
    {"mark_unrolled", "layernorm_7x768_bf16"},
    {"choose_layouts", products},
    {"defer_waits", attention},
    {"pipeline", tensor_core_products},
    {"fence_proxies", hopper_products},
    {"store_boxes", "gemm_bf16_128x128x128_tb_tile128x128x64g2s2r64b"},
    {"take_tickets", sums_by_tickets},
    {"exclusive_sections", "attention_bf16_1x1x192x64_tile128x64s2e"},
    {"reuse_shared", crowded_rows},
    {"drop_units", hopper_products},
    {"join_loops", hopper_products},
    {"narrow_pairs", "attention_e4m3_1x1x64x32_tile64x32s2"},
    {"name_thresholds", "attention_bf16_1x1x64x64_causal_tile64x64s2"},
    {"split_casts", attention_by_rule},
    {"hoist_values", attention_by_rule},
    {"join_reads", boxes},
    {"name_values", "gelu_bias_7x37_f32"},
    {"hoist_common", weighted_sums},
    {"hoist_invariants", products},
    {"drop_aliases", hopper_products},
    {"shift_registers", long_functions},
    {"read_early", "gemm_e4m3_64x128x256_tb_scaled"},
    {"insert_barriers", products},
    {"narrow_accumulators", "argmax_9x70000_f32"},
    {"narrow_indices", "softmax_300000x8192_bf16"},
    {"read_ahead_of_masks", "convolution_bf16_1x12x12x64_64_3x3_pad1_tilehalo64b32s2t1"},
    {"choose_functions", "gemm_bf16_40x96x72_tb_bias_gelu_tanh_tile32x32x32w16x16s3r"},
    {"share_divisors", divided_rows},
    {"keep_steps_apart", "gemm_bf16_128x128x128_tb_tile64x128x64g1u2s2r64b"},
    {"programmatic_launch", products},
};

Program program_of(const char* kernel) {
    if (std::string_view(kernel) == row_sums) return build(scheduled_row_sums());
    if (std::string_view(kernel) == sums_by_tickets) return build(scheduled_sums_by_tickets());
    if (std::string_view(kernel) == prefix_sums) return build(scheduled_prefix_sums());
    if (std::string_view(kernel) == long_functions) return build(scheduled_long_functions());
    if (std::string_view(kernel) == boxes) return build(scheduled_boxes());
    if (std::string_view(kernel) == weighted_sums) return build(scheduled_weighted_sums());
    if (std::string_view(kernel) == divided_rows) return build(scheduled_divided_rows());
    if (std::string_view(kernel) == crowded_rows) return build(scheduled_crowded_rows());
    const schedules::CatalogEntry* entry = schedules::find_library_kernel(kernel);
    if (!entry) throw_error(Error, "no kernel '{}'", kernel);
    return build(entry->make(target("sm_90a")));
}

TEST(PassGoldens, AreWhatReviewersHaveRead) {
    std::vector<std::string> passes = codegen::pass_names();
    for (size_t n = 1; n < passes.size(); ++n) {
        if (passes[n] == "make_threads") continue;
        int count = 0;
        for (const Example& example : examples) {
            if (example.pass != passes[n]) continue;
            ++count;
            const Program program = program_of(example.kernel);
            const std::string before = program.after(passes[n - 1]), after = program.after(passes[n]);
            EXPECT_NE(before, after) << passes[n] << " does nothing for " << example.kernel;
            EXPECT_TRUE(matches_golden(
                fmt::format("{} of {}\n\n==== before\n{}\n==== behind\n{}", passes[n], example.kernel, before, after),
                fmt::format("passes/{}.txt", example.file ? example.file : passes[n].c_str())));
        }
        EXPECT_GT(count, 0) << "no example of " << passes[n];
    }
}

TEST(PassGoldens, OfUnknownPassesThereAreNone) {
    EXPECT_ERROR(program_of(products).after("poetry"),
                 "after(\"poetry\"): no pass has this name; there are make_tiles, apply_fragment_layouts");
}

}  // namespace
}  // namespace tw
