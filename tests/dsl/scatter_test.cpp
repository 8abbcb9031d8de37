// Reductions whose terms data send to their elements, or whose length data decide.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dsl/declare_scatter.h"
#include "dsl/differentiate.h"
#include "dsl/interpret.h"
#include "dsl/schedule.h"
#include "tests/dsl/declared_values.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

using testing::HasSubstr;

/// d[ids[r], e] += x[r, e]
struct Rows {
    int64_t rows, indices, columns;
    Tensor ids = input("ids", i32, {indices}), x = input("x", f32, {indices, columns});
    Axis r = reduce_axis("r", indices);
    Tensor d = compute("d", {rows, columns}, [&](Expr i, Expr e) { return sum(select(ids(r) == i, x(r, e), 0.0), r); });
    Bindings bindings{
        .inputs = {{"ids", integers(i32, {indices}, -1, rows, 7)}, {"x", integers(f32, {indices, columns}, -9, 9, 8)}},
        .sizes = {},
        .scalars = {}};
};

TEST(Scatter, SendsTermsToTheirElements) {
    for (auto [rows, indices, columns] :
         {std::array<int64_t, 3>{13, 40, 5}, {1, 9, 1}, {40, 3, 2}, {5, 0, 3}, {0, 4, 2}}) {
        Rows p{rows, indices, columns};
        Schedule s({p.d}, target("sm_90a"));
        Stage updates = s.scatter(p.d, Combine::Atomic);
        EXPECT_FALSE(s.deterministic());
        auto [r, e] = s.loops<2>(updates);
        auto [block, inside] = s.split(r, 4, Tail::Mask);
        s.bind(block, grid.x);
        s.bind(inside, thread);
        expect_declared_values(s, p.bindings);  // -1 and `rows` go nowhere
    }
}

/// A part of a histogram lives in each block, which counts the terms that belong there.
TEST(Scatter, UpdatesPartsThatLiveUnderALoop) {
    Tensor ids = input("ids", i32, {50});
    Axis r = reduce_axis("r", 50);
    Tensor counts = compute("counts", {11}, [&](Expr i) { return sum(cast(i32, ids(r) == i), r); });
    Tensor twice = compute("twice", {11}, [&](Expr i) { return counts(i) * 2; });
    for (auto [part, filled_by] : {std::array<int64_t, 2>{1, 0}, {4, 0}, {11, 0}, {1, 8}, {4, 3}, {11, 8}}) {
        Schedule s({twice}, target("sm_90a"));
        s.scatter(counts, Combine::Atomic);
        auto [block, inside] = s.split(s.loops<1>(twice)[0], part, Tail::Mask);
        s.bind(block, grid.x);
        s.bind(inside, thread);
        s.at(counts, block);
        // Memory has more elements then than are filled.
        if (filled_by > 0) s.split(s.loops<1>(counts)[0], filled_by, Tail::Mask);
        EXPECT_EQ(s.tree().nests.size(), 1u);
        EXPECT_THAT(s.explain(), HasSubstr("'counts_updates' updates the elements of 'counts', in shared memory\n"));
        EXPECT_EQ(s.explain().find("'counts_updates' lives"), std::string::npos);
        expect_declared_values(s, {.inputs = {{"ids", integers(i32, {50}, -1, 11, 1)}}, .sizes = {}, .scalars = {}});
    }
}

TEST(Scatter, KeepsTheReduceAxesThatChooseNoElement) {
    Tensor ids = input("ids", i32, {20}), x = input("x", f32, {20, 6});
    Axis r = reduce_axis("r", 20), k = reduce_axis("k", 6);
    Tensor d = compute("d", {9}, [&](Expr i) {
        return sum(select(x(r, k) > 0 && cast(i64, ids(r)) - 2 == i && r > 3, x(r, k) * 2.0, 0.0), {r, k}) + 1.0;
    });
    Schedule s({d}, target("sm_90a"));
    Stage updates = s.scatter(d, Combine::Atomic);
    EXPECT_EQ(s.loops<1>(updates).size(), 1u);
    EXPECT_TRUE(s.reduces(updates));
    expect_declared_values(s,
                           {.inputs = {{"ids", integers(i32, {20}, 0, 12, 1)}, {"x", integers(f32, {20, 6}, -9, 9, 2)}},
                            .sizes = {},
                            .scalars = {}});
}

