// Products whose rows are made of another product's sums, in registers, as lanes share those: no shared memory between.
#include "dsl/schedule.h"
#include "tests/ops/random_cases.h"
#include "tests/ops/whole_numbers.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

class ChainedProducts : public RandomCases {
protected:
    ChainedProducts() : RandomCases(43) {}
};
TW_ON_EACH_DEVICE(ChainedProducts);

struct Options {
    bool group = true;  ///< wgmma, else mma_sync
    Type type = bf16;
    int64_t m = 64, n = 64, depth = 32, width = 32;
    int64_t step = 32;        ///< terms of the second product at a time, each multiplied by the first where it is used
    bool transposed = false;  ///< the second product's columns are rows of its operand
    int64_t blocks = 1;       ///< of m rows
    int stages = 1;           ///< of the pipeline over steps
    bool normalised = false;  ///< the elements are powers of two below the row's largest, and are divided by their sum
};

/// o[i, e] = sum_j p[i, j] v[j, e], p made of scores[i, j] = sum_t q[i, t] k[j, t].
struct Chain {
    Tensor q, k, v, scores, largest, p, total, o;

    explicit Chain(const Options& c) {
        const int64_t rows = c.m * c.blocks;
        q = input("q", c.type, {rows, c.depth}), k = input("k", c.type, {c.n, c.depth});
        v = input("v", c.type, c.transposed ? Shape{c.width, c.n} : Shape{c.n, c.width});
        Axis t = reduce_axis("t", c.depth), j = reduce_axis("j", c.n), l = reduce_axis("l", c.n),
             a = reduce_axis("a", c.n);
        scores = compute("scores", {rows, c.n},
                         [&](Expr i, Expr j) { return sum(cast(f32, q(i, t)) * cast(f32, k(j, t)), t); });
        largest = compute("largest", {rows}, [&](Expr i) { return reduce_max(scores(i, l), l); });
        p = compute("p", {rows, c.n}, [&](Expr i, Expr j) {
            Expr plain = min(relu(scores(i, j)), 3.0);
            return cast(c.type, c.normalised ? exp2(max(scores(i, j) - largest(i), -7.0)) : plain);
        });
        total = compute("total", {rows}, [&](Expr i) { return sum(cast(f32, p(i, a)), a); });
        o = compute("o", {rows, c.width}, [&](Expr i, Expr e) {
            Expr all = sum(cast(f32, p(i, j)) * cast(f32, c.transposed ? v(e, j) : v(j, e)), j);
            return c.normalised ? all / total(i) : all;
        });
    }
};

void multiply_scores(Schedule& s, const Chain& c, const Options& o, const Loop& under) {
    s.at(c.scores, under);
    s.set_memory(c.scores, Memory::Registers);
    auto [i, j] = s.loops<2>(c.scores);
    auto [d_tile, d] = s.split(s.reduce(c.scores), 16, {"d_tile", "d"});
    s.order({d_tile, i, j, d});
    s.stage(c.scores, c.q, Memory::Shared, d_tile);
    s.stage(c.scores, c.k, Memory::Shared, d_tile);
    s.mma(c.scores, o.group ? wgmma : mma_sync, {.m = i, .n = j, .k = d});
}

void in_registers(Schedule& s, const Tensor& t, const Loop& under) {
    s.at(t, under);
    s.set_memory(t, Memory::Registers);
}

Schedule scheduled(const Chain& c, const Options& o, const Target& target) {
    Schedule s({c.o}, target);
    auto [i, e] = s.loops<2>(c.o);
    auto [block, row] = s.split(i, o.m, {"block", "row"});
    auto [tile, term] = s.split(s.reduce(c.o), o.step, {"tile", "term"});
    s.order({block, tile, row, e, term});
    s.bind(block, grid.x);
    const Loop& place = o.normalised ? block : tile;
    if (o.normalised) in_registers(s, c.total, block);
    in_registers(s, c.p, place);
    if (o.normalised) in_registers(s, c.largest, block);
    multiply_scores(s, c, o, place);
    if (o.normalised)
        for (const Tensor& reduction : {c.largest, c.total}) s.order({s.reduce(reduction), s.data_loops(reduction)[0]});
    s.stage(c.o, c.v, Memory::Shared, tile);
    s.mma(c.o, o.group ? wgmma : mma_sync, {.m = row, .n = e, .k = term});
    if (o.stages > 1) s.pipeline(tile, {.stages = o.stages});
    return s;
}

