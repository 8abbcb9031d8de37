// Products of what no unit reads as it is: gathered, of other types, made in the term, of a tensor with itself; and of
// rows of several dimensions.
#include <random>

#include <gmock/gmock.h>

#include "dsl/four_bits.h"
#include "ops/check.h"
#include "schedules/choose.h"
#include "tests/ops/on_each_device.h"

namespace tw::schedules {
namespace {

using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;

constexpr int64_t rows = 160, columns = 176, terms = 192;

/// An element of the factor at its row, or column, and the term.
using Element = std::function<Expr(Expr own, Expr term)>;

Tensor matrix(const std::string& name, Type type, int64_t own, int64_t of_terms, bool turned) {
    return turned ? input(name, type, {of_terms, own}) : input(name, type, {own, of_terms});
}
Element plain(const std::string& name, Type type, int64_t own, bool turned) {
    const Tensor m = matrix(name, type, own, terms, turned);
    return [=](Expr i, Expr k) { return cast(f32, turned ? m(k, i) : m(i, k)); };
}
Element gathered(const std::string& name, Type type, int64_t own, bool) {
    const Tensor table = input(name, type, {37, terms}), ids = input(name + "_ids", i32, {own});
    return [=](Expr i, Expr k) { return cast(f32, table(ids(i), k)); };
}
Element cut_at_zero(const std::string& name, Type type, int64_t own, bool turned) {
    return [element = plain(name, type, own, turned)](Expr i, Expr k) { return max(element(i, k), 0.0); };
}
Element masked(const std::string& name, Type type, int64_t own, bool turned) {
    return [element = plain(name, type, own, turned)](Expr i, Expr k) { return select(k <= i, element(i, k), 0.0); };
}
Element rounded(const std::string& name, Type type, int64_t own, bool turned) {
    const Tensor m = matrix(name, f32, own, terms, turned), gain = input(name + "_gain", f32, {terms});
    return [=](Expr i, Expr k) { return cast(f32, cast(type, (turned ? m(k, i) : m(i, k)) * gain(k))); };
}
Element of_four_bits(const std::string& name, Type, int64_t own, bool) {
    const Tensor m = input(name, u8, {own, terms / 2});
    return [=](Expr i, Expr k) { return cast(f32, u4(m, {i, k}) - 8); };
}
Element of_bytes(const std::string& name, Type, int64_t own, bool turned) { return plain(name, i8, own, turned); }

class MadeFactors : public OnEachDevice {
protected:
    void expect_right(const Tensor& output, uint64_t seed, const std::string& note) {
        const Schedule s = choose_schedule({output}, device_target());
        Executable executable(build(s), device_);
        EXPECT_THAT(executable.program().explain(), HasSubstr(note)) << executable.program().explain();
        EXPECT_THAT(executable.program().explain(), AnyOf(HasSubstr("mma"), Not(HasSubstr("is computed by"))));
        const Bindings data = random_bindings({output}, seed);
        const CheckResult result = check_output(output, data, run_on(executable, data)[0], {.samples = 256});
        EXPECT_TRUE(result.ok) << executable.program().explain() << ": " << result.text;
    }
};

TEST_P(MadeFactors, AreMatricesForTensorCores) {
    const std::vector<Element (*)(const std::string&, Type, int64_t, bool)> kinds{
        plain, gathered, cut_at_zero, masked, rounded, of_four_bits, of_bytes};
    std::mt19937 random(20261130);
    auto draw = [&](size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random); };
    for (size_t k = 1; k < kinds.size(); ++k) {
        const Type type = draw(2) == 0 ? bf16 : f16;
        size_t of_a = k, of_b = k % 2 == 0 ? 0 : draw(kinds.size());
        if (draw(2) == 0) std::swap(of_a, of_b);
        const Element a = kinds[of_a]("a", type, rows, draw(2) == 0), b = kinds[of_b]("b", type, columns, draw(2) == 0);
        const Axis t = reduce_axis("t", terms);
        const Tensor c = compute("c", {rows, columns}, [&](Expr i, Expr j) { return sum(a(i, t) * b(j, t), t) * 0.5; });
        expect_right(c, k, "copied first");
        EXPECT_THAT(build(choose_schedule({c}, device_target())).explain(), HasSubstr("'c' is computed by")) << k;
    }
}

TEST_P(MadeFactors, BesideRowsOfSeveralDimensions) {
    const Tensor x = input("x", bf16, {24, 7, 192}), w = input("w", i8, {144, 192}), s = input("s", f32, {144});
    const Axis k = reduce_axis("k", 192);
    const Tensor y = compute("y", {24, 7, 144}, [&](Expr b, Expr i, Expr j) {
        return cast(bf16, max(sum(cast(f32, x(b, i, k)) * cast(f32, w(j, k)), k) * s(j), 0.0));
    });
    expect_right(y, 3, "'y' is a product of matrices, of which 'y_columns' is copied first");
    EXPECT_EQ(build(choose_schedule({y}, device_target())).kernels().size(), 2U);
}

TEST_P(MadeFactors, InBatches) {
    const Tensor a = input("a", bf16, {3, 128, 128}), b = input("b", i8, {3, 128, 96}), s = input("s", f32, {3, 96});
    const Axis k = reduce_axis("k", 128);
    expect_right(compute("c", {3, 128, 96},
                         [&](Expr z, Expr i, Expr j) {
                             return cast(bf16, sum(cast(f32, a(z, i, k)) * cast(f32, b(z, k, j)), k) * s(z, j));
                         }),
                 1, "copied first");
}

/// f32 where no type of 16 bits holds both.
TEST_P(MadeFactors, AreMatricesForThreads) {
    const Tensor x = input("x", f32, {terms, 160}), w = input("w", f32, {terms});
    const Tensor a = input("a", bf16, {160, terms}), b = input("b", f32, {terms, 176});
    const Axis k = reduce_axis("k", terms), t = reduce_axis("t", terms);
    const Tensor mean = compute("mean", {160}, [&](Expr i) { return sum(x(t, i), t) / double(terms); });
    expect_right(
        compute("c", {160, 160}, [&](Expr i, Expr j) { return sum((x(k, i) - mean(i)) * (x(k, j) - mean(j)), k); }), 1,
        "copied first");
    expect_right(compute("c", {160, 176}, [&](Expr i, Expr j) { return sum(cast(f32, a(i, k)) * b(k, j), k); }), 2,
                 "copied first");
    expect_right(compute("c", {160, 160}, [&](Expr i, Expr j) { return sum(w(k) * x(k, i) * x(k, j), k); }), 3,
                 "copied first");
}

TEST_P(MadeFactors, OfATensorAndItself) {
    const Tensor a = input("a", bf16, {200, 96}), x = input("x", f32, {130, 64}), z = input("z", f16, {3, 80, 128});
    const Tensor inverse = input("inverse", f32, {200});
    const Axis k = reduce_axis("k", 96), d = reduce_axis("d", 64), n = reduce_axis("n", 128), p = reduce_axis("p", 130);
    const std::string itself = "with itself, of which columns have a view";
    expect_right(compute("g", {200, 200},
                         [&](Expr i, Expr j) {
                             return select(i == j, 0.0,
                                           sum(cast(f32, a(i, k)) * cast(f32, a(j, k)), k) * inverse(i) * inverse(j));
                         }),
                 1, itself);
    expect_right(compute("g", {3, 80, 80},
                         [&](Expr b, Expr i, Expr j) { return sum(cast(f32, z(b, i, n)) * cast(f32, z(b, j, n)), n); }),
                 2, itself);
    expect_right(compute("g", {130, 130},
                         [&](Expr i, Expr j) { return sqrt(sum((x(i, d) - x(j, d)) * (x(i, d) - x(j, d)), d)); }),
                 3, itself);
    expect_right(compute("g", {64, 64}, [&](Expr i, Expr j) { return reduce_max(x(p, i) + x(p, j), p); }), 4, itself);
}

/// Views are of what other kernels make, too, and two products may have the same.
TEST_P(MadeFactors, OfAComputedTensorAndItself) {
    const Tensor x = input("x", bf16, {96, 64}), w = input("w", bf16, {80, 64});
    const Axis k = reduce_axis("k", 64), n = reduce_axis("n", 80), m = reduce_axis("m", 96);
    const Tensor h = compute("h", {96, 80}, [&](Expr i, Expr j) {
        return cast(bf16, tanh(sum(cast(f32, x(i, k)) * cast(f32, w(j, k)), k) * 0.1));
    });
    auto halves = [&](Expr i, Expr j) { return cast(f32, h(i, j)); };
    const Tensor rows_of = compute("r", {96, 96}, [&](Expr i, Expr j) { return sum(halves(i, n) * halves(j, n), n); }),
                 columns_of =
                     compute("c", {80, 80}, [&](Expr i, Expr j) { return sum(halves(m, i) * halves(m, j), m); });
    const Schedule s = choose_schedule({rows_of, columns_of}, device_target());
    Executable executable(build(s), device_);
    EXPECT_THAT(executable.program().explain(), HasSubstr("'r' is a product of 'h' with itself"));
    EXPECT_THAT(executable.program().explain(), HasSubstr("'c' is a product of 'h' with itself"));
    const Bindings data = random_bindings({rows_of, columns_of}, 5);
    const std::vector<HostArray> got = run_on(executable, data);
    EXPECT_TRUE(check_output(rows_of, data, got[0], {.samples = 256}).ok);
    EXPECT_TRUE(check_output(columns_of, data, got[1], {.samples = 256}).ok);
}

/// Few rows of each of many matrices are those of one.
TEST_P(MadeFactors, WithRowsOfSeveralDimensions) {
    const Axis k = reduce_axis("k", 64);
    const Tensor w = input("w", bf16, {96, 64}), residual = input("residual", bf16, {24, 5, 96}),
                 bias = input("bias", f32, {96}), x = input("x", bf16, {24, 5, 64}),
                 y = input("y", bf16, {2, 7, 9, 64});
    const Tensor c = compute("c", {24, 5, 96}, [&](Expr b, Expr i, Expr j) {
        return cast(bf16, sum(cast(f32, x(b, i, k)) * cast(f32, w(j, k)), k) + bias(j) + cast(f32, residual(b, i, j)));
    });
    const Tensor d = compute("d", {2, 7, 9, 96}, [&](Expr n, Expr p, Expr q, Expr j) {
        return cast(bf16, sum(cast(f32, y(n, p, q, k)) * cast(f32, w(j, k)), k));
    });
    expect_right(c, 1, "'c' is computed by");
    expect_right(d, 2, "'d' is computed by");
    EXPECT_EQ(build(choose_schedule({c}, device_target())).kernels().size(), 1U);
}

/// What another kernel makes has its rows joined, too; a layer behind a layer.
TEST_P(MadeFactors, WithComputedRowsOfSeveralDimensions) {
    const Axis k = reduce_axis("k", 64), e = reduce_axis("e", 80);
    const Tensor x = input("x", bf16, {5, 27, 64}), w = input("w", bf16, {80, 64}), v = input("v", bf16, {48, 80});
    const Tensor h = compute("h", {5, 27, 80}, [&](Expr b, Expr i, Expr j) {
        return cast(bf16, max(sum(cast(f32, x(b, i, k)) * cast(f32, w(j, k)), k), 0.0));
    });
    const Tensor n = compute("n", {5, 27, 64}, [&](Expr b, Expr i, Expr c) {
        return cast(bf16, tanh(cast(f32, x(b, i, c))) * cast(f32, x(b, 26 - i, c)));
    });
    const Tensor behind = compute("y", {5, 27, 48}, [&](Expr b, Expr i, Expr j) {
        return cast(bf16, sum(cast(f32, h(b, i, e)) * cast(f32, v(j, e)), e));
    });
    const Tensor of_elements = compute("y", {5, 27, 80}, [&](Expr b, Expr i, Expr j) {
        return cast(bf16, sum(cast(f32, n(b, i, k)) * cast(f32, w(j, k)), k));
    });
    for (const Tensor& y : {behind, of_elements}) {
        expect_right(y, 1, "'y' is computed by");
        const Schedule s = choose_schedule({y}, device_target());
        EXPECT_EQ(build(s).kernels().size(), 2U) << s.to_string();
        EXPECT_EQ(replay(s.save(), s.outputs(), s.target()).to_string(), s.to_string());
    }
    EXPECT_THAT(build(choose_schedule({behind}, device_target())).explain(), HasSubstr("'h' is computed by"));
}

/// Windows that no rule of convolutions takes, where copies are faster than threads: pieces of images, and pixels of
/// another size that taps with another parity leave out.
TEST_P(MadeFactors, OfWindowsInFrontOfOthers) {
    const Tensor x = input("x", bf16, {4, 3, 32, 32}), w = input("w", bf16, {352, 3, 8, 8}),
                 z = input("z", bf16, {2, 16, 16, 32}), v = input("v", bf16, {32, 4, 4, 16});
    const Axis c = reduce_axis("c", 3), r = reduce_axis("r", 8), s = reduce_axis("s", 8), d = reduce_axis("d", 32),
               p = reduce_axis("p", 4), q = reduce_axis("q", 4);
    const Tensor pieces = compute("y", {4, 4, 4, 352}, [&](Expr n, Expr i, Expr j, Expr f) {
        return cast(bf16, sum(cast(f32, x(n, c, i * 8 + r, j * 8 + s)) * cast(f32, w(f, c, r, s)), {c, r, s}));
    });
    const Tensor larger = compute("y", {2, 32, 32, 16}, [&](Expr n, Expr i, Expr j, Expr f) {
        const Expr row = i + 1 - p, column = j + 1 - q;
        const Expr term = cast(f32, padded(z, 0)(n, row / 2, column / 2, d)) * cast(f32, v(d, p, q, f));
        return cast(bf16, sum(select((row + column) % 2 == 0, term, 0.0), {d, p, q}));
    });
    expect_right(pieces, 1, "'y' is a product of matrices, of which 'y_rows' is copied first");
    expect_right(larger, 2, "'y' is a product of matrices, which are copied first: 'y_rows', 'y_columns'");
    EXPECT_THAT(build(choose_schedule({pieces}, device_target())).explain(), HasSubstr("'y' is computed by"));
}

/// Columns of several dimensions, and terms of several, lie as those of matrices do.
TEST_P(MadeFactors, WithColumnsAndTermsOfSeveralDimensions) {
    const Tensor x = input("x", bf16, {3, 64, 6, 24}), w = input("w", bf16, {80, 64}),
                 a = input("a", bf16, {96, 6, 16}), b = input("b", bf16, {72, 6, 16});
    const Axis k = reduce_axis("k", 64), r = reduce_axis("r", 6), t = reduce_axis("t", 16), q = reduce_axis("q", 24);
    auto halves = [](const Expr& e) { return cast(f32, e); };
    expect_right(compute("y", {3, 80, 6, 24},
                         [&](Expr n, Expr f, Expr i, Expr j) {
                             return cast(bf16, sum(halves(x(n, k, i, j)) * halves(w(f, k)), k));
                         }),
                 1, "'y' is computed by");
    expect_right(compute("y", {96, 72},
                         [&](Expr i, Expr j) {
                             return sum(halves(a(i, r, t)) * halves(b(j, r, t)), {r, t});
                         }),
                 2, "'y' is computed by");
    expect_right(compute("y", {3, 64, 64},
                         [&](Expr n, Expr i, Expr j) {
                             return sum(halves(x(n, i, r, q)) * halves(x(n, j, r, q)), {r, q}) * 0.1;
                         }),
                 3, "with itself");
    const Tensor f = input("f", f32, {3, 48, 8, 80});
    const Axis u = reduce_axis("u", 8), v = reduce_axis("v", 80);
    expect_right(compute("y", {3, 48, 48},
                         [&](Expr n, Expr i, Expr j) {
                             return sum(f(n, i, u, v) * f(n, j, u, v), {u, v});
                         }),
                 4, "is a product of matrices");
}

TEST_P(MadeFactors, OfMoreThanTwoAreMultipliedInPairs) {
    const Tensor x = input("x", f32, {96, 48}), y = input("y", f32, {48, 56}), z = input("z", f32, {56, 80}),
                 g = input("g", f32, {80});
    const Axis p = reduce_axis("p", 48), q = reduce_axis("q", 56);
    expect_right(compute("c", {96, 80},
                         [&](Expr i, Expr j) {
                             return tanh(sum(x(i, p) * y(p, q) * z(q, j) * g(j), {p, q}) * 0.1);
                         }),
                 1, "are multiplied in pairs, with 'c_part'");
    // Of one multiplication that is left out, too, where the first pair is a product of large matrices.
    const Tensor a = input("a", bf16, {160, 96}), b = input("b", bf16, {96, 64}), d = input("d", bf16, {160, 64});
    const Axis s = reduce_axis("s", 96), t = reduce_axis("t", 64);
    const Tensor form = compute("c", {160}, [&](Expr n) {
        return sum(cast(f32, a(n, s)) * cast(f32, b(s, t)) * cast(f32, d(n, t)), {s, t});
    });
    expect_right(form, 2, "'c_part' is computed by");
    const Tensor outer = compute("c", {96, 80}, [&](Expr i, Expr j) { return sum(x(i, p) * x(j, p) * g(j), p); });
    EXPECT_THAT(choose_schedule({outer}, device_target()).explain(), Not(HasSubstr("in pairs")));
}

/// Distances of three terms are no tensor, where each is a term of another reduction and nothing else.
TEST_P(MadeFactors, OfFewTermsInsideOfOthersAreWrittenOut) {
    const Tensor a = input("a", f32, {40, 3}), b = input("b", f32, {50, 3});
    const Axis j = reduce_axis("j", 50), k = reduce_axis("k", 3);
    auto distance = [&](const Expr& i, const Expr& other) {
        return sum((a(i, k) - b(other, k)) * (a(i, k) - b(other, k)), k);
    };
    const Tensor apart = compute("d", {40, 50}, [&](Expr i, Expr other) { return sqrt(distance(i, other)); });
    const Tensor inside = compute("y", {40}, [&](Expr i) { return reduce_max(-distance(i, j), j); }),
                 of_tensor = compute("y", {40}, [&](Expr i) { return sum(exp(-apart(i, j)), j); });
    for (const Tensor& y : {inside, of_tensor}) {
        expect_right(y, 1, "'y': reductions of few terms inside of its own are written out");
        EXPECT_EQ(build(choose_schedule({y}, device_target())).kernels().size(), 1U);
    }
    const Tensor of_all = compute("z", {40}, [&](Expr i) { return sum(inside(j % 40) * distance(i, 0), j); });
    EXPECT_THAT(choose_schedule({of_all}, device_target()).explain(), Not(HasSubstr("'z': reductions of few terms")));
    EXPECT_THAT(choose_schedule({of_tensor, apart}, device_target()).explain(), Not(HasSubstr("written out")));
}

TW_ON_EACH_DEVICE(MadeFactors);

}  // namespace
}  // namespace tw::schedules
