// Several reductions in one pass: the same results as one after another, whatever runs along, and what has no law.
#include <set>

#include "tests/ops/random_cases.h"
#include "tests/ops/random_stream.h"
#include "tests/ops/whole_numbers.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

void expect_declared_chains(unsigned first, Lengths lengths) {
    int streamed = 0, in_parts = 0;
    for (unsigned seed = first; seed < first + 400; ++seed) {
        RandomStream chain(seed, lengths);
        SCOPED_TRACE(chain.text());
        const Schedule s = chain.schedule(target("sm_90a"));
        streamed += chain.streamed();
        in_parts += chain.streamed() && chain.is_in_parts();
        SCOPED_TRACE(s.trace_as_cpp());
        auto differs = differs_from_declared(chain, s, seed,
                                             [&](const Bindings& launch) { return interpret_tree(s.tree(), launch); });
        ASSERT_FALSE(differs) << "seed " << seed << ": " << *differs << "\n" << s.to_string();
        EXPECT_EQ(replay(s.save(), s.outputs(), s.target()).to_string(), s.to_string());
    }
    EXPECT_GE(streamed, 300);
    EXPECT_GE(in_parts, 80);
}

TEST(Stream, RandomChainsGiveTheDeclared) { expect_declared_chains(0, Lengths::Same); }

/// Rows with different numbers of terms, by their places or by data.
TEST(Stream, RandomChainsOfManyLengths) { expect_declared_chains(2000, Lengths::ByElement); }

class Streams : public RandomCases {
protected:
    Streams() : RandomCases(53) {}
};
TW_ON_EACH_DEVICE(Streams);

TEST_P(Streams, RandomChainsGiveTheDeclared) {
    for (int round = 0; round < 60; ++round) {
        const unsigned seed = 1000 + round;
        RandomStream chain(seed);
        SCOPED_TRACE(chain.text());
        const Schedule s = chain.schedule(device_target());
        SCOPED_TRACE(s.trace_as_cpp());
        Executable executable(build(s), device_);
        auto differs =
            differs_from_declared(chain, s, seed, [&](const Bindings& launch) { return run_on(executable, launch); });
        ASSERT_FALSE(differs) << "seed " << seed << ": " << *differs << "\n" << executable.program().cuda();
    }
}

/// The last part of a loop makes fewer elements than registers have: threads behind them have no term, whatever the
/// elements that there are would give.
TEST_P(Streams, ThreadsWithoutATermOfTheLastPart) {
    constexpr int64_t rows = 6, terms = 23;
    Tensor x = input("x", f32, {rows, terms});
    Axis j1 = reduce_axis("j1", terms), j2 = reduce_axis("j2", terms);
    Tensor masked =
        compute("masked", {rows, terms}, [&](Expr i, Expr j) { return select(j <= i + 4, x(i, j), -infinity); });
    Tensor m = compute("m", {rows}, [&](Expr i) { return reduce_max(masked(i, j1), j1); });
    Tensor p = compute("p", {rows, terms}, [&](Expr i, Expr j) { return exp2(masked(i, j) - m(i)); });
    Tensor l = compute("l", {rows}, [&](Expr i) { return sum(p(i, j2), j2); });
    Schedule s({l}, device_target());
    const Loop row = s.data_loops(l)[0];
    auto [tile, term] = s.split(s.reduce(l), 8, Tail::Mask, {"tile", "term"});
    s.order({row, tile, term});
    s.bind(row, grid.x);
    s.stream({m, l}, tile);
    s.bind(term, thread);
    s.inline_stage(masked);
    s.set_memory(p, Memory::Registers);
    s.cut(tile, {2});
    Executable executable(build(s), device_);
    for (uint64_t seed : {1, 2}) {
        Bindings launch;
        launch.inputs = {{"x", host_array(f32, {rows, terms})}};
        fill_integers(launch.inputs.at("x"), -3, 3, seed);
        expect_declared(executable, s.outputs(), launch);
    }
}

/// One kernel for all lengths, with a mask that ends with the last key: rows without any keys, and no keys at all.
TEST_P(Streams, LengthsGivenAtLaunch) {
    const Expr rows = size("rows", {.min = 1, .max = 100}), terms = size("terms", {.min = 0, .max = 100});
    Tensor x = input("x", f32, {rows, terms}), v = input("v", f32, {terms, 6});
    Axis j1 = reduce_axis("j1", terms), j2 = reduce_axis("j2", terms), j3 = reduce_axis("j3", terms);
    Tensor masked = compute("masked", {rows, terms},
                            [&](Expr i, Expr j) { return select(j <= i + (terms - rows), x(i, j), -infinity); });
    Tensor m = compute("m", {rows}, [&](Expr i) { return reduce_max(masked(i, j1), j1); });
    Tensor p = compute("p", {rows, terms}, [&](Expr i, Expr j) { return exp2(masked(i, j) - m(i)); });
    Tensor l = compute("l", {rows}, [&](Expr i) { return sum(p(i, j2), j2); });
    Tensor o = compute("o", {rows, 6}, [&](Expr i, Expr e) { return sum(p(i, j3) * v(j3, e), j3) / l(i); });
    Tensor both = compute("both", {rows}, [&](Expr i) { return m(i) + l(i); });
    for (int round = 0; round < 6; ++round) {
        Schedule s({o, both}, device_target());
        StageRef largest = m, total = l, values = o;
        const bool in_parts = round >= 4;
        if (in_parts) {
            const Loop part = s.split(s.reduce(o), 8 * (round - 3), Tail::Mask, {"part", "in_part"})[0];
            auto [m_part, l_part, o_part] = s.rfactor<3>({m, l, o}, part);
            largest = m_part, total = l_part, values = o_part;
        }
        const std::vector<Loop> data = s.data_loops(values);
        auto [block, row] = s.split(data[data.size() - 2], 4, Tail::Mask, {"block", "row"});
        auto [tile, term] = s.split(s.reduce(values), 8, Tail::Mask, {"tile", "term"});
        std::vector<Loop> order{block, tile, row, data.back(), term};
        if (in_parts) order.insert(order.begin(), data[0]);
        s.order(order);
        if (in_parts) s.bind(data[0], grid.y);
        s.bind(block, grid.x);
        s.stream({largest, total, values}, tile);
        if (!in_parts) s.at(both, block);
        s.at(masked, tile);
        if (round % 2) s.set_memory(largest, Memory::Shared);
        if (round / 2 == 1) {
            s.skip(tile, masked);
            s.cut(tile, where_partial(masked));
        }
        SCOPED_TRACE(s.trace_as_cpp());
        Executable executable(build(s), device_);
        for (auto [height, width] : {std::pair{1, 1}, {5, 17}, {13, 9}, {4, 0}, {30, 64}, {7, 8}}) {
            Bindings launch;
            launch.sizes = {{"rows", height}, {"terms", width}};
            launch.inputs = {{"x", host_array(f32, {height, width})}, {"v", host_array(f32, {width, 6})}};
            for (auto& [name, array] : launch.inputs) fill_integers(array, -3, 3, static_cast<uint64_t>(round));
            auto differs =
                differs_in_numbers(run_on(executable, launch), interpret_plain(s.outputs(), launch), equal_values);
            EXPECT_FALSE(differs) << height << " x " << width << ": " << *differs;
        }
    }
}

