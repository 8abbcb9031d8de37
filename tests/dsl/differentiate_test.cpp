// Gradients against central finite differences, computed in float64 by the interpreter of declarations; and the form
// that derived operations take.
#include "dsl/differentiate.h"

#include <array>
#include <random>
#include <set>

#include "tests/dsl/expect_gradients.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

// Random expressions of two numbers, positive ones so that logarithms and roots stay defined.

class RandomExpr {
public:
    RandomExpr(uint64_t seed, std::vector<Expr> leaves) : random_(seed), leaves_(std::move(leaves)) {}

    Expr positive(int depth) {
        if (depth == 0) return leaves_[below(leaves_.size())];
        Expr a = positive(depth - 1);
        switch (below(21)) {
            case 0: return a + positive(depth - 1);
            case 1: return a * positive(depth - 1);
            case 2: return a / (positive(depth - 1) + 0.5);
            case 3: return max(a, positive(depth - 1) * 0.731);
            case 4: return min(a, positive(depth - 1) * 1.317);
            case 5: return sqrt(a);
            case 6: return rsqrt(a + 0.3);
            case 7: return exp(-a);
            case 8: return exp2(a * -0.5);
            case 9: return log(a + 1.5);
            case 10: return log2(a + 2);
            case 11: return tanh(a);
            case 12: return erf(a) + 0.1;
            case 13: return abs(a - 0.777) + 0.05;
            case 14: return select(a < positive(depth - 1) * 0.913, a * a, sqrt(a) + 1);
            case 15: return fma(a, positive(depth - 1), positive(depth - 1));
            case 16: return gelu(a) + gelu_tanh(a) + 0.05;
            case 17: return sigmoid(a);
            case 18: return a + floor(a * 1.371) + ceil(a * 0.437) + round(a * 1.193);
            case 19: return select(!(a == 3) && (a <= 2 || a != 5), silu(a), a);
            default: return cast(f64, cast(f64, a)) * 1.5;
        }
    }

private:
    size_t below(size_t count) { return random_() % count; }
    std::mt19937_64 random_;
    std::vector<Expr> leaves_;
};

TEST(Differentiate, RandomElementwiseExpressions) {
    for (uint64_t seed = 1; seed <= 300; ++seed) {
        Tensor x = input("x", f64, {2, 3}), y = input("y", f64, {3}),
               c = compute("c", {2, 3}, [&](Expr i, Expr j) {
                   return RandomExpr(seed, {x(i, j), y(j), y(2 - j)}).positive(1 + static_cast<int>(seed % 4));
               });
        expect_gradients(c, {x, y}, {}, seed);
        if (HasFatalFailure()) return;
    }
}

TEST(Differentiate, RandomReads) {
    for (uint64_t seed = 1; seed <= 200; ++seed) {
        std::mt19937_64 random(seed);
        auto pick = [&](int64_t lo, int64_t hi) { return lo + static_cast<int64_t>(random() % (hi - lo + 1)); };
        int64_t ni = pick(1, 4), nj = pick(1, 4), nk = pick(1, 3);
        Tensor x = input("x", f64, {7, 5}), w = input("w", f64, {nk, nj});
        Axis k = reduce_axis("k", nk);
        Expr c[8];
        for (Expr& each : c) each = pick(-2, 2);
        int64_t divisor = pick(2, 3);
        bool divides = seed % 3 == 0, reduces = seed % 4 != 0;
        Tensor y = compute("y", {ni, nj}, [&](Expr i, Expr j) {
            Expr kk = reduces ? Expr(k) : Expr(0);
            Expr first = c[0] * i + c[1] * j + c[2] * kk + c[3], second = c[4] * i + c[5] * j + c[6] * kk + c[7] + 2;
            if (divides) first = i / divisor + j % divisor + kk;
            Expr value = padded(x, 0.3)(first, second) * w(kk, j);
            return reduces ? sum(value * value, k) : value * value;
        });
        expect_gradients(y, {x, w}, {}, seed);
        if (HasFatalFailure()) return;
    }
}

