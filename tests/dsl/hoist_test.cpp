// What is the same for all terms leaves a reduction: in which form, with the same results, and what stays.
#include "dsl/hoist.h"

#include <random>

#include "tests/dsl/expect_gradients.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

constexpr int64_t rows = 3, terms = 5, width = 4;

struct Hoist : testing::Test {
    Tensor x = input("x", f32, {rows, terms}), y = input("y", f32, {rows, terms}), v = input("v", f32, {terms, width}),
           c = input("c", f32, {rows}), l = input("l", f32, {rows});
    Axis j = reduce_axis("j", terms);

    template <class Term>
    Tensor summed(Term term) const {
        return compute("o", {rows}, [&](Expr i) { return sum(term(i, j.variable), j); });
    }
    template <class Term>
    Tensor largest(Term term) const {
        return compute("o", {rows}, [&](Expr i) { return reduce_max(term(i, j.variable), j); });
    }
    static std::string hoisted(const Tensor& tensor) { return text(hoist(tensor)); }
    static bool stays(const Tensor& tensor) { return hoist(tensor).same(tensor); }
};

TEST_F(Hoist, FactorsAndDivisorsOfSums) {
    EXPECT_EQ(hoisted(summed([&](Expr i, Expr k) { return c(i) * x(i, k); })), "o[i] = (sum_j x[i, j]) * c[i]");
    EXPECT_EQ(hoisted(summed([&](Expr i, Expr k) { return x(i, k) / l(i) * y(i, k); })),
              "o[i] = (sum_j x[i, j] * y[i, j]) / l[i]");
    EXPECT_EQ(hoisted(summed([&](Expr i, Expr k) { return -(c(i) / (x(i, k) * l(i))); })),
              "o[i] = (sum_j -(1.0 / x[i, j])) * c[i] / l[i]");
    EXPECT_EQ(hoisted(summed([&](Expr i, Expr k) { return x(i, k) * c(i) - y(i, k) * exp(x(i, 0)) * c(i); })),
              "o[i] = (sum_j (x[i, j] - y[i, j] * exp(x[i, 0]))) * c[i]");
    EXPECT_EQ(hoisted(summed([&](Expr i, Expr k) { return select(k <= i, x(i, k) * c(i), 0.0) * 0.5; })),
              "o[i] = (sum_j select(j <= i, x[i, j], 0.0)) * c[i] * 0.5");
    Axis d = reduce_axis("d", terms);
    EXPECT_EQ(hoisted(summed([&](Expr i, Expr k) { return sum(x(i, k) * c(i) * y(i, d), d); })),
              "o[i] = (sum_j x[i, j]) * (sum_d y[i, d]) * c[i]");
}

TEST_F(Hoist, SummandsAndPositiveFactorsOfMaxima) {
    EXPECT_EQ(hoisted(largest([&](Expr i, Expr k) { return x(i, k) + c(i); })), "o[i] = max_j x[i, j] + c[i]");
    EXPECT_EQ(hoisted(largest([&](Expr i, Expr k) { return l(i) - (x(i, k) - c(i)) * l(i); })),
              "o[i] = max_j -(x[i, j] * l[i]) + l[i] + c[i] * l[i]");
    EXPECT_EQ(hoisted(largest([&](Expr i, Expr k) { return select(k <= i, (x(i, k) + c(i)) * 0.5, -infinity); })),
              "o[i] = (max_j select(j <= i, x[i, j], -infinity)) * 0.5 + c[i] * 0.5");
    EXPECT_EQ(hoisted(largest([&](Expr i, Expr k) { return max(x(i, k) * exp(c(i)), y(i, k) * exp(c(i))); })),
              "o[i] = (max_j max(x[i, j], y[i, j])) * exp(c[i])");
    EXPECT_TRUE(stays(largest([&](Expr i, Expr k) { return x(i, k) * c(i); })));  // which may be negative
    EXPECT_TRUE(stays(largest([&](Expr i, Expr k) { return x(i, k) * -2.0; })));
}

