// An operator of the user's own, which schedules/ does not know: a reducer of three components, a gather, scalar
// parameters, two outputs. It is scheduled by the same primitives as everything else and compared with the oracle.
#include "tests/ops/on_each_device.h"
#include "tests/ops/whole_numbers.h"

namespace tw {
namespace {

constexpr int64_t Rows = 37, Table = 50, Columns = 72;

/// Least, largest and sum of a set of numbers.
Reducer range_and_sum() {
    std::vector<Expr> identity = {infinity, -infinity, constant(f32, 0.0)};
    return make_reducer("range_and_sum", identity, [](const std::vector<Expr>& a, const std::vector<Expr>& b) {
        return std::vector<Expr>{min(a[0], b[0]), max(a[1], b[1]), a[2] + b[2]};
    });
}

/// For each position r, over the row at[r] of the table: gain * (largest - least), and sum + offset, of the elements
/// weighted by column.
struct Spread {
    Tensor table = input("table", f32, {Table, Columns}), weight = input("weight", f32, {Columns});
    Tensor at = input("at", i32, {Rows});
    Expr gain = scalar("gain", f32), offset = scalar("offset", i32);
    Axis k = reduce_axis("k", Columns);
    std::vector<Tensor> outputs = compute_tuple("spread", {Rows}, [&](const std::vector<Expr>& r) {
        auto parts = reduce(
            range_and_sum(),
            {table(at(r[0]), k) * weight(k), table(at(r[0]), k) * weight(k), table(at(r[0]), k) * weight(k)}, {k});
        return std::vector<Expr>{gain * (parts[1] - parts[0]), parts[2] + cast(f32, offset)};
    });

    /// Integers: the sums are exact in every order.
    Bindings bindings() const {
        Bindings given{{{"table", host_array(f32, {Table, Columns})},
                        {"weight", host_array(f32, {Columns})},
                        {"at", host_array(i32, {Rows})}},
                       {},
                       {{"gain", make_value(f32, 0.75)}, {"offset", make_value(i32, int64_t{-5})}}};
        fill_integers(given.inputs["table"], -20, 20, 1);
        fill_integers(given.inputs["weight"], -3, 3, 2);
        fill_integers(given.inputs["at"], 0, Table - 1, 3);
        return given;
    }
};

class OwnOperator : public OnEachDevice {};
TW_ON_EACH_DEVICE(OwnOperator);

// Threads share the terms of elements whose segments are longer in one row than in another.
TEST_P(OwnOperator, SharedTermsOfSegments) {
    Tensor x = input("x", f32, {6, 19}), w = input("w", f32, {9, 19});
    Axis k = reduce_axis("k", 19);
    Tensor y = compute("y", {6, 9}, [&](Expr i, Expr j) { return sum(x(i, k) * w(j, k), k); });
    for (Level level : {warp, lane}) {
        Schedule s({y}, device_target());
        auto [i, j] = s.loops<2>(y);
        s.order({i, s.reduce(y), j});
        s.bind(s.reduce(y), level);
        s.cut(j, {s.index(i) + 1, s.index(i) + 3});
        expect_declared(s, whole_numbers({y}, 3));
    }
}

TEST_P(OwnOperator, AsDeclared) {
    Spread spread;
    expect_declared(Schedule(spread.outputs, device_target()), spread.bindings());
}

TEST_P(OwnOperator, SplitOrderedBoundAndStaged) {
    Spread spread;
    Tensor result = spread.outputs[0];
    Schedule s(spread.outputs, device_target());
    auto [r] = s.loops<1>(result);
    auto [block, row] = s.split(r, 8, Tail::Mask);
    auto [ko, ki] = s.split(s.reduce(result), 16, Tail::Mask);
    s.order({block, row, ko, ki});
    s.bind(block, grid.x);
    s.bind(row, thread);
    Stage weights = s.stage(result, spread.weight, Memory::Shared, ko);
    EXPECT_EQ(s.name(weights), "weight_shared");
    s.stage(result, spread.at, Memory::Registers, row);
    s.unroll(ki);
    expect_declared(s, spread.bindings());
}

/// The value is a stage of its own, computed one tile at a time in shared memory by all threads of the block.
TEST_P(OwnOperator, ProducerUnderTheLoop) {
    Spread spread;
    Tensor picked = compute("picked", {Rows, Columns},
                            [&](Expr r, Expr c) { return spread.table(spread.at(r), c) * spread.weight(c); });
    Axis k = reduce_axis("k", Columns);
    std::vector<Tensor> outputs = compute_tuple("spread", {Rows}, [&](const std::vector<Expr>& r) {
        auto parts = reduce(range_and_sum(), {picked(r[0], k), picked(r[0], k), picked(r[0], k)}, {k});
        return std::vector<Expr>{spread.gain * (parts[1] - parts[0]), parts[2] + cast(f32, spread.offset)};
    });
    Schedule s(outputs, device_target());
    auto [r] = s.loops<1>(outputs[0]);
    auto [block, row] = s.split(r, 16, Tail::Mask);
    auto [ko, ki] = s.split(s.reduce(outputs[0]), 24);
    s.order({block, row, ko, ki});
    s.bind(block, grid.x);
    s.bind(row, thread);
    s.at(picked, ko);
    s.set_memory(picked, Memory::Shared);
    expect_declared(s, spread.bindings());
}

}  // namespace
}  // namespace tw