TEST(Differentiate, ReshapesAndRepeats) {
    Tensor x = input("x", f64, {3, 4});
    expect_gradients(compute("flat", {12}, [&](Expr i) { return exp(x(i / 4, i % 4)); }), {x}, {});
    expect_gradients(compute("some", {10}, [&](Expr i) { return exp(x(i / 4, i % 4)); }), {x}, {});
    Tensor repeated = compute("repeated", {7, 4}, [&](Expr i, Expr j) { return x(i / 3, j) * x(i % 3, j); });
    expect_gradients(repeated, {x}, {});
    Tensor diagonal = compute("diagonal", {3}, [&](Expr i) { return x(i, i) * x(i, 2) * x(1, 1); });
    expect_gradients(diagonal, {x}, {});
    Tensor strided = compute("strided", {3, 3}, [&](Expr i, Expr j) { return x(2 - i, 3 - j) * x(i, j / 2 + 1); });
    expect_gradients(strided, {x}, {});
}

TEST(Differentiate, Reductions) {
    Tensor x = input("x", f64, {3, 4});
    Axis i = reduce_axis("i", 3), j = reduce_axis("j", 4), k = reduce_axis("k", 4);
    expect_gradients(compute("all", {}, [&] { return sum(x(i, j) * x(i, j), {i, j}); }), {x}, {});
    expect_gradients(compute("most", {3}, [&](Expr r) { return reduce_max(x(r, j) * 2, j); }), {x}, {});
    expect_gradients(compute("least", {4}, [&](Expr r) { return reduce_min(exp(x(i, r)), i); }), {x}, {});
    expect_gradients(compute("product", {3}, [&](Expr r) { return prod(x(r, j), j); }), {x}, {});
    expect_gradients(compute("products", {}, [&] { return prod(x(i, j), {i, j}); }), {x}, {});
    expect_gradients(compute("nested", {3},
                             [&](Expr r) {
                                 return sum(x(r, j) * log(sum(x(r, k) * x(i, j), {k, i})), j) / reduce_max(x(r, k), k);
                             }),
                     {x}, {});
    Tensor doubled = compute("repeat", {3}, [&](Expr r) { return sum(x(r, 0), {j, k}); });
    expect_gradients(doubled, {x}, {});
}

TEST(Differentiate, SumsAsLongAsTheirPlaceSays) {
    Tensor a = input("a", f64, {7, 7}), b = input("b", f64, {7, 3});
    auto product = [&](bool later) {
        return compute("c", {7, 3}, [&](Expr i, Expr j) {
            Expr first = i / 2 * 2;
            Axis k = reduce_axis("k", later ? 7 - first : min(first + 2, 7));
            Expr term = later ? first + k : Expr(k);
            return sum(a(i, term) * b(term, j) * b(term, j), k);
        });
    };
    for (bool later : {false, true}) expect_gradients(product(later), {a, b}, {});
    Tensor most = compute("most", {7}, [&](Expr i) {
        Axis k = reduce_axis("k", i + 1);
        return reduce_max(a(i, k), k);
    });
    EXPECT_ERROR(gradients(most, input("d", f64, {7}), {a}), "'most' reduces by 'max' over 'k', whose length depends");
    Expr n = size("n", {.min = 0, .max = 100});
    Tensor x = input("x", f64, {n, n});
    Tensor sums = compute("sums", {n}, [&](Expr i) {
        Axis k = reduce_axis("k", i + 1);
        return sum(x(i, k), k);
    });
    EXPECT_EQ(text(gradients(sums, input("d", f64, {n}), {x})[0]), "d_x[i, j] = select(j <= i, d[i], 0.0)");
}

TEST(Differentiate, ProductWithZeros) {
    Tensor x = input("x", f64, {4});
    Axis k = reduce_axis("k", 4);
    HostArray zeros = random_array(x, 3);
    real_at(zeros, 2) = 0;
    expect_gradients(compute("p", {}, [&] { return prod(x(k), k); }), {x}, {{{"x", zeros}}, {}, {}});
}

