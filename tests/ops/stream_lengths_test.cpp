// Reductions in one pass whose elements have as many terms as their places or data say.
#include "tests/ops/random_cases.h"
#include "tests/ops/random_stream.h"
#include "tests/ops/whole_numbers.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

class StreamLengths : public RandomCases {
protected:
    StreamLengths() : RandomCases(67) {}
};
TW_ON_EACH_DEVICE(StreamLengths);

TEST_P(StreamLengths, RandomChainsGiveTheDeclared) {
    for (unsigned seed = 3000; seed < 3060; ++seed) {
        RandomStream chain(seed, Lengths::ByElement);
        SCOPED_TRACE(chain.text());
        const Schedule s = chain.schedule(device_target());
        SCOPED_TRACE(s.trace_as_cpp());
        Executable executable(build(s), device_);
        auto differs =
            differs_from_declared(chain, s, seed, [&](const Bindings& launch) { return run_on(executable, launch); });
        ASSERT_FALSE(differs) << "seed " << seed << ": " << *differs << "\n" << executable.program().cuda();
    }
}

/// o = softmax(q k') v of sequences that have so many keys each, from the formula. Tensor cores take whole tiles: what
/// they compute behind the last key is -infinity, which counts nothing.
struct Sequences {
    int64_t batch = 1, rows = 1, most = 1, depth = 64, width = 64, tile = 16;
    bool group = false, roles = false, overlaps = false, in_parts = false, persistent = false;
    int stages = 1;
    Tensor q, k, v, lengths, s, m, p, l, o, lse;

    void declare() {
        q = input("q", bf16, {batch, rows, depth}), k = input("k", bf16, {batch, most, depth});
        v = input("v", bf16, {batch, most, width}), lengths = input("lengths", i32, {batch});
        auto keys_of = [&](const Expr& b) { return min((cast(i64, lengths(b)) + (tile - 1)) / tile * tile, most); };
        Axis d = reduce_axis("d", depth);
        s = compute("s", {batch, rows, most}, [&](Expr b, Expr i, Expr j) {
            const Expr score = sum(cast(f32, q(b, i, d)) * cast(f32, k(b, j, d)), d);
            return select(j < cast(i64, lengths(b)), min(max(score, -5.0), 5.0), -infinity);  // sums are exact
        });
        m = compute("m", {batch, rows}, [&](Expr b, Expr i) {
            Axis j = reduce_axis("j", keys_of(b));
            return reduce_max(s(b, i, j), j);
        });
        p = compute("p", {batch, rows, most}, [&](Expr b, Expr i, Expr j) { return exp2(s(b, i, j) - m(b, i)); });
        l = compute("l", {batch, rows}, [&](Expr b, Expr i) {
            Axis j = reduce_axis("j", keys_of(b));
            return sum(p(b, i, j), j);
        });
        o = compute("o", {batch, rows, width}, [&](Expr b, Expr i, Expr e) {
            Axis j = reduce_axis("j", keys_of(b));
            return sum(p(b, i, j) * cast(f32, v(b, j, e)), j) / l(b, i);
        });
        lse = compute("lse", {batch, rows}, [&](Expr b, Expr i) { return m(b, i) + l(b, i); });
    }