/// o = softmax(q k' + mask) v of each head, and the logarithm of its sums, from the formula.
struct Attention {
    struct Options {
        bool group = true;  ///< wgmma, else mma_sync
        Type type = bf16;
        bool causal = false;
        int64_t rows = 128, block = 128, terms = 128, tile = 64, depth = 32, width = 32, heads = 2;
        bool roles = false, persistent = false, dynamic = false, cut = false, skip = false;
        bool overlaps = false, reversed = false;  ///< o of a step stands between the scores and the rest of the next
        int query_stages = 0;                     ///< if another role loads queries, too
        bool sized = false;                       ///< one kernel for all numbers of rows and terms
        int stages = 1;
        int64_t terms_of_part = 0;  ///< if each part of the terms has blocks of its own
    } c;
    Tensor q, k, v, s, m, p, l, o, lse;

    explicit Attention(const Options& options) : c(options) {
        const Expr rows = c.sized ? size("rows", {.min = 1, .max = 4096}) : Expr(c.rows);
        const Expr terms = c.sized ? size("terms", {.min = 0, .max = 4096}) : Expr(c.terms);
        q = input("q", c.type, {c.heads, rows, c.depth}), k = input("k", c.type, {c.heads, terms, c.depth});
        v = input("v", c.type, {c.heads, terms, c.width});
        Axis d = reduce_axis("d", c.depth), j1 = reduce_axis("j1", terms), j2 = reduce_axis("j2", terms),
             j3 = reduce_axis("j3", terms);
        s = compute("s", {c.heads, rows, terms}, [&](Expr h, Expr i, Expr j) {
            Expr x = sum(cast(f32, q(h, i, d)) * cast(f32, k(h, j, d)), d);
            Expr score = min(max(x, -5.0), 5.0);  // so that sums are exact
            return c.causal ? select(j <= i, score, -infinity) : score;
        });
        m = compute("m", {c.heads, rows}, [&](Expr h, Expr i) { return reduce_max(s(h, i, j1), j1); });
        p = compute("p", {c.heads, rows, terms}, [&](Expr h, Expr i, Expr j) { return exp2(s(h, i, j) - m(h, i)); });
        l = compute("l", {c.heads, rows}, [&](Expr h, Expr i) { return sum(p(h, i, j2), j2); });
        o = compute("o", {c.heads, rows, c.width},
                    [&](Expr h, Expr i, Expr e) { return sum(p(h, i, j3) * cast(f32, v(h, j3, e)), j3) / l(h, i); });
        lse = compute("lse", {c.heads, rows}, [&](Expr h, Expr i) { return m(h, i) + l(h, i); });
    }

    /// What a launch is given, in whole numbers.
    Bindings launch(uint64_t seed) const {
        Bindings result;
        if (c.sized) result.sizes = {{"rows", c.rows}, {"terms", c.terms}};
        result.inputs = {{"q", host_array(c.type, {c.heads, c.rows, c.depth})},
                         {"k", host_array(c.type, {c.heads, c.terms, c.depth})},
                         {"v", host_array(c.type, {c.heads, c.terms, c.width})}};
        for (auto& [name, array] : result.inputs) fill_integers(array, -4, 4, ++seed);
        return result;
    }

    Schedule schedule(const Target& target) const {
        Schedule g({o, lse}, target);
        if (c.terms_of_part == 0) {
            one_pass(g, m, p, l, o);
            return g;
        }
        const Loop part = g.split(g.reduce(o), c.terms_of_part, Tail::Mask, {"part", "in_part"})[0];
        auto [m_part, p_part, l_part, o_part] = g.rfactor<4>({m, p, l, o}, part);
        one_pass(g, m_part, p_part, l_part, o_part);
        return g;
    }

private:
    void one_pass(Schedule& g, const StageRef& largest, const StageRef& weights, const StageRef& total,
                  const StageRef& values) const {
        std::vector<Loop> data = g.data_loops(values), outer;
        if (data.size() > 3) outer.push_back(data[0]);  // parts
        const Loop h = data[data.size() - 3], i = data[data.size() - 2], width = data.back();
        auto [e_tile, e] = g.split(width, (c.width + 15) / 16 * 16, Tail::Mask, {"e_tile", "e"});
        auto [block, in_block] = g.split(i, c.block, Tail::Mask, {"block", "in_block"});
        auto [warps, row] = g.split(in_block, c.group ? 64 : 16, {"warps", "row"});
        auto [tile, term] = g.split(g.reduce(values), c.tile, Tail::Mask, {"tile", "term"});
        outer.insert(outer.end(), {h, block});
        std::vector<Loop> all = outer;
        all.insert(all.end(), {e_tile, warps, tile, row, e, term});
        g.order(all);
        if (c.persistent) {
            g.persistent(outer, {.blocks = 3, .stages = std::max(c.query_stages, 1), .dynamic = c.dynamic});
        } else {
            if (outer.size() > 2) g.bind(outer[0], grid.z);
            g.bind(h, grid.y);
            g.bind(block, grid.x);
        }
        g.bind(warps, c.group ? warpgroup : warp);
        g.stream({largest, total, values}, tile);
        g.set_memory(weights, Memory::Registers);
        g.round_to(g.stage(values, weights, Memory::Registers, tile), c.type);
        g.mma(values, c.group ? wgmma : mma_sync, {.m = row, .n = e, .k = term});
        g.at(s, tile);
        g.set_memory(s, Memory::Registers);
        auto [s_h, s_i, s_j] = g.loops<3>(s);
        auto [d_tile, d] = g.split(g.reduce(s), (c.depth + 15) / 16 * 16, Tail::Mask, {"d_tile", "d"});
        g.order({s_h, d_tile, s_i, s_j, d});
        if (c.terms_of_part == 0) g.at(lse, warps);
        if (c.skip) g.skip(tile, s);
        if (c.cut) g.cut(tile, where_partial(s));
        if (c.reversed) g.reverse(tile);
        Stage queries = g.stage(s, q, Memory::Shared, block);
        Stage keys = g.stage(s, k, Memory::Shared, tile), of_values = g.stage(values, v, Memory::Shared, tile);
        g.mma(s, c.group ? wgmma : mma_sync, {.m = s_i, .n = s_j, .k = d});
        if (c.stages > 1) g.pipeline(tile, {.stages = c.stages});
        if (c.overlaps) g.delay(values, tile, {.before = largest});
        std::vector<StageRef> loaded{keys, of_values};
        if (c.query_stages > 0) loaded.emplace_back(queries);
        if (c.roles)
            g.roles({{"load", tw::warps(1), {}, loaded},
                     {"math", warpgroups(static_cast<int>(c.block / 64)), {}, {values}}});
    }
};