TEST(Differentiate, TiesOfAnExtremeShare) {
    Tensor x = input("x", f64, {4}), adjoint = input("adjoint", f64, {});
    Axis k = reduce_axis("k", 4);
    Tensor most = compute("most", {}, [&] { return reduce_max(x(k), k); });
    Bindings given;
    given.inputs["x"] = host_array(f64, {4});
    for (int64_t e = 0; e < 4; ++e) real_at(given.inputs["x"], e) = e % 2;
    given.inputs["adjoint"] = host_array(f64, {});
    real_at(given.inputs["adjoint"], 0) = 3;
    HostArray got = interpret_plain(gradients(most, adjoint, {x}), given)[0];
    for (int64_t e = 0; e < 4; ++e) EXPECT_EQ(real_at(got, e), e % 2 * 1.5);
}

TEST(Differentiate, KinksFollowTheConventions) {
    Tensor x = input("x", f64, {1}), adjoint = input("adjoint", f64, {1});
    Bindings given;
    given.inputs["x"] = host_array(f64, {1});
    given.inputs["adjoint"] = host_array(f64, {1});
    real_at(given.inputs["x"], 0) = 0;
    real_at(given.inputs["adjoint"], 0) = 3;
    auto slope = [&](auto f) {
        Tensor y = compute("y", {1}, [&](Expr i) { return f(x(i)); });
        HostArray got = interpret_plain(gradients(y, adjoint, {x}), given)[0];
        return real_at(got, 0) / 3;
    };
    EXPECT_EQ(slope([](Expr v) { return relu(v); }), 0);
    EXPECT_EQ(slope([](Expr v) { return max(0, v); }), 1);
    EXPECT_EQ(slope([](Expr v) { return min(v, 0); }), 0);
    EXPECT_EQ(slope([](Expr v) { return abs(v); }), 0);
    EXPECT_EQ(slope([](Expr v) { return round(v); }), 0);
    // the side not chosen has an infinite slope
    EXPECT_EQ(slope([](Expr v) { return select(v > 0, sqrt(v), v * 2); }), 2);
}

/// Who keeps the result need not keep what it was made of.
TEST(Differentiate, TheResultTellsWhichSideOfANumberIsTaken) {
    const Tensor z = input("z", f32, {5}), other = input("other", f32, {5});
    auto read_by_gradient = [&](const Tensor& y) {
        std::set<std::string> names;
        const Tensor dz = gradients(y, input("dy", f32, {5}), {z})[0];
        visit(dz.operation()->outputs[0].body, [&](const Expr& e) {
            if (const Read* read = e.as<Read>()) names.insert(read->operation->name);
        });
        return names;
    };
    using Names = std::set<std::string>;
    EXPECT_EQ(read_by_gradient(compute("y", {5}, [&](Expr i) { return relu(z(i)); })), (Names{"dy", "y"}));
    EXPECT_EQ(read_by_gradient(compute("y", {5}, [&](Expr i) { return min(z(i) * 2.0, 6.0); })), (Names{"dy", "y"}));
    EXPECT_EQ(read_by_gradient(compute("y", {5}, [&](Expr i) { return max(z(i), other(i)); })),
              (Names{"dy", "other", "z"}));
    EXPECT_EQ(read_by_gradient(compute("y", {5}, [&](Expr i) { return relu(z(i)) + 1.0; })), (Names{"dy", "z"}));
}