    Schedule schedule(const Target& target) const {
        Schedule g({o, lse}, target);
        StageRef largest = m, weights = p, total = l, values = o;
        std::vector<Loop> outer;
        if (in_parts) {
            const Loop part = g.split(g.reduce(o), 2 * tile, Tail::Mask, {"part", "in_part"})[0];
            auto [m_part, p_part, l_part, o_part] = g.rfactor<4>({m, p, l, o}, part);
            largest = m_part, weights = p_part, total = l_part, values = o_part;
            outer.push_back(g.data_loops(values)[0]);
        }
        const std::vector<Loop> data = g.data_loops(values);
        auto [e_tile, e] = g.split(data.back(), (width + 15) / 16 * 16, Tail::Mask, {"e_tile", "e"});
        auto [block, row] = g.split(data[data.size() - 2], group ? 64 : 16, Tail::Mask, {"block", "row"});
        auto [warps, in_warp] = g.split(row, group ? 64 : 16, {"warps", "in_warp"});
        auto [step, term] = g.split(g.reduce(values), tile, Tail::Mask, {"step", "term"});
        outer.insert(outer.end(), {data[data.size() - 3], block});
        std::vector<Loop> all = outer;
        all.insert(all.end(), {e_tile, warps, step, in_warp, e, term});
        g.order(all);
        Loop tiles = outer.back();
        if (persistent)
            g.persistent(outer, {.blocks = 3});
        else
            g.bind(tiles = g.fuse(outer, "tiles"), grid.x);
        g.bind(warps, group ? warpgroup : warp);
        g.stream({largest, total, values}, step);
        g.set_memory(weights, Memory::Registers);
        g.round_to(g.stage(values, weights, Memory::Registers, step), bf16);
        g.mma(values, group ? wgmma : mma_sync, {.m = in_warp, .n = e, .k = term});
        g.at(s, step);
        g.set_memory(s, Memory::Registers);
        auto [s_b, s_i, s_j] = g.loops<3>(s);
        auto [d_tile, d] = g.split(g.reduce(s), (depth + 15) / 16 * 16, Tail::Mask, {"d_tile", "d"});
        g.order({s_b, d_tile, s_i, s_j, d});
        g.stage(s, q, Memory::Shared, tiles);
        Stage keys = g.stage(s, k, Memory::Shared, step), of_values = g.stage(values, v, Memory::Shared, step);
        g.mma(s, group ? wgmma : mma_sync, {.m = s_i, .n = s_j, .k = d});
        if (stages > 1) g.pipeline(step, {.stages = stages});
        if (overlaps) g.delay(values, step, {.before = largest});
        if (roles) g.roles({{"load", tw::warps(1), {}, {keys, of_values}}, {"math", warpgroups(1), {}, {values}}});
        return g;
    }
};

TEST_P(StreamLengths, AttentionFromItsFormula) {
    for (int round = 0; round < 12; ++round) {
        Sequences a;
        a.batch = between(1, 4), a.rows = between(1, 130), a.tile = 16 * between(1, 4);
        a.most = a.tile * between(1, 6);
        a.group = chance(), a.stages = between(1, 3), a.roles = a.group && a.stages > 1 && chance();
        a.overlaps = a.stages > 1 && chance(), a.in_parts = chance(), a.persistent = chance();
        if (!a.roles) a.depth = 8 * between(2, 8), a.width = 8 * between(2, 8);
        a.declare();
        const Schedule s = a.schedule(device_target());
        SCOPED_TRACE(s.trace_as_cpp());
        Bindings launch = random_bindings(s.outputs(), 1);
        for (auto& [name, array] : launch.inputs) fill_integers(array, -4, 4, static_cast<uint64_t>(round));
        fill_integers(launch.inputs.at("lengths"), -1, static_cast<int>(a.most) + 1, 3);
        Executable executable(build(s), device_);
        auto differs =
            differs_in_numbers(run_on(executable, launch), interpret_plain(s.outputs(), launch), equal_values);
        EXPECT_FALSE(differs) << *differs << "\n" << executable.program().cuda();
        expect_compiles(executable.program());
    }
}