TEST_P(Streams, AttentionFromItsFormula) {
    for (int round = 0; round < 12; ++round) {
        Attention::Options c{.group = chance(), .type = chance() ? bf16 : f16, .causal = chance()};
        c.block = (c.group ? 64 : 16) * between(1, 2);
        c.rows = c.block * between(1, 3) - (chance() ? between(1, 9) : 0);
        c.tile = 16 * between(1, 4);
        c.terms =
            (c.causal ? c.rows + c.tile - c.rows % c.tile : c.tile * between(1, 4)) - (chance() ? between(1, 9) : 0);
        c.depth = 8 * between(2, 8), c.width = 8 * between(2, 8);
        c.heads = between(1, 2);
        c.cut = (c.causal || c.terms % c.tile != 0) && chance(),
        c.skip = c.causal && c.terms / c.tile > (c.block - 1) / c.tile + 1;
        c.stages = c.cut ? 1 : between(1, 3);
        c.roles = c.group && c.stages > 1 && c.depth == 64 && c.width == 64;
        c.persistent = chance(), c.sized = !c.cut && chance(), c.dynamic = chance();
        const Attention attention(c);
        const Schedule s = attention.schedule(device_target());
        SCOPED_TRACE(s.trace_as_cpp());
        const std::string text = build(s).cuda();
        for (const char* array : {"shared.p", "shared.s[", "shared.m", "shared.l"})
            EXPECT_EQ(text.find(array), std::string::npos) << text;
        expect_declared(s, attention.launch(static_cast<uint64_t>(round)), equal_values);
    }
}

/// Each part of the keys in blocks of its own (split KV), from the same formula; parts that end early, or see no key.
TEST_P(Streams, AttentionInPartsFromItsFormula) {
    for (int round = 0; round < 8; ++round) {
        Attention::Options c{.group = chance(), .type = chance() ? bf16 : f16, .causal = chance()};
        c.block = c.group ? 64 : 16 * between(1, 2);
        c.rows = c.block * between(1, 2) - (chance() ? between(1, 9) : 0);
        c.tile = 16 * between(1, 3);
        c.terms_of_part = c.tile * between(1, 3);
        c.terms = c.terms_of_part * between(1, 3) + (c.causal || chance() ? 0 : between(1, 9));
        c.causal = c.causal && c.terms >= c.rows;
        c.depth = 8 * between(2, 8), c.width = 8 * between(2, 8);
        c.heads = between(1, 2);
        c.stages = between(1, 3);
        if (c.group && chance()) c.roles = true, c.depth = c.width = 64, c.stages = between(2, 3);
        c.persistent = chance(), c.dynamic = chance();
        const Attention attention(c);
        const Schedule s = attention.schedule(device_target());
        SCOPED_TRACE(s.trace_as_cpp());
        expect_declared(s, attention.launch(static_cast<uint64_t>(round)), equal_values);
        EXPECT_EQ(replay(s.save(), s.outputs(), device_target()).to_string(), s.to_string());
    }
}

/// The steps that make it fast, in all combinations: segments through which one ring of copies goes, backwards or not,
/// products that run under the next tile's scores, queries of the next block on their way, blocks that take turns.
TEST_P(Streams, AttentionWithProductsUnderTheNextScores) {
    for (int round = 0; round < 10; ++round) {
        Attention::Options c{.group = true, .type = chance() ? bf16 : f16, .causal = chance(), .roles = round > 1};
        c.block = 64 * between(1, 2);
        c.tile = chance() ? 64 : 32;
        c.rows = c.block * between(1, 3);
        c.terms = c.causal ? (c.rows + c.tile - 1) / c.tile * c.tile : c.tile * between(1, 5);
        c.terms -= chance() ? between(1, 9) : 0;
        c.rows -= chance() ? between(1, 9) : 0;
        c.depth = c.width = 64;
        c.skip = c.causal && c.terms / c.tile > (c.block - 1) / c.tile + 1;
        c.cut = (c.causal || c.terms % c.tile != 0) && chance();
        c.reversed = chance();
        c.overlaps = round % 4 != 3;
        c.stages = c.roles ? between(2, 3) : 1 + (c.cut ? 0 : between(0, 1));
        c.overlaps = c.overlaps && (c.roles || !c.cut);
        c.persistent = chance();
        c.query_stages = c.roles ? between(0, c.persistent ? 2 : 1) : 0;
        c.dynamic = chance();
        const Attention attention(c);
        const Schedule s = attention.schedule(device_target());
        SCOPED_TRACE(s.trace_as_cpp());
        const std::string text = build(s).cuda();
        const bool runs_on = c.overlaps && c.stages > 1 && c.terms > c.tile;
        EXPECT_TRUE(!runs_on || !c.roles || text.find("wgmma_wait<1>") != std::string::npos) << text;
        expect_declared(s, attention.launch(static_cast<uint64_t>(round)), equal_values);
        EXPECT_EQ(replay(s.save(), s.outputs(), device_target()).to_string(), s.to_string());
    }
}

/// The gradients of keys and values: two sums over the same queries, in one pass without a law; scores transposed, so
/// that both products take their rows from registers.
struct KeyGradients {
    struct Options {
        bool group = true;  ///< wgmma, else mma_sync
        bool causal = false, skip = false, roles = false;
        int64_t rows = 128, terms = 128, block = 128, tile = 64, depth = 64;
        int stages = 1;
    } c;
    Tensor q, k, v, g, m, delta, s, p, dp, ds, dv, dk;