TEST(Scatter, Counts) {
    Tensor ids = input("ids", i32, {50});
    Axis r = reduce_axis("r", 50), q = reduce_axis("q", 50);
    Tensor counts = compute("counts", {8}, [&](Expr i) { return sum(cast(i32, ids(r) == i), r); });
    Tensor last = compute("last", {8}, [&](Expr i) {
        return reduce_max(select(ids(q) == i, q, std::numeric_limits<int64_t>::min()), q);
    });
    Schedule s({counts, last}, target("sm_90a"));
    s.scatter(counts, Combine::Atomic);
    s.scatter(last, Combine::Atomic);
    EXPECT_TRUE(s.deterministic());
    expect_declared_values(s, {.inputs = {{"ids", integers(i32, {50}, 0, 7, 1)}}, .sizes = {}, .scalars = {}});
}

TEST(Scatter, OfTheGradientOfAGather) {
    Tensor w = input("w", f32, {11, 4}), ids = input("ids", i32, {3, 7}), dy = input("dy", f32, {3, 7, 4});
    Tensor y = compute("y", {3, 7, 4}, [&](Expr b, Expr t, Expr e) { return w(ids(b, t), e); });
    Tensor d = gradients(y, dy, {w})[0];
    Schedule s({d}, target("sm_90a"));
    Schedule sorted = s;
    s.scatter(d, Combine::Atomic);
    expect_declared_values(
        s, {.inputs = {{"ids", integers(i32, {3, 7}, 0, 10, 1)}, {"dy", integers(f32, {3, 7, 4}, -9, 9, 2)}},
            .sizes = {},
            .scalars = {}});
}

TEST(Scatter, FindsTermsInTheDeclaredOrder) {
    for (auto [rows, indices, columns] :
         {std::array<int64_t, 3>{13, 40, 5}, {1, 9, 1}, {300, 2100, 1}, {5, 0, 3}, {0, 4, 2}, {256, 30, 2}}) {
        Rows p{rows, indices, columns};
        for (Combine combine : {Combine::Workspace, Combine::Search}) {
            fill_uniform(p.bindings.inputs["x"], -1, 1, 3);  // rounding shows any other order
            Schedule s({p.d}, target("sm_90a"));
            s.scatter(p.d, combine);
            EXPECT_TRUE(s.deterministic());
            auto [i, e] = s.loops<2>(p.d);
            s.bind(i, grid.x);
            s.bind(e, thread);
            expect_declared_values(s, p.bindings);
            auto [to, ti] = s.split(s.reduce(p.d), 4, Tail::Mask);
            s.bind(ti, thread);
            fill_integers(p.bindings.inputs["x"], -9, 9, 3);
            expect_declared_values(s, p.bindings);
        }
    }
}

/// What has been sorted by the same elements is in that order already; by others it is not.
TEST(Scatter, SortsTermsOnce) {
    Tensor ids = input("ids", i32, {90}), others = input("others", i32, {90}), x = input("x", f32, {90, 3});
    Axis r = reduce_axis("r", 90), q = reduce_axis("q", 90), u = reduce_axis("u", 90);
    Tensor sums = compute("sums", {20, 3}, [&](Expr i, Expr e) { return sum(select(ids(r) == i, x(r, e), 0.0), r); });
    Tensor most = compute("most", {20}, [&](Expr i) { return reduce_max(select(ids(q) == i, x(q, 0), -INFINITY), q); });
    Tensor apart =
        compute("apart", {20, 3}, [&](Expr i, Expr e) { return sum(select(others(u) == i, x(u, e), 0.0), u); });
    Schedule s({sums, most, apart}, target("sm_90a"));
    for (const Tensor& t : {sums, most, apart}) s.scatter(t);
    const std::string text = s.to_string();
    EXPECT_NE(text.find("kernel sums_order"), std::string::npos) << text;
    EXPECT_EQ(text.find("kernel most_order"), std::string::npos) << text;
    EXPECT_NE(text.find("kernel apart_order"), std::string::npos) << text;
    expect_declared_values(s, {.inputs = {{"ids", integers(i32, {90}, -1, 20, 1)},
                                          {"others", integers(i32, {90}, -1, 20, 4)},
                                          {"x", integers(f32, {90, 3}, -9, 9, 2)}},
                               .sizes = {},
                               .scalars = {}});
}