/// What is no factor, what would no longer be guarded, and what a narrower type rounds.
TEST_F(Hoist, WhatStays) {
    EXPECT_TRUE(stays(x));
    EXPECT_TRUE(stays(compute("o", {rows}, [&](Expr i) { return c(i) * l(i); })));
    EXPECT_TRUE(stays(summed([&](Expr i, Expr k) { return x(i, k) + c(i); })));
    EXPECT_TRUE(stays(summed([&](Expr i, Expr) { return c(i) * 2.0; })));
    EXPECT_TRUE(stays(summed([&](Expr i, Expr k) { return -1.0 / x(i, k); })));
    EXPECT_TRUE(stays(summed([&](Expr i, Expr k) { return exp(x(i, k) - c(i)); })));
    EXPECT_TRUE(stays(summed([&](Expr i, Expr k) { return max(x(i, k) * c(i), 0.0); })));
    EXPECT_TRUE(stays(summed([&](Expr i, Expr k) { return cast(f32, cast(bf16, x(i, k) * c(i))); })));
    EXPECT_TRUE(stays(summed([&](Expr i, Expr k) { return select(l(i) > 0, x(i, k) / l(i), 0.0); })));
    EXPECT_TRUE(stays(summed([&](Expr i, Expr k) { return select(k < i && !(l(i) == 0), x(i, k) / l(i), 0.0); })));
    EXPECT_TRUE(stays(summed([&](Expr i, Expr k) { return select(k > i, padded(c, 1.0)(i + 1) * x(i, k), 0.0); })));
    Tensor ids = input("ids", i32, {rows}), places = input("places", i32, {rows, terms});
    EXPECT_TRUE(stays(summed([&](Expr i, Expr k) {
        return select(places(i, k) >= 0, c(ids(i)) * x(i, k), 0.0);  // -1 where there is no place
    })));
    EXPECT_TRUE(stays(compute("o", {rows}, [&](Expr i) { return prod(c(i) * x(i, j), j); })));
    EXPECT_TRUE(stays(compute("o", {}, [&] { return sum(places(0, j) * ids(0), j); })));
    EXPECT_TRUE(stays(compute("o", {rows}, [&](Expr i) { return argmax(x(i, j) + c(i), j)[0]; })));
}

TEST_F(Hoist, ThroughTensorsThatTermsRead) {
    Tensor e = compute("e", {rows, terms}, [&](Expr i, Expr k) { return exp(x(i, k) - c(i)); });
    auto weighted = [&](const Tensor& p) {
        return compute("o", {rows, width}, [&](Expr i, Expr d) { return sum(p(i, j) * v(j, d), j); });
    };
    Tensor p = compute("p", {rows, terms}, [&](Expr i, Expr k) { return e(i, k) / l(i); });
    EXPECT_EQ(hoisted(weighted(p)), "o[i, p] = (sum_j e[i, j] * v[j, p]) / l[i]");
    Tensor doubled = compute("doubled", {terms, rows}, [&](Expr k, Expr i) { return p(i, k) * 2.0; });
    Tensor turned = compute("turned", {rows, terms}, [&](Expr i, Expr k) { return doubled(k, i); });
    EXPECT_EQ(hoisted(weighted(turned)), "o[i, p] = (sum_j e[i, j] * v[j, p]) * 2.0 / l[i]");

    // What is left of a tensor is one, too: others may read it, and schedules place it.
    Tensor at_once = compute("at_once", {rows, terms}, [&](Expr i, Expr k) { return exp(x(i, k) - c(i)) / l(i); });
    Tensor o = hoist(weighted(at_once));
    EXPECT_EQ(text(o), "o[i, p] = (sum_j at_once_unscaled[i, j] * v[j, p]) / l[i]");
    EXPECT_EQ(Schedule({o}, target("sm_90a")).to_string().find("at_once["), std::string::npos);

    Tensor shifted = compute("shifted", {rows, terms}, [&](Expr i, Expr k) { return max(x(i, k), 0.0) + c(i); });
    EXPECT_EQ(hoisted(largest([&](Expr i, Expr k) { return shifted(i, k); })),
              "o[i] = max_j shifted_unshifted[i, j] + c[i]");

    // Along the other axis, no divisor is the same for all terms; a rule for gradients stands for what it replaces.
    EXPECT_TRUE(stays(compute("o", {terms}, [&](Expr k) {
        Axis r = reduce_axis("r", rows);
        return sum(p(r, k), r);
    })));
    EXPECT_TRUE(stays(weighted(stop_gradient(p))));
    Tensor product = compute("product", {rows, terms}, [&](Expr i, Expr k) {
        Axis d = reduce_axis("d", width);
        return sum(v(k, d) * v(i, d), d) * 0.5;  // which would be computed twice
    });
    EXPECT_TRUE(stays(largest([&](Expr i, Expr k) { return product(i, k); })));
}

/// A softmax in one expression, whose reductions are over the axis that the sum outside has, too.
TEST_F(Hoist, ReductionsAmongTheFactors) {
    Tensor p = compute("p", {rows, terms}, [&](Expr i, Expr k) {
        return exp(x(i, k) - reduce_max(x(i, j), j)) / sum(exp(x(i, j) - c(i)), j);
    });
    Axis k = reduce_axis("k", terms);
    auto weighted = [&](const Axis& axis) {
        return compute("o", {rows}, [&](Expr i) { return sum(p(i, axis) * y(i, axis), axis); });
    };
    EXPECT_EQ(hoisted(weighted(k)), "o[i] = (sum_k p_unscaled[i, k] * y[i, k]) / (sum_j exp(x[i, j] - c[i]))");
    EXPECT_TRUE(stays(weighted(j)));
}

