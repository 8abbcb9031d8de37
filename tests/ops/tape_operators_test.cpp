// Arithmetic, reductions, joining and views of tensors on the tape, by calls and as one graph: results against plain
// loops in float64, gradients against differences of these.
#include <gmock/gmock.h>

#include "ops/elementwise.h"
#include "ops/joining.h"
#include "ops/layers.h"
#include "ops/reductions.h"
#include "ops/step/compile_step.h"
#include "ops/views.h"
#include "tests/ops/tape_arrays.h"
#include "tests/support/expect_error.h"

namespace tw::nn {
namespace {

using testing::ElementsAre;
class TapeOperators : public OnTapeTests {};
TW_ON_EACH_DEVICE(TapeOperators);

TEST_P(TapeOperators, AreBroadcastAsNumpyDoes) {
    struct Shapes {
        Dims x, y, result;
    };
    for (const auto& [x, y, result] : {Shapes{{3, 4}, {3, 4}, {3, 4}},
                                       {{4, 1, 3}, {5, 3}, {4, 5, 3}},
                                       {{3}, {2, 5, 1}, {2, 5, 3}},
                                       {{2, 3}, {}, {2, 3}},
                                       {{1}, {7}, {7}}}) {
        SCOPED_TRACE(shape_text(x) + " " + shape_text(y));
        expect_like([](const auto& in) { return in[0] * in[1]; },
                    of_two(result, [](double a, double b) { return a * b; }), {x, y});
    }
    const std::vector<Dims> shapes{{4, 1, 3}, {5, 3}};
    const Dims result{4, 5, 3};
    expect_like([](const auto& in) { return in[0] + in[1]; }, of_two(result, [](double a, double b) { return a + b; }),
                shapes);
    expect_like([](const auto& in) { return in[0] - in[1]; }, of_two(result, [](double a, double b) { return a - b; }),
                shapes);
    expect_like([](const auto& in) { return in[0] / in[1]; }, of_two(result, [](double a, double b) { return a / b; }),
                shapes, 0.5, 2);
    expect_like([](const auto& in) { return maximum(in[0], in[1]); },
                of_two(result, [](double a, double b) { return std::max(a, b); }), shapes);
    expect_like([](const auto& in) { return minimum(in[0], in[1]); },
                of_two(result, [](double a, double b) { return std::min(a, b); }), shapes);
}

TEST_P(TapeOperators, OfOneTensorAndNumbers) {
    const std::vector<Dims> shapes{{3, 5}};
    const auto expect = [&](const std::function<Tensor(const Tensor&)>& f, double (*plain)(double)) {
        expect_like([&](const auto& in) { return f(in[0]); }, of_one(plain), shapes, 0.3, 2);
    };
    expect([](const Tensor& x) { return nn::exp(x); }, [](double x) { return std::exp(x); });
    expect([](const Tensor& x) { return nn::log(x); }, [](double x) { return std::log(x); });
    expect([](const Tensor& x) { return nn::sqrt(x); }, [](double x) { return std::sqrt(x); });
    expect([](const Tensor& x) { return nn::pow(x, -3); }, [](double x) { return std::pow(x, -3); });
    expect([](const Tensor& x) { return nn::pow(x, 1.7); }, [](double x) { return std::pow(x, 1.7); });
    expect([](const Tensor& x) { return 2 - x; }, [](double x) { return 2 - x; });
    expect([](const Tensor& x) { return x - 2; }, [](double x) { return x - 2; });
    expect([](const Tensor& x) { return 0.3 / x; }, [](double x) { return 0.3 / x; });
    expect([](const Tensor& x) { return x / 0.3; }, [](double x) { return x / 0.3; });
    expect([](const Tensor& x) { return -x * 0.7 + 1; }, [](double x) { return -x * 0.7 + 1; });
    expect_like([](const auto& in) { return nn::pow(nn::abs(in[0]), 3) + nn::pow(in[0], 5); },
                of_one([](double x) { return std::pow(std::fabs(x), 3) + std::pow(x, 5); }), shapes);
    const Tensor one = nn::pow(random_leaf({3}, 1), 0);
    EXPECT_EQ(values_of(one), Values(3, 1.0));
    EXPECT_FALSE(one.requires_grad());
}

TEST_P(TapeOperators, SumsAndMeans) {
    const Dims whole{3, 4, 5};
    const auto summed = [&](const std::vector<int>& dims, bool keep, bool is_mean) {
        return [=](const std::vector<Array>& in) {
            const auto is_left_out = [&](size_t d) { return std::ranges::count(dims, static_cast<int>(d)) > 0; };
            Dims kept = whole, shape;
            double terms = 1;
            for (size_t d = 0; d < whole.size(); ++d) {
                if (is_left_out(d)) terms *= static_cast<double>(std::exchange(kept[d], 1));
                if (!is_left_out(d) || keep) shape.push_back(kept[d]);
            }
            Array result = array(kept, [](const Dims&) { return 0; });
            array(whole, [&](const Dims& at) {
                int64_t place = 0;
                for (size_t d = 0; d < at.size(); ++d) place = place * kept[d] + (kept[d] == 1 ? 0 : at[d]);
                return result.values[static_cast<size_t>(place)] += in[0](at) / (is_mean ? terms : 1);
            });
            return Array{shape, result.values};
        };
    };
    expect_like([](const auto& in) { return sum(in[0]); }, summed({0, 1, 2}, false, false), {whole});
    expect_like([](const auto& in) { return sum(in[0], {-1}, true); }, summed({2}, true, false), {whole});
    expect_like([](const auto& in) { return sum(in[0], {2, 0}); }, summed({0, 2}, false, false), {whole});
    expect_like([](const auto& in) { return mean(in[0], {1}); }, summed({1}, false, true), {whole});
    expect_like([](const auto& in) { return mean(in[0], {0, 1}, true); }, summed({0, 1}, true, true), {whole});
    expect_like([](const auto& in) { return sum(in[0]); }, [](const auto& in) { return in[0]; }, {{}});
}

TEST_P(TapeOperators, Softmax) {
    const Dims whole{3, 4, 5};
    for (size_t dim : {size_t{1}, size_t{2}})
        for (bool is_log : {false, true}) {
            SCOPED_TRACE(fmt::format("dimension {}, logarithm {}", dim, is_log));
            const Plain plain = [&](const std::vector<Array>& in) {
                return array(whole, [&](const Dims& at) {
                    double total = 0;
                    Dims along = at;
                    for (along[dim] = 0; along[dim] < whole[dim]; ++along[dim]) total += std::exp(in[0](along));
                    return is_log ? in[0](at) - std::log(total) : std::exp(in[0](at)) / total;
                });
            };
            const int from_end = static_cast<int>(dim) - 3;
            expect_like(
                [&](const auto& in) { return is_log ? log_softmax(in[0], from_end) : softmax(in[0], from_end); }, plain,
                {whole}, -3, 3);
        }
    const Tensor large = of_values(backend_, {2}, {1000, 999}, "large");
    expect_near(values_of(softmax(large, 0)), {1 / (1 + std::exp(-1)), 1 / (1 + std::exp(1))}, 1e-6, "large");
}

TEST_P(TapeOperators, ProductsOfMatrices) {
    struct Shapes {
        Dims x, y, result;
    };
    for (const auto& [x, y, result] : {Shapes{{3, 4}, {4, 5}, {3, 5}},
                                       {{2, 3, 4}, {4, 5}, {2, 3, 5}},
                                       {{2, 3, 4}, {2, 4, 5}, {2, 3, 5}},
                                       {{3, 4}, {2, 4, 5}, {2, 3, 5}},
                                       {{2, 1, 3, 4}, {3, 4, 1}, {2, 3, 3, 1}}}) {
        SCOPED_TRACE(shape_text(x) + " " + shape_text(y));
        const Plain plain = [&, &result = result](const std::vector<Array>& in) {
            return array(result, [&](const Dims& at) {
                double total = 0;
                Dims left = at, right = at;
                for (int64_t k = 0; k < 4; ++k) {
                    left.back() = right[right.size() - 2] = k;
                    total += in[0](left) * in[1](right);
                }
                return total;
            });
        };
        expect_like([](const auto& in) { return matmul(in[0], in[1]); }, plain, {x, y});
    }
}

TEST_P(TapeOperators, JoinedAndTakenApart) {
    const Plain joined = [](const std::vector<Array>& in) {
        return array({2, 9, 3}, [&](Dims at) {
            size_t part = 0;
            for (; at[1] >= in[part].shape[1]; ++part) at[1] -= in[part].shape[1];
            return in[part](at);
        });
    };
    const std::vector<Dims> parts{{2, 4, 3}, {2, 1, 3}, {2, 4, 3}};
    expect_like([](const auto& in) { return concatenate(in, -2); }, joined, parts);
    expect_like(
        [](const auto& in) {
            return concatenate({in[0], in[0]}, 0);
        },
        [](const auto& in) { return array({6}, [&](const Dims& at) { return in[0]({at[0] % 3}); }); }, {{3}});
    expect_like([](const auto& in) { return concatenate(in, 0); }, [](const auto& in) { return in[0]; }, {{4}});
    const Plain stacked = [](const std::vector<Array>& in) {
        return array({2, 3, 4}, [&](const Dims& at) { return in[static_cast<size_t>(at[1])]({at[0], at[2]}); });
    };
    expect_like([](const auto& in) { return stack(in, 1); }, stacked, {{2, 4}, {2, 4}, {2, 4}});
    expect_like(
        [](const auto& in) {
            const std::vector<Tensor> cut = split(in[0], {1, 3, 2}, -1);
            return cut[0] * sum(cut[1], {1}, true) + slice(cut[2], 1, 0, 1);
        },
        [](const auto& in) {
            return array({2, 1}, [&](const Dims& at) {
                const auto x = [&](int64_t j) { return in[0]({at[0], j}); };
                return x(0) * (x(1) + x(2) + x(3)) + x(4);
            });
        },
        {{2, 6}});
}

TEST_P(TapeOperators, Views) {
    const Dims whole{2, 3, 7};
    expect_like([](const auto& in) { return transpose(in[0], 0, -1); },
                [](const auto& in) {
                    return array({7, 3, 2}, [&](const Dims& at) { return in[0]({at[2], at[1], at[0]}); });
                },
                {whole});
    expect_like([](const auto& in) { return slice(in[0], -1, 1, 7, 2); },
                [](const auto& in) {
                    return array({2, 3, 3}, [&](const Dims& at) { return in[0]({at[0], at[1], 1 + 2 * at[2]}); });
                },
                {whole});
    expect_like(
        [](const auto& in) {
            return broadcast_to(in[0], {2, 3, 4});
        },
        [](const auto& in) {
            return array({2, 3, 4}, [&](const Dims& at) { return in[0](at); });
        },
        {{3, 1}});
    expect_like([](const auto& in) { return squeeze(unsqueeze(in[0], -1), 1); },
                [](const auto& in) {
                    return Array{{2, 7, 1}, in[0].values};
                },
                {{2, 1, 7}});
    EXPECT_THAT(unsqueeze(random_leaf({2, 3}, 1), 1).shape(), ElementsAre(2, 1, 3));
}

/// Gradients of gradients: d/dx sum((d sum(exp(x y) / y) / dx)^2), where y is broadcast.
TEST_P(TapeOperators, AreDifferentiatedTwice) {
    const Plain squares = [](const std::vector<Array>& in) {
        return Array{{}, {[&] {
                         double total = 0;
                         array({3, 4}, [&](const Dims& at) { return total += std::exp(2 * in[0](at) * in[1](at)); });
                         return total;
                     }()}};
    };
    expect_like(
        [](const auto& in) {
            const Tensor y = sum(nn::exp(in[0] * in[1]) / in[1]);
            return sum(nn::pow(gradients(y, {in[0]}, {.create_graph = true})[0], 2));
        },
        squares, {{3, 4}, {4}}, 0.5, 1.5);
}

/// Bits of f16 and bf16 are those of the f32 result rounded: elements and sums are computed in f32.
TEST_P(TapeOperators, OfOtherFloats) {
    const Dims shape{4, 8};
    const Values x = random_values(32, 1), y = random_values(32, 2), b = random_values(4, 3);
    for (Type type : {f16, bf16, f64}) {
        SCOPED_TRACE(name_of(type));
        const auto run = [&](bool is_rounded_first) {
            std::vector<Tensor> in, results;
            for (const auto& [values, extents] : {std::pair{x, shape}, {y, shape}, {b, Dims{4}}}) {
                const Tensor given = cast(of_values(backend_, extents, values, "x"), type);
                in.push_back((is_rounded_first ? cast(given, f32) : given).set_requires_grad());
            }
            for (const Tensor& made : {in[0] * in[1], in[0] + 0.3, mean(in[0], {1}), softmax(in[0], 1),
                                       matmul(in[0], transpose(in[1], 0, 1)), linear(in[0], in[1], in[2]), gelu(in[0])})
                results.push_back(made);
            return std::pair{in, results};
        };
        const auto [in, got] = run(false);
        const auto [wide, expected] = run(true);
        for (size_t k = 0; k < got.size(); ++k) {
            EXPECT_EQ(got[k].type(), type);
            const Tensor rounded = type == f64 ? expected[k] : cast(cast(expected[k], type), f32);
            expect_near(values_of(cast(got[k], f32)), values_of(rounded), type == f64 ? 1e-6 : 0, fmt::format("{}", k));
        }
        backward(sum(cast(linear(in[0], in[1], in[2]) * linear(in[0], in[1], in[2]), f32)));
        backward(sum(linear(wide[0], wide[1], wide[2]) * linear(wide[0], wide[1], wide[2])));
        for (size_t k = 0; k < 3; ++k) {
            EXPECT_EQ(in[k].grad().type(), type);
            expect_near(values_of(cast(in[k].grad(), f32)), values_of(wide[k].grad()),
                        type == f64   ? 1e-5
                        : type == f16 ? 1e-2
                                      : 8e-2,
                        fmt::format("gradient {}", k));
        }
    }
    const Tensor whole = cast(of_values(backend_, {3}, {1.2, 2.7, -3.9}, "x"), i32);
    EXPECT_EQ(values_of(cast(whole * whole, f32)), (Values{1, 4, 9}));
}

/// A loop whose length data decide, which are read on the way.
TEST_P(TapeOperators, LoopsAsLongAsDataSay) {
    std::vector<int> all_rounds;
    for (double start : {0.3, 3.0}) {
        Values values{start, start / 2, start / 3};
        const Tensor x = leaf({{3}, values}, "x");
        Tensor y = x;
        int rounds = 0;
        for (; values_of(sum(y))[0] < 20 && rounds < 20; ++rounds) y = y * y + 2 * x;
        const auto after_rounds = [&](int count) {
            double total = 0;
            for (double value : values) {
                double made = value;
                for (int round = 0; round < count; ++round) made = made * made + 2 * value;
                total += made;
            }
            return total;
        };
        EXPECT_GE(after_rounds(rounds), 20);
        EXPECT_LT(after_rounds(rounds - 1), 20);
        all_rounds.push_back(rounds);
        backward(sum(y));
        expect_near(values_of(x.grad()), slopes(values, [&] { return after_rounds(rounds); }), 1e-4, "gradient");
    }
    EXPECT_NE(all_rounds[0], all_rounds[1]);
}

TEST_P(TapeOperators, Refuse) {
    const Tensor x = random_leaf({4, 3}, 1), y = random_leaf({5, 4, 2}, 2), half = cast(x, f16), whole = cast(x, i32);
    EXPECT_ERROR(x + y,
                 "add: x is [4, 3], y [5, 4, 2]: dimension 1 of x is 3, dimension 2 of y is 2; dimensions are matched "
                 "from the last one on, and have to be equal, or one of them 1");
    EXPECT_ERROR(x * half, "multiply: x is f32, y f16; give two of one type, cast() makes one of another");
    EXPECT_ERROR(whole + 0.5,
                 "add: 'cast' is i32, the number 0.5; give a number of that type, or floats: cast() makes");
    EXPECT_ERROR(whole / whole, "divide: 'cast' is i32; give floats");
    EXPECT_ERROR(nn::exp(whole), "exp: 'cast' is i32; give floats");
    EXPECT_ERROR(Tensor() + x, "an nn::Tensor is undefined");
    EXPECT_ERROR(Linear(backend_, 0, 3, 1), "Linear: sizes are 0 and 3; give positive ones");
    EXPECT_ERROR(Embedding(backend_, -1, 8, 1), "Embedding: sizes are 8 and -1; give positive ones");
    EXPECT_ERROR(sum(x, {2}), "sum: x is [4, 3], which has no dimension 2; give one of -2 to 1");
    EXPECT_ERROR(sum(x, {1, -1}), "sum: dimensions [1, -1] of x, [4, 3]; name each of them once");
    EXPECT_ERROR(matmul(x, y), "matmul: x is [4, 3], y [5, 4, 2]; give [..., m, k] and [..., k, n], a vector");
    EXPECT_ERROR(matmul(random_leaf({2, 3, 4}, 1), y), "matmul, in front of its matrices: x is [2], y [5]: dimension");
    EXPECT_ERROR(concatenate({}, 0), "concatenate: no tensors; give at least one");
    EXPECT_ERROR(concatenate({x, y}, 0), "concatenate: tensors are [4, 3], [5, 4, 2]; they may differ in dimension 0");
    EXPECT_ERROR(stack({x, half}, 0), "stack: x is f32, y f16");
    EXPECT_ERROR(stack({x, y}, 0), "stack: tensors are [4, 3], [5, 4, 2]; give some of one shape");
    EXPECT_ERROR(split(x, {1, 1}, 1), "split: x is [4, 3], cut along dimension 1 into [1, 1]; give positive extents");
    EXPECT_ERROR(split(x, {3, 0}, 1), "that add up to 3");
    EXPECT_ERROR(slice(x, 0, 0, 4, 0), "slice of 'x': the step is 0; give 1 or more, and turn what it makes by flip()");
    EXPECT_ERROR(select(x, -2, 4), "select of 'x' [4, 3]: there is no place 4 along dimension 0; write one from -4 to 3");
    EXPECT_ERROR(select(x, 2, 0), "select: x is [4, 3]");
    EXPECT_ERROR(flip(x, {0, -2}), "flip: dimension 0 is named twice; name each once");
    EXPECT_ERROR(broadcast_to(x, {-1, 4, 3}),
                 "broadcast_to: x is [4, 3], the shape [-1, 4, 3]; -1 stands for an extent that x has");
    EXPECT_ERROR(broadcast_to(x, {4, 1}), "broadcast_to: x is [4, 3], the shape [4, 1]; extents of x that are not 1");
    EXPECT_ERROR(broadcast_to(x, {3}), "broadcast_to: x is [4, 3], the shape [3]; extents of x");
    EXPECT_ERROR(squeeze(x, 0), "squeeze: x is [4, 3], and dimension 0 is not 1; sum() leaves out others");
    EXPECT_ERROR(linear(x, cast(random_leaf({2, 3}, 1), f16), random_leaf({2}, 1)),
                 "linear, of x and the weight: x is");
}

}  // namespace
}  // namespace tw::nn