    explicit KeyGradients(const Options& options) : c(options) {
        q = input("q", bf16, {2, c.terms, c.depth}), g = input("g", bf16, {2, c.terms, c.depth});
        k = input("k", bf16, {2, c.rows, c.depth}), v = input("v", bf16, {2, c.rows, c.depth});
        m = input("m", f32, {2, c.terms}), delta = input("delta", f32, {2, c.terms});
        Axis d = reduce_axis("d", c.depth), e = reduce_axis("e", c.depth), i1 = reduce_axis("i1", c.terms),
             i2 = reduce_axis("i2", c.terms);
        s = compute("s", {2, c.terms, c.rows}, [&](Expr h, Expr i, Expr j) {
            Expr x = min(max(sum(cast(f32, q(h, i, d)) * cast(f32, k(h, j, d)), d), -2.0), 2.0);
            return c.causal ? select(j <= i, x, -infinity) : x;
        });
        p = compute("p", {2, c.terms, c.rows}, [&](Expr h, Expr i, Expr j) { return exp2(s(h, i, j) - m(h, i)); });
        dp = compute("dp", {2, c.terms, c.rows},
                     [&](Expr h, Expr i, Expr j) { return sum(cast(f32, g(h, i, e)) * cast(f32, v(h, j, e)), e); });
        ds = compute("ds", {2, c.terms, c.rows}, [&](Expr h, Expr i, Expr j) {
            return (min(max(dp(h, i, j), -2.0), 2.0) - delta(h, i)) * p(h, i, j);
        });
        dv = compute("dv", {2, c.rows, c.depth},
                     [&](Expr h, Expr j, Expr x) { return sum(p(h, i1, j) * cast(f32, g(h, i1, x)), i1); });
        dk = compute("dk", {2, c.rows, c.depth},
                     [&](Expr h, Expr j, Expr x) { return sum(ds(h, i2, j) * cast(f32, q(h, i2, x)), i2); });
    }

    MmaLoops transposed(Schedule& z, const Tensor& product, const Loop& under) const {
        z.at(product, under);
        z.set_memory(product, Memory::Registers);
        auto [h, i, j] = z.loops<3>(product);
        auto [k_tile, k_term] = z.split(z.reduce(product), c.depth, {"k_tile", "k_term"});
        z.order({h, k_tile, j, i, k_term});
        return {.m = j, .n = i, .k = k_term};
    }

    Schedule schedule(const Target& target) const {
        const MatrixUnit unit = c.group ? wgmma : mma_sync;
        Schedule z({dk, dv}, target);
        auto [h, j, x] = z.loops<3>(dk);
        auto [block, in_block] = z.split(j, c.block, Tail::Mask, {"block", "in_block"});
        auto [warps, row] = z.split(in_block, c.group ? 64 : 16, {"warps", "row"});
        auto [tile, term] = z.split(z.reduce(dk), c.tile, Tail::Mask, {"tile", "term"});
        z.order({h, block, warps, tile, row, x, term});
        z.bind(h, grid.y);
        z.bind(block, grid.x);
        z.bind(warps, c.group ? warpgroup : warp);
        z.stream({dv, dk}, tile);
        for (const Tensor& made : {ds, p}) {
            z.at(made, tile);
            z.set_memory(made, Memory::Registers);
        }
        z.round_to(z.stage(dv, p, Memory::Registers, tile), bf16);
        z.round_to(z.stage(dk, ds, Memory::Registers, tile), bf16);
        z.mma(dk, unit, {.m = row, .n = x, .k = term});
        auto loops = z.data_loops(dv);
        z.mma(dv, unit, {.m = loops[1], .n = loops[2], .k = z.reduce(dv)});
        MmaLoops of_s = transposed(z, s, tile), of_dp = transposed(z, dp, tile);
        if (c.skip) z.skip(tile, s);
        z.stage(s, k, Memory::Shared, block);
        z.stage(dp, v, Memory::Shared, block);
        Stage queries = z.stage({s, dk}, q, Memory::Shared, tile), given = z.stage({dp, dv}, g, Memory::Shared, tile);
        z.mma(s, unit, of_s);
        z.mma(dp, unit, of_dp);
        if (c.stages > 1) z.pipeline(tile, {.stages = c.stages});
        if (c.roles)
            z.roles({{"load", tw::warps(1), {}, {queries, given}},
                     {"math", warpgroups(static_cast<int>(c.block / 64)), {}, {dk}}});
        return z;
    }
};

TEST_P(Streams, GradientsOfKeysAndValues) {
    for (int round = 0; round < 5; ++round) {
        KeyGradients::Options c{.group = chance(), .causal = chance()};
        c.block = (c.group ? 64 : 16) * between(1, 2);
        c.tile = 16 * between(1, 4);
        c.depth = 16 * between(1, 4);
        c.rows = chance() ? c.block * 2 - between(0, 9) : c.block;
        c.terms = std::max<int64_t>(c.tile * between(1, 3) - (chance() ? between(1, 9) : 0), c.causal ? c.rows : 0);
        c.skip = c.causal && c.rows > c.block && c.block >= c.tile;
        c.stages = between(1, 2);
        c.roles = c.group && c.stages > 1 && c.depth == 64;
        const KeyGradients gradients(c);
        const Schedule z = gradients.schedule(device_target());
        SCOPED_TRACE(z.trace_as_cpp());
        expect_declared(z, whole_numbers(z.outputs(), round), equal_values);
    }
}

/// sum_j exp(x - max_j x) and what else a test streams.
struct Softmax {
    Tensor x = input("x", f32, {6, 8}), y = input("y", f32, {6, 8});
    Axis j = reduce_axis("j", 8), k = reduce_axis("k", 8);
    Tensor largest = compute("largest", {6}, [&](Expr i) { return reduce_max(x(i, j), j); });

    Tensor summed(const std::function<Expr(const Expr& i, const Expr& k)>& term) const {
        return compute("total", {6}, [&](Expr i) { return sum(term(i, k), k); });
    }
    static void stream(const std::vector<Tensor>& reductions, const std::vector<Tensor>& also = {}) {
        std::vector<Tensor> outputs{reductions.back()};
        outputs.insert(outputs.end(), also.begin(), also.end());
        Schedule s(outputs, target("sm_90a"));
        std::vector<StageRef> refs(reductions.begin(), reductions.end());
        s.stream(refs, s.reduce(reductions.back()));
    }
};

