#include "ops/integer_ranges.h"

#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dsl/declare_scatter.h"
#include "dsl/differentiate.h"
#include "ops/check.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

struct Case {
    const char* what;
    std::function<Tensor(const Tensor& ids)> declare;
    int64_t low, high;
    bool ascending = false;
};

const Tensor& table() {
    static const Tensor table = input("table", f32, {4, 50});
    return table;
}

Tensor of_rows(const std::function<Expr(Expr i)>& element) { return compute("y", {12}, element); }

Tensor of_lengths(const std::function<Expr(Expr i)>& length, const std::function<Expr(Expr i, Expr r)>& place) {
    return of_rows([&](Expr i) {
        Axis r = reduce_axis("r", length(i));
        return sum(table()(3, place(i, r)), r);
    });
}

/// Declarations with the range that they leave to ids, of 13 elements of i32.
std::vector<Case> cases() {
    return {
        {"rows", [](Tensor ids) { return of_rows([&](Expr i) { return table()(ids(i), 2); }); }, 0, 3},
        {"columns behind a row", [](Tensor ids) { return of_rows([&](Expr i) { return table()(0, ids(i) + i); }); }, 0,
         38},
        {"rows from 5 on", [](Tensor ids) { return of_rows([&](Expr i) { return table()(ids(i) - 5, 2); }); }, 5, 8},
        {"backwards", [](Tensor ids) { return of_rows([&](Expr i) { return table()(0, 9 - ids(i) / 3); }); }, 0, 29},
        {"quotients", [](Tensor ids) { return of_rows([&](Expr i) { return table()(ids(i) / 8, ids(i) % 8); }); }, 0,
         31},
        {"parts", [](Tensor ids) { return of_rows([&](Expr i) { return table()(0, ids(i) * 4 + i / 3); }); }, 0, 11},
        {"two of them", [](Tensor ids) { return of_rows([&](Expr i) { return table()(0, ids(i) + ids(i + 1)); }); }, 0,
         24},
        {"rows or columns", [](Tensor ids) { return of_rows([&](Expr i) { return table()(ids(i), ids(i)); }); }, 0, 3},
        {"as another choice says",
         [](Tensor ids) {
             return of_rows([&](Expr i) { return table()(select(i < 4, cast(i64, ids(i)), i / 4), 0); });
         },
         0, 3},
        {"padded", [](Tensor ids) { return of_rows([&](Expr i) { return padded(table(), 0)(ids(i), 2); }); }, -1, 4},
        {"through a tensor",
         [](Tensor ids) {
             Tensor rows = compute("rows", {12}, [&](Expr i) { return ids(i) - 2; });
             return of_rows([&](Expr i) { return table()(rows(i), 2); });
         },
         2, 5},
        {"lengths",
         [](Tensor ids) { return of_lengths([&](Expr i) { return ids(i); }, [](Expr, Expr r) { return r; }); }, 0, 50},
        {"lengths in a ragged part",
         [](Tensor ids) {
             return of_lengths([&](Expr i) { return ids(i) * 2; }, [](Expr i, Expr r) { return r + i; });
         },
         0, 19},
        {"segments",
         [](Tensor ids) {
             return of_lengths([&](Expr i) { return ids(i + 1) - ids(i); }, [&](Expr i, Expr r) { return ids(i) + r; });
         },
         0, 50, true},
        {"bins",
         [](Tensor ids) {
             Axis t = reduce_axis("t", 13);
             return scatter("y", {12}, sum, {ids(t)}, table()(0, t), {t});
         },
         0, 12},
        {"guarded for places alone",
         [](Tensor ids) {  // d_scale[k] = sum_i select(i * 4 + k < 13, dy[i * 4 + k] * table[ids[i * 4 + k], 2], 0)
             Tensor scale = input("scale", f32, {4}), dy = input("dy", f32, {13});
             Tensor y = compute("y", {13}, [&](Expr i) { return scale(i % 4) * table()(ids(i), 2); });
             return gradients(y, dy, {scale})[0];
         },
         0, 3},
        {"no rows",
         [](Tensor ids) {
             Tensor none = input("none", f32, {0});
             return compute("y", {0}, [&](Expr i) { return none(ids(i)); });
         },
         0, 0},
    };
}

Tensor thirteen() { return input("ids", i32, {13}); }

