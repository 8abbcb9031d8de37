// Products whose rows come in blocks that have a matrix of their own, and whose terms come in blocks that data choose.
#include "schedules/joined_terms.h"

#include "schedules/choose.h"
#include "schedules/unit_product.h"
#include "tests/schedules/expect_right.h"

namespace tw::schedules {
namespace {

Expr product(const Expr& a, const Expr& b) { return cast(f32, a) * cast(f32, b); }

class Draw {
public:
    explicit Draw(uint32_t seed) : random_(seed) {}
    /// least..most times `multiple`.
    int64_t operator()(int64_t least, int64_t most, int64_t multiple = 1) {
        return std::uniform_int_distribution(least, most)(random_) * multiple;
    }
    Type half() { return (*this)(0, 1) == 0 ? bf16 : f16; }
    /// What is made of the sum.
    Expr result(const Expr& sum, Type type) { return cast(type, activated_ ? silu(sum) : sum); }

private:
    std::mt19937 random_;
    bool activated_ = (*this)(0, 1) == 0;
};

struct Declared {
    Tensor y;
    Bindings bindings;
};
Declared with_places(const Tensor& y, const char* name, const std::vector<int64_t>& shape, int64_t last, Draw& draw) {
    Bindings bindings = random_bindings({y}, static_cast<uint32_t>(draw(0, 1 << 20)));
    HostArray places = host_array(i32, shape);
    fill_integers(places, 0, last, static_cast<uint64_t>(draw(0, 1 << 20)));
    bindings.inputs[name] = places;
    return {y, bindings};
}

/// Rows of blocks of a sparse matrix, times a dense one.
Declared sparse_rows(Draw& draw) {
    const int64_t rows = draw(1, 3), stored = draw(1, 3), block = draw(1, 4, 16), blocks = draw(2, 5),
                  n = draw(3, 12, 8);
    const Type type = draw.half();
    const Tensor values = input("values", type, {rows, stored, block, block}),
                 x = input("x", type, {blocks * block, n});
    const Tensor places = input("places", i32, {rows, stored});
    const Axis s = reduce_axis("s", stored), t = reduce_axis("t", block);
    const bool inner_first = draw(0, 1) == 0;
    const Tensor y = compute("y", {rows * block, n}, [&](Expr i, Expr j) {
        const Expr term =
            product(values(i / block, s, i % block, t), x(cast(i64, places(i / block, s)) * block + t, j));
        return draw.result(inner_first ? sum(term, {t, s}) : sum(term, {s, t}), type);
    });
    return with_places(y, "places", {rows, stored}, blocks - 1, draw);
}

/// Each block of rows has an expert, whose matrix may lie either way.
Declared experts(Draw& draw) {
    const int64_t blocks = draw(1, 4), rows = draw(1, 8, 16), k = draw(2, 20, 8), n = draw(3, 12, 8),
                  matrices = draw(1, 4);
    const Type type = draw.half();
    const bool turned = draw(0, 1) == 0;
    const Tensor a = input("a", type, {blocks * rows, k}), expert = input("expert", i32, {blocks});
    const Tensor b = input("b", type, turned ? Shape{matrices, n, k} : Shape{matrices, k, n});
    const Axis t = reduce_axis("t", k);
    const Tensor y = compute("y", {blocks * rows, n}, [&](Expr i, Expr j) {
        const Expr own = cast(i64, expert(i / rows));
        return draw.result(sum(product(a(i, t), turned ? b(own, j, t) : b(own, t, j)), t), f32);
    });
    return with_places(y, "expert", {blocks}, matrices - 1, draw);
}

/// Blocks on a diagonal: each block of rows has terms of its own, of both operands.
Declared diagonal(Draw& draw) {
    const int64_t blocks = draw(2, 4), rows = draw(1, 5, 16), k = draw(1, 5, 16), n = draw(3, 12, 8);
    const Tensor a = input("a", bf16, {blocks * rows, blocks * k}), b = input("b", bf16, {blocks * k, n});
    const Axis t = reduce_axis("t", k);
    const Tensor y = compute("y", {blocks * rows, n}, [&](Expr i, Expr j) {
        const Expr term = i / rows * k + t;
        return draw.result(sum(product(a(i, term), b(term, j)), t), bf16);
    });
    return {y, random_bindings({y}, static_cast<uint32_t>(draw(0, 1 << 20)))};
}

/// Pages that a table lists for all rows alike.
Declared pages(Draw& draw) {
    const int64_t m = draw(17, 90), listed = draw(1, 4), page = draw(1, 4, 16), all = draw(2, 5), n = draw(3, 12, 8);
    const Tensor a = input("a", bf16, {m, listed, page}), b = input("b", bf16, {all, page, n});
    const Tensor table = input("table", i32, {listed});
    const Axis p = reduce_axis("p", listed), t = reduce_axis("t", page);
    const Tensor y = compute("y", {m, n}, [&](Expr i, Expr j) {
        return draw.result(sum(product(a(i, p, t), b(cast(i64, table(p)), t, j)), {p, t}), f32);
    });
    return with_places(y, "table", {listed}, all - 1, draw);
}

struct Family {
    const char* name;
    Declared (*declare)(Draw&);
};
class ProductsInBlocks : public testing::TestWithParam<Family> {};

TEST_P(ProductsInBlocks, AreRightOnTensorCores) {
    const uint32_t seed = std::random_device()();
    Draw draw(seed);
    for (int round = 0; round < 6; ++round) {
        const Declared given = GetParam().declare(draw);
        for (const char* name : {"sm_90a", "sm_80"}) {
            const Schedule s = choose_schedule({given.y}, target(name));
            SCOPED_TRACE(
                fmt::format("seed {}, round {}, {}\n{}\n{}", seed, round, name, s.explain(), s.trace_as_cpp()));
            EXPECT_NE(s.explain().find("'y': tiling"), std::string::npos);
            expect_right(s, given.bindings);
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Of, ProductsInBlocks,
                         testing::Values(Family{"sparse_rows", sparse_rows}, Family{"experts", experts},
                                         Family{"diagonal", diagonal}, Family{"pages", pages}),
                         [](const auto& info) { return std::string(info.param.name); });

/// Parts of the terms, the last of which has fewer pages: those behind them are in no table.
TEST(BlocksOfRows, ReadNoTableBehindItsEnd) {
    for (const int64_t listed : {70, 33, 10}) {
        const Tensor a = input("a", bf16, {32, listed, 64}), b = input("b", bf16, {9, 64, 32});
        const Tensor table = input("table", i32, {listed});
        const Axis p = reduce_axis("p", listed), t = reduce_axis("t", 64);
        const Tensor y = compute("y", {32, 32}, [&](Expr i, Expr j) {
            return sum(product(a(i, p, t), b(cast(i64, table(p)), t, j)), {p, t});
        });
        Draw draw(static_cast<uint32_t>(listed));
        const Declared given = with_places(y, "table", {listed}, 8, draw);
        for (const char* name : {"sm_90a", "sm_80"}) expect_right(choose_schedule({y}, target(name)), given.bindings);
    }
}

/// As large as users have them: boxes bring blocks that data choose, and a warpgroup has all rows of one.
TEST(BlocksOfRows, AreForWarpgroupsWhereBlocksAreLarge) {
    const int64_t block = 64;
    const Tensor values = input("values", bf16, {128, 16, block, block}), x = input("x", bf16, {8192, 1024});
    const Tensor places = input("places", i32, {128, 16});
    const Axis s = reduce_axis("s", 16), t = reduce_axis("t", block);
    const Tensor y = compute("y", {128 * block, 1024}, [&](Expr i, Expr j) {
        return sum(product(values(i / block, s, i % block, t), x(cast(i64, places(i / block, s)) * block + t, j)),
                   {s, t});
    });
    const Schedule chosen = choose_schedule({y}, target("sm_90a"));
    EXPECT_NE(chosen.explain().find("wgmma"), std::string::npos) << chosen.explain();
    EXPECT_NE(chosen.explain().find("the terms of 'y', over several axes, are one axis"), std::string::npos);
}

// One row in turn, or blocks that do not divide the rows, have no tiles.
TEST(BlocksOfRows, OfFewRowsAreNoProducts) {
    for (const int64_t rows : {1, 8, 48}) {
        const Tensor a = input("a", bf16, {128, 64}), b = input("b", bf16, {128, 64, 64});
        const Axis t = reduce_axis("t", 64);
        const Tensor y =
            compute("y", {128, 64}, [&](Expr i, Expr j) { return sum(product(a(i, t), b(i / rows, t, j)), t); });
        EXPECT_FALSE(unit_product(y)) << rows;
    }
}

// Convolutions and contractions that windows take keep their axes.
TEST(BlocksOfRows, LeaveWindowsAlone) {
    const Tensor x = input("x", bf16, {2, 12, 12, 16}), w = input("w", bf16, {32, 3, 3, 16});
    const Axis r = reduce_axis("r", 3), q = reduce_axis("q", 3), c = reduce_axis("c", 16);
    const Tensor y = compute("y", {2, 10, 10, 32}, [&](Expr n, Expr i, Expr j, Expr f) {
        return sum(product(x(n, i + r, j + q, c), w(f, r, q, c)), {r, q, c});
    });
    EXPECT_TRUE(joined_terms({y}).outputs[0].same(y));
}

}  // namespace
}  // namespace tw::schedules
