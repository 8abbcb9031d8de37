// What is made of a product's rows, elements and reductions, in the registers of tiles that have rows whole.
#include "schedules/rows_in_tiles.h"

#include <random>

#include <fmt/ranges.h>
#include <gmock/gmock.h>

#include "ops/check.h"
#include "ops/executable.h"
#include "schedules/choose.h"
#include "schedules/product_rows.h"
#include "verify/random.h"

namespace tw::schedules {
namespace {

using testing::HasSubstr;
using testing::Not;

enum class MadeOfRows { Softmax, InOneExpression, Gradient, LayerNorm, Residual, BestExpert, Loss };

struct TileCase {
    MadeOfRows of;
    int64_t batch, m, n, k;
    Type operand = bf16, result = bf16;
    bool has_statistics = false, has_product = false, turned_b = true;
};

TileCase random_tile_case(fuzz::Random& random, MadeOfRows of) {
    TileCase c{.of = of, .batch = 0, .m = random.between(16, 140), .n = random.between(16, 200), .k = 0};
    c.k = 8 * random.between(2, 12);
    if (random.chance(0.1)) c.n = random.between(200, 256);
    if (random.chance(0.3)) c.batch = random.between(1, 3), c.m = random.between(16, 80);
    c.operand = random.pick(std::vector<Type>{bf16, f16});
    c.result = random.pick(std::vector<Type>{bf16, f16, f32});
    c.has_statistics = random.chance(0.4), c.has_product = random.chance(0.2), c.turned_b = random.chance(0.7);
    if (!c.turned_b) c.n = c.n / 8 * 8;
    return c;
}

using Indices = std::vector<Expr>;

/// A row of what a case makes, whatever the batch is.
class TileOutputs {
public:
    explicit TileOutputs(const TileCase& c) : c_(c) {
        rows_ = c.batch > 0 ? Shape{c.batch, c.m} : Shape{c.m};
        elements_ = with(rows_, c.n);
        product_ = element("product", [&](const Indices& at) { return product_at(at); });
    }

    std::vector<Tensor> declared() {
        std::vector<Tensor> found = made();
        if (c_.has_product) found.push_back(product_);
        return found;
    }

private:
    static Shape with(Shape shape, int64_t extent) {
        shape.push_back(extent);
        return shape;
    }
    template <class Body>
    Tensor element(const std::string& name, const Body& body) {
        return compute(name, elements_, [&](const Indices& at) { return body(at); });
    }
    template <class Body>
    Tensor row(const std::string& name, const Body& body) {
        return compute(name, rows_, [&](const Indices& at) { return body(at); });
    }
    static Expr read(const Tensor& tensor, Indices at) {
        return tensor.read(std::vector<Operand>(at.begin(), at.end()));
    }
    static Indices row_of(Indices at) {
        at.pop_back();
        return at;
    }
    /// The product's element in the row.
    Expr z(Indices row, const Expr& column) const {
        row.push_back(column);
        return read(product_, row);
    }
    Axis columns(const char* name) const { return reduce_axis(name, c_.n); }

    Expr product_at(const Indices& at) const {
        const Axis k = reduce_axis("k", c_.k);
        const Tensor a = input("a", c_.operand, with(rows_, c_.k));
        const Shape of_b = c_.turned_b ? Shape{c_.n, c_.k} : Shape{c_.k, c_.n};
        const Tensor b = input("b", c_.operand, of_b);
        Indices of_row = row_of(at);
        of_row.push_back(k);
        const Expr column = at.back();
        const Expr right = c_.turned_b ? b(column, k) : b(k, column);
        return sum(cast(f32, read(a, of_row)) * cast(f32, right), k) * 0.1;
    }

    std::vector<Tensor> made() {
        switch (c_.of) {
            case MadeOfRows::Softmax: return softmax();
            case MadeOfRows::InOneExpression: return in_one_expression();
            case MadeOfRows::Gradient: return gradient();
            case MadeOfRows::LayerNorm: return layer_norm();
            case MadeOfRows::Residual: return residual();
            case MadeOfRows::BestExpert: return best_expert();
            case MadeOfRows::Loss: return loss();
        }
        return {};
    }