TEST_P(ChainedProducts, TakeTheirRowsFromRegisters) {
    for (int round = 0; round < 16; ++round) {
        Options o{.group = chance(), .type = chance() ? bf16 : f16, .transposed = chance(), .blocks = between(1, 2)};
        o.m = o.group ? 64 : 16 * between(1, 3);
        o.step = 16 * between(1, 4);
        o.n = o.step * between(1, 3);
        o.depth = 16 * between(1, 3);
        o.width = 16 * between(1, 4);
        o.normalised = chance();
        if (!o.normalised) o.stages = between(1, 3);
        const Chain c(o);
        const Schedule s = scheduled(c, o, device_target());
        SCOPED_TRACE(s.trace_as_cpp());
        const std::string text = build(s).cuda();
        EXPECT_EQ(text.find("p_fragment"), std::string::npos) << text;
        EXPECT_EQ(text.find("shared.p"), std::string::npos) << text;
        EXPECT_EQ(text.find("_registers<") != std::string::npos || text.find("_registers(") != std::string::npos,
                  o.group);
        expect_declared(s, whole_numbers({c.o}, round));
    }
}

/// Scores and weighted sums of the same vectors, of which one copy serves both products.
TEST_P(ChainedProducts, ShareACopy) {
    for (bool group : {false, true})
        for (int stages : {1, 2}) {
            const int64_t m = group ? 64 : 32, n = 96, depth = 32;
            Tensor q = input("q", bf16, {m, depth}), x = input("x", bf16, {n, depth});
            Axis t = reduce_axis("t", depth), j = reduce_axis("j", n);
            Tensor scores = compute("scores", {m, n},
                                    [&](Expr i, Expr j) { return sum(cast(f32, q(i, t)) * cast(f32, x(j, t)), t); });
            Tensor p = compute("p", {m, n}, [&](Expr i, Expr j) { return cast(bf16, min(relu(scores(i, j)), 3.0)); });
            Tensor o = compute("o", {m, depth},
                               [&](Expr i, Expr e) { return sum(cast(f32, p(i, j)) * cast(f32, x(j, e)), j); });
            Schedule s({o}, device_target());
            auto [i, e] = s.loops<2>(o);
            auto [tile, term] = s.split(s.reduce(o), 32, {"tile", "term"});
            s.order({tile, i, e, term});
            in_registers(s, p, tile);
            in_registers(s, scores, tile);
            Stage copy = s.stage({scores, o}, x, Memory::Shared, tile);
            s.mma(o, group ? wgmma : mma_sync, {.m = i, .n = e, .k = term});
            auto [row, column] = s.loops<2>(scores);
            auto [d_tile, d] = s.split(s.reduce(scores), 32, {"d_tile", "d"});
            s.order({d_tile, row, column, d});
            s.stage(scores, q, Memory::Shared, d_tile);
            s.mma(scores, group ? wgmma : mma_sync, {.m = row, .n = column, .k = d});
            if (stages > 1) s.pipeline(tile, {.stages = stages});
            SCOPED_TRACE(s.trace_as_cpp());
            EXPECT_EQ(s.name(copy), "x_shared");
            EXPECT_NE(s.trace_as_cpp().find("Stage x_shared = s.stage({scores, o}, x, Memory::Shared, tile);"),
                      std::string::npos);
            EXPECT_EQ(replay(s.save(), {o}, device_target()).save(), s.save());
            expect_declared(s, whole_numbers({o}, 5));
        }
}

TEST(ChainedProductErrors, EachReaderOfACopyReadsTheOperand) {
    Tensor a = input("a", f32, {8, 8}), b = input("b", f32, {8, 8});
    Axis k = reduce_axis("k", 8);
    Tensor x = compute("x", {8, 8}, [&](Expr i, Expr j) { return sum(a(i, k) * a(j, k), k); });
    Tensor y = compute("y", {8, 8}, [&](Expr i, Expr j) { return x(i, j) + b(i, j); });
    Schedule s({y}, target("sm_90a"));
    auto [i, j] = s.loops<2>(y);
    s.at(x, i);
    EXPECT_ERROR(s.stage({x, y}, a, Memory::Shared, i), "'y' does not read 'a' inside loop 'i'");
    EXPECT_ERROR(s.stage(std::vector<StageRef>(), a, Memory::Shared, i), "no reader is named");
}

}  // namespace
}  // namespace tw