TEST(Scatter, FindsTermsOfNamedSizes) {
    Expr v = size("v", {.min = 0, .max = 700}), n = size("n", {.min = 0, .max = 3000});
    Tensor ids = input("ids", i32, {n}), x = input("x", f32, {n, 2});
    Axis r = reduce_axis("r", n);
    Tensor d = compute("d", {v, 2}, [&](Expr i, Expr e) { return sum(select(ids(r) == i, x(r, e), 0.0), r); });
    for (Combine combine : {Combine::Workspace, Combine::Search}) {
        Schedule s({d}, target("sm_90a"));
        s.scatter(d, combine);
        for (auto [rows, terms] : {std::pair<int64_t, int64_t>{600, 1500}, {1, 30}, {7, 0}, {0, 5}})
            expect_declared_values(s, {.inputs = {{"ids", integers(i32, {terms}, -1, rows, 1)},
                                                  {"x", integers(f32, {terms, 2}, -9, 9, 2)}},
                                       .sizes = {{"v", rows}, {"n", terms}},
                                       .scalars = {}});
    }
}

TEST(Scatter, NeedsAReducerThatIsOneOperation) {
    Tensor ids = input("ids", i32, {20}), x = input("x", u32, {3, 20, 2});
    Axis k = reduce_axis("k", 3), r = reduce_axis("r", 20), q = reduce_axis("q", 2);
    Reducer last = make_reducer(
        "last", {constant(u32, 0)}, [](auto& a, auto& b) { return std::vector<Expr>{select(b[0] == 0, a[0], b[0])}; },
        false);
    Tensor d = compute("d", {6}, [&](Expr i) {
        return reduce(last, {select(ids(r) == i, x(k, r, q), constant(u32, 0))}, {k, r, q})[0];
    });
    Schedule s({d}, target("sm_90a"));
    EXPECT_FALSE(s.scatters(d));
    EXPECT_ERROR(s.scatter(d), "'last' combines by more than one operation; scatter reductions by +, *, min, max");
}

/// Two solved axes, a batch that the index depends on, a term's own condition, an axis that chooses nothing.
TEST(Scatter, FindsByAllThatChoosesTheElement) {
    Tensor ids = input("ids", i32, {3, 20}), to = input("to", i32, {20}), x = input("x", f32, {3, 20, 4});
    Axis r = reduce_axis("r", 20), k = reduce_axis("k", 4);
    Tensor d = compute("d", {3, 6, 5}, [&](Expr b, Expr i, Expr j) {
        return sum(select(ids(b, r) == i && x(b, r, k) > -5 && to(r) + 1 == j && r > 2, x(b, r, k) * cast(f32, j), 0.0),
                   {r, k}) *
               2.0;
    });
    Bindings bindings{.inputs = {{"ids", integers(i32, {3, 20}, 0, 6, 1)},
                                 {"to", integers(i32, {20}, -2, 4, 2)},
                                 {"x", integers(f32, {3, 20, 4}, -9, 9, 2)}},
                      .sizes = {},
                      .scalars = {}};
    for (Combine combine : {Combine::Workspace, Combine::Search, Combine::Atomic}) {
        Schedule s({d}, target("sm_90a"));
        s.scatter(d, combine);
        expect_declared_values(s, bindings);
    }
}

/// Also where the index of the element is the one that is cast, to the type of the ids.
TEST(Scatter, FindsAnElementThatIsCast) {
    Tensor ids = input("ids", i32, {40}), x = input("x", f32, {40});
    Axis r = reduce_axis("r", 40);
    Tensor d = compute("d", {7}, [&](Expr i) { return sum(select(ids(r) == cast(i32, i), x(r), 0.0), r); });
    Bindings bindings{.inputs = {{"ids", integers(i32, {40}, -1, 8, 1)}, {"x", integers(f32, {40}, -9, 9, 2)}},
                      .sizes = {},
                      .scalars = {}};
    Schedule s({d}, target("sm_90a"));
    ASSERT_TRUE(s.scatters(d));
    s.scatter(d);
    expect_declared_values(s, bindings);
    const Expr n = size("n", {.min = 1, .max = int64_t{1} << 33});
    Tensor wide = compute("wide", {n}, [&](Expr i) { return sum(select(ids(r) == cast(i32, i), x(r), 0.0), r); });
    EXPECT_FALSE(Schedule({wide}, target("sm_90a")).scatters(wide)) << "a cast that wraps";
}