    Tensor largest() {
        const Axis j = columns("j");
        return row("top", [&](const Indices& at) { return reduce_max(z(at, j), j); });
    }
    Tensor total_of(const Tensor& top) {
        const Axis j = columns("j2");
        return row("total", [&](const Indices& at) { return sum(exp(z(at, j) - read(top, at)), j); });
    }
    std::vector<Tensor> softmax() {
        const Tensor top = largest(), total = total_of(top), value = input("value", c_.operand, elements_);
        const Tensor y = element("y", [&](const Indices& at) {
            const Indices row = row_of(at);
            return cast(c_.result,
                        exp(z(row, at.back()) - read(top, row)) / read(total, row) * cast(f32, read(value, at)));
        });
        if (!c_.has_statistics) return {y};
        return {y, top, row("spread", [&](const Indices& at) { return log(read(total, at)) + read(top, at); })};
    }
    std::vector<Tensor> in_one_expression() {
        const Axis j = columns("j"), j2 = columns("j2");
        return {element("y", [&](const Indices& at) {
            const Indices row = row_of(at);
            const Expr norm = sqrt(sum(z(row, j) * z(row, j), j)), most = reduce_max(abs(z(row, j2)), j2);
            return cast(c_.result, z(row, at.back()) / (norm + 1e-3) + most);
        })};
    }
    std::vector<Tensor> gradient() {
        const Axis j = columns("j");
        const Tensor y = input("y", c_.operand, elements_);
        const Tensor dot = row("dot", [&](const Indices& at) {
            Indices own = at;
            own.push_back(j);
            return sum(z(at, j) * cast(f32, read(y, own)), j);
        });
        std::vector<Tensor> found{element("dx", [&](const Indices& at) {
            const Indices row = row_of(at);
            return cast(c_.result, (z(row, at.back()) - read(dot, row)) * cast(f32, read(y, at)));
        })};
        if (c_.has_statistics) found.push_back(dot);
        return found;
    }
    std::vector<Tensor> layer_norm() {
        const Axis j = columns("j");
        const Tensor gain = input("gain", f32, {c_.n});
        const auto moments = compute_tuple("moments", rows_, [&](const Indices& at) { return welford(z(at, j), {j}); });
        const Tensor scale =
            row("scale", [&](const Indices& at) { return rsqrt(read(moments[1], at) / double(c_.n) + 1e-5); });
        std::vector<Tensor> found{element("y", [&](const Indices& at) {
            const Indices row = row_of(at);
            return cast(c_.result, (z(row, at.back()) - read(moments[0], row)) * read(scale, row) * gain(at.back()));
        })};
        if (c_.has_statistics) found.push_back(scale);
        return found;
    }
    /// Of two results, one with a product and one that is made of its rows; `h` is read by what stands behind.
    std::vector<Tensor> residual() {
        const Axis j = columns("j");
        const Tensor x = input("x", c_.operand, elements_);
        const Tensor h = element("h", [&](const Indices& at) {
            return cast(c_.operand, cast(f32, read(x, at)) + z(row_of(at), at.back()));
        });
        const Tensor scale = row("scale", [&](const Indices& at) {
            Indices own = at;
            own.push_back(j);
            return rsqrt(sum(cast(f32, read(h, own)) * cast(f32, read(h, own)), j) / double(c_.n) + 1e-5);
        });
        return {h, element("y", [&](const Indices& at) {
                    return cast(c_.result, cast(f32, read(h, at)) * read(scale, row_of(at)));
                })};
    }
    std::vector<Tensor> best_expert() {
        const Axis j = columns("j");
        const Tensor top = largest(), total = total_of(top);
        const Tensor gate = element("gate", [&](const Indices& at) {
            const Indices row = row_of(at);
            return exp(z(row, at.back()) - read(top, row)) / read(total, row);
        });
        const auto best = compute_tuple("best", rows_, [&](const Indices& at) {
            Indices own = at;
            own.push_back(j);
            return argmax(read(gate, own), j);
        });
        std::vector<Tensor> found{best[0], best[1]};
        if (c_.has_statistics) found.push_back(gate);
        return found;
    }
    std::vector<Tensor> loss() {
        const Tensor top = largest(), total = total_of(top), label = input("label", i32, rows_);
        std::vector<Tensor> found{row("loss", [&](const Indices& at) {
            return log(read(total, at)) + read(top, at) - z(at, cast(i64, read(label, at)));
        })};
        if (c_.has_statistics)
            found.push_back(element("dz", [&](const Indices& at) {
                const Indices row = row_of(at);
                const Expr one = select(at.back() == cast(i64, read(label, row)), constant(f32, 1.0), 0.0);
                return cast(c_.result, exp(z(row, at.back()) - read(top, row)) / read(total, row) - one);
            }));
        return found;
    }