TEST(Differentiate, NetworksOfOperations) {
    Tensor x = input("x", f64, {2, 5}), g = input("g", f64, {5}), b = input("b", f64, {5});
    Axis k = reduce_axis("k", 5);
    Tensor mean = compute("mean", {2}, [&](Expr i) { return sum(x(i, k), k) / 5; });
    Tensor var = compute("var", {2}, [&](Expr i) { return sum((x(i, k) - mean(i)) * (x(i, k) - mean(i)), k) / 5; });
    Tensor norm = compute("norm", {2, 5},
                          [&](Expr i, Expr j) { return (x(i, j) - mean(i)) * rsqrt(var(i) + 1e-5) * g(j) + b(j); });
    expect_gradients(norm, {x, g, b}, {});
    Tensor most = compute("most", {2}, [&](Expr i) { return reduce_max(norm(i, k), k); });
    Tensor e = compute("e", {2, 5}, [&](Expr i, Expr j) { return exp(norm(i, j) - most(i)); });
    Tensor total = compute("total", {2}, [&](Expr i) { return sum(e(i, k), k); });
    Tensor softmax = compute("softmax", {2, 5}, [&](Expr i, Expr j) { return e(i, j) / total(i); });
    expect_gradients(softmax, {x, g, b}, {});
    Tensor labels = input("labels", i32, {2});
    Bindings given;
    given.inputs["labels"] = host_array(i32, {2});
    fill_integers(given.inputs["labels"], 0, 4, 5);
    Tensor loss = compute("loss", {2}, [&](Expr i) { return -log(softmax(i, labels(i))); });
    expect_gradients(loss, {x, g, b}, given);
    Tensor picked =
        compute("picked", {3, 2}, [&](Expr i, Expr j) { return exp(x(labels(j) % 2, labels(i % 2) - i / 5)); });
    expect_gradients(picked, {x}, given);
}

/// Sums inside of expressions become tensors of their own, each for a short time. None may be taken for another that
/// stood at the same address before.
TEST(Differentiate, SumsInsideOfSeveralStages) {
    Tensor x = input("x", f64, {3, 5});
    Axis k = reduce_axis("k", 5);
    std::vector<Tensor> means;
    for (int power = 1; power <= 6; ++power)
        means.push_back(compute(fmt::format("mean{}", power), {3}, [&](Expr i) {
            Expr value = x(i, k);
            for (int n = 1; n < power; ++n) value = value * x(i, k);
            return sum(value, k) / 5;
        }));
    Tensor total = compute("total", {3}, [&](Expr i) {
        Expr sum = means[0](i);
        for (size_t n = 1; n < means.size(); ++n) sum = sum + means[n](i);
        return sum;
    });
    expect_gradients(total, {x}, {});
}

TEST(Differentiate, Convolution) {
    Tensor x = input("x", f64, {2, 9}), w = input("w", f64, {3, 2, 3});
    Axis c = reduce_axis("c", 2), r = reduce_axis("r", 3);
    Tensor y = compute("y", {3, 5}, [&](Expr o, Expr i) {
        return sum(padded(x, 0.0)(c, i * 2 + r - 1) * w(o, c, r), {c, r});
    });
    expect_gradients(y, {x, w}, {});
}

/// Digits of an index, as of groups of channels and of tiles, are quotients and remainders of the element's place:
/// nothing is searched for.
TEST(Differentiate, DigitsOfAnIndex) {
    for (auto [outer, inner, factor] : {std::array<int64_t, 3>{2, 4, 4}, {5, 3, 3}, {4, 4, 4}, {3, 2, 5}, {2, 5, 6}}) {
        Tensor x = input("x", f64, {outer * factor + 1}), w = input("w", f64, {outer, inner});
        Tensor y = compute("y", {outer, inner}, [&](Expr i, Expr j) { return x(i * factor + j + 1) * w(i, j); });
        expect_gradients(y, {x, w}, {});
    }
    // Of any factors: digits that leave numbers out, that overlap, that go beyond the tensor.
    for (uint64_t seed = 1; seed <= 150; ++seed) {
        std::mt19937_64 random(seed);
        auto pick = [&](int64_t lo, int64_t hi) { return lo + static_cast<int64_t>(random() % (hi - lo + 1)); };
        const int64_t ni = pick(1, 4), nj = pick(1, 4), nk = pick(1, 4);
        const int64_t k_factor = pick(1, 2), j_factor = pick(-1, 1) + nk * k_factor;
        const int64_t i_factor = pick(-1, 2) + nj * std::max<int64_t>(j_factor, 1), offset = pick(-3, 3);
        Tensor x = input("x", f64, {pick(3, 30)}), w = input("w", f64, {ni, nk});
        Axis k = reduce_axis("k", nk);
        Tensor y = compute("y", {ni, nj}, [&](Expr i, Expr j) {
            return sum(padded(x, 0.3)(i * i_factor + j * j_factor + k * k_factor + offset) * w(i, k), k);
        });
        expect_gradients(y, {x, w}, {}, seed);
        if (HasFatalFailure()) return;
    }
    Tensor x = input("x", f64, {24}), dy = input("dy", f64, {2, 3, 4});
    Tensor y = compute("y", {2, 3, 4}, [&](Expr i, Expr j, Expr k) { return x(i * 12 + j * 4 + k); });
    EXPECT_EQ(text(gradients(y, dy, {x})[0]), "d_x[i] = dy[i / 12, i / 4 % 3, i % 4]");
    expect_gradients(y, {x}, {});
}

