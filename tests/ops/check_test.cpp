// Checking results against float64: right ones pass, a wrong element, a NaN and too large an error do not.
#include "ops/check.h"

#include <cmath>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "dsl/schedule.h"
#include "ops/executable.h"
#include "ops/program.h"

namespace tw {
namespace {

struct Sums {
    Tensor x = input("x", f32, {6, 40});
    Axis k = reduce_axis("k", 40);
    Tensor y = compute("y", {6}, [&](Expr i) { return sum(x(i, k), k); });
    Bindings bindings = random_bindings({y}, 5);
    HostArray right = interpret_plain({y}, bindings)[0];

    /// With element 3 changed by `factor`.
    CheckResult check(double factor) const {
        HostArray changed = right;
        changed.set({3}, make_value(f32, right.at({3}).real * factor));
        return check_output(y, bindings, changed);
    }
};

TEST(CheckOutput, TheDeclaredComputationPasses) {
    Sums sums;
    CheckResult result = check_output(sums.y, sums.bindings, sums.right);
    EXPECT_TRUE(result.ok) << result.text;
    EXPECT_EQ(result.elements, 6);
    EXPECT_LE(result.error, result.plain_error);  // in the worst of several orders of the terms
}

TEST(CheckOutput, AWrongElementDoesNot) {
    Sums sums;
    EXPECT_FALSE(sums.check(1.001).ok);
    EXPECT_FALSE(sums.check(std::numeric_limits<double>::quiet_NaN()).ok);
    EXPECT_FALSE(sums.check(std::numeric_limits<double>::infinity()).ok);
    EXPECT_NE(sums.check(1.001).text.find("WRONG"), std::string::npos);
}

/// What the declaration makes of finite data in its own types, too: NaN, or what rounding has left nothing of.
TEST(CheckOutput, ALostResultDoesNot) {
    const Tensor x = input("x", f32, {8, 16}),
                 y = compute("y", {8, 16}, [&](Expr i, Expr j) { return x(i, j) * 3e38 * 9.0 * 0.0; }),
                 z = compute("z", {8, 16}, [&](Expr i, Expr j) { return (x(i, j) + 1e9) - 1e9; });
    const Bindings bindings = random_bindings({y, z}, 5);
    for (const Tensor& lost : {y, z}) {
        const CheckResult result = check_output(lost, bindings, interpret_plain({lost}, bindings)[0]);
        EXPECT_FALSE(result.ok) << result.text;
    }
    EXPECT_NE(check_output(z, bindings, interpret_plain({z}, bindings)[0]).text.find("it loses its result; rewrite it"),
              std::string::npos);
    const Tensor infinite = compute("infinite", {8, 16}, [&](Expr i, Expr j) { return log2(x(i, j) - x(i, j)); }),
                 none = compute("none", {8, 16}, [&](Expr i, Expr j) { return infinite(i, j) - infinite(i, j); });
    for (const Tensor& same : {infinite, none}) {
        const CheckResult result = check_output(same, bindings, interpret_plain({same}, bindings)[0]);
        EXPECT_TRUE(result.ok) << result.text;
    }
}

/// Numbers at the edge of a type's range round to its largest or to infinity; well inside of it, infinity is wrong, and
/// so is a number far beyond.
TEST(CheckOutput, NumbersAtTheEdgeOfATypeMayOverflow) {
    const double infinity = std::numeric_limits<double>::infinity();
    for (const auto& [type, largest] : {std::pair{f16, 65504.0}, {bf16, std::ldexp(255, 120)}}) {
        const Tensor x = input("x", f64, {70}), y = compute("y", {70}, [&](Expr i) { return cast(type, x(i)); });
        const double ulp = largest * 2 * unit_roundoff(type) / (2 - 2 * unit_roundoff(type));
        Bindings bindings = random_bindings({y}, 5);
        HostArray& values = bindings.inputs.at("x");
        for (int64_t k = 0; k < 70; ++k) values.set({k}, make_value(f64, largest * 0.9 * values.at({k}).real));
        for (const double sign : {1.0, -1.0})
            for (const auto& [edge, got, ok] : {std::tuple{0.49, infinity, true},
                                                {0.51, largest, true},
                                                {40.0, infinity, true},
                                                {0.51, -infinity, false},
                                                {-20.0, infinity, false},
                                                {40.0, largest, false}}) {
                values.set({7}, make_value(f64, sign * (largest + edge * ulp)));
                HostArray results = interpret_plain({y}, bindings)[0];
                results.set({7}, make_value(type, sign * got));
                const CheckResult result = check_output(y, bindings, results);
                EXPECT_EQ(result.ok, ok) << name_of(type) << " " << edge << " " << got << ": " << result.text;
            }
    }
}

TEST(CheckOutput, SamplesLargeOutputs) {
    Tensor x = input("x", f32, {100, 50});
    Tensor y = compute("y", {100, 50}, [&](Expr i, Expr j) { return x(i, j) + 1.0; });
    Bindings bindings = random_bindings({y}, 5);
    HostArray right = interpret_plain({y}, bindings)[0];
    EXPECT_EQ(check_output(y, bindings, right, {.samples = 64}).elements, 64);
    HostArray wrong = host_array(f32, {100, 50});
    EXPECT_FALSE(check_output(y, bindings, wrong, {.samples = 64}).ok);
}

// Fewer elements where each is made of many.
TEST(CheckOutput, StaysWithinTheTermsThatItMayTake) {
    Tensor a = input("a", f32, {100, 500}), b = input("b", f32, {500, 40});
    Axis k = reduce_axis("k", 500);
    Tensor y = compute("y", {100, 40}, [&](Expr i, Expr j) { return sum(a(i, k) * b(k, j), k); });
    const Bindings bindings = random_bindings({y}, 5);
    const HostArray right = interpret_plain({y}, bindings)[0];
    for (const auto& [most_terms, elements] : {std::pair{0, 200}, {1'000'000, 200}, {50'000, 99}, {10, 4}}) {
        const CheckResult result = check_output(y, bindings, right, {.samples = 200, .most_terms = most_terms});
        EXPECT_EQ(result.elements, elements) << result.text;
        EXPECT_TRUE(result.ok) << result.text;
    }
}

// A rounding step costs what it may, and only where it was asked for.
TEST(CheckOutput, RoundingsAreAllowedFor) {
    Tensor x = input("x", f32, {64, 40}), v = input("v", f32, {40, 16});
    Axis k = reduce_axis("k", 40);
    Tensor p = compute("p", {64, 40}, [&](Expr i, Expr j) { return exp(x(i, j)); });
    Tensor y = compute("y", {64, 16}, [&](Expr i, Expr e) { return sum(p(i, k) * v(k, e), k); });
    Schedule s({y}, target("sm_90a"));
    auto [i, e] = s.loops<2>(y);
    auto [ib, it] = s.split(i, 16);
    s.order({ib, it, e});
    s.bind(ib, grid.x);
    s.bind(it, thread);
    s.bind(e, thread);
    s.at(p, ib);
    s.round_to(p, bf16);
    Program program = build(s);
    EXPECT_NE(program.cuda().find("bf16 p["), std::string::npos) << program.cuda();
    Bindings data = random_bindings({y}, 3);
    Executable executable(program, open_device("emulated"));
    HostArray got = run_on(executable, data)[0];
    EXPECT_FALSE(check_output(y, data, got).ok);
    CheckResult result = check_output(y, data, got, {.roundings = s.roundings()});
    EXPECT_TRUE(result.ok) << result.text;
}

/// What reads a rounded tensor makes more of the rounding: exp(4 z), of an element's share of the largest, of two
/// tensors that are rounded one behind the other. The same result that nobody rounded passes, too; another does not.
TEST(CheckOutput, RoundingsThatGrowAreAllowedFor) {
    const Tensor x = input("x", f32, {48, 48}), largest = compute("largest", {48}, [&](Expr i) {
                                                    Axis k = reduce_axis("k", 48);
                                                    return reduce_max(abs(x(i, k)), k);
                                                });
    const Tensor z = compute("z", {48, 48}, [&](Expr i, Expr j) { return x(i, j) * 1.25; }),
                 cubes = compute("cubes", {48, 48}, [&](Expr i, Expr j) { return z(i, j) * z(i, j) * z(i, j); }),
                 y = compute("y", {48, 48},
                             [&](Expr i, Expr j) { return exp(z(i, j) * 4.0) + cubes(i, j) / largest(i); });
    Schedule s({y}, target("sm_90a"));
    const Loop row = s.data_loops(y)[0];
    s.bind(row, grid.x);
    for (const Tensor& rounded : {cubes, z}) {
        s.at(rounded, row);
        s.round_to(rounded, bf16);
    }
    const Bindings data = random_bindings({y}, std::random_device{}());
    Executable executable(build(s), open_device("emulated"));
    const HostArray got = run_on(executable, data)[0];
    CheckOptions options{.roundings = s.roundings()};
    EXPECT_FALSE(check_output(y, data, got, options).ok);
    options.rounded = s.rounded();
    ASSERT_EQ(options.rounded.size(), 2u);
    CheckResult result = check_output(y, data, got, options);
    EXPECT_TRUE(result.ok) << result.text;
    EXPECT_NE(result.text.find("plain f32, rounded as the schedule says"), std::string::npos) << result.text;
    EXPECT_TRUE(check_output(y, data, interpret_plain({y}, data)[0], options).ok);
    HostArray wrong = got;
    for (int64_t i = 0; i < 48; ++i) wrong.set({i, 7}, make_value(f32, got.at({i, 7}).real * 1.1));
    EXPECT_FALSE(check_output(y, data, wrong, options).ok);
}

/// Reductions of few elements, as kernels make them: in parts, whose results are combined in pairs.
struct FewElements {
    int64_t rows, terms;
    bool takes_moments;  ///< mean and squared deviations, by running means; else sums
    Tensor x = input("x", f32, {rows, terms});
    Axis k = reduce_axis("k", terms);
    std::vector<Tensor> y = takes_moments
                                ? compute_tuple("y", {rows}, [&](const auto& i) { return welford(x(i[0], k), {k}); })
                                : std::vector{compute("y", {rows}, [&](Expr i) { return sum(x(i, k), k); })};

    struct Part {
        float mean = 0, deviations = 0, count = 0, sum = 0;

        void add(float value) { *this = joined(*this, {.mean = value, .count = 1, .sum = value}); }
        static Part joined(const Part& a, const Part& b) {
            if (a.count == 0) return b;
            if (b.count == 0) return a;
            const float count = a.count + b.count, difference = b.mean - a.mean, share = b.count / count;
            return {a.mean + difference * share,
                    a.deviations + b.deviations + difference * difference * a.count * share, count, a.sum + b.sum};
        }
    };
    /// In so many parts, a power of two; without the last term of the first row, or with it.
    std::vector<HostArray> results(const Bindings& bindings, size_t parts, bool leaves_out) const {
        std::vector<HostArray> arrays(y.size(), host_array(f32, {rows}));
        const HostArray& values = bindings.inputs.at("x");
        for (int64_t i = 0; i < rows; ++i) {
            std::vector<Part> all(parts);
            for (int64_t j = 0; j < terms - (leaves_out && i == 0); ++j)
                all[static_cast<size_t>(j) % parts].add(static_cast<float>(values.at({i, j}).real));
            for (size_t half = parts / 2; half > 0; half /= 2)
                for (size_t p = 0; p < half; ++p) all[p] = Part::joined(all[p], all[p + half]);
            const float made[] = {takes_moments ? all[0].mean : all[0].sum, all[0].deviations, all[0].count};
            for (size_t o = 0; o < y.size(); ++o) arrays[o].set({i}, make_value(f32, made[o]));
        }
        return arrays;
    }
};

// The largest error of a few results is a matter of luck, of theirs and of those that they are measured by.
TEST(CheckOutput, RightResultsPassHoweverFewTheyAre) {
    std::mt19937_64 random(11);
    for (int seed = 0; seed < 1500; ++seed) {
        const auto pick = [&](int64_t least, int64_t most) {
            return least + static_cast<int64_t>(random() % static_cast<uint64_t>(most - least + 1));
        };
        const FewElements few{pick(1, 4), pick(2, 90), pick(0, 1) == 1};
        const size_t parts = size_t{1} << pick(0, 5);
        Bindings bindings = random_bindings({few.y[0]}, random());
        bindings.inputs.at("x").set({0, few.terms - 1}, make_value(f32, pick(0, 1) ? 0.5 : -0.75));
        const auto right = few.results(bindings, parts, false), wrong = few.results(bindings, parts, true);
        for (size_t o = 0; o < few.y.size(); ++o) {
            const CheckResult of_right = check_output(few.y[o], bindings, right[o]),
                              of_wrong = check_output(few.y[o], bindings, wrong[o]);
            const std::string which =
                fmt::format("seed {}, {} rows of {} terms, {} parts, output {}", seed, few.rows, few.terms, parts, o);
            EXPECT_TRUE(of_right.ok) << which << ": " << of_right.text;
            EXPECT_FALSE(of_wrong.ok) << which << ": " << of_wrong.text;
        }
    }
}

// A result of two bytes errs by its rounding, and by nothing that a term which is missing makes.
TEST(CheckOutput, FewResultsOfTwoBytes) {
    Tensor x = input("x", bf16, {2, 40});
    Axis k = reduce_axis("k", 40);
    Tensor y = compute("y", {2}, [&](Expr i) { return cast(bf16, sum(cast(f32, x(i, k)), k)); });
    for (uint64_t seed = 0; seed < 500; ++seed) {
        const Bindings bindings = random_bindings({y}, seed);
        HostArray right = host_array(bf16, {2});
        for (int64_t i = 0; i < 2; ++i) {
            double total = 0;
            for (int64_t j = 40; j-- > 0;) total += bindings.inputs.at("x").at({i, j}).real;
            right.set({i}, make_value(bf16, total * (seed % 2 ? 1 + 1e-5 : 1 - 1e-5)));  // near a tie, either of two
        }
        const double largest = std::max(std::abs(right.at({0}).real), std::abs(right.at({1}).real));
        EXPECT_TRUE(check_output(y, bindings, right).ok) << seed;
        for (int64_t i = 0; i < 2; ++i) {
            HostArray wrong = right;
            wrong.set({i}, make_value(bf16, right.at({i}).real + largest / 50));
            EXPECT_FALSE(check_output(y, bindings, wrong).ok) << seed;
        }
    }
}

TEST(RandomBindings, AreTheSameForASeed) {
    Tensor x = input("x", f32, {30}), at = input("at", i32, {30});
    Tensor y = compute("y", {30}, [&](Expr i) { return x(i) + cast(f32, at(i)); });
    auto data = [&](uint64_t seed) { return random_bindings({y}, seed).inputs["x"].bytes; };
    EXPECT_EQ(data(1), data(1));
    EXPECT_NE(data(1), data(2));
}

// Samples are computed from what they need: there is no room for the tensors between.
TEST(CheckOutput, SamplesNeedFewElementsOfWhatIsBetween) {
    constexpr int64_t Large = 100'000;
    Tensor a = input("a", f32, {Large, 4}), b = input("b", f32, {Large, 4});
    Axis r = reduce_axis("r", 4), q = reduce_axis("q", 3);
    Tensor product = compute("product", {3, Large, Large},
                             [&](Expr p, Expr i, Expr j) { return sum(a(i, r) * b(j, r), r) * cast(f32, p + 1); });
    Tensor both = compute("both", {Large}, [&](Expr i) { return sum(product(q, i, i * 7 % Large), q); });
    Tensor y = compute("y", {Large}, [&](Expr i) { return both(i) * product(0, i, i) + both(Large - 1 - i); });
    Bindings bindings = random_bindings({y}, 3);
    auto dot = [&](int64_t i, int64_t j) {
        double total = 0;
        for (int64_t k = 0; k < 4; ++k)
            total += bindings.inputs.at("a").at({i, k}).real * bindings.inputs.at("b").at({j, k}).real;
        return total;
    };
    auto value = [&](int64_t i) { return 6 * dot(i, i * 7 % Large); };
    HostArray right = host_array(f32, {Large}), wrong = right;
    for (int64_t i = 0; i < Large; ++i) {
        double element = value(i) * dot(i, i) + value(Large - 1 - i);
        right.set({i}, make_value(f32, element));
        wrong.set({i}, make_value(f32, element + 1));
    }
    CheckResult result = check_output(y, bindings, right, {.samples = 64});
    EXPECT_TRUE(result.ok) << result.text;
    EXPECT_FALSE(check_output(y, bindings, wrong, {.samples = 64}).ok);
}

}  // namespace
}  // namespace tw