/// Terms with a factor that changes alone have a law, whatever their form; others are refused with the part that has
/// none.
TEST(StreamLaws, FactorsAreFoundInAllForms) {
    Softmax c;
    auto is_streamed = [&](const std::function<Expr(const Expr&, const Expr&)>& term) {
        EXPECT_NO_THROW(Softmax::stream({c.largest, c.summed(term)}));
    };
    is_streamed([&](Expr i, Expr k) { return exp(c.x(i, k) - c.largest(i)); });
    is_streamed([&](Expr i, Expr k) { return exp2((c.x(i, k) - c.largest(i)) * 1.5) * c.y(i, k); });
    is_streamed([&](Expr i, Expr k) { return exp2(c.x(i, k) * 1.5 - c.largest(i) * 1.5) * c.y(i, k) * 2.0; });
    is_streamed([&](Expr i, Expr k) { return c.y(i, k) / (exp(c.largest(i)) + 1.0); });
    is_streamed([&](Expr i, Expr k) { return c.y(i, k) * rsqrt(c.largest(i) * c.largest(i) + 1.0); });
    is_streamed([&](Expr i, Expr k) { return exp(c.x(i, k) - c.largest(i)) + 3.0 * exp(-c.largest(i)); });
    is_streamed([&](Expr i, Expr k) { return sqrt(exp(c.x(i, k) - c.largest(i) / 2.0)); });
    is_streamed([&](Expr i, Expr k) { return select(c.y(i, k) > 0, exp(c.x(i, k) - c.largest(i)), 0.0); });
    is_streamed([&](Expr i, Expr k) { return exp(log(exp(c.x(i, k)) * exp(-c.largest(i)))); });
    is_streamed([&](Expr i, Expr k) {
        return cast(f32, cast(bf16, exp(c.x(i, k) - c.largest(i)))) * abs(c.y(i, k) * c.largest(i));
    });

    auto is_refused = [&](const std::function<Expr(const Expr&, const Expr&)>& term, const std::string& part) {
        EXPECT_ERROR(Softmax::stream({c.largest, c.summed(term)}), part);
    };
    is_refused([&](Expr i, Expr k) { return (c.x(i, k) - c.largest(i)) * (c.x(i, k) - c.largest(i)); },
               "'total' cannot run in one pass with 'largest'");
    is_refused([&](Expr i, Expr k) { return c.y(i, k) * (c.x(i, k) - c.largest(i)); }, "do not change alike");
    is_refused([&](Expr i, Expr k) { return max(c.x(i, k) - c.largest(i), 0.0); }, "do not change alike");
    is_refused([&](Expr i, Expr k) { return select(c.x(i, k) < c.largest(i), c.y(i, k), 0.0); }, "do not change alike");
    is_refused([&](Expr i, Expr k) { return select(tanh(c.largest(i)) > c.x(i, k), c.y(i, k), 0.0); },
               "do not change alike");
    is_refused([&](Expr i, Expr k) { return tanh(c.x(i, k) - c.largest(i)); }, "has no factor that changes alone");
    is_refused([&](Expr i, Expr k) { return exp(c.x(i, k) * c.largest(i)); }, "has no summand that changes alone");
}

TEST(StreamLaws, CorrectionsDistributeOverTheReducer) {
    Softmax c;
    Tensor high = compute("high", {6}, [&](Expr i) { return reduce_max(c.y(i, c.k) - c.largest(i), c.k); });
    EXPECT_NO_THROW(Softmax::stream({c.largest, high}));
    Tensor scaled = compute("scaled", {6}, [&](Expr i) { return reduce_max(exp(c.y(i, c.k) - c.largest(i)), c.k); });
    EXPECT_NO_THROW(Softmax::stream({c.largest, scaled}));
    Tensor where = compute_tuple(
        "where", {6}, [&](const std::vector<Expr>& at) { return argmax(c.y(at[0], c.k) - c.largest(at[0]), c.k); })[0];
    EXPECT_NO_THROW(Softmax::stream({c.largest, where}));
    Reducer log_sum = make_reducer("log_sum", {-infinity}, [](const auto& a, const auto& b) {
        Expr high = max(a[0], b[0]);
        return std::vector<Expr>{high + log(exp(a[0] - high) + exp(b[0] - high))};
    });
    Tensor logarithm =
        compute("logarithm", {6}, [&](Expr i) { return reduce(log_sum, {c.y(i, c.k) - c.largest(i)}, {c.k})[0]; });
    EXPECT_NO_THROW(Softmax::stream({c.largest, logarithm}));
    Tensor product = compute("product", {6}, [&](Expr i) { return prod(exp(c.x(i, c.k) - c.largest(i)), c.k); });
    EXPECT_ERROR(Softmax::stream({c.largest, product}), "multiplies what has been reduced");
    Reducer above_zero = make_reducer("above_zero", {0.0},
                                      [](const auto& a, const auto& b) { return std::vector<Expr>{max(a[0], b[0])}; });
    Tensor positive =
        compute("positive", {6}, [&](Expr i) { return reduce(above_zero, {c.y(i, c.k) - c.largest(i)}, {c.k})[0]; });
    EXPECT_ERROR(Softmax::stream({c.largest, positive}), "the identity of the reducer 'above_zero' would be corrected");
    Tensor w = input("w", i32, {6, 8});
    Tensor most = compute("most", {6}, [&](Expr i) { return reduce_max(w(i, c.j), c.j); });
    Tensor whole = compute("whole", {6}, [&](Expr i) { return sum(w(i, c.k) * most(i), c.k); });
    EXPECT_ERROR(Softmax::stream({most, whole}), "has no factor that changes alone");
    Tensor least = compute("least", {6}, [&](Expr i) { return reduce_max(w(i, c.k) - most(i), c.k); });
    EXPECT_ERROR(Softmax::stream({most, least}), "'least' cannot run in one pass with 'most'");
    Tensor negative = compute("negative", {6}, [&](Expr i) { return reduce_max(c.y(i, c.k) * c.largest(i), c.k); });
    EXPECT_ERROR(Softmax::stream({c.largest, negative}), "changes its order if a factor is negative");
}

/// Of rows of 12 terms, in tiles of 4, of which x ascends, so that every tile changes the maximum; behind the diagonal
/// `masked` is empty, the first tiles of most rows first.
struct Ascending {
    Tensor x = input("x", f32, {6, 12}), y = input("y", f32, {6, 12}), w = input("w", f32, {6});
    Axis j = reduce_axis("j", 12), k = reduce_axis("k", 12);
    Tensor masked = compute("masked", {6, 12}, [&](Expr a, Expr b) { return select(b >= 2 * a, x(a, b), -infinity); });
    Tensor m = compute("m", {6}, [&](Expr i) { return reduce_max(x(i, j), j); });

    static void expect_equal(Schedule& s, double first) {
        Bindings launch = whole_numbers(s.outputs(), 5);
        for (int64_t row = 0; row < 6; ++row)
            for (int64_t column = 0; column < 12; ++column)
                launch.inputs.at("x").set({row, column}, make_value(f32, first + static_cast<double>(column) * 0.5));
        SCOPED_TRACE(s.trace_as_cpp());
        auto got = interpret_tree(s.tree(), launch), expected = interpret_plain(s.outputs(), launch);
        for (size_t k = 0; k < got.size(); ++k)
            EXPECT_EQ(difference("output", got[k], expected[k], near(64, 1e-4)), std::nullopt) << s.to_string();
    }
    static void expect_equal(const std::vector<Tensor>& reductions, double first,
                             const std::vector<Tensor>& also = {}) {
        std::vector<Tensor> outputs{reductions.back()};
        outputs.insert(outputs.end(), also.begin(), also.end());
        std::vector<StageRef> refs(reductions.begin(), reductions.end());
        Schedule s(outputs, target("sm_90a"));
        s.stream(refs, s.split(s.reduce(reductions.back()), 4)[0]);
        expect_equal(s, first);
        for (int64_t terms : {1, 4, 5}) {  // of a part
            Schedule passes(outputs, target("sm_90a"));
            const Loop part = passes.split(passes.reduce(reductions.back()), terms, Tail::Mask)[0];
            const std::vector<Stage> parts = passes.rfactor(refs, part);
            expect_equal(passes, first);
            passes.stream({parts.begin(), parts.end()}, passes.split(passes.reduce(parts.back()), 2, Tail::Mask)[0]);
            expect_equal(passes, first);
        }
    }
    Tensor total(const std::function<Expr(Expr y, Expr r)>& term) const {
        return compute("total", {6}, [&](Expr i) { return sum(term(y(i, k), m(i)), k); });
    }
};