/// Two products of matrices in one pass, over whole tiles of as many terms as data say: no term of either is masked.
TEST_P(StreamLengths, TwoProductsOfTheSameRows) {
    for (int round = 0; round < 6; ++round) {
        const int64_t batch = between(1, 3), rows = between(1, 70), tile = 16 * between(1, 3);
        const int64_t most = tile * between(1, 5), width = 8 * between(1, 6);
        const bool group = chance();
        Tensor a = input("a", bf16, {batch, rows, most}), lengths = input("lengths", i32, {batch});
        auto product = [&](const std::string& name, const Tensor& by) {
            return compute(name, {batch, rows, width}, [&](Expr b, Expr i, Expr e) {
                Axis j = reduce_axis("j", min((cast(i64, lengths(b)) + (tile - 1)) / tile * tile, most));
                return sum(cast(f32, a(b, i, j)) * cast(f32, by(b, j, e)), j);
            });
        };
        Tensor x = input("x", bf16, {batch, most, width}), y = input("y", bf16, {batch, most, width});
        Tensor left = product("left", x), right = product("right", y);
        Schedule s({left, right}, device_target());
        const int64_t height = group ? 64 : 16, columns = (width + 15) / 16 * 16;
        const std::vector<Loop> data = s.data_loops(right);
        auto [e_tile, e] = s.split(data[2], columns, Tail::Mask);
        auto [block, row] = s.split(data[1], height, Tail::Mask);
        auto [warps, in_warp] = s.split(row, height);
        auto [step, term] = s.split(s.reduce(right), tile);
        s.order({data[0], block, e_tile, warps, step, in_warp, e, term});
        const Loop tiles = s.fuse({data[0], block}, "tiles");
        s.bind(tiles, grid.x);
        s.bind(warps, group ? warpgroup : warp);
        s.stream({left, right}, step);
        for (const Tensor& each : {left, right})
            for (const Tensor& operand : {a, each.same(left) ? x : y}) s.stage(each, operand, Memory::Shared, step);
        auto [l_b, l_i, l_e] = s.loops<3>(left);
        const Loop l_j = s.all_loops(left).back();
        s.order({l_b, l_i, l_e, l_j});
        s.mma(right, group ? wgmma : mma_sync, {.m = in_warp, .n = e, .k = term});
        s.mma(left, group ? wgmma : mma_sync, {.m = l_i, .n = l_e, .k = l_j});
        if (chance()) s.pipeline(step, {.stages = between(2, 3)});
        SCOPED_TRACE(s.trace_as_cpp());
        Bindings launch = whole_numbers(s.outputs(), static_cast<unsigned>(round));
        fill_integers(launch.inputs.at("lengths"), -1, static_cast<int>(most) + 1, static_cast<uint64_t>(round));
        expect_declared(s, launch);
    }
}

/// Largest elements of rows that are as long as data say, and sums of exponentials.
struct Rows {
    Tensor x = input("x", f32, {6, 40}), lengths = input("lengths", i32, {7});
    Axis any = reduce_axis("any", 40);

    Expr length(const Expr& i) const { return min(cast(i64, lengths(i)), 40); }
    Tensor largest(const std::function<Expr(const Expr& i)>& length_of) const {
        return compute("largest", {6}, [&](Expr i) {
            Axis j = reduce_axis("j", length_of(i));
            return reduce_max(x(i, j), j);
        });
    }
    Tensor total(const Tensor& m, const std::function<Expr(const Expr& i)>& length_of) const {
        return compute("total", {6}, [&](Expr i) {
            Axis j = reduce_axis("j", length_of(i));
            return sum(exp2(x(i, min(j, 39)) - m(i)), j);
        });
    }
};

/// Of rows behind the last, which a split adds, nobody reads a length: in no part of the loop, nor in what counts
/// iterations from the end.
TEST_P(StreamLengths, AreReadWhereTheRowIs) {
    const Rows rows;
    auto length = [&](const Expr& i) { return rows.length(i); };
    const Tensor m = rows.largest(length), total = rows.total(m, length);
    for (const bool reversed : {false, true}) {
        Schedule s({total}, device_target());
        auto [block, row] = s.split(s.loops<1>(total)[0], 4, Tail::Mask, {"block", "row"});  // 8 rows, 7 lengths
        auto [tile, term] = s.split(s.reduce(total), 2, Tail::Mask, {"tile", "term"});
        s.order({block, row, tile, term});
        s.bind(block, grid.x);
        s.stream({m, total}, tile);
        s.stage(total, rows.x, Memory::Shared, tile);
        s.pipeline(tile, {.stages = 2});
        if (reversed) s.reverse(tile);
        Bindings launch = whole_numbers({total}, 4);
        fill_integers(launch.inputs.at("lengths"), 0, 40, 6);
        Executable executable(build(s), device_);
        auto differs = differs_in_numbers(run_on(executable, launch), interpret_plain({total}, launch), equal_values);
        EXPECT_FALSE(differs) << *differs << "\n" << executable.program().cuda();
    }
}