    const TileCase& c_;
    Shape rows_, elements_;
    Tensor product_;
};

RowsOfProducts in_tiles(const std::vector<Tensor>& outputs) {
    return with_product_rows(outputs, target("sm_90a"), [](const std::vector<Tensor>& rest, const Target& target) {
        return choose_schedule(rest, target);
    });
}

void expect_right(const Schedule& s, const std::vector<Tensor>& outputs) {
    Executable executable(build(s), open_device("emulated"));
    const Bindings data = random_bindings(outputs, std::random_device{}());
    const std::vector<HostArray> results = run_on(executable, data);
    for (size_t k = 0; k < outputs.size(); ++k) {
        const CheckResult result = check_output(outputs[k], data, results[k], {.samples = 64});
        EXPECT_TRUE(result.ok) << outputs[k].name() << ": " << result.text << s.to_string();
    }
}

class RowsInTiles : public testing::TestWithParam<MadeOfRows> {};

// Random extents, types, batches and results: one kernel, in which the product has memory only if it is a result.
TEST_P(RowsInTiles, AreMadeInOneKernel) {
    fuzz::Random random(std::random_device{}());
    const TileCase c = random_tile_case(random, GetParam());
    SCOPED_TRACE(fmt::format("{}x{}x{}x{} {} {} statistics {} product {} turned {}", c.batch, c.m, c.n, c.k,
                             name_of(c.operand), name_of(c.result), c.has_statistics, c.has_product, c.turned_b));
    const std::vector<Tensor> outputs = TileOutputs(c).declared();
    const RowsOfProducts found = in_tiles(outputs);
    const auto& s = found.schedule;
    ASSERT_TRUE(s) << fmt::format("{}", fmt::join(found.refused, "\n"));
    EXPECT_THAT(s->explain(), HasSubstr("made of rows of the product 'product' in the registers of its tiles"));
    EXPECT_EQ(build(*s).kernels().size(), 1u) << s->to_string();
    expect_right(*s, outputs);
}

INSTANTIATE_TEST_SUITE_P(Random, RowsInTiles,
                         testing::Values(MadeOfRows::Softmax, MadeOfRows::InOneExpression, MadeOfRows::Gradient,
                                         MadeOfRows::LayerNorm, MadeOfRows::Residual, MadeOfRows::BestExpert,
                                         MadeOfRows::Loss));

/// Normalised rows of a product of 70 rows, and 40 columns unless said otherwise.
struct NormalisedRows {
    explicit NormalisedRows(int64_t columns = 40) : n(columns) {}

