// Blocks of elements that list their terms.
#include "dsl/listed_terms.h"

#include <gtest/gtest.h>

#include "dsl/declare_scatter.h"
#include "dsl/interpret.h"
#include "tests/dsl/declared_values.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

/// A row's terms are added in the declared order, to the same bits: rounding shows any other.
TEST(ListedTerms, AreCombinedInTheDeclaredOrder) {
    for (auto [rows, terms, width] :
         {std::array<int64_t, 3>{13, 40, 5}, {1, 9, 1}, {40, 3, 2}, {30, 100, 1}, {5, 0, 3}, {0, 4, 2}}) {
        Tensor ids = input("ids", i32, {terms}), x = input("x", f32, {terms, width});
        Axis r = reduce_axis("r", terms);
        Tensor d =
            compute("d", {rows, width}, [&](Expr i, Expr e) { return sum(select(ids(r) == i, x(r, e), 0.0), r); });
        Bindings bindings{
            .inputs = {{"ids", integers(i32, {terms}, -1, rows, 7)}, {"x", host_array(f32, {terms, width})}},
            .sizes = {},
            .scalars = {}};
        fill_uniform(bindings.inputs["x"], -1, 1, 3);
        Schedule s({d}, target("sm_90a"));
        const ListedTerms lists = list_terms(s, d, {.elements = 4, .terms = 16});
        EXPECT_TRUE(s.deterministic());
        expect_declared_values(s, bindings);
        const auto [i, e] = s.loops<2>(d);
        const auto [block, row] = s.split(i, 4, Tail::Mask, {"block", "row"});
        const Loop chunk = s.reduce(d, 0), t = s.reduce(d, 1), own = s.reduce(d, 2);
        s.order({block, chunk, t, row, own, e});
        s.at(lists.entry, t);
        s.at(lists.list, chunk);
        s.at(lists.count, chunk);
        s.at(lists.element, chunk);
        expect_declared_values(s, bindings);
        const Loop place = s.running(lists.updates, s.data_loops(lists.updates)[2]);
        const auto [thread_of, each] = s.split(place, 2);
        s.bind(thread_of, thread);
        expect_declared_values(s, bindings);
    }
}

/// Two solved axes, a batch that the index depends on, conditions of terms, an axis that chooses nothing; maxima, and
/// terms that are counted.
TEST(ListedTerms, AreFoundByAllThatChoosesTheElement) {
    Tensor ids = input("ids", i32, {3, 20}), to = input("to", i32, {20}), x = input("x", f32, {3, 20, 4});
    Axis r = reduce_axis("r", 20), k = reduce_axis("k", 4), p = reduce_axis("p", 20);
    Tensor d = compute("d", {3, 6, 5}, [&](Expr b, Expr i, Expr j) {
        return sum(select(ids(b, r) == i && x(b, r, k) > -5 && to(r) + 1 == j && r > 2, x(b, r, k) * cast(f32, j), 0.0),
                   {r, k}) *
               2.0;
    });
    Tensor most = scatter("most", {3, 6}, reduce_max, {p % 3, ids(0, p)}, x(1, p, 2), {p});
    Tensor counts = compute("counts", {6}, [&](Expr i) { return sum(cast(i32, to(p) == i), p); });
    Bindings bindings{.inputs = {{"ids", integers(i32, {3, 20}, 0, 6, 1)},
                                 {"to", integers(i32, {20}, -2, 4, 2)},
                                 {"x", integers(f32, {3, 20, 4}, -9, 9, 2)}},
                      .sizes = {},
                      .scalars = {}};
    Schedule s({d, most, counts}, target("sm_90a"));
    for (const Tensor& t : {d, most, counts}) {
        const ListedTerms lists = list_terms(s, t, {.elements = 7, .terms = 13});
        expect_declared_values(s, bindings);
        s.at(lists.count, s.reduce(t, 0));
        expect_declared_values(s, bindings);
    }
}

TEST(ListedTermsErrors, NameWhatToDo) {
    Tensor ids = input("ids", i32, {20}), x = input("x", f32, {20});
    Axis r = reduce_axis("r", 20), q = reduce_axis("q", size("n", {.max = 20}));
    Tensor d = compute("d", {9}, [&](Expr i) { return sum(select(ids(r) == i, x(r), 0.0), r); });
    Tensor open = compute("open", {9}, [&](Expr i) { return sum(select(ids(q) == i, x(q), 0.0), q); });
    Tensor all = compute("all", {9}, [&](Expr i) { return sum(x(r) * cast(f32, i), r); });
    Schedule s({d, open, all}, target("sm_90a"));
    EXPECT_ERROR(list_terms(s, all), "list_terms(all): no condition of its terms says which element they belong to");
    EXPECT_ERROR(list_terms(s, open), "list_terms(open): its terms, n, or elements, 9, are no constant number");
    EXPECT_ERROR(list_terms(s, d, {.elements = 0}), "list_terms(d): lists for 0 elements of 2048 terms; name at least");
    EXPECT_ERROR(list_terms(s, d, {.elements = int64_t{1} << 30}),
                 "20 terms times 1073741824 elements of a block do not fit into 32 bits; list for fewer elements");
    list_terms(s, d);
    EXPECT_ERROR(list_terms(s, d), "list_terms(d): each element decides how many terms it has");
}

}  // namespace
}  // namespace tw