/// Loops are as short as conditions with constants allow.
TEST(Differentiate, PartsOfLoops) {
    Tensor x = input("x", f64, {5}), dy = input("dy", f64, {9});
    Tensor y = compute("y", {9}, [&](Expr i) { return select(i < 2, x(0), select(i < 6, padded(x, 0)(i - 1), x(4))); });
    expect_gradients(y, {x}, {});
    Tensor ends = compute("ends", {9}, [&](Expr i) { return select(i < 2, x(0), select(i == 8, x(4), 0.0)); });
    EXPECT_EQ(text(gradients(ends, dy, {x})[0]),
              "d_x[i] = select(i == 4, dy[8], 0.0) + sum_ri select(i == 0, dy[ri], 0.0)");
    expect_gradients(ends, {x}, {});
}

/// Tensors that rules derive get names of their own.
TEST(Differentiate, NamesOfNestedGradients) {
    Tensor x = input("x", f64, {4});
    auto ruled = [&](const std::string& name) {
        auto square = [&x](const std::string& of) { return compute(of, {4}, [&](Expr i) { return x(i) * x(3 - i); }); };
        return with_gradient(square(name), {x}, [=](const Tensor&, const Tensor& adjoint) {
            return gradients(square(name + "_again"), adjoint, {x});
        });
    };
    Tensor a = ruled("a"), b = ruled("b");
    expect_gradients(compute("y", {4}, [&](Expr i) { return a(i) * b(i) + x(i); }), {x}, {});
}

TEST(Differentiate, TwiceAndWithRespectToComputedTensors) {
    Tensor x = input("x", f64, {3}), ones = input("ones", f64, {3});
    Tensor square = compute("square", {3}, [&](Expr i) { return x(i) * x(i); });
    Tensor y = compute("y", {3}, [&](Expr i) { return exp(square(i)) * square(i); });
    std::vector<Tensor> first = gradients(y, ones, {x, square});
    Bindings given;
    given.inputs["ones"] = random_array(ones, 9);
    expect_gradients(first[0], {x, ones}, given);
    given.inputs["x"] = random_array(x, 10);
    std::vector<HostArray> got = interpret_plain(first, given);
    for (int64_t e = 0; e < 3; ++e)
        EXPECT_NEAR(real_at(got[0], e), real_at(got[1], e) * 2 * real_at(given.inputs["x"], e), 1e-12);
}

// The form of what is derived.

TEST(Differentiate, OfAProductAreTwoProducts) {
    Tensor a = input("a", f32, {3, 5}), b = input("b", f32, {5, 2}), dc = input("dc", f32, {3, 2});
    Axis k = reduce_axis("k", 5);
    Tensor c = compute("c", {3, 2}, [&](Expr i, Expr j) { return sum(a(i, k) * b(k, j), k); });
    std::vector<Tensor> d = gradients(c, dc, {a, b});
    EXPECT_EQ(text(d[0]), "d_a[i, j] = sum_rj dc[i, rj] * b[j, rj]");
    EXPECT_EQ(text(d[1]), "d_b[i, j] = sum_ri dc[ri, j] * a[ri, i]");
}

