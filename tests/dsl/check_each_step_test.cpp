// check_each_step: schedules of sound computations pass; the first step that relies on what a reducer does not keep is
// named.
#include <gtest/gtest.h>

#include "dsl/interpret.h"
#include "dsl/schedule.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

Bindings reals(const Tensor& x, uint64_t seed) {
    Bindings bindings;
    HostArray& array = bindings.inputs[x.name()];
    array = host_array(x.type(), {require_constant(x.shape()[0]), require_constant(x.shape()[1])});
    fill_uniform(array, -1, 1, seed);
    return bindings;
}

/// combine(a, b) over a row of 24, in blocks of two rows, in parts of 8 and in another order.
struct Rows {
    Tensor x = input("x", f32, {6, 24});
    Tensor y;

    explicit Rows(const Reducer& reducer) {
        Axis k = reduce_axis("k", 24);
        y = compute("y", {6}, [&](Expr i) { return reduce(reducer, {x(i, k)}, {k})[0]; });
    }
    Schedule steps() const {
        Schedule s({y}, target("sm_90a"));
        auto [block, row] = s.split(s.loops<1>(y)[0], 2);
        auto [ko, ki] = s.split(s.reduce(y), 8);
        s.bind(block, grid.x);
        s.order({ki, ko});
        return s;
    }
};

Reducer reducer(const char* name, double identity, const std::function<Expr(Expr, Expr)>& combine, bool commutative) {
    return make_reducer(
        name, {constant(f32, identity)},
        [&](const std::vector<Expr>& a, const std::vector<Expr>& b) { return std::vector{combine(a[0], b[0])}; },
        commutative);
}

TEST(CheckEachStep, SoundSchedulesPass) {
    Rows sums(reducer(
        "plus", 0, [](Expr a, Expr b) { return a + b; }, true));
    Schedule s = sums.steps();
    s.rfactor(sums.y, s.all_loops(sums.y).back());
    s.check_each_step(reals(sums.x, 1));

    Tensor x = input("x", bf16, {6, 24});
    Axis k = reduce_axis("k", 24);
    Tensor narrow = compute("narrow", {6, 24}, [&](Expr i, Expr j) { return cast(f32, x(i, j)) * 1.37; });
    Tensor y = compute("y", {6}, [&](Expr i) { return cast(bf16, sum(narrow(i, k), k)); });
    Schedule rounded({y}, target("sm_90a"));
    rounded.round_to(narrow, bf16);
    auto [ko, ki] = rounded.split(rounded.reduce(y), 5, Tail::Mask);
    rounded.order({ki, ko});
    rounded.check_each_step(reals(x, 2));
}

// h = x[k] * h + 1, term after term: maps composed, which is associative but not commutative. Declared as if it were,
// order() may exchange terms.
TEST(CheckEachStep, NamesTheStepThatReordersWhatIsNotCommutative) {
    Reducer recurrence = make_reducer("recurrence", {constant(f32, 1.0), constant(f32, 0.0)},
                                      [](const std::vector<Expr>& a, const std::vector<Expr>& b) {
                                          return std::vector{a[0] * b[0], a[1] * b[0] + b[1]};
                                      });
    Tensor x = input("x", f32, {6, 24});
    Axis k = reduce_axis("k", 24);
    Tensor y = compute("y", {6}, [&](Expr i) { return reduce(recurrence, {x(i, k), constant(f32, 1.0)}, {k})[1]; });
    Schedule s({y}, target("sm_90a"));
    auto [ko, ki] = s.split(s.reduce(y), 8);
    s.check_each_step(reals(x, 3));
    int line = __LINE__ + 1;
    s.order({ki, ko});
    EXPECT_ERROR(s.check_each_step(reals(x, 3)), "check_each_step_test.cpp:");
    EXPECT_ERROR(s.check_each_step(reals(x, 3)),
                 fmt::format("check_each_step: after step [1] {} (check_each_step_test.cpp:{}): y[0] is ",
                             s.trace()[1].text, line));
}

TEST(CheckEachStep, NamesTheStepThatStartsPartsFromNoIdentity) {
    Rows shifted(reducer(
        "shifted", 1, [](Expr a, Expr b) { return a + b; }, true));
    Schedule s({shifted.y}, target("sm_90a"));
    auto [ko, ki] = s.split(s.reduce(shifted.y), 8);
    s.rfactor(shifted.y, ko);
    EXPECT_ERROR(s.check_each_step(reals(shifted.x, 4)), "check_each_step: after step [1] ");
    EXPECT_ERROR(s.check_each_step(reals(shifted.x, 4)), "is its reducer associative, its identity one");
}

// Before any step already, a tree fuses multiply-adds: here that is all that is left of the result.
TEST(CheckEachStep, FusedMultiplyAddsAreNoDifference) {
    Tensor x = input("x", f32, {6, 24});
    Tensor square = compute("square", {6, 24}, [&](Expr i, Expr j) { return x(i, j) * x(i, j); });
    Tensor rest = compute("rest", {6, 24}, [&](Expr i, Expr j) { return x(i, j) * x(i, j) - square(i, j); });
    Schedule s({rest}, target("sm_90a"));
    auto [i, j] = s.loops<2>(rest);
    s.order({j, i});
    s.check_each_step(reals(x, 8));
}

TEST(CheckEachStep, WholeNumbersMustBeEqual) {
    Tensor x = input("x", i32, {2, 30});
    Axis k = reduce_axis("k", 30);
    Reducer differences =
        make_reducer("difference", {constant(i32, 0)},
                     [](const std::vector<Expr>& a, const std::vector<Expr>& b) { return std::vector{a[0] - b[0]}; });
    Tensor y = compute("y", {2}, [&](Expr i) { return reduce(differences, {x(i, k)}, {k})[0]; });
    Bindings bindings;
    bindings.inputs["x"] = host_array(i32, {2, 30});
    fill_integers(bindings.inputs["x"], 0, 9, 5);
    Schedule s({y}, target("sm_90a"));
    auto [ko, ki] = s.split(s.reduce(y), 10);
    s.check_each_step(bindings);
    s.rfactor(y, ko);
    EXPECT_ERROR(s.check_each_step(bindings), "after step [1] ");
}

TEST(CheckEachStep, DataThatLeaveTheirTensorAreNoStepsFault) {
    Tensor x = input("x", f32, {8, 8}), ids = input("ids", i32, {4});
    Tensor y = compute("y", {4}, [&](Expr i) { return x(ids(i), 0); });
    Bindings bindings = reals(x, 6);
    bindings.inputs["ids"] = host_array(i32, {4});
    bindings.inputs["ids"].set({2}, make_value(i32, int64_t{8}));
    Schedule s({y}, target("sm_90a"));
    EXPECT_THROW(s.check_each_step(bindings), Error);
}

}  // namespace
}  // namespace tw