TEST_F(Hoist, KeepsARuleForGradients) {
    Tensor o = hoist(stop_gradient(summed([&](Expr i, Expr k) { return x(i, k) * c(i); })));
    EXPECT_EQ(text(o), "o[i] = (sum_j x[i, j]) * c[i]");
    EXPECT_EQ(text(gradients(o, l, {c})[0]), "d_c[i] = 0.0");
}

TEST_F(Hoist, LengthsThatElementsDecide) {
    Tensor o = compute("o", {rows}, [&](Expr i) {
        Axis k = reduce_axis("k", i + 1);
        return sum(sum(x(i, j) * y(i, k), j) / l(i), k);
    });
    EXPECT_EQ(hoisted(o), "o[i] = (sum_{k < i + 1} y[i, k]) * (sum_j x[i, j]) / l[i]");
    Tensor nested = summed([&](Expr i, Expr k) {
        Axis n = reduce_axis("n", k + 1);
        return x(i, k) * sum(y(i, n), n);
    });
    EXPECT_TRUE(stays(nested));
}

TEST_F(Hoist, AnUndefinedTensor) { EXPECT_ERROR(hoist(Tensor()), "hoist: the tensor is undefined; declare it with"); }

/// Terms made of factors of rows and of terms, some of them through tensors of their own.
class RandomTerms {
public:
    explicit RandomTerms(unsigned seed) : random_(seed) {}

    Tensor output() {
        Axis j = reduce_axis("j", terms);
        const int kind = between(0, 3);
        return compute("o", {rows}, [&](Expr i) {
            if (kind == 0) return reduce_max(term(i, j, 4), j);
            if (kind == 1) return reduce_min(term(i, j, 4), j);
            return sum(term(i, j, 4), j) * (kind == 2 ? Expr(c_(i)) : Expr(1.5));
        });
    }

private:
    int between(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

    Expr of_row(const Expr& i) { return between(0, 1) ? c_(i) : exp(c_(i)); }
    Expr term(const Expr& i, const Expr& j, int depth) {
        if (depth == 0) return between(0, 2) ? x_(i, j) : of_row(i);
        Expr a = term(i, j, depth - 1);
        switch (between(0, 10)) {
            case 0: return a * of_row(i);
            case 1: return a / of_row(i);
            case 2: return a + of_row(i);
            case 3: return of_row(i) - a;
            case 4: return a * term(i, j, depth - 1);
            case 5: return a / term(i, j, depth - 1);
            case 6: return -a;
            case 7: return select(j <= i, a, between(0, 1) ? Expr(0.0) : term(i, j, depth - 1));
            case 8: return max(a, a * of_row(i));
            case 9: return apart(depth, i, j) + a;
            default: return apart(depth, i, j);
        }
    }
    Expr apart(int depth, const Expr& i, const Expr& j) {
        Tensor tensor = compute(fmt::format("apart{}", count_++), {terms, rows},
                                [&](Expr k, Expr r) { return term(r, k, depth - 1); });
        return tensor(j, i);
    }

    std::mt19937 random_;
    int count_ = 0;
    Tensor x_ = input("x", f64, {rows, terms}), c_ = input("c", f64, {rows});
};

std::string everything(const Tensor& tensor) {
    std::string result;
    for (const auto& operation : operations_of({tensor})) result += to_string(*operation) + "\n";
    return result;
}

TEST(HoistRandom, GivesTheDeclared) {
    int changed = 0;
    for (unsigned seed = 0; seed < 600; ++seed) {
        Tensor o = RandomTerms(seed).output(), hoisted = hoist(o);
        changed += !hoisted.same(o);
        Bindings given;
        for (const auto& operation : operations_of({o}))
            if (operation->is_input())
                given.inputs[operation->name] = random_array(Tensor(operation, 0), seed * 2 + operation->name[0]);
        auto differs =
            difference("o", interpret_plain({hoisted}, given)[0], interpret_plain({o}, given)[0], near(1 << 20, 1e-10));
        ASSERT_FALSE(differs) << "seed " << seed << ": " << *differs << "\n" << everything(o) << everything(hoisted);
    }
    EXPECT_GE(changed, 250);
}

/// Attention as one writes it down, every step a tensor.
struct Attention {
    Tensor q, k, v, s, m, e, l, p, o;