TEST(Differentiate, StorageTypesAccumulateInF32) {
    Tensor a = input("a", bf16, {3, 5}), b = input("b", bf16, {5, 2}), dc = input("dc", bf16, {3, 2});
    Axis k = reduce_axis("k", 5);
    Tensor c = compute("c", {3, 2},
                       [&](Expr i, Expr j) { return cast(bf16, sum(cast(f32, a(i, k)) * cast(f32, b(k, j)), k)); });
    Tensor d = gradients(c, dc, {a})[0];
    EXPECT_EQ(d.type(), bf16);
    EXPECT_EQ(text(d), "d_a[i, j] = cast(bf16, sum_rj cast(f32, dc[i, rj]) * cast(f32, b[j, rj]))");
}

TEST(Differentiate, OfABroadcastIsAReduction) {
    Tensor x = input("x", f32, {3, 5}), b = input("b", f32, {5}), dy = input("dy", f32, {3, 5});
    Tensor y = compute("y", {3, 5}, [&](Expr i, Expr j) { return x(i, j) + b(j); });
    std::vector<Tensor> d = gradients(y, dy, {x, b});
    EXPECT_TRUE(d[0].same(dy));
    EXPECT_EQ(text(d[1]), "d_b[i] = sum_ri dy[ri, i]");
}

TEST(Differentiate, OfAGatherComparesIndices) {
    Tensor w = input("w", f32, {7, 5}), ids = input("ids", i64, {3}), dy = input("dy", f32, {3, 5});
    Tensor y = compute("y", {3, 5}, [&](Expr i, Expr j) { return w(ids(i), j); });
    EXPECT_EQ(text(gradients(y, dy, {w})[0]), "d_w[i, j] = sum_ri select(i == ids[ri], dy[ri, j], 0.0)");
}

TEST(Differentiate, OfCrossEntropyComparesLabels) {
    Tensor logp = input("logp", f32, {3, 5}), labels = input("labels", i64, {3}), dl = input("dl", f32, {3});
    Tensor loss = compute("loss", {3}, [&](Expr i) { return -logp(i, labels(i)); });
    EXPECT_EQ(text(gradients(loss, dl, {logp})[0]), "d_logp[i, j] = select(j == labels[i], -dl[i], 0.0)");
}

TEST(Differentiate, NamedSizesNeedNoConditions) {
    Expr m = size("m", {.min = 1, .max = 100}), n = size("n", {.min = 1, .max = 100});
    Tensor x = input("x", f32, {m, n}), dy = input("dy", f32, {n, m});
    Tensor y = compute("y", {n, m}, [&](Expr i, Expr j) { return x(j, i) * 2; });
    EXPECT_EQ(text(gradients(y, dy, {x})[0]), "d_x[i, j] = dy[j, i] * 2.0");
}

TEST(Differentiate, UnreachedInputsGetZeros) {
    Tensor x = input("x", f32, {3}), y = input("y", bf16, {2}), dy = input("dy", f32, {3});
    Tensor c = compute("c", {3}, [&](Expr i) { return x(i) * 2; });
    EXPECT_EQ(text(gradients(c, dy, {y})[0]), "d_y[i] = 0.0");
}

// A gradient of the user's own.

TEST(Differentiate, WithGradient) {
    Tensor x = input("x", f64, {3}), z = input("z", f64, {3});
    Tensor hard = compute("hard", {3}, [&](Expr i) { return round(x(i)) * z(i); });
    Tensor through = with_gradient(hard, {x, z}, [&](const Tensor&, const Tensor& adjoint) {
        return std::vector<Tensor>{compute("pass", {3}, [&](Expr i) { return adjoint(i) * 7; }), {}};
    });
    Tensor y = compute("y", {3}, [&](Expr i) { return through(i) + x(i) * z(i); });
    Tensor dy = input("dy", f64, {3});
    std::vector<Tensor> d = gradients(y, dy, {x, z});
    EXPECT_EQ(text(d[0]), "d_x[i] = dy[i] * z[i] + pass[i]");
    EXPECT_EQ(text(d[1]), "d_z[i] = dy[i] * x[i]");
    EXPECT_EQ(text(gradients(compute("s", {3}, [&](Expr i) { return stop_gradient(hard)(i) * z(i); }), dy, {z})[0]),
              "d_z[i] = dy[i] * hard[i]");
}