TEST(Stream, ValuesThatHaveNoInverseOnTheirWay) {
    Ascending c;
    Ascending::expect_equal({c.m, c.total([](Expr y, Expr r) { return y * log2(r); })}, -0.5);
    Ascending::expect_equal({c.m, c.total([](Expr y, Expr r) { return y * (r - 1.0); })}, -0.5);
    Ascending::expect_equal({c.m, c.total([](Expr y, Expr r) { return y / (1.0 - r); })}, -0.5);
    EXPECT_ERROR(Ascending::expect_equal({c.m, c.total([](Expr y, Expr r) { return y * log2(r - 100.0); })}, 0),
                 "to stand for values of 'm' without an inverse; compute 'm' in a pass before");
    Tensor other = compute("other", {6}, [&](Expr i) { return sum(c.y(i, c.k) * (c.m(i) + c.w(i)), c.k); });
    EXPECT_ERROR(Ascending::expect_equal({c.m, other}, 0), "which depends on more than 'm'");
}

TEST(Stream, EmptyTilesFirst) {
    Ascending c;
    Tensor largest = compute("largest", {6}, [&](Expr i) { return reduce_max(c.masked(i, c.j) * 2.0, c.j) * 0.5; });
    Tensor sums = compute("sums", {6}, [&](Expr i) { return sum(exp2(c.masked(i, c.k) - largest(i)), c.k); });
    Ascending::expect_equal({largest, sums}, -3);
    Tensor shifted = compute("shifted", {6}, [&](Expr i) { return reduce_max(c.masked(i, c.k) - c.m(i), c.k); });
    Ascending::expect_equal({c.m, shifted}, -3);
    Tensor none = compute("none", {6, 12}, [&](Expr a, Expr b) { return select(b < a - 20, c.x(a, b), -infinity); });
    Tensor of_none = compute("of_none", {6}, [&](Expr i) { return reduce_max(none(i, c.k) - c.m(i), c.k); });
    Ascending::expect_equal({c.m, of_none}, -3);
    Tensor narrow = compute("narrow", {6}, [&](Expr i) { return cast(bf16, reduce_max(c.masked(i, c.j), c.j)); });
    Tensor of_narrow =
        compute("of_narrow", {6}, [&](Expr i) { return sum(exp2(c.masked(i, c.k) - cast(f32, narrow(i))), c.k); });
    Ascending::expect_equal({narrow, of_narrow}, -3);
}

TEST(Stream, StagesBetweenThatReadEachOther) {
    Ascending c;
    Tensor weights = compute("weights", {6, 12}, [&](Expr i, Expr b) { return exp2(c.x(i, b) - c.m(i)); });
    Tensor products = compute("products", {6, 12}, [&](Expr i, Expr b) { return weights(i, b) * c.y(i, b); });
    Tensor l = compute("l", {6}, [&](Expr i) { return sum(weights(i, c.k), c.k); });
    Axis n = reduce_axis("n", 12);
    Tensor o = compute("o", {6}, [&](Expr i) { return sum(products(i, n), n) / l(i); });
    Ascending::expect_equal({c.m, l, o}, -2);
}

TEST(Stream, AllOutputsOfATuple) {
    Ascending c;
    std::vector<Tensor> at =
        compute_tuple("at", {6}, [&](const std::vector<Expr>& i) { return argmax(c.x(i[0], c.j), c.j); });
    Tensor total = compute("total", {6}, [&](Expr i) { return sum(exp2(c.x(i, c.k) - at[0](i)), c.k); });
    Schedule s({total, at[0], at[1]}, target("sm_90a"));
    s.stream({at[0], total}, s.split(s.reduce(total), 4)[0]);
    Ascending::expect_equal(s, -2);
    std::set<std::string> names;
    for (const BufferRef& output : s.tree().outputs) names.insert(output->name);
    EXPECT_EQ(names, (std::set<std::string>{"total", "at_0", "at_1"}));
}

/// Parts of rows some of which see no term, or none in any part: the sum of exponentials, its logarithm, and a largest
/// value that has a factor.
TEST(StreamInParts, GiveTheSameBits) {
    Ascending c;
    Tensor m = compute("largest", {6}, [&](Expr i) { return reduce_max(c.masked(i, c.j), c.j); });
    Tensor p = compute("p", {6, 12}, [&](Expr i, Expr b) { return exp2(c.masked(i, b) - m(i)); });
    Tensor l = compute("l", {6}, [&](Expr i) { return sum(p(i, c.k), c.k); });
    Tensor lse = compute("lse", {6}, [&](Expr i) { return m(i) + log2(l(i)); });
    Axis n = reduce_axis("n", 12);
    Tensor top = compute("top", {6}, [&](Expr i) { return reduce_max(p(i, n) * c.y(i, n), n) / l(i); });
    for (int64_t terms : {1, 2, 3, 4, 5, 12})
        for (bool streamed : {false, true}) {
            Schedule s({top, lse}, target("sm_90a"));
            const Loop part = s.split(s.reduce(top), terms, Tail::Mask, {"part", "in_part"})[0];
            auto [m_part, p_part, l_part, top_part] = s.rfactor<4>({m, p, l, top}, part);
            EXPECT_EQ(s.name(p_part), "p_partial");
            EXPECT_ERROR(s.reduce(p), "'p' is not computed in this schedule");
            auto [each, row] = s.loops<2>(top_part);
            s.order({each, row});
            s.bind(each, grid.x);
            if (streamed) s.stream({m_part, l_part, top_part}, s.reduce(top_part));
            SCOPED_TRACE(s.trace_as_cpp());
            Bindings launch = whole_numbers(s.outputs(), 3);
            auto got = interpret_tree(s.tree(), launch), expected = interpret_plain(s.outputs(), launch);
            EXPECT_EQ(differs_in_numbers(got, expected, equal_values), std::nullopt) << s.to_string();
        }
}