TEST(StreamLengthErrors, LengthsThatDiffer) {
    const Rows rows;
    auto length = [&](const Expr& i) { return rows.length(i); };
    const Tensor next = rows.largest([&](const Expr& i) { return rows.length(i + 1); });
    const Tensor total = rows.total(next, length);
    Schedule s({total}, target("sm_90a"));
    EXPECT_ERROR(s.stream({next, total}, s.reduce(total)),
                 "the elements of 'largest' have max(min(cast(i64, lengths[i + 1]), 40), 0) terms, those of 'total' "
                 "max(min(cast(i64, lengths[i]), 40), 0), which is not shown to be the same where they are made "
                 "together");
    // Rows that are made together have one length.
    const Tensor m = rows.largest([&](const Expr& i) { return rows.length(i / 2); });
    const Tensor of_pairs = rows.total(m, [&](const Expr& i) { return rows.length(i / 2); });
    for (const int64_t block : {2, 3}) {
        Schedule pairs({of_pairs}, target("sm_90a"));
        auto [outer, row] = pairs.split(pairs.loops<1>(of_pairs)[0], block, {"outer", "row"});
        const Loop j = pairs.reduce(of_pairs);
        if (block == 3) {
            EXPECT_ERROR(pairs.order({outer, j, row}), "loop 'j' of 'total' must stand inside of 'row'");
            continue;
        }
        pairs.order({outer, j, row});
        EXPECT_NO_THROW(pairs.stream({m, of_pairs}, j));
    }
}

TEST(StreamLengthErrors, PartsThatNobodyCounts) {
    const Rows rows;
    auto length = [&](const Expr& i) { return rows.length(i); };
    const Tensor m = rows.largest(length), total = rows.total(m, length);
    const char* once = "elements decide how many terms 'total' has; split the loop as long as they say once";
    Schedule whole({total}, target("sm_90a"));
    EXPECT_ERROR(whole.rfactor({m, total}, whole.reduce(total)), once);
    auto [outer, inner] = whole.split(whole.reduce(total), 8, Tail::Mask);
    auto [steps, term] = whole.split(inner, 4);
    EXPECT_ERROR(whole.rfactor(total, outer), once);
    const Tensor open = compute("open", {6}, [&](Expr i) {
        Axis j = reduce_axis("j", cast(i64, rows.lengths(i)));
        return sum(rows.x(i, min(j, 39)), j);
    });
    Schedule endless({open}, target("sm_90a"));
    EXPECT_ERROR(
        endless.rfactor(open, endless.split(endless.reduce(open), 8, Tail::Mask)[0]),
        "nothing bounds how many terms an element of 'open' has, max(cast(i64, lengths[i]), 0), so there is no "
        "number of parts; write it as min(.., most)");
}

/// Parts of rows have what is left for them, and their loops end there.
TEST(StreamLengthParts, EndWithTheRow) {
    const Rows rows;
    auto length = [&](const Expr& i) { return rows.length(i); };
    const Tensor m = rows.largest(length), total = rows.total(m, length);
    for (const bool neighbours : {true, false}) {
        Schedule s({total}, target("sm_90a"));
        auto [outer, inner] = s.split(s.reduce(total), 8, Tail::Mask, {"outer", "inner"});
        auto [m_part, total_part] = s.rfactor<2>({m, total}, neighbours ? outer : inner);
        EXPECT_EQ(to_string(s.extent(s.data_loops(total_part)[0])), neighbours ? "5" : "8");
        const std::string left = neighbours ? "max(min(max(min(cast(i64, lengths[i]), 40), 0) - outer * 8, 8), 0)"
                                            : "(max(max(min(cast(i64, lengths[i]), 40), 0) - inner, 0) + 7) / 8";
        EXPECT_EQ(to_string(s.extent(s.reduce(total_part))), left);
        s.stream({m_part, total_part}, s.reduce(total_part));
        Bindings launch = whole_numbers({total}, 3);
        fill_integers(launch.inputs.at("lengths"), -1, 41, 5);
        launch.inputs.at("lengths").set({2}, make_value(i32, int64_t{0}));
        auto differs =
            differs_in_numbers(interpret_tree(s.tree(), launch), interpret_plain({total}, launch), equal_values);
        EXPECT_FALSE(differs) << *differs << s.to_string();
    }
}

}  // namespace
}  // namespace tw