    const int64_t n, m = 70;
    Tensor a = input("a", bf16, {70, 64}), b = input("b", bf16, {n, 64});
    Axis k = reduce_axis("k", 64), j = reduce_axis("j", n), i = reduce_axis("i", 70);
    Tensor z = compute("z", {m, n}, [&](Expr r, Expr c) { return sum(cast(f32, a(r, k)) * cast(f32, b(c, k)), k); });
    Tensor norm = compute("norm", {m}, [&](Expr r) { return sqrt(sum(z(r, j) * z(r, j), j)) + 1.0; });
    Tensor y = compute("y", {m, n}, [&](Expr r, Expr c) { return z(r, c) / norm(r); });
};

// What reads more than its own place stands behind, and so does all that is made of it.
TEST(RowsInTilesOf, OthersStandBehind) {
    NormalisedRows of;
    const Tensor turned = compute("turned", {of.n, of.m}, [&](Expr c, Expr r) { return of.y(r, c); }),
                 mean = compute("mean", {of.n}, [&](Expr c) { return sum(of.y(of.i, c), of.i) / 70.0; }),
                 scaled = compute("scaled", {of.m, of.n}, [&](Expr r, Expr c) { return of.y(r, c) - mean(c); }),
                 other = compute("other", {of.m}, [&](Expr r) { return of.norm(69 - r) * 2.0; });
    const std::vector<Tensor> outputs{turned, scaled, other};
    const RowsOfProducts found = in_tiles(outputs);
    const auto& s = found.schedule;
    ASSERT_TRUE(s) << fmt::format("{}", fmt::join(found.refused, "\n"));
    EXPECT_THAT(s->explain(), HasSubstr("'norm', 'y': made of rows of the product 'z'"));
    expect_right(*s, outputs);
}

// A product that is read by another one's tile lies in memory; results of one are operands of the next.
TEST(RowsInTilesOf, SeveralProducts) {
    NormalisedRows of;
    const Tensor w = input("w", bf16, {24, of.n});
    const Tensor narrow =
        compute("narrow", {of.m, of.n}, [&](Expr r, Expr c) { return cast(bf16, of.z(r, c) / of.norm(r)); });
    const Tensor next = compute("next", {of.m, 24}, [&](Expr r, Expr c) {
        return sum(cast(f32, narrow(r, of.j)) * cast(f32, w(c, of.j)), of.j);
    });
    const Axis e = reduce_axis("e", 24);
    const Tensor top = compute("top", {of.m}, [&](Expr r) { return reduce_max(next(r, e), e); });
    const Tensor last = compute("last", {of.m, 24}, [&](Expr r, Expr c) { return next(r, c) - top(r) + of.norm(r); });
    const auto s = in_tiles({last}).schedule;
    ASSERT_TRUE(s);
    EXPECT_THAT(s->explain(), HasSubstr("'norm', 'narrow': made of rows of the product 'z'"));
    EXPECT_THAT(s->explain(), HasSubstr("'last': made of rows of the product 'next'"));
    expect_right(*s, {last});
}

// Sums of fp8 that lose bits are added up in parts.
TEST(RowsInTilesOf, LongSumsOfFp8ArePromoted) {
    const Tensor a = input("a", e4m3, {64, 2048}), b = input("b", e4m3, {32, 2048});
    const Axis k = reduce_axis("k", 2048), j = reduce_axis("j", 32);
    const Tensor z =
        compute("z", {64, 32}, [&](Expr r, Expr c) { return sum(cast(f32, a(r, k)) * cast(f32, b(c, k)), k); });
    const Tensor top = compute("top", {64}, [&](Expr r) { return reduce_max(z(r, j), j); });
    const Tensor y = compute("y", {64, 32}, [&](Expr r, Expr c) { return cast(bf16, z(r, c) - top(r)); });
    const auto s = in_tiles({y}).schedule;
    ASSERT_TRUE(s);
    EXPECT_THAT(s->to_string(), HasSubstr("part_k in 0..4"));
}

TEST(RowsInTilesOf, OthersAreLeftAlone) {
    NormalisedRows wide(264);
    EXPECT_FALSE(in_tiles({wide.y}).schedule);
    NormalisedRows of;
    EXPECT_FALSE(
        in_tiles({compute("e", {of.m, of.n}, [&](Expr r, Expr c) { return tanh(of.z(r, c)) + of.z(r, c); })}).schedule);
    EXPECT_FALSE(in_tiles({compute("c", {of.n}, [&](Expr c) { return sum(of.z(of.i, c), of.i); }), of.z}).schedule);
}

// Where the product in memory is expected to be faster, as parts of its terms are for more blocks, explain() says so.
TEST(RowsInTilesOf, WhatIsSlowerIsTold) {
    const Tensor a = input("a", bf16, {1024, 4096}), b = input("b", bf16, {64, 4096});
    const Axis k = reduce_axis("k", 4096), j = reduce_axis("j", 64);
    const Tensor z =
        compute("z", {1024, 64}, [&](Expr r, Expr c) { return sum(cast(f32, a(r, k)) * cast(f32, b(c, k)), k); });
    const Tensor top = compute("top", {1024}, [&](Expr r) { return reduce_max(z(r, j), j); });
    const Tensor y = compute("y", {1024, 64}, [&](Expr r, Expr c) { return cast(bf16, z(r, c) - top(r)); });
    EXPECT_THAT(choose_schedule({y}, target("sm_90a")).explain(),
                testing::ContainsRegex("rows of products are not made in the registers of their tiles: 0\\.0[0-9]* ms "
                                       "by the model of time, 0\\.0[0-9]* with the products in memory"));
}

}  // namespace
}  // namespace tw::schedules