TEST(StreamInParts, StagesBetweenThatReadEachOther) {
    Ascending c;
    Tensor shifted = compute("shifted", {6, 12}, [&](Expr i, Expr b) { return c.x(i, b) - c.m(i); });
    Tensor weights = compute("weights", {6, 12}, [&](Expr i, Expr b) { return exp2(shifted(i, b)); });
    Tensor products = compute("products", {6, 12}, [&](Expr i, Expr b) {
        return weights(i, b) * c.y(i, b) + exp2(shifted(i, b));  // read twice
    });
    Tensor l = compute("l", {6}, [&](Expr i) { return sum(products(i, c.k), c.k); });
    Schedule s({l}, target("sm_90a"));
    s.rfactor({c.m, l}, s.split(s.reduce(l), 4)[0]);
    std::set<std::string> names;
    for (const Stage& stage : s.all_stages()) names.insert(s.name(stage));
    EXPECT_EQ(names, (std::set<std::string>{"m", "m_partial", "shifted_partial", "weights_partial", "products_partial",
                                            "l_partial", "l"}));
    Ascending::expect_equal(s, -2);
}

/// A single number has no loop around its reduction: its parts do.
TEST(StreamInParts, OfANumber) {
    Tensor x = input("x", f32, {37});
    Axis j = reduce_axis("j", 37), k = reduce_axis("k", 37);
    Tensor m = compute("m", {}, [&] { return reduce_max(x(j), j); });
    Tensor l = compute("l", {}, [&] { return sum(exp2(x(k) - m()), k); });
    Schedule s({m, l}, target("sm_90a"));
    auto [m_part, l_part] = s.rfactor<2>({m, l}, s.split(s.reduce(l), 10, Tail::Mask)[0]);
    s.stream({m_part, l_part}, s.split(s.reduce(l_part), 5)[0]);
    Bindings launch = whole_numbers(s.outputs(), 3);
    auto got = interpret_tree(s.tree(), launch), expected = interpret_plain(s.outputs(), launch);
    for (size_t n = 0; n < got.size(); ++n)
        EXPECT_EQ(difference("output", got[n], expected[n], equal_values), std::nullopt) << s.to_string();
    EXPECT_EQ(got.size(), 2);
}

TEST(StreamInParts, WhatOthersReadStaysWhole) {
    Ascending c;
    Tensor p = compute("p", {6, 12}, [&](Expr i, Expr b) { return exp2(c.x(i, b) - c.m(i)); });
    Tensor l = compute("l", {6}, [&](Expr i) { return sum(p(i, c.k), c.k); });
    Schedule s({l, p}, target("sm_90a"));
    s.rfactor({c.m, l}, s.split(s.reduce(l), 4)[0]);
    EXPECT_EQ(s.name(p), "p");
    EXPECT_NE(s.explain().find("'l' are combined in parts along 'k_outer', each corrected from its own values"),
              std::string::npos)
        << s.explain();
    Ascending::expect_equal(s, -2);
}

TEST(StreamErrors, TermsThatAreNoBox) {
    Ascending c;
    Tensor total = c.total([](Expr y, Expr r) { return exp2(y - r); });
    auto attempt = [&](const std::function<Loop(Schedule&)>& shared) {
        Schedule s({total}, target("sm_90a"));
        s.stream({c.m, total}, shared(s));
    };
    const char* message = "is no box of neighbouring terms, each once: others could not share it";
    EXPECT_ERROR(attempt([&](Schedule& s) {
                     auto [outer, inner] = s.split(s.reduce(total), 4);
                     s.order({inner, outer});
                     return inner;
                 }),
                 message);
    EXPECT_ERROR(attempt([&](Schedule& s) {
                     auto [outer, inner] = s.split(s.reduce(total), 4);
                     s.split(inner, 3, Tail::Mask);
                     return outer;
                 }),
                 message);
    attempt([&](Schedule& s) { return s.split(s.split(s.reduce(total), 4)[0], 2, Tail::Mask)[0]; });
    Schedule s({total}, target("sm_90a"));
    auto [outer, inner] = s.split(s.reduce(total), 4);
    s.stream({c.m, total}, outer);
    EXPECT_ERROR(s.split(inner, 3, Tail::Mask), message);
    Tensor weights = compute("weights", {6, 12}, [&](Expr i, Expr b) { return exp2(c.x(i, b) - c.m(i)); });
    Tensor l = compute("l", {6}, [&](Expr i) { return sum(weights(i, c.k), c.k); });
    Schedule outside({l}, target("sm_90a"));
    outside.stream({c.m, l}, outside.split(outside.reduce(l), 4)[0]);
    EXPECT_ERROR(outside.stage(weights, c.m, Memory::Shared, outside.data_loops(l)[0]),
                 "stands outside of loop 'k_outer', but 'weights' reads it inside, where 'm' still runs");
}

TEST(StreamErrors, WhatCannotShareALoop) {
    Softmax c;
    Tensor other = c.summed([&](Expr i, Expr k) { return c.x((i + 1) % 6, k) * c.largest((i + k) % 6); });
    EXPECT_ERROR(Softmax::stream({c.largest, other}), "at an index that differs from term to term");
    Tensor plain = compute("plain", {6}, [&](Expr i) { return c.x(i, i) + 1.0; });
    Tensor total = c.summed([&](Expr i, Expr k) { return exp(c.x(i, k) - c.largest(i)); });
    EXPECT_ERROR(Softmax::stream({plain, total}, {plain}), "it reduces nothing");
    EXPECT_ERROR(Softmax::stream({total}), "name at least two reductions");
    EXPECT_ERROR(Softmax::stream({total, total}), "'total' is named twice");
    EXPECT_ERROR(Softmax::stream({total, c.largest}, {total}), "'total' reads 'largest', which is named last");
    Axis half = reduce_axis("half", 4);
    Tensor shorter = compute("shorter", {6}, [&](Expr i) { return sum(c.x(i, half), half); });
    EXPECT_ERROR(Softmax::stream({shorter, total}, {shorter}), "'shorter' reduces 4 terms, 'total' 8");
    Reducer last = make_reducer(
        "last", {0.0}, [](const auto& a, const auto& b) { return std::vector<Expr>{select(b[0] != 0.0, b[0], a[0])}; },
        false);
    Tensor ordered = compute("ordered", {6}, [&](Expr i) { return reduce(last, {c.y(i, c.k)}, {c.k})[0]; });
    EXPECT_ERROR(Softmax::stream({ordered, total}, {ordered}), "its reducer 'last' is not commutative");
    Axis some = reduce_axis("some", Expr(8));
    Tensor triangle = compute("triangle", {6}, [&](Expr i) {
        Axis to = reduce_axis("to", i + 1);
        return sum(c.x(i, to), to);
    });
    EXPECT_ERROR(Softmax::stream({triangle, total}, {triangle}), "'triangle' reduces i + 1 terms, 'total' 8");
    Tensor mean = compute("mean", {6}, [&](Expr i) { return sum(c.y(i, c.k), c.k) / 8.0; });
    Tensor between = compute("between", {6, 8}, [&](Expr i, Expr j) {
        Axis d = reduce_axis("d", 8);
        return sum(c.x(i, d) * exp(c.y(i, j) - c.largest(i)), d);
    });
    Tensor behind = c.summed([&](Expr i, Expr k) { return between(i, k); });
    EXPECT_ERROR(Softmax::stream({c.largest, behind}), "'between' is a reduction between those that are named");
    Tensor mixed =
        compute("mixed", {6}, [&](Expr i) { return sum(exp(c.x(i, c.k) - c.largest(i)), c.k) + c.largest(i); });
    Tensor reader = c.summed([&](Expr i, Expr k) { return c.y(i, k) / mixed(i); });
    EXPECT_ERROR(Softmax::stream({c.largest, mixed, reader}), "would need that of 'largest' so far");
    Tensor number = compute("number", {}, [&] { return sum(c.x(0, c.k), c.k); });
    Axis all = reduce_axis("all", 8);
    Tensor peak = compute("peak", {}, [&] { return reduce_max(c.x(0, all), all); });
    EXPECT_ERROR(Softmax::stream({peak, number}, {peak}), "no loop stands around the reduce loops of 'number'");
}