/// What a rule does not list is no zero without a word, wherever the tensor reads it.
TEST(Differentiate, RefusesWhatRulesLeaveOut) {
    Tensor x = input("x", f32, {3}), w = input("w", f32, {3}), b = input("b", f32, {3}), dy = input("dy", f32, {3});
    Tensor scaled = compute("scaled", {3}, [&](Expr i) { return w(i) * 2; });
    auto ruled = [&](const Tensor& of, const std::vector<Tensor>& inputs) {
        return with_gradient(of, inputs, [n = inputs.size()](const Tensor&, const Tensor& adjoint) {
            return std::vector<Tensor>(n, adjoint);
        });
    };
    Tensor product = compute("product", {3}, [&](Expr i) { return x(i) * scaled(i); });
    Tensor y = compute("y", {3}, [&](Expr i) { return b(i) + 1; });
    EXPECT_ERROR(gradients(ruled(product, {x}), dy, {x, w}),
                 "gradients: 'product' is made of 'w', of which its own gradient, with_gradient at "
                 "differentiate_test.cpp:");
    EXPECT_ERROR(gradients(ruled(product, {x}), dy, {w}),
                 "list 'w' among that one's inputs, with an undefined adjoint");
    EXPECT_ERROR(gradients(ruled(product, {x}), dy, {scaled}), "'product' is made of 'scaled'");
    Tensor around = compute("around", {3}, [&](Expr i) { return ruled(product, {x})(i) * w(i); });
    EXPECT_ERROR(gradients(around, dy, {w}), "'product' is made of 'w'");
    // What it lists, or is made by what it lists, or is a constant; what passes no adjoint; what is not read.
    EXPECT_EQ(text(gradients(ruled(product, {x, scaled}), dy, {w})[0]), "d_w[i] = dy[i] * 2.0");
    EXPECT_EQ(text(gradients(stop_gradient(product), dy, {w})[0]), "d_w[i] = 0.0");
    EXPECT_EQ(text(gradients(ruled(product, {x}), dy, {b})[0]), "d_b[i] = 0.0");
    Tensor constant_w = compute("of_constant", {3}, [&](Expr i) { return x(i) * stop_gradient(scaled)(i); });
    EXPECT_EQ(text(gradients(ruled(constant_w, {x}), dy, {w})[0]), "d_w[i] = 0.0");
    Tensor masked = compute("masked", {3}, [&](Expr i) { return select(w(i) > 0.0, x(i), floor(b(i))); });
    EXPECT_EQ(text(gradients(ruled(masked, {x}), dy, {w})[0]), "d_w[i] = 0.0");
    EXPECT_EQ(text(gradients(ruled(masked, {x}), dy, {b})[0]), "d_b[i] = 0.0");
    Tensor inner = ruled(product, {x}), outer = compute("outer", {3}, [&](Expr i) { return inner(i) * b(i); });
    EXPECT_TRUE(gradients(ruled(outer, {x, b}), dy, {b})[0].same(dy));
    EXPECT_ERROR(gradients(ruled(outer, {b}), dy, {x}), "'outer' is made of 'x'");
}

/// What a rule has made may stand in one schedule with the rest.
TEST(Differentiate, NamesOfWhatRulesMake) {
    Tensor x = input("x", bf16, {3}), dy = input("dy", f32, {3});
    Tensor square = compute("square", {3}, [&](Expr i) { return cast(f32, x(i)) * cast(f32, x(i)); });
    auto ruled = [&](const std::string& name) {
        return with_gradient(square, {x}, [&x, name](const Tensor&, const Tensor& adjoint) {
            return std::vector<Tensor>{
                compute(name, {3}, [&](Expr i) { return cast(bf16, cast(f32, x(i)) * adjoint(i) * 2); })};
        });
    };
    Tensor alone = gradients(ruled("d_x"), dy, {x})[0];
    EXPECT_EQ(alone.name(), "d_x");
    EXPECT_EQ(operations_of({alone}).size(), 3U);  // it, x and dy: no copy
    Tensor both = compute("both", {3}, [&](Expr i) { return ruled("d_x")(i) + ruled("d_x_2")(i); });
    Tensor sum_of_both = gradients(both, dy, {x})[0];
    std::set<std::string> names;
    for (const auto& operation : operations_of({sum_of_both})) EXPECT_TRUE(names.insert(operation->name).second);
    EXPECT_EQ(sum_of_both.name(), "d_x_3");
}

