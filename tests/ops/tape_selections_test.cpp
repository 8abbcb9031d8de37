// Conditions, functions of elements, extremes and moments on the tape: results against plain loops in float64,
// gradients against differences of these, ties and numbers that are not finite.
#include <cmath>
#include <limits>

#include <gmock/gmock.h>

#include "ops/comparisons.h"
#include "ops/layers.h"
#include "ops/step/compile_step.h"
#include "ops/views.h"
#include "tests/ops/tape_arrays.h"
#include "tests/support/expect_error.h"

namespace tw::nn {
namespace {

using testing::ElementsAre;

constexpr double Infinity = std::numeric_limits<double>::infinity(), NaN = std::numeric_limits<double>::quiet_NaN();

class TapeSelections : public OnTapeTests {
protected:
    Tensor given(const Values& values) const {
        return of_values(backend_, {static_cast<int64_t>(values.size())}, values, "given");
    }
    /// d sum(f(x) * (1, 2, ...)) / dx
    Values slopes_of(const Values& values, const std::function<Tensor(const Tensor& x)>& f) const {
        const Tensor x = given(values).set_requires_grad(), y = f(x);
        Values weights(static_cast<size_t>(count_of(y.shape())));
        std::iota(weights.begin(), weights.end(), 1);
        backward(sum(y * of_values(backend_, y.shape(), weights, "weights")));
        return values_of(x.grad());
    }
};
TW_ON_EACH_DEVICE(TapeSelections);

std::vector<bool> holds(const Tensor& condition) {
    EXPECT_EQ(condition.type(), boolean);
    EXPECT_FALSE(condition.requires_grad());
    std::vector<bool> found;
    for (const std::byte each : condition.to_host().bytes) found.push_back(each != std::byte{0});
    return found;
}

TEST_P(TapeSelections, Comparisons) {
    const Tensor x = given({1, 2, 3, NaN}).set_requires_grad(), y = given({2, 2, 2, 2});
    EXPECT_THAT(holds(x < y), ElementsAre(true, false, false, false));
    EXPECT_THAT(holds(x <= y), ElementsAre(true, true, false, false));
    EXPECT_THAT(holds(x > 2), ElementsAre(false, false, true, false));
    EXPECT_THAT(holds(x >= y), ElementsAre(false, true, true, false));
    EXPECT_THAT(holds(x == 2), ElementsAre(false, true, false, false));
    EXPECT_THAT(holds(2 != x), ElementsAre(true, false, true, true));
    EXPECT_THAT(holds(!(x < y)), ElementsAre(false, true, true, true));
    EXPECT_THAT(holds(x < y || x > y), ElementsAre(true, false, true, false));
    EXPECT_THAT(holds(x < 3 && x > 1), ElementsAre(false, true, false, false));
    const Tensor all_kinds = given({1, Infinity, -Infinity, NaN, -3e38});
    EXPECT_THAT(holds(is_finite(all_kinds)), ElementsAre(true, false, false, false, true));
    EXPECT_THAT(holds(is_nan(all_kinds)), ElementsAre(false, false, false, true, false));
    const Tensor whole = cast(given({-1, 0, 7}), i32);
    EXPECT_THAT(holds(whole == 7), ElementsAre(false, false, true));
    EXPECT_THAT(holds((whole == 7) == (whole > 0)), ElementsAre(true, true, true));
    EXPECT_EQ(values_of(cast(whole * 2 - 1, f32)), (Values{-3, -1, 13}));
    EXPECT_EQ(values_of(cast(-whole, f32)), (Values{1, 0, -7}));
    for (Type type : {f16, bf16, f64, i8, u8, i64})
        EXPECT_THAT(holds(cast(given({1, 2, 3, 4}), type) >= cast(y, type)), ElementsAre(false, true, true, true))
            << name_of(type);
}

TEST_P(TapeSelections, Where) {
    expect_like([](const auto& in) { return where(in[0] < in[1], in[1] * in[1], in[2]) + in[0]; },
                [](const auto& in) {
                    return array({4, 3, 5}, [&](const Dims& at) {
                        return (in[0](at) < in[1](at) ? in[1](at) * in[1](at) : in[2](at)) + in[0](at);
                    });
                },
                {{3, 5}, {5}, {4, 1, 1}});
    expect_like([](const auto& in) { return where(in[0] < 0, 0.5, where(in[0] > 0.5, in[0] * 3, 1)); },
                of_one([](double x) { return x < 0     ? 0.5
                                             : x > 0.5 ? 3 * x
                                                       : 1; }), {{3, 7}});
    EXPECT_EQ(values_of(where(given({1, 2}) > 1, 2, -1)), (Values{-1, 2}));
    EXPECT_EQ(slopes_of({-1, 4}, [](const Tensor& x) { return where(x > 0, x * x, 0); }), (Values{0, 16}));
    for (Type type : {f16, bf16, f64, i32}) {
        const Tensor x = cast(given({1, -2, 3}), type);
        EXPECT_EQ(values_of(cast(where(x > 0, x, 7), f32)), (Values{1, 7, 3})) << name_of(type);
    }
}

/// Equal operands share the adjoint; NaN is nobody's.
TEST_P(TapeSelections, Ties) {
    const Tensor y = given({1, 1, 1, NaN}).set_requires_grad();
    for (bool is_largest : {true, false}) {
        const double lower = is_largest ? 0 : 1;
        EXPECT_THAT(
            slopes_of({0, 1, 2, 3}, [&](const Tensor& x) { return is_largest ? maximum(x, y) : minimum(x, y); }),
            ElementsAre(lower, 1, 3 * (1 - lower), 4));
        EXPECT_THAT(values_of(y.grad()), ElementsAre(1 - lower, 1, 3 * lower, 0));
    }
    EXPECT_EQ(values_of(maximum(given({1e-45, 3e38, -Infinity}), given({1e-45, 3e38, -Infinity}))),
              values_of(given({1e-45, 3e38, -Infinity})));
    EXPECT_THAT(slopes_of({5, 1, 5, 0}, [](const Tensor& x) { return nn::max(x); }), ElementsAre(0.5, 0, 0.5, 0));
    EXPECT_THAT(slopes_of({5, 1, 5, 1}, [](const Tensor& x) { return nn::min(x, {0}, true); }),
                ElementsAre(0, 0.5, 0, 0.5));
    EXPECT_THAT(slopes_of({0, 1, 2, 3, 4}, [](const Tensor& x) { return clamp(x, 1, 3); }), ElementsAre(0, 2, 3, 4, 0));
    EXPECT_THAT(slopes_of({0, 0}, [](const Tensor& x) { return norm(x); }), ElementsAre(0, 0));
    EXPECT_THAT(slopes_of({2, 2}, [](const Tensor& x) { return nn::std(x); }), ElementsAre(0, 0));
    EXPECT_THAT(slopes_of({0, -1}, [](const Tensor& x) { return leaky_relu(x, 0.25); }), ElementsAre(0.25, 0.5));
    EXPECT_THAT(
        slopes_of({-2.5, 0, 7}, [](const Tensor& x) { return sign(x) + floor(x) + ceil(x) + round(x) + 0 * x; }),
        ElementsAre(0, 0, 0));
}

TEST_P(TapeSelections, FunctionsOfElements) {
    const auto expect = [&](const std::function<Tensor(const Tensor&)>& f, double (*plain)(double), double low = -3) {
        expect_like([&](const auto& in) { return f(in[0]); }, of_one(plain), {{3, 5}}, low, 3);
    };
    expect([](const Tensor& x) { return nn::sin(x * 3); }, [](double x) { return std::sin(3 * x); });
    expect([](const Tensor& x) { return nn::cos(x * 3); }, [](double x) { return std::cos(3 * x); });
    expect([](const Tensor& x) { return erf(x); }, [](double x) { return std::erf(x); });
    expect([](const Tensor& x) { return nn::rsqrt(x); }, [](double x) { return 1 / std::sqrt(x); }, 0.5);
    expect([](const Tensor& x) { return reciprocal(x); }, [](double x) { return 1 / x; }, 0.5);
    expect([](const Tensor& x) { return softplus(x * 5); }, [](double x) { return std::log1p(std::exp(5 * x)); });
    expect([](const Tensor& x) { return leaky_relu(x); }, [](double x) { return x > 0 ? x : 0.01 * x; });
    expect([](const Tensor& x) { return elu(x, 2); }, [](double x) { return x > 0 ? x : 2 * std::expm1(x); });
    expect([](const Tensor& x) { return clamp(x, -1, Infinity) * x; }, [](double x) { return std::max(x, -1.0) * x; });
    EXPECT_EQ(values_of(floor(given({-1.5, 2.5, 3}))), (Values{-2, 2, 3}));
    EXPECT_EQ(values_of(ceil(given({-1.5, 2.5, 3}))), (Values{-1, 3, 3}));
    EXPECT_EQ(values_of(round(given({-1.5, 2.5, 3.2}))), (Values{-2, 2, 3}));
    EXPECT_EQ(values_of(sign(given({-1.5, 0, 1e-40, NaN}))), (Values{-1, 0, 1, 0}));
    EXPECT_EQ(values_of(cast(clamp(cast(given({-9, 3, 9}), i32), -2, 4), f32)), (Values{-2, 3, 4}));
    const Values far{1e4, -3e5, 7e6, 100};
    for (size_t e = 0; e < far.size(); ++e) {
        EXPECT_NEAR(values_of(nn::sin(given(far)))[e], std::sin(far[e]), 1e-7);
        EXPECT_NEAR(values_of(nn::cos(given(far)))[e], std::cos(far[e]), 1e-7);
    }
    EXPECT_TRUE(std::isnan(values_of(nn::sin(given({Infinity})))[0]));
    // Where a sum with 1 would have lost all digits, and where exp overflows.
    const Values exponents{-20, -40, 15, 100}, soft = values_of(softplus(given(exponents)));
    for (size_t e = 0; e < soft.size(); ++e)
        EXPECT_NEAR(soft[e] / (exponents[e] < 50 ? std::log1p(std::exp(exponents[e])) : 100), 1, 1e-6) << e;
    expect_near(values_of(1e6 * elu(given({-1e-6}))), {-1}, 1e-6, "elu");
    EXPECT_EQ(slopes_of({-100}, [](const Tensor& x) { return elu(x); }), Values{std::exp(-100.0f)});
}

TEST_P(TapeSelections, ExtremesAndTheirPlaces) {
    const Dims whole{3, 4, 5};
    const auto extreme = [&](bool is_largest) {
        return [=](const std::vector<Array>& in) {
            return array({3, 5}, [&](const Dims& at) {
                double found = is_largest ? -2 : 2;
                for (int64_t k = 0; k < 4; ++k)
                    found = is_largest ? std::max(found, in[0]({at[0], k, at[1]}))
                                       : std::min(found, in[0]({at[0], k, at[1]}));
                return found;
            });
        };
    };
    expect_like([](const auto& in) { return nn::max(in[0], {1}); }, extreme(true), {whole});
    expect_like([](const auto& in) { return nn::min(in[0], {-2}); }, extreme(false), {whole});
    const Tensor x = of_values(backend_, {2, 3}, {1, 5, 5, -2, -2, 0}, "x");
    const auto places = [](const Tensor& place) {
        EXPECT_EQ(place.type(), i32);
        return place.data().read<int32_t>();
    };
    EXPECT_THAT(places(argmax(x, 1)), ElementsAre(1, 2));
    EXPECT_THAT(places(argmin(x, -1)), ElementsAre(0, 0));
    EXPECT_THAT(places(argmax(x, 0, true)), ElementsAre(0, 0, 0));
    EXPECT_THAT(argmax(x, 0, true).shape(), ElementsAre(1, 3));
    EXPECT_THAT(places(argmax(x)), ElementsAre(1));
    EXPECT_THAT(places(argmin(x)), ElementsAre(3));
    EXPECT_THAT(argmin(x, {}, true).shape(), ElementsAre(1, 1));
    const Tensor least = cast(of_values(backend_, {3}, {5, -2147483648.0, 7}, "x"), i32);
    EXPECT_THAT(places(argmin(least)), ElementsAre(1));
    EXPECT_THAT(nn::min(least).data().read<int32_t>(), ElementsAre(std::numeric_limits<int32_t>::min()));
    EXPECT_THAT(holds(any(x > 3, {1})), ElementsAre(true, false));
    EXPECT_THAT(holds(all(x > -1, {1})), ElementsAre(true, false));
    EXPECT_THAT(holds(any(x == 7)), ElementsAre(false));
    EXPECT_THAT(holds(all(x < 7, {0}, true)), ElementsAre(true, true, true));
}

TEST_P(TapeSelections, MomentsProductsAndRunningSums) {
    const Dims whole{4, 6};
    const auto of_rows = [](const std::function<double(const Values& row)>& f) {
        return [=](const std::vector<Array>& in) {
            return array({4}, [&](const Dims& at) {
                return f({in[0].values.begin() + at[0] * 6, in[0].values.begin() + at[0] * 6 + 6});
            });
        };
    };
    const auto squares = [](const Values& row, double from) {
        double total = 0;
        for (double value : row) total += (value - from) * (value - from);
        return total;
    };
    const auto mean_of = [](const Values& row) { return std::accumulate(row.begin(), row.end(), 0.0) / 6; };
    expect_like([](const auto& in) { return var(in[0], {1}); },
                of_rows([=](const Values& row) { return squares(row, mean_of(row)) / 5; }), {whole});
    expect_like([](const auto& in) { return nn::std(in[0], {-1}, 0); },
                of_rows([=](const Values& row) { return std::sqrt(squares(row, mean_of(row)) / 6); }), {whole});
    expect_like([](const auto& in) { return norm(in[0], {1}); },
                of_rows([=](const Values& row) { return std::sqrt(squares(row, 0)); }), {whole});
    const auto log_sum = [](const Values& row) {
        double total = 0;
        for (double value : row) total += std::exp(value);
        return std::log(total);
    };
    expect_like([](const auto& in) { return logsumexp(in[0], {1}); }, of_rows(log_sum), {whole}, -4, 4);
    expect_like([](const auto& in) { return prod(in[0], {1}); }, of_rows([](const Values& row) {
                    return std::accumulate(row.begin(), row.end(), 1.0, std::multiplies<>());
                }),
                {whole}, -2, 2);
    expect_like([](const auto& in) { return cumsum(in[0], 0); },
                [&](const auto& in) {
                    return array(whole, [&](Dims at) {
                        double total = 0;
                        for (; at[0] >= 0; --at[0]) total += in[0](at);
                        return total;
                    });
                },
                {whole});
    EXPECT_EQ(values_of(logsumexp(given({-Infinity, -Infinity}))), Values{-Infinity});
    EXPECT_EQ(values_of(logsumexp(given({1, Infinity}))), Values{Infinity});
    EXPECT_EQ(values_of(logsumexp(given({1000, 1000}))), Values{static_cast<float>(1000 + std::log(2))});
    EXPECT_THAT(var(of_values(backend_, whole, random_values(24, 1), "x"), {0}, 1, true).shape(), ElementsAre(1, 6));
}

/// Bits of f16 and bf16 are those of f32 rounded, their gradients near to those.
TEST_P(TapeSelections, OfOtherFloats) {
    const auto all_of = [](const Tensor& x) {
        return std::vector{nn::sin(x),
                           nn::cos(x),
                           softplus(x),
                           elu(x),
                           leaky_relu(x),
                           erf(x),
                           clamp(x, 0.1, 1),
                           nn::max(x, {1}, true),
                           maximum(x, 0 * x),
                           where(x > 0, x, 2),
                           var(x, {0}),
                           nn::std(x, {1}, 0, true),
                           logsumexp(x, {-1}, true),
                           norm(x, {0}),
                           prod(x, {1}, true),
                           cumsum(x, 1)};
    };
    const auto total_of = [](const std::vector<Tensor>& made) {
        Tensor total = sum(cast(made[0], f32));
        for (size_t k = 1; k < made.size(); ++k) total = total + sum(cast(made[k], f32));
        return total;
    };
    const Tensor values = cast(cast(of_values(backend_, {3, 4}, random_values(12, 5), "x"), bf16), f32);
    const Tensor wide = (values * 1).set_requires_grad();
    const std::vector<Tensor> expected = all_of(wide);
    backward(total_of(expected), {.retain = true});
    for (Type type : {f16, bf16, f64}) {
        const Tensor x = cast(values, type).set_requires_grad();
        const std::vector<Tensor> got = all_of(x);
        for (size_t k = 0; k < got.size(); ++k) {
            EXPECT_EQ(got[k].type(), type);
            const Tensor rounded = type == f64 ? expected[k] : cast(cast(expected[k], type), f32);
            expect_near(values_of(cast(got[k], f32)), values_of(rounded), type == f64 ? 1e-6 : 0, fmt::format("{}", k));
        }
        backward(total_of(got));
        EXPECT_EQ(x.grad().type(), type);
        expect_near(values_of(cast(x.grad(), f32)), values_of(wide.grad()),
                    type == f64   ? 1e-5
                    : type == f16 ? 1e-2
                                  : 8e-2,
                    fmt::format("gradient of {}", name_of(type)));
    }
}

/// At 0 the first and the second derivatives of roots are 0, elsewhere what they are: of the norm of a row x, and a
/// direction u, (u - x (x u) / |x|^2) / |x|.
TEST_P(TapeSelections, SecondDerivativesOfRoots) {
    const auto second = [&](const Values& values, const std::function<Tensor(const Tensor& x)>& f) {
        const Tensor x = of_values(backend_, {2, 2}, values, "x").set_requires_grad();
        const auto curved = [&] {
            const Tensor slope = gradients(sum(f(x)), {x}, {.create_graph = true})[0];
            return gradients(sum(slope * of_values(backend_, {2}, {1, 2}, "u")), {x})[0] * 1.0;
        };
        const Values called = values_of(curved());
        const CompiledStep compiled = compile(backend_, [&] { return std::vector{curved()}; });
        compiled.run();
        expect_near(values_of(compiled.results()[0]), called, 1e-5, "compiled");
        return called;
    };
    const auto of_norm = [](const Tensor& x) { return norm(x, {1}); };
    expect_near(second({0, 0, 3, 4}, of_norm), {0, 0, (1 - 3 * 11 / 25.0) / 5, (2 - 4 * 11 / 25.0) / 5}, 1e-5, "norm");
    for (double equal : {0.0, 0.5, -3.0})
        EXPECT_EQ(second({equal, equal, equal, equal}, [](const Tensor& x) { return nn::std(x, {1}); }), Values(4, 0));
    EXPECT_EQ(second({0, 0, 0, 0}, [](const Tensor& x) { return norm(x, {0}) + nn::std(x, {0}, 0); }), Values(4, 0));
    // var of two is (a - b)^2 / 2: its second derivatives are 1 and -1 everywhere.
    expect_near(second({0.5, 0.5, 1, -1}, [](const Tensor& x) { return var(x, {1}); }), {-1, 1, -1, 1}, 1e-6, "var");
    EXPECT_EQ(slopes_of({2, 2, 2}, [](const Tensor& x) { return nn::std(x, {0}, 1, true); }), Values(3, 0));
    EXPECT_EQ(slopes_of({2, 2, 2}, [](const Tensor& x) { return var(x, {0}, 1, true); }), Values(3, 0));
    EXPECT_EQ(slopes_of({0, 0, 0}, [](const Tensor& x) { return norm(x, {0}, true); }), Values(3, 0));
}

TEST_P(TapeSelections, WithoutANumberToChoose) {
    const Tensor x = of_values(backend_, {2, 3}, {NaN, NaN, NaN, NaN, 2, 2}, "x");
    EXPECT_THAT(values_of(cast(argmax(x, -1), f32)), ElementsAre(0, 1));
    EXPECT_THAT(values_of(cast(argmin(x, -1), f32)), ElementsAre(0, 1));
    for (const double far : values_of(sin(given({1e17, -1e25, 3e38})))) EXPECT_LE(std::abs(far), 1);
}

TEST_P(TapeSelections, Refuse) {
    const Tensor whole_numbers = cast(given({1, 2}), i32);
    EXPECT_ERROR(whole_numbers / 2, "divide");
    EXPECT_ERROR(2 / whole_numbers, "divide");
    const Tensor x = random_leaf({4, 3}, 1), whole = cast(x, i32), scalar = random_leaf({}, 1);
    const Tensor none(backend_, f32, {4, 0}, "none");
    EXPECT_ERROR(where(x, x, 0), "where: 'x' is f32; give booleans, a comparison, as x != 0, makes some of it");
    EXPECT_ERROR(where(x > 0, x, whole), "where: x is f32, y i32; give two of one type");
    EXPECT_ERROR(where(x > 0, x, random_leaf({5}, 2)), "where: x is [4, 3], y [5]: dimension 1 of x is 3");
    EXPECT_ERROR(where(x > 0, whole, 0.5), "where: 'cast' is i32, the number 0.5; give a number of that type");
    EXPECT_ERROR(logical_and(x > 0, x), "logical_and: 'x' is f32; give booleans");
    EXPECT_ERROR(!x, "tape_selections_test.cpp");
    EXPECT_ERROR(any(x), "any: 'x' is f32; give booleans, a comparison");
    EXPECT_ERROR(less(1, 2), "less: 1 and 2 are numbers; give a tensor");
    EXPECT_ERROR(cast(x, u8) + 300, "add: 'cast' is u8, the number 300; give a number of that type");
    EXPECT_ERROR(x * 1e300, "multiply: 'x' is f32, the number 1e+300; give a number of that type");
    EXPECT_EQ(values_of(cast(cast(given({0.5}), f16) * 1e5, f32)), Values{49984});  // computed in f32
    EXPECT_ERROR(clamp(x, 2, 1), "clamp: from 2 to 1; give a lower end that is no more than the upper one");
    EXPECT_ERROR(nn::sin(whole), "sin: 'cast' is i32; give floats");
    EXPECT_ERROR(nn::max(none, {1}), "max: x is [4, 0], and there are no elements to choose from; give some");
    EXPECT_ERROR(argmin(none), "argmin: x is [4, 0], and there are no elements");
    EXPECT_ERROR(var(x, {0}, 4), "var: of 4 elements with a correction of 4; give one from 0 on that is less than");
    EXPECT_ERROR(mse_loss(x, scalar), "tape_selections_test.cpp");
    EXPECT_ERROR(cross_entropy(x, whole), "tape_selections_test.cpp");
    EXPECT_ERROR(embedding(x, x), "tape_selections_test.cpp");
    EXPECT_ERROR(embedding(x, x, x), "tape_selections_test.cpp");
    EXPECT_ERROR(flatten(scalar), "tape_selections_test.cpp");
    EXPECT_ERROR(accuracy(host_array(f32, {2}), {0, 1}), "tape_selections_test.cpp");
    EXPECT_ERROR(reshape(x, {5}), "reshape of 'x' [4, 3] to [5]");
    EXPECT_ERROR(softmax(scalar, 0),
                 "softmax: x is a scalar, which has no dimensions; give a tensor that has dimension 0");
}

}  // namespace
}  // namespace tw::nn