    explicit Attention(bool constant_maximum, Type type = f64) {
        const int64_t heads = 2, queries = 3, keys = 4, depth = 2;
        q = input("q", type, {heads, queries, depth}), k = input("k", type, {heads, keys, depth});
        v = input("v", type, {heads, keys, depth});
        Axis d = reduce_axis("d", depth), n1 = reduce_axis("n", keys), n2 = reduce_axis("n", keys),
             n3 = reduce_axis("n", keys);
        s = compute("s", {heads, queries, keys},
                    [&](Expr h, Expr i, Expr n) { return sum(q(h, i, d) * k(h, n, d), d) * 0.7; });
        m = compute("m", {heads, queries}, [&](Expr h, Expr i) { return reduce_max(s(h, i, n1), n1); });
        if (constant_maximum) m = stop_gradient(m);
        e = compute("e", {heads, queries, keys}, [&](Expr h, Expr i, Expr n) { return exp(s(h, i, n) - m(h, i)); });
        l = compute("l", {heads, queries}, [&](Expr h, Expr i) { return sum(e(h, i, n2), n2); });
        p = compute("p", {heads, queries, keys}, [&](Expr h, Expr i, Expr n) { return e(h, i, n) / l(h, i); });
        o = compute("o", {heads, queries, depth},
                    [&](Expr h, Expr i, Expr x) { return sum(p(h, i, n3) * v(h, n3, x), n3); });
    }
};

TEST(HoistGradients, OfAttention) {
    for (bool constant_maximum : {true, false}) {
        const Attention a(constant_maximum);
        const Tensor o = hoist(a.o);
        EXPECT_EQ(text(o), "o[i, j, p] = (sum_n e[i, j, n] * v[i, n, p]) / l[i, j]");
        expect_gradients(o, {a.q, a.k, a.v}, {});
        Bindings given;
        for (const Tensor& each : {a.q, a.k, a.v})
            given.inputs[each.name()] = random_array(each, each.name()[0], -2, 2);
        Tensor adjoint = input("adjoint", f64, {a.o.shape().begin(), a.o.shape().end()});
        given.inputs["adjoint"] = random_array(adjoint, 7, -1, 1);
        auto of = [&](const Tensor& output) {
            return interpret_plain(gradients(output, adjoint, {a.q, a.k, a.v}), given);
        };
        const std::vector<HostArray> got = of(o), expected = of(a.o);
        for (size_t n = 0; n < got.size(); ++n) {
            auto differs = difference("gradient", got[n], expected[n], near(1 << 10, 1e-14));
            EXPECT_FALSE(differs) << *differs;
        }
    }
}

/// What each row subtracts is a sum over the head, made of what the forward pass has computed; undisturbed by keys.
TEST(HoistGradients, TheSumsAdjointIsAReductionOverTheHead) {
    const Attention a(true);
    Tensor adjoint = input("adjoint", f64, {2, 3, 2});
    EXPECT_EQ(text(gradients(hoist(a.o), adjoint, {a.l})[0]),
              "d_l[i, j] = sum_rp -(adjoint[i, j, rp] * o[i, j, rp] / l[i, j])");
    const std::string over_keys = text(gradients(a.o, adjoint, {a.l})[0]);
    EXPECT_NE(over_keys.find("d_p[i, j, r"), std::string::npos) << over_keys;
}

/// A norm in front of a product: its scale of a row leaves the sum, which is one for a matrix instruction then.
TEST(HoistGradients, OfANormBeforeAProduct) {
    auto declare = [](Type type, int64_t height, int64_t depth, int64_t columns) {
        Tensor x = input("x", type, {height, depth}), w = input("w", type, {depth, columns});
        const Type computed = type == f64 ? f64 : f32;
        Axis k1 = reduce_axis("k", depth), k2 = reduce_axis("k", depth);
        auto x_at = [&](const Expr& i, const Expr& k) { return cast(computed, x(i, k)); };
        Tensor r = compute("r", {height}, [&](Expr i) {
            return rsqrt(sum(x_at(i, k1) * x_at(i, k1), k1) / static_cast<double>(depth) + 1e-5);
        });
        Tensor y = compute("y", {height, depth}, [&](Expr i, Expr k) { return x_at(i, k) * r(i); });
        return std::vector<Tensor>{x, w, compute("z", {height, columns}, [&](Expr i, Expr j) {
                                       return sum(y(i, k2) * cast(computed, w(k2, j)), k2);
                                   })};
    };
    const std::vector<Tensor> exact = declare(f64, 3, 4, 2);
    const Tensor z = hoist(exact[2]);
    EXPECT_EQ(text(z), "z[i, j] = (sum_k x[i, k] * w[k, j]) * r[i]");
    expect_gradients(z, {exact[0], exact[1]}, {});
    auto schedule = [](const Tensor& product) {
        Schedule s({product}, target("sm_90a"));
        auto [i, j] = s.loops<2>(product);
        s.order({s.reduce(product), i, j});
        s.mma(product, mma_sync, {.m = i, .n = j, .k = s.reduce(product)});
    };
    const Tensor naive = declare(bf16, 16, 16, 8)[2];
    schedule(hoist(naive));
    EXPECT_ERROR(schedule(naive), "its factors are f32 and bf16");
}

}  // namespace
}  // namespace tw