/// The last of several parts has fewer terms: none behind them is read.
TEST(Scatter, FindsTermsOfPartsThatDoNotDivide) {
    Tensor ids = input("ids", i32, {41}), x = input("x", f32, {41, 2});
    Axis r = reduce_axis("r", 41);
    Tensor d = compute("d", {7, 2}, [&](Expr i, Expr e) { return sum(select(ids(r) == i, x(r, e), 0.0), r); });
    Bindings bindings{.inputs = {{"ids", integers(i32, {41}, -1, 8, 1)}, {"x", integers(f32, {41, 2}, -9, 9, 2)}},
                      .sizes = {},
                      .scalars = {}};
    Schedule s({d}, target("sm_90a"));
    const Stage parts = s.rfactor(d, s.split(s.reduce(d), 16, Tail::Mask)[0]);
    for (Combine combine : {Combine::Workspace, Combine::Search})
        EXPECT_ERROR(s.scatter(parts, combine),
                     "the last part of the terms of 'd_partial' is shorter, so that they have no numbers; take parts");
    s.scatter(parts, Combine::Atomic);
    expect_declared_values(s, bindings);
}

TEST(DeclaredScatter, CombinesInRowMajorOrder) {
    constexpr int64_t V = 6, P = 25, D = 3;
    Tensor ids = input("ids", i32, {P}), x = input("x", f32, {P, D});
    Axis p = reduce_axis("p", P), j = reduce_axis("j", D);
    Bindings bindings{
        .inputs = {{"ids", integers(i32, {P}, -1, V, 1)}, {"x", host_array(f32, {P, D})}}, .sizes = {}, .scalars = {}};
    fill_uniform(bindings.inputs["x"], -1, 1, 2);
    for (Reduction reduction : {Reduction(sum), Reduction(reduce_max), Reduction(reduce_min)}) {
        Tensor d = scatter("d", {V, D}, reduction, {ids(p), j}, x(p, j), {p, j});
        HostArray got = interpret_plain({d}, bindings)[0];
        std::vector<float> wanted(V * D, reduction == Reduction(sum)          ? 0.0f
                                         : reduction == Reduction(reduce_max) ? -INFINITY
                                                                              : INFINITY);
        for (int64_t q = 0; q < P; ++q)
            for (int64_t c = 0; c < D; ++c) {
                int64_t word = bindings.inputs["ids"].at({q}).integer;
                if (word < 0 || word >= V) continue;
                float &to = wanted[word * D + c], term = static_cast<float>(bindings.inputs["x"].at({q, c}).real);
                to = reduction == Reduction(sum)          ? to + term
                     : reduction == Reduction(reduce_max) ? std::max(to, term)
                                                          : std::min(to, term);
            }
        for (int64_t w = 0; w < V; ++w)
            for (int64_t c = 0; c < D; ++c) EXPECT_EQ(got.at({w, c}).real, wanted[w * D + c]);
        Schedule s({d}, target("sm_90a"));
        EXPECT_TRUE(s.scatters(d));
        s.scatter(d);
        expect_declared_values(s, bindings);
    }
}

TEST(DeclaredScatter, HasAGatherAsItsGradient) {
    Tensor ids = input("ids", i32, {25}), x = input("x", f32, {25, 3}), dd = input("dd", f32, {6, 3});
    Axis p = reduce_axis("p", 25), j = reduce_axis("j", 3);
    Tensor d = scatter("d", {6, 3}, sum, {ids(p), j}, x(p, j) * 2.0, {p, j});
    Tensor dx = gradients(d, dd, {x})[0];
    EXPECT_EQ(to_string(*dx.operation()).find("sum"), std::string::npos) << to_string(*dx.operation());
    Bindings bindings{.inputs = {{"ids", integers(i32, {25}, -1, 6, 1)}, {"dd", integers(f32, {6, 3}, -9, 9, 2)}},
                      .sizes = {},
                      .scalars = {}};
    HostArray got = interpret_plain({dx}, bindings)[0];
    for (int64_t q = 0; q < 25; ++q)
        for (int64_t c = 0; c < 3; ++c) {
            int64_t word = bindings.inputs["ids"].at({q}).integer;
            double wanted = word < 0 || word >= 6 ? 0 : 2 * bindings.inputs["dd"].at({word, c}).real;
            EXPECT_EQ(got.at({q, c}).real, wanted) << q << ", " << c;
        }
}