TEST(IntegerRanges, FollowFromTheDeclaration) {
    for (const Case& one : cases()) {
        auto ranges = integer_ranges({one.declare(thirteen())}, {});
        ASSERT_EQ(ranges.size(), 1u) << one.what;
        EXPECT_EQ(ranges["ids"].low, one.low) << one.what;
        EXPECT_EQ(ranges["ids"].high, one.high) << one.what;
        EXPECT_EQ(ranges["ids"].ascending, one.ascending) << one.what;
    }
}

/// Both ends of the range are legal, and are drawn.
TEST(IntegerRanges, HoldWhatMayBeGiven) {
    for (const Case& one : cases()) {
        Tensor y = one.declare(thirteen());
        int64_t least = 1000, most = -1000;
        for (uint64_t seed = 0; seed < 40; ++seed) {
            Bindings bindings = random_bindings({y}, seed);
            for (int64_t i = 0; i < 13; ++i) {
                least = std::min(least, bindings.inputs["ids"].at({i}).integer);
                most = std::max(most, bindings.inputs["ids"].at({i}).integer);
            }
            EXPECT_NO_THROW(interpret_plain({y}, bindings)) << one.what;
        }
        EXPECT_EQ(least, one.low) << one.what;
        EXPECT_EQ(most, one.high) << one.what;
    }
}

TEST(IntegerRanges, AreThoseOfTheSizesThatAreGiven) {
    Expr n = size("n", {.min = 1, .max = 1000});
    Tensor x = input("x", f32, {n}), first = input("first", i32, {9});
    Tensor y = compute("y", {8}, [&](Expr i) {
        Axis r = reduce_axis("r", first(i + 1) - first(i));
        return sum(x(first(i) + r), r);
    });
    Bindings bindings = random_bindings({y}, 1);
    EXPECT_EQ(bindings.sizes["n"], 1000);
    int64_t longest = 0;
    for (int64_t i = 0; i < 8; ++i) {
        const HostArray& bounds = bindings.inputs["first"];
        EXPECT_LE(bounds.at({i}).integer, bounds.at({i + 1}).integer);
        longest = std::max(longest, bounds.at({i + 1}).integer - bounds.at({i}).integer);
    }
    EXPECT_GT(longest, 100);
    bindings.sizes["n"] = 20;
    EXPECT_EQ(integer_ranges({y}, bindings)["first"].high, 20);
}

TEST(IntegerRanges, AreNoneWhereIntegersAreNumbers) {
    Tensor a = input("a", i8, {16}), b = input("b", i32, {16}), flag = input("flag", boolean, {16});
    Axis k = reduce_axis("k", 16);
    Tensor y = compute("y", {16}, [&](Expr i) { return select(flag(i), b(i) + sum(cast(i32, a(k)), k), b(i)); });
    EXPECT_TRUE(integer_ranges({y}, {}).empty());
    Bindings bindings = random_bindings({y}, 1);
    for (int64_t i = 0; i < 16; ++i) EXPECT_LT(static_cast<uint64_t>(bindings.inputs["b"].at({i}).integer), 8u);
}

/// Formulas of indices that grow without end when they are written out are let be.
TEST(IntegerRanges, AreGivenUpOfLongFormulas) {
    Tensor x = input("x", f32, {1000}), ids = input("ids", i64, {16});
    Tensor y = compute("y", {16}, [&](Expr i) {
        Expr wild = ids(i), chain = ids(i);
        for (int n = 0; n < 60; ++n) wild = select(wild < n, wild + wild, min(wild * 3, max(wild, wild - i)));
        for (int n = 0; n < 5000; ++n) chain = chain + i % 3;
        return padded(x, 0)(wild) + padded(x, 0)(chain);
    });
    EXPECT_NO_THROW(interpret_plain({y}, random_bindings({y}, 1)));
}

/// 300 rows, of which an index of 8 bits says only so many.
TEST(IntegerRanges, StayInTheirType) {
    Tensor wide = input("wide", f32, {300}), small = input("small", u8, {400}), tiny = input("tiny", i8, {400});
    Tensor y = compute("y", {400}, [&](Expr i) { return wide(cast(i32, small(i))) + wide(cast(i32, tiny(i)) + 100); });
    auto most = [](const HostArray& array) {
        int64_t result = -1000;
        for (int64_t i = 0; i < 400; ++i) result = std::max(result, array.at({i}).integer);
        return result;
    };
    Bindings bindings = random_bindings({y}, 1);
    EXPECT_GT(most(bindings.inputs["small"]), 240);
    EXPECT_GT(most(bindings.inputs["tiny"]), 120);
    EXPECT_NO_THROW(interpret_plain({y}, bindings));
}

}  // namespace
}  // namespace tw
