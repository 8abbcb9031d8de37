// Several reductions in one pass: the same results as one after another, whatever runs along.
#include "tests/ops/random_cases.h"
#include "tests/ops/random_stream.h"
#include "tests/ops/whole_numbers.h"

namespace tw {
namespace {

void expect_declared_chains(unsigned first, Lengths lengths) {
    int streamed = 0, in_parts = 0, lazy = 0, with_offset = 0, constant = 0;
    for (unsigned seed = first; seed < first + 400; ++seed) {
        RandomStream chain(seed, lengths);
        SCOPED_TRACE(chain.text());
        const Schedule s = chain.schedule(target("sm_90a"));
        streamed += chain.streamed();
        in_parts += chain.streamed() && chain.is_in_parts();
        lazy += chain.count(Reference::Kind::Lazy), with_offset += chain.count(Reference::Kind::Offset);
        constant += chain.count(Reference::Kind::Constant);
        SCOPED_TRACE(s.trace_as_cpp());
        auto differs = differs_from_declared(chain, s, seed,
                                             [&](const Bindings& launch) { return interpret_tree(s.tree(), launch); });
        ASSERT_FALSE(differs) << "seed " << seed << ": " << *differs << "\n" << s.to_string();
        EXPECT_EQ(replay(s.save(), s.outputs(), s.target()).to_string(), s.to_string());
    }
    EXPECT_GE(streamed, 300);
    EXPECT_GE(in_parts, 80);
    EXPECT_GE(std::min({lazy, with_offset, constant}), 50);
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
        Reference reference = {};   ///< that terms read in the place of the maximum
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
        g.stream({largest, total, values}, tile, {{largest, c.reference}});
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

const Reference References[] = {Reference::running(), Reference::lazy(3), Reference::offset(-8),
                                Reference::constant(4)};

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
        c.reference = References[round % 4];
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
        c.reference = References[round % 4];
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

}  // namespace
}  // namespace tw