TEST(DeclaredScatterErrors, NameWhatToDo) {
    Tensor ids = input("ids", i32, {25}), x = input("x", f32, {25, 3});
    Axis p = reduce_axis("p", 25), j = reduce_axis("j", 3);
    EXPECT_ERROR(scatter("d", {6, 3}, sum, {ids(p)}, x(p, j), {p, j}), "scatter 'd': 1 indices for 2 dimensions");
    EXPECT_ERROR(scatter("d", {6, 3}, sum, {ids(p), x(p, j)}, x(p, j), {p, j}),
                 "scatter 'd': index 1 is f32; indices are integers, so cast it, e.g. cast(i64, x)");
    EXPECT_ERROR(scatter("d", {25, 3}, sum, {p, j}, x(p, j), {p, j}), "scatter 'd': every axis is an index of its own");
}

TEST(ScatterErrors, NameWhatToDo) {
    Rows p{5, 6, 3};
    Tensor twice = compute("twice", {5, 3}, [&](Expr i, Expr e) { return p.d(i, e) * 2.0; });
    Axis k = reduce_axis("k", 3);
    Tensor sums = compute("sums", {5}, [&](Expr i) { return sum(twice(i, k), k); });
    Schedule s({sums}, target("sm_90a"));
    EXPECT_ERROR(s.scatter(twice), "scatter(twice): it is no reduction");
    EXPECT_ERROR(s.scatter(sums), "scatter(sums): no condition of its terms says which element they belong to");
    Schedule split = s;
    split.split(split.reduce(p.d), 2);
    EXPECT_ERROR(split.scatter(p.d), "scatter(d): its loops are replaced, but were split");
    s.at(p.d, s.loops<2>(twice)[0]);
    EXPECT_ERROR(s.scatter(p.d), "scatter(d): it stands in another kernel");
}

/// y[i, j] = sum of the entries of row i of a sparse matrix times rows of x
struct SparseProduct {
    Tensor offsets = input("offsets", i32, {6}), values = input("values", f32, {20}), place = input("place", i32, {20});
    Tensor x = input("x", f32, {9, 4});
    Tensor y = compute("y", {5, 4}, [&](Expr i, Expr j) {
        Axis r = reduce_axis("r", offsets(i + 1) - offsets(i));
        return sum(values(offsets(i) + r) * x(place(offsets(i) + r), j), r);
    });
    Bindings bindings{.inputs = {{"offsets", host_array(i32, {6})},
                                 {"values", integers(f32, {20}, -9, 9, 1)},
                                 {"place", integers(i32, {20}, 0, 8, 2)},
                                 {"x", integers(f32, {9, 4}, -9, 9, 3)}},
                      .sizes = {},
                      .scalars = {}};
    SparseProduct() {
        int64_t ends[] = {0, 3, 3, 14, 15, 20};
        for (int64_t i = 0; i < 6; ++i) bindings.inputs["offsets"].set({i}, {Type::I32, 0, ends[i]});
    }
};

TEST(LoadedExtents, OfASparseProduct) {
    SparseProduct p;
    auto number = [&](const char* name, const std::vector<int64_t>& at) {
        Value value = p.bindings.inputs.at(name).at(at);
        return is_float(value.type) ? value.real : static_cast<double>(value.integer);
    };
    HostArray got = interpret_plain({p.y}, p.bindings)[0];
    for (int64_t i = 0; i < 5; ++i)
        for (int64_t j = 0; j < 4; ++j) {
            double wanted = 0;
            for (auto t = static_cast<int64_t>(number("offsets", {i})); t < number("offsets", {i + 1}); ++t)
                wanted += number("values", {t}) * number("x", {static_cast<int64_t>(number("place", {t})), j});
            EXPECT_EQ(got.at({i, j}).real, wanted);
        }
    Schedule s({p.y}, target("sm_90a"));
    auto [i, j] = s.loops<2>(p.y);
    auto [ro, ri] = s.split(s.reduce(p.y), 4, Tail::Mask);
    s.bind(i, thread);
    s.order({i, ro, j, ri});
    s.stage(p.y, p.values, Memory::Shared, ro);
    expect_declared_values(s, p.bindings);
    Schedule cut({p.y}, target("sm_90a"));  // the last block has rows that are not there
    Loop columns = cut.loops<2>(p.y)[1];
    auto [rows, row] = cut.split(cut.loops<2>(p.y)[0], 3, Tail::Mask);
    auto [part, term] = cut.split(cut.reduce(p.y), 2, Tail::Mask);
    cut.order({rows, row, part, term, columns});
    expect_declared_values(cut, p.bindings);
}

