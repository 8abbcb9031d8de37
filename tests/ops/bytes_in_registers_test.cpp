// Products whose rows of elements of 1 byte stay in registers: of another product's sums, in the order of terms in
// which lanes have them, or of what lies in shared memory. Whole numbers, bit for bit.
#include <gmock/gmock.h>

#include "dsl/interleaved_pairs.h"
#include "dsl/schedule.h"
#include "dsl/simplify.h"
#include "ops/program.h"
#include "tests/ops/random_cases.h"
#include "tests/ops/whole_numbers.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

using testing::HasSubstr;
using testing::Not;

class BytesInRegisters : public RandomCases {
protected:
    BytesInRegisters() : RandomCases(91) {}
};
TW_ON_EACH_DEVICE(BytesInRegisters);

TEST(InterleavedPairs, GoThroughSixteenNeighboursOnce) {
    std::vector<int64_t> places;
    for (int64_t k = 0; k < 16; ++k) places.push_back(*as_constant(simplify(interleaved_pairs(integer(k)))));
    EXPECT_THAT(places, testing::ElementsAre(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
    for (int64_t k : {16, 35, 1022})
        EXPECT_EQ(*as_constant(simplify(interleaved_pairs(integer(k)))), k / 16 * 16 + places[size_t(k % 16)]);
}

/// Who has the terms in another order: the declaration of both factors, one stored so by a kernel before, or the
/// schedule, of an ordinary product, whose copy is made so.
enum class Order { OfDeclaration, OfLoop, Plain };

struct Options {
    bool group = true;  ///< wgmma, else mma_sync
    Type type = e4m3;
    Order order = Order::OfDeclaration;
    int64_t m = 64, inner = 64, depth = 32, width = 32;
    int64_t step = 32;  ///< terms of the second product at a time, each multiplied by the first where it is used
    int64_t blocks = 1;
    int stages = 1;
};

/// y = requantised(x w1') w2' of whole numbers: a layer whose results of 8 bits the next one multiplies.
struct Layers {
    Tensor x, w1, w2, w2_stored, hidden, h, y;

    explicit Layers(const Options& o) {
        const int64_t rows = o.m * o.blocks;
        const Type sum_type = o.type == i8 ? i32 : f32;
        x = input("x", o.type, {rows, o.depth}), w1 = input("w1", o.type, {o.inner, o.depth});
        w2 = input("w2", o.type, {o.width, o.inner});
        const bool declared = o.order == Order::OfDeclaration;
        auto place = [&](const Expr& k) { return declared ? interleaved_pairs(k) : k; };
        Axis d = reduce_axis("d", o.depth), k = reduce_axis("k", o.inner);
        hidden = compute("hidden", {rows, o.inner},
                         [&](Expr i, Expr n) { return sum(cast(sum_type, x(i, d)) * cast(sum_type, w1(n, d)), d); });
        h = compute("h", {rows, o.inner}, [&](Expr i, Expr n) {
            return cast(o.type, o.type == i8 ? hidden(i, n) % 5 - 2 : min(max(hidden(i, n), -3.0), 3.0));
        });
        w2_stored = compute("w2_stored", {o.width, o.inner}, [&](Expr n, Expr k) { return w2(n, place(k)); });
        y = compute("y", {rows, o.width}, [&](Expr i, Expr n) {
            const Expr factor = declared ? w2_stored(n, k) : w2(n, k);
            return sum(cast(sum_type, h(i, place(k))) * cast(sum_type, factor), k);
        });
    }
};

Loop in_order_of_lanes(Schedule& s, const Loop& terms, std::vector<Loop> around) {
    auto [sixteen, in_sixteen] = s.split(terms, 16, {"sixteen", "in_sixteen"});
    auto [half, in_half] = s.split(in_sixteen, 8, {"half", "in_half"});
    auto [lane, pair] = s.split(in_half, 2, {"lane", "pair"});
    around.insert(around.end(), {sixteen, lane, half, pair});
    s.order(around);
    return s.fuse({sixteen, lane, half, pair}, "term");
}

void multiply_hidden(Schedule& s, const Layers& c, const Options& o, const Loop& under) {
    s.at(c.hidden, under);
    s.set_memory(c.hidden, Memory::Registers);
    auto [i, n] = s.loops<2>(c.hidden);
    auto [d_tile, d] = s.split(s.reduce(c.hidden), 32, {"d_tile", "d"});
    s.order({d_tile, i, n, d});
    s.stage(c.hidden, c.x, Memory::Shared, d_tile);
    s.stage(c.hidden, c.w1, Memory::Shared, d_tile);
    s.mma(c.hidden, o.group ? wgmma : mma_sync, {.m = i, .n = n, .k = d});
}

Schedule scheduled(const Layers& c, const Options& o, const Target& target) {
    Schedule s({c.y}, target);
    auto [i, n] = s.loops<2>(c.y);
    auto [block, row] = s.split(i, o.m, {"block", "row"});
    auto [tile, in_tile] = s.split(s.reduce(c.y), o.step, {"tile", "in_tile"});
    s.order({block, tile, row, n, in_tile});
    const Loop term = o.order == Order::OfLoop ? in_order_of_lanes(s, in_tile, {block, tile, row, n}) : in_tile;
    s.bind(block, grid.x);
    s.at(c.h, tile);
    s.set_memory(c.h, Memory::Registers);
    multiply_hidden(s, c, o, tile);
    if (o.order == Order::OfLoop)
        s.stage(c.y, c.w2, Memory::Shared, tile, As::Matrix);
    else
        s.stage(c.y, o.order == Order::OfDeclaration ? c.w2_stored : c.w2, Memory::Shared, tile);
    s.mma(c.y, o.group ? wgmma : mma_sync, {.m = row, .n = n, .k = term});
    if (o.stages > 1) s.pipeline(tile, {.stages = o.stages});
    return s;
}

TEST_P(BytesInRegisters, OfAnotherProductsSums) {
    const Type types[] = {e4m3, e5m2, i8};
    for (int round = 0; round < 18; ++round) {
        Options o{.group = chance(), .type = types[round % 3], .blocks = between(1, 2)};
        o.order = chance() ? Order::OfDeclaration : Order::OfLoop;
        o.m = o.group ? 64 : 16 * between(1, 3);
        o.step = 32 * between(1, 4);
        o.inner = o.step * between(1, 3);
        o.depth = 32 * between(1, 3);
        o.width = 16 * between(1, 4);
        o.stages = between(1, 3);
        const Layers c(o);
        const Schedule s = scheduled(c, o, device_target());
        SCOPED_TRACE(s.trace_as_cpp());
        const std::string text = build(s).cuda();
        EXPECT_THAT(text, Not(HasSubstr("h_fragment")));
        EXPECT_THAT(text, Not(HasSubstr("shared.h[")));
        EXPECT_EQ(text.find("_registers(") != std::string::npos, o.group);
        expect_declared(s, whole_numbers({c.y}, unsigned(round)));
    }
}

TEST(BytesInRegistersErrors, TellTheOrder) {
    for (bool group : {false, true}) {
        const Options o{.group = group, .order = Order::Plain};
        const Layers c(o);
        EXPECT_ERROR(build(scheduled(c, o, target("sm_90a"))),
                     "along the loop 'in_tile', lanes have pairs of columns, as sums leave them, but of rows of 1 byte "
                     "a product takes four terms side by side from a lane. Sum the terms in another order: have both "
                     "factors read at interleaved_pairs(k), or split, order and fuse the product's loop so; or stage "
                     "the rows in shared memory");
    }
}

/// The copy of the other factor as it lies in memory: its terms are not in the order of the loop.
TEST(BytesInRegistersErrors, OfTheOtherFactor) {
    const Options o{.order = Order::OfLoop};
    const Layers c(o);
    Schedule s({c.y}, target("sm_90a"));
    auto [i, n] = s.loops<2>(c.y);
    auto [tile, in_tile] = s.split(s.reduce(c.y), o.step, {"tile", "in_tile"});
    s.order({tile, i, n, in_tile});
    const Loop term = in_order_of_lanes(s, in_tile, {tile, i, n});
    s.at(c.h, tile);
    s.set_memory(c.h, Memory::Registers);
    multiply_hidden(s, c, o, tile);
    s.stage(c.y, c.w2, Memory::Shared, tile);
    s.mma(c.y, wgmma, {.m = i, .n = n, .k = term});
    EXPECT_ERROR(build(s), "'w2_shared' is read at");
    EXPECT_ERROR(build(s), "its terms are not in the loop's order; stage it As::Matrix, or have it declared so");
}

/// Rows of two weights a byte, each row of a scale of its own: no sums of another product, so that lanes make four
/// neighbours of what lies in shared memory.
TEST_P(BytesInRegisters, OfWeightsThatAreUnpacked) {
    for (Type type : {e4m3, i8})
        for (bool group : {true, false}) {
            const int64_t m = 64 * between(1, 2), n = 16 * between(1, 4), k = 64 * between(1, 3);
            const Type sum_type = type == i8 ? i32 : f32;
            Tensor q = input("q", i8, {m, k / 2}), b = input("b", type, {n, k});
            Tensor rows = compute("rows", {m, k}, [&](Expr i, Expr j) {
                const Expr both = cast(u32, cast(i32, q(i, j / 2))), four = both >> cast(u32, j % 2 * 4) & 15u;
                return cast(type, cast(sum_type, cast(i32, four) - 8));
            });
            Axis t = reduce_axis("t", k);
            Tensor y = compute("y", {m, n}, [&](Expr i, Expr j) {
                return sum(cast(sum_type, rows(i, t)) * cast(sum_type, b(j, t)), t);
            });
            Schedule s({y}, device_target());
            auto [i, j] = s.loops<2>(y);
            auto [block, row] = s.split(i, 64, {"block", "row"});
            auto [step, term] = s.split(s.reduce(y), 32, {"step", "term"});
            s.order({block, step, row, j, term});
            s.bind(block, grid.x);
            s.at(rows, step);
            s.set_memory(rows, Memory::Registers);
            s.stage(rows, q, Memory::Shared, step), s.stage(y, b, Memory::Shared, step);
            s.mma(y, group ? wgmma : mma_sync, {.m = row, .n = j, .k = term});
            s.pipeline(step, {.stages = 2});
            SCOPED_TRACE(s.trace_as_cpp());
            EXPECT_THAT(build(s).cuda(), Not(HasSubstr("shared.rows")));
            Bindings given = whole_numbers({y}, 3);
            fill_integers(given.inputs.at("q"), -128, 127, 4);
            expect_declared(s, given);
        }
}

}  // namespace
}  // namespace tw