TEST(Differentiate, Errors) {
    Tensor x = input("x", f32, {3}), dy = input("dy", f32, {4}), n = input("n", i32, {3});
    Tensor ok = input("ok", f32, {3});
    Axis k = reduce_axis("k", 3);
    Tensor y = compute("y", {3}, [&](Expr i) { return x(i) * 2; });
    EXPECT_ERROR(gradients(Tensor(), dy, {x}), "the output or its adjoint is undefined; declare both");
    EXPECT_ERROR(gradients(y, dy, {x}), "'y' is [3], its adjoint 'dy' is [4]; give one of the same shape");
    EXPECT_ERROR(gradients(y, n, {x}), "'n' is i32; only floats have gradients");
    EXPECT_ERROR(gradients(y, ok, {n}), "the input 'n' is i32; only tensors of floats have gradients");
    Tensor best = compute("best", {}, [&] { return argmax(x(k), k)[0]; });
    Tensor one = input("one", f32, {});
    EXPECT_ERROR(gradients(best, one, {x}), "'best' reduces by 'argmax', which has no derivative; sum, prod");
    EXPECT_ERROR(with_gradient(x, {}, {}), "with_gradient: 'x' is not computed");
    auto none = with_gradient(y, {x}, [](const Tensor&, const Tensor&) { return std::vector<Tensor>{}; });
    EXPECT_ERROR(gradients(none, ok, {x}), "the function returns 0 tensors for 1 inputs");
    auto wrong = with_gradient(y, {x}, [&](const Tensor&, const Tensor&) { return std::vector<Tensor>{dy}; });
    EXPECT_ERROR(gradients(wrong, ok, {x}), "the adjoint of 'x' is f32 [4]; it must be a float tensor of shape [3]");
}

TEST(RoundTo, KeepsTheTypeAndRounds) {
    Tensor x = input("x", f32, {64});
    Tensor y = compute("y", {64}, [&](Expr i) { return round_to(bf16, x(i)); });
    EXPECT_EQ(y.type(), f32);
    Bindings given;
    given.inputs["x"] = random_array(x, 4);
    HostArray got = interpret_plain({y}, given)[0];
    int changed = 0;
    for (int64_t e = 0; e < 64; ++e) {
        double before = given.inputs["x"].at({e}).real;
        EXPECT_EQ(got.at({e}).real, round_to_type(bf16, before));
        changed += got.at({e}).real != before;
    }
    EXPECT_GT(changed, 32);
    EXPECT_ERROR(round_to(i32, x(0)), "round_to: i32 is no float type; floor, ceil and round");
}

TEST(TruncateTf32, LosesBitsAndPassesAdjoints) {
    Tensor x = input("x", f32, {64}), w = input("w", f32, {64}), dy = input("dy", f32, {64});
    Tensor y = compute("y", {64}, [&](Expr i) { return truncate_tf32(x(i)) * truncate_tf32(w(i)); });
    std::vector<Tensor> d = gradients(y, dy, {x, w});
    EXPECT_EQ(text(d[0]), "d_x[i] = dy[i] * truncate_tf32(w[i])");
    EXPECT_EQ(text(d[1]), "d_w[i] = dy[i] * truncate_tf32(x[i])");
    Bindings given;
    given.inputs["x"] = random_array(x, 4), given.inputs["w"] = random_array(w, 5);
    HostArray got = interpret_plain({y}, given)[0];
    auto truncated = [](double value) {
        double step = std::ldexp(1.0, std::ilogb(value) - 10);
        return std::trunc(value / step) * step;
    };
    for (int64_t e = 0; e < 64; ++e)
        EXPECT_EQ(got.at({e}).real,
                  truncated(given.inputs["x"].at({e}).real) * truncated(given.inputs["w"].at({e}).real));
}

}  // namespace
}  // namespace tw