TEST(LoadedExtents, FollowTheAxesOfACopy) {
    SparseProduct p;
    Tensor z = with_gradient(p.y, {p.x}, [&](const Tensor&, const Tensor& dy) {
        return std::vector<Tensor>{compute("dx", {9, 4}, [&](Expr i, Expr j) { return dy(0, j) * cast(f32, i); })};
    });
    EXPECT_EQ(interpret_plain({z}, p.bindings)[0].bytes, interpret_plain({p.y}, p.bindings)[0].bytes);
    Schedule s({z}, target("sm_90a"));
    expect_declared_values(s, p.bindings);
    EXPECT_EQ(gradients(z, input("dz", f32, {5, 4}), {p.x})[0].name(), "dx");
    EXPECT_ERROR(gradients(p.y, input("dy", f32, {5, 4}), {p.x}),
                 "data decide how long the reduction of 'y' over 'r' is");
}

TEST(ScatterErrors, TermsWithoutNumbers) {
    SparseProduct p;
    Tensor d = compute("d", {9}, [&](Expr i) {
        Axis r = reduce_axis("r", p.offsets(3));
        return sum(select(p.place(r) == i, p.values(r), 0.0), r);
    });
    Schedule s({d}, target("sm_90a"));
    EXPECT_ERROR(s.scatter(d), "scatter(d): each element decides how many terms it has");
    EXPECT_ERROR(replay("tilewright trace 1\nscatter 0 quickly\n", {d}, target("sm_90a")),
                 "\"quickly\" is no way to combine");
}

TEST(LoadedExtents, DependOnNoOtherAxisOfTheReduction) {
    SparseProduct p;
    Axis k = reduce_axis("k", 5), r = reduce_axis("r", p.offsets(k));
    EXPECT_ERROR(sum(p.values(p.offsets(k) + r), {k, r}), "axis 'k' decides how long axis 'r' is");
}

TEST(ScatterErrors, LoopsThatDataBound) {
    Rows p{5, 6, 3};
    Schedule s({p.d}, target("sm_90a"));
    s.scatter(p.d);
    auto [i, e] = s.loops<2>(p.d);
    Loop t = s.reduce(p.d);
    EXPECT_ERROR(s.bind(t, thread), "is not constant; split it and bind the inner loop");
    EXPECT_ERROR(s.order({t, i}), "loop 't' of 'd' must stand inside of 'i', which decides how many iterations it has");
    EXPECT_ERROR(s.rfactor(p.d, t), "rfactor(d, t): elements decide how many terms 'd' has; split the loop as long");
    s.order({t, e});
    auto [to, ti] = s.split(t, 2, Tail::Mask);
    EXPECT_ERROR(s.fuse(to, ti), "loops 't_outer' and 't_inner' of 'd' cannot be fused: the element decides");
    expect_declared_values(s, p.bindings);
}

/// What decides how long a loop is may be made where it is needed, by threads together: one kernel.
TEST(LoadedExtents, MadeInRegisters) {
    Rows p{13, 40, 5};
    fill_uniform(p.bindings.inputs["x"], -1, 1, 3);
    Schedule s({p.d}, target("sm_90a"));
    s.scatter(p.d, Combine::Search);
    auto [i, e] = s.loops<2>(p.d);
    s.bind(i, grid.x);
    s.bind(e, thread);
    Stage span = [&] {
        for (Stage stage : s.all_stages())
            if (s.name(stage) == "d_span") return stage;
        return Stage{};
    }();
    s.at(span, i);
    EXPECT_ERROR(s.set_memory(span, Memory::Shared),
                 "'d_span' must stay a kernel of its own, or stand in registers under a loop around loop 't' of 'd'");
    EXPECT_EQ(s.tree().nests.size(), 1u);
    expect_declared_values(s, p.bindings);
}

TEST(ScatterErrors, OfRoundedElements) {
    Rows p{5, 6, 3};
    Tensor twice = compute("twice", {5, 3}, [&](Expr i, Expr e) { return p.d(i, e) * 2.0; });
    Schedule s({twice}, target("sm_90a"));
    Schedule rounded = s;
    rounded.round_to(p.d, bf16);
    EXPECT_ERROR(rounded.scatter(p.d, Combine::Atomic), "scatter(d): the elements of 'd' are rounded to bf16");
    s.scatter(p.d, Combine::Atomic);
    EXPECT_ERROR(s.round_to(p.d, bf16), "round_to(d, bf16): 'd_updates' updates its elements atomically");
}

}  // namespace
}  // namespace tw