TEST(StreamErrors, WhatHasNoParts) {
    Softmax c;
    Tensor weights = compute("weights", {6, 8}, [&](Expr i, Expr k) { return exp(c.x(i, k) - c.largest(i)); });
    Tensor plain = compute("plain", {6}, [&](Expr i) { return c.x(i, i) + 1.0; });
    Tensor total = c.summed([&](Expr i, Expr k) { return weights(i, k); });
    Schedule s({total, plain}, target("sm_90a"));
    const Loop k = s.reduce(total);
    EXPECT_ERROR(s.rfactor(std::vector<StageRef>{}, k), "rfactor: name at least one reduction");
    EXPECT_ERROR(s.rfactor({c.largest, plain, total}, k), "it is neither a reduction nor read by terms between them");
    EXPECT_ERROR((s.rfactor<2>({c.largest, weights, total}, k)), "rfactor<2>: 3 stages are named; write rfactor<3>");
    EXPECT_ERROR(s.rfactor({c.largest, total}, s.reduce(c.largest)), "the loop is no reduce loop of 'total'");
    EXPECT_ERROR(s.rfactor({total, c.largest}, s.reduce(c.largest)), "'total' reads 'largest', which is named last");
    const char* message = "'weights', between the reductions, was placed, bound, split or rounded already";
    Schedule placed = s, bound = s, rounded = s;
    placed.at(weights, placed.loops<1>(total)[0]);
    EXPECT_ERROR(placed.rfactor({c.largest, total}, k), message);
    bound.bind(bound.loops<2>(weights)[0], grid.x);
    EXPECT_ERROR(bound.rfactor({c.largest, total}, k), message);
    rounded.round_to(weights, bf16);
    EXPECT_ERROR(rounded.rfactor({c.largest, total}, k), message);
    Tensor squares = c.summed([&](Expr i, Expr at) { return (c.x(i, at) - c.largest(i)) * c.x(i, at); });
    Schedule refused({squares}, target("sm_90a"));
    EXPECT_ERROR(refused.rfactor({c.largest, squares}, refused.reduce(squares)),
                 "rfactor: 'total' cannot run in one pass with 'largest'");
    Tensor mixed =
        compute("mixed", {6}, [&](Expr i) { return sum(exp(c.x(i, c.k) - c.largest(i)), c.k) + c.largest(i); });
    Axis n = reduce_axis("n", 8);
    Tensor reader = compute("reader", {6}, [&](Expr i) { return sum(c.y(i, n) / mixed(i), n); });
    Schedule three({reader}, target("sm_90a"));
    EXPECT_ERROR(three.rfactor({c.largest, mixed, reader}, three.reduce(reader)),
                 "the value of 'mixed' in a part would need that of 'largest'");
}

TEST(StreamErrors, WhatWasScheduledBefore) {
    Softmax c;
    Tensor total = c.summed([&](Expr i, Expr k) { return exp(c.x(i, k) - c.largest(i)); });
    Schedule s({total}, target("sm_90a"));
    auto [i] = s.loops<1>(total);
    Loop k = s.reduce(total), j = s.reduce(c.largest);
    EXPECT_ERROR(s.stream({c.largest, total}, i), "the loop is no reduce loop of 'total'");
    Schedule split = s;
    split.split(j, 4);
    EXPECT_ERROR(split.stream({c.largest, total}, k), "its loops were split, bound, cut, pipelined");
    Schedule placed = s;
    placed.at(c.largest, i);
    EXPECT_ERROR(placed.stream({c.largest, total}, k), "it has a place already");
    Schedule bound = s;
    bound.bind(k, thread);
    EXPECT_ERROR(bound.stream({c.largest, total}, k), "which others share, is bound to thread");
    Schedule inside = s;
    auto [io, ii] = inside.split(i, 2);
    inside.order({io, k, ii});
    auto [ko, ki] = inside.split(k, 4);
    inside.order({ko, ii, ki});
    EXPECT_ERROR(inside.stream({c.largest, total}, ki), "the data loop 'i_inner' of 'total' stands between");

    s.stream({c.largest, total}, k);
    EXPECT_ERROR(s.stream({c.largest, total}, k), "it shares a loop already");
    EXPECT_ERROR(s.order({k, i}), "'largest' is made where 'total' begins to reduce, and this step moves one of them");
    EXPECT_ERROR(s.rfactor(total, k), "'total' shares its loop with others");
    EXPECT_ERROR(s.accumulators(total), "'total' shares its loop with others");
    EXPECT_ERROR(s.stage(c.largest, c.x, Memory::Shared, s.loops<1>(c.largest)[0]), "cannot stand under loop");

    Tensor flat = compute("flat", {6}, [&](Expr i) { return sum(c.y(i, c.k), c.k); });
    Schedule atomic({flat, total}, target("sm_90a"));
    Stage parts = atomic.rfactor(flat, atomic.split(atomic.reduce(flat), 4)[0], Combine::Atomic);
    EXPECT_ERROR(atomic.stream({parts, total}, atomic.reduce(total)), "its elements are made by atomic updates");

    const Expr n = size("n", {.min = 1, .max = 100});
    Tensor x = input("x", f32, {6, n});
    Axis a = reduce_axis("a", n), b = reduce_axis("b", n);
    Tensor high = compute("high", {6}, [&](Expr i) { return reduce_max(x(i, a), a); });
    Tensor low = compute("low", {6}, [&](Expr i) { return reduce_min(x(i, b), b); });
    Schedule sized({low, high}, target("sm_90a"));
    auto [row] = sized.loops<1>(low);
    auto [outer, inner] = sized.split(sized.reduce(low), 8, Tail::Mask);
    sized.order({row, inner, outer});
    EXPECT_ERROR(sized.stream({high, low}, inner), "reduces no constant number of terms");
}

}  // namespace
}  // namespace tw
