// Mutations of kernels whose steps overlap: stages that come later, blocks that take tiles in turn or by tickets, and
// the gradients of attention. Each is caught, or provably changes nothing. TW_FUZZ_ATTENTION_MUTATIONS sets the number
// for each test (0: all).
#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "schedules/attention_backward.h"
#include "tests/verify/expect_all_caught.h"

namespace tw::fuzz {
namespace {

using namespace tw::schedules;  // NOLINT: what is mutated

/// Whole numbers from -1 to 1 in operands, so that neither scores nor weights differ by more than sums of f32 hold, and
/// logarithms of sums from -2 to 2.
Bindings small_bindings(const std::vector<Tensor>& outputs, uint64_t seed) {
    Bindings bindings = telling_bindings(outputs, seed);
    for (auto& [name, array] : bindings.inputs)
        fill_integers(array, array.type == f32 ? -2 : -1, array.type == f32 ? 2 : 1, ++seed * 977);
    return bindings;
}

/// The same, in every other set with keys so far from the others that a maximum which misses one lets exp2() overflow.
Bindings bindings_with_far_keys(const std::vector<Tensor>& outputs, uint64_t seed) {
    Bindings bindings = small_bindings(outputs, seed);
    if (seed / kKindsOfData % 2 == 0) return bindings;
    constexpr double further = 60;
    std::mt19937 random(static_cast<unsigned>(seed));
    HostArray& keys = bindings.inputs.at("k");
    std::vector<int64_t> at(keys.shape.size(), 0);
    bool far = false;
    do {
        if (at.back() == 0) far = random() % 8 == 0;
        if (far) keys.set(at, make_value(keys.type, keys.at(at).real * further));
    } while (advance(at, keys.shape));
    return bindings;
}

/// Of a head of 16: the exponents of weights, to base 2, are products of rows of q and k, whole numbers.
Expr exact_score(const Expr& score, const ScorePlace&) { return score * (4 * std::log(2.0)); }

AttentionShape shape_of(int64_t heads, int64_t rows, int64_t keys, bool causal) {
    return {.batch = 1, .heads = heads, .rows = rows, .keys = keys, .depth = 16, .width = 16, .causal = causal};
}

CatalogEntry forward(const std::string& name, const AttentionShape& shape, const AttentionTiles& tiles) {
    return {.name = name, .description = "", .make = [=](const Target& target) {
                return attention_schedule(declare_attention(shape, exact_score), shape, tiles, target);
            }};
}

CatalogEntry backward(const std::string& name, const AttentionShape& shape, const GradientTiles& tiles) {
    return {.name = name, .description = "", .make = [=](const Target& target) {
                return attention_gradients_schedule(declare_attention_gradients(shape, tiles.passes, exact_score),
                                                    shape, tiles, target);
            }};
}

MutationOptions options_of(std::vector<CatalogEntry> programs, int64_t count,
                           CatalogTrial::Data data = small_bindings) {
    MutationOptions options;
    options.programs = std::move(programs);
    options.data = data;
    options.count = number_from_environment("TW_FUZZ_ATTENTION_MUTATIONS", count);
    options.original_seeds = 3;
    return options;
}

/// The second product of a step runs beside what makes the weights of the next, in rings that another role fills.
TEST(FuzzAttentionMutations, OfDelayedProducts) {
    expect_all_caught(options_of({forward("delayed", shape_of(1, 64, 192, false), {.rows = 64, .keys = 32}),
                                  forward("delayed causal", shape_of(1, 128, 128, true), {.rows = 64, .keys = 32})},
                                 48, bindings_with_far_keys));
}

/// Warpgroups take turns at the products of a step: without a wait or a word they hang, or come twice.
TEST(FuzzAttentionMutations, OfExclusiveSections) {
    MutationOptions options =
        options_of({forward("exclusive", shape_of(2, 256, 96, false),
                            {.rows = 128, .keys = 32, .persistent = true, .query_stages = 2, .exclusive = true})},
                   24);
    options.kinds = {MutationKind::Signal};
    expect_all_caught(options);
}

/// Tiles in turn, the next one's queries on their way meanwhile.
TEST(FuzzAttentionMutations, OfPersistentBlocks) {
    expect_all_caught(
        options_of({forward("persistent", shape_of(3, 128, 96, false),
                            {.rows = 64, .keys = 32, .persistent = true, .query_stages = 2, .stage_result = true})},
                   48, bindings_with_far_keys));
}

/// Tiles as they come.
TEST(FuzzAttentionMutations, OfBlocksWithTickets) {
    expect_all_caught(
        options_of({forward("dynamic", shape_of(2, 192, 192, true),
                            {.rows = 64, .keys = 32, .persistent = true, .query_stages = 2, .dynamic = true})},
                   48, bindings_with_far_keys));
}

GradientTiles gradients_with(const GradientPasses& passes) {
    return {.key_rows = 64, .key_step = 64, .query_rows = 64, .query_step = 64, .passes = passes};
}

TEST(FuzzAttentionMutations, OfGradients) {
    expect_all_caught(options_of({backward("gradients", shape_of(1, 128, 128, false), gradients_with({}))}, 24));
}

TEST(FuzzAttentionMutations, OfGradientsInPassesOfTheirOwn) {
    expect_all_caught(
        options_of({backward("dk, dv", shape_of(1, 128, 128, false), gradients_with({.together = false}))}, 24));
}

TEST(FuzzAttentionMutations, OfGradientsByAdjointsThatAreKept) {
    expect_all_caught(options_of({backward("kept", shape_of(1, 128, 128, true), gradients_with({.kept = true}))}, 24));
}

/// dq is added up by boxes of the kernel that makes scores for dk and dv.
TEST(FuzzAttentionMutations, OfGradientsThatAreAddedUp) {
    expect_all_caught(
        options_of({backward("added", shape_of(1, 128, 128, false), gradients_with({.added = true}))}, 24));
}

/// Without roles or attention: operands of a product arrive ahead of it, and a product runs in the middle of the next.
TEST(FuzzAttentionMutations, OfDelaysWithoutRoles) {
    auto operands = [](const Target& target) {
        Tensor a = input("a", bf16, {64, 64}), b = input("b", bf16, {32, 64});
        Axis r = reduce_axis("r", 64);
        Tensor c =
            compute("c", {64, 32}, [&](Expr i, Expr j) { return sum(cast(f32, a(i, r)) * cast(f32, b(j, r)), r); });
        Schedule s({c}, target);
        auto [i, j] = s.loops<2>(c);
        auto [bi, it] = s.split(i, 32);
        auto [wi, mi] = s.split(it, 16);
        auto [ko, ki] = s.split(s.reduce(c), 16);
        s.order({bi, wi, ko, mi, j, ki});
        s.bind(bi, grid.x);
        s.bind(wi, warp);
        s.stage(c, a, Memory::Shared, ko);
        s.stage(c, b, Memory::Shared, ko);
        s.mma(c, mma_sync, {.m = mi, .n = j, .k = ki});
        s.delay(c, ko, 2);
        return s;
    };
    auto rows = [](const Target& target) {
        Tensor x = input("x", f32, {7, 40}), w = input("w", f32, {40});
        Tensor y = compute("y", {7, 40}, [&](Expr i, Expr j) { return relu(x(i, j)) * w(j) + x(i, j); });
        Schedule s({y}, target);
        auto [i, j] = s.loops<2>(y);
        auto [jo, ji] = s.split(j, 16, Tail::Mask);
        s.order({jo, ji, i});
        s.bind(jo, grid.x);
        s.bind(ji, thread);
        s.stage(y, x, Memory::Shared, i);
        s.delay(y, i, 2);
        return s;
    };
    auto products = [](const Target& target) {
        Tensor q = input("q", bf16, {64, 32}), k = input("k", bf16, {160, 32}), v = input("v", bf16, {160, 32});
        Axis t = reduce_axis("t", 32), u = reduce_axis("u", 160);
        Tensor scores = compute("scores", {64, 160},
                                [&](Expr i, Expr j) { return sum(cast(f32, q(i, t)) * cast(f32, k(j, t)), t); });
        Tensor weights =
            compute("weights", {64, 160}, [&](Expr i, Expr j) { return cast(bf16, min(relu(scores(i, j)), 3.0)); });
        Tensor o = compute("o", {64, 32},
                           [&](Expr i, Expr j) { return sum(cast(f32, weights(i, u)) * cast(f32, v(u, j)), u); });
        Schedule s({o}, target);
        auto [i, j] = s.loops<2>(o);
        auto [wi, mi] = s.split(i, 64);
        auto [uo, ui] = s.split(s.reduce(o), 32);
        s.order({wi, uo, mi, j, ui});
        s.bind(wi, warpgroup);
        s.at(weights, uo), s.at(scores, uo);
        for (const Tensor& made : {scores, weights}) s.set_memory(made, Memory::Registers);
        s.stage(o, v, Memory::Shared, uo), s.stage(scores, k, Memory::Shared, uo),
            s.stage(scores, q, Memory::Shared, wi);
        auto [si, sj] = s.loops<2>(scores);
        auto [to, ti] = s.split(s.reduce(scores), 32);
        s.order({to, si, sj, ti});
        s.mma(scores, wgmma, {.m = si, .n = sj, .k = ti});
        s.mma(o, wgmma, {.m = mi, .n = j, .k = ui});
        s.delay(o, uo, {.before = weights});
        s.pipeline(uo, {.stages = 2});
        return s;
    };
    // A fence in front of another one, and a barrier in front of another one, with nothing between, change nothing,
    // though no trace tells.
    expect_all_caught(options_of({{.name = "operands", .description = "", .make = operands},
                                  {.name = "rows", .description = "", .make = rows},
                                  {.name = "products", .description = "", .make = products}},
                                 80),
                      {"products, kernel o_kernel, signal: fence_proxy_async(): left out",
                       "products, kernel o_kernel, barrier: barrier 4: removed"});
}

}  // namespace
}  // namespace tw::fuzz
