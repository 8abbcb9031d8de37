// Attention that a user declares by expressions of his own is found, and computed in one pass over the keys.
#include <array>
#include <cmath>

#include <gmock/gmock.h>

#include "ops/check.h"
#include "ops/program.h"
#include "schedules/choose.h"
#include "schedules/find_attention.h"
#include "tests/ops/random_cases.h"

namespace tw::schedules {
namespace {

using testing::HasSubstr;
using testing::Not;
using Axes = std::vector<Expr>;

enum class Order { TokensFirst, HeadsFirst, HeadsAlone, RowsAlone };  // of [batch, rows, heads, ..] and so on
enum class Mask { None, Causal, CausalTurned, Bias, SoftCap, Band };

/// One of the ways in which attention may be written.
struct PlainAttention {
    Order order = Order::TokensFirst;
    Mask mask = Mask::None;
    Type type = bf16;
    int64_t batch = 1, group = 1, key_heads = 1, rows = 16, keys = 16, depth = 8, width = 8;
    double scale = 0.25;
    bool divides_weights = false, to_base_2 = false, rounds_weights = false, inner_maximum = false;
    Tensor q, k, v, bias = {}, s = {}, m = {}, l = {}, o = {};

    void declare() {
        const int64_t heads = group * key_heads;
        if (!q.defined()) q = input("q", type, of_tokens(rows, heads, depth));
        k = input("k", type, of_tokens(keys, key_heads, depth));
        v = input("v", type, of_tokens(keys, key_heads, width));
        bias = input("bias", f32, {rows, keys});
        const Axis d = reduce_axis("d", depth), j1 = reduce_axis("j1", keys), j2 = reduce_axis("j2", keys),
                   j3 = reduce_axis("j3", keys);
        Shape pairs = of_rows(heads);
        pairs.emplace_back(keys);
        s = compute("scores", pairs, [&](const Axes& x) {
            const auto [b, h, i] = place(x, false);
            const Expr product = sum(cast(f32, at(q, b, h, i, d)) * cast(f32, at(k, b, h / group, x.back(), d)), d);
            return masked(product * scale, i, x.back()) * (to_base_2 ? std::log2(std::exp(1.0)) : 1);
        });
        auto raised = [&](const Expr& e) { return to_base_2 ? exp2(e) : exp(e); };
        auto row = [](const Axes& x, size_t count, const std::vector<Expr>& more = {}) {
            std::vector<Operand> found(x.begin(), x.begin() + static_cast<ptrdiff_t>(count));
            found.insert(found.end(), more.begin(), more.end());
            return found;
        };
        const size_t n = pairs.size() - 1;
        m = compute("largest", of_rows(heads), [&](const Axes& x) { return reduce_max(s.read(row(x, n, {j1})), j1); });
        const Tensor p = compute("raised", pairs, [&](const Axes& x) {
            return raised(s.read(row(x, n, {x.back()})) -
                          (inner_maximum ? reduce_max(s.read(row(x, n, {j1})), j1) : m.read(row(x, n))));
        });
        l = compute("total", of_rows(heads), [&](const Axes& x) { return sum(p.read(row(x, n, {j2})), j2); });
        const Tensor w = compute("weights", pairs, [&](const Axes& x) {
            Expr weight = p.read(row(x, n, {x.back()}));
            if (divides_weights) weight = weight / l.read(row(x, n));
            return rounds_weights ? cast(type, weight) : weight;
        });
        o = compute("attended", of_tokens(rows, heads, width), [&](const Axes& x) {
            const auto [b, h, i] = place(x, true);
            Axes at_row = n == 3 ? Axes{b, h, i} : n == 2 ? Axes{h, i} : Axes{i};
            const Expr weight = cast(f32, w.read(row(at_row, n, {j3})));
            const Expr values = sum(weight * cast(f32, at(v, b, h / group, j3, x.back())), j3);
            return cast(type, divides_weights ? values : values * (1.0 / l.read(row(at_row, n))));
        });
    }

    Tensor lse() const {
        return compute("lse", {m.shape().begin(), m.shape().end()}, [&](const Axes& x) {
            const std::vector<Operand> row(x.begin(), x.end());
            return to_base_2 ? m.read(row) + log2(l.read(row)) : m.read(row) + log(l.read(row));
        });
    }

    Shape of_tokens(int64_t count, int64_t heads, int64_t x) const {
        switch (order) {
            case Order::TokensFirst: return {batch, count, heads, x};
            case Order::HeadsFirst: return {batch, heads, count, x};
            case Order::HeadsAlone: return {heads, count, x};
            case Order::RowsAlone: return {count, x};
        }
        return {};
    }

private:
    Shape of_rows(int64_t heads) const {
        return order == Order::HeadsAlone  ? Shape{heads, rows}
               : order == Order::RowsAlone ? Shape{rows}
                                           : Shape{batch, heads, rows};
    }
    Expr at(const Tensor& x, const Expr& b, const Expr& h, const Expr& token, const Expr& e) const {
        switch (order) {
            case Order::TokensFirst: return x(b, token, h, e);
            case Order::HeadsFirst: return x(b, h, token, e);
            case Order::HeadsAlone: return x(h, token, e);
            case Order::RowsAlone: return x(token, e);
        }
        return {};
    }
    /// Batch, head and row, of a token or of a row of scores.
    std::array<Expr, 3> place(const Axes& x, bool is_token) const {
        if (order == Order::RowsAlone) return {integer(0), integer(0), x[0]};
        if (order == Order::HeadsAlone) return {integer(0), x[0], x[1]};
        return is_token && order == Order::TokensFirst ? std::array{x[0], x[2], x[1]} : std::array{x[0], x[1], x[2]};
    }
    Expr masked(const Expr& score, const Expr& i, const Expr& j) const {
        const int64_t before = std::max<int64_t>(keys - rows, 0);
        switch (mask) {
            case Mask::None: return score;
            case Mask::Causal: return select(j <= i + before, score, -infinity);
            case Mask::CausalTurned: return select(i + before < j, -infinity, score);
            case Mask::Bias: return score + bias(i, j);
            case Mask::SoftCap: return tanh(score / 20.0) * 20.0;
            case Mask::Band: return select((j <= i + 5 && i <= j + 40) || j == 0, score, -infinity);
        }
        return {};
    }
};

class StreamedAttention : public RandomCases {
protected:
    StreamedAttention() : RandomCases(2718) {}

    PlainAttention random_attention() {
        PlainAttention a;
        a.order = static_cast<Order>(between(0, 3));
        a.mask = static_cast<Mask>(between(0, 5));
        a.type = chance() ? bf16 : f16;
        if (a.order <= Order::HeadsFirst) a.batch = between(1, 2);
        if (a.order != Order::RowsAlone) a.group = between(1, 3), a.key_heads = between(1, 2);
        a.rows = between(16, 100), a.keys = between(16, 150);
        a.depth = 8 * between(1, 9), a.width = 8 * between(1, 9);
        a.scale = chance() ? 1 / std::sqrt(static_cast<double>(a.depth)) : 0.3;
        a.divides_weights = chance(), a.to_base_2 = chance(), a.rounds_weights = chance(), a.inner_maximum = chance();
        return a;
    }

    /// The schedule, found or not, computes what was declared.
    void expect_given(const Schedule& s, const std::vector<Tensor>& given, unsigned seed) const {
        const Bindings bindings = random_bindings(given, seed);
        expect_declared(s, bindings, near(64, 2e-2));
        Executable executable(build(s), device_);
        const std::vector<HostArray> got = run_on(executable, bindings), expected = interpret_plain(given, bindings);
        ASSERT_EQ(got.size(), expected.size());
        for (size_t n = 0; n < got.size(); ++n) {
            EXPECT_EQ(s.outputs()[n].name(), given[n].name());
            const auto differs = difference(given[n].name(), got[n], expected[n], near(64, 2e-2));
            EXPECT_FALSE(differs) << *differs;
        }
    }
};
TW_ON_EACH_DEVICE(StreamedAttention);

constexpr const char* found_text = "in one pass over the keys";

TEST_P(StreamedAttention, IsFoundHoweverItIsWritten) {
    for (unsigned round = 0; round < 12; ++round) {
        PlainAttention a = random_attention();
        a.declare();
        const std::vector<Tensor> given{a.o};
        const Schedule s = choose_schedule(given, device_target());
        SCOPED_TRACE(s.explain());
        EXPECT_THAT(s.explain(), HasSubstr(found_text));
        const Program program = build(s);
        EXPECT_EQ(program.kernels().size(), 1U);
        expect_given(s, given, round);
        if (round < 2) expect_compiles(program);
    }
}

/// In front of it and behind others are computed, and a row's maxima and sums leave, too.
TEST_P(StreamedAttention, StandsAmongOthers) {
    for (unsigned round = 0; round < 6; ++round) {
        PlainAttention a = random_attention();
        a.inner_maximum = false;
        const Shape shape = a.of_tokens(a.rows, a.group * a.key_heads, a.depth);
        const Tensor x = input("x", a.type, shape);
        a.q = compute("q", shape, [&](const Axes& at) {
            return cast(a.type, cast(f32, x.read({at.begin(), at.end()})) * 0.5 + 0.1);
        });
        a.declare();
        const Tensor residual = input("residual", a.type, {a.o.shape().begin(), a.o.shape().end()});
        const Tensor y = compute("y", {a.o.shape().begin(), a.o.shape().end()}, [&](const Axes& at) {
            const std::vector<Operand> own(at.begin(), at.end());
            return cast(a.type, cast(f32, a.o.read(own)) + cast(f32, residual.read(own)));
        });
        std::vector<Tensor> given{y};
        if (chance()) given.push_back(a.lse());
        if (chance()) given.push_back(a.m);
        const Schedule s = choose_schedule(given, device_target());
        SCOPED_TRACE(s.explain());
        EXPECT_THAT(s.explain(), HasSubstr(found_text));
        EXPECT_EQ(build(s).kernels().size(), 3U);
        expect_given(s, given, round);
        // The trace is one of the whole.
        EXPECT_EQ(replay(s.save(), s.outputs(), device_target()).to_string(), s.to_string());
    }
}

TEST_P(StreamedAttention, OfTwoLayersIsFoundTwice) {
    PlainAttention first;
    first.rows = first.keys = 40;
    first.declare();
    const Tensor k = input("k2", bf16, {1, 24, 1, 8}), v = input("v2", bf16, {1, 24, 1, 8});
    const Axis d = reduce_axis("d", 8), j1 = reduce_axis("j", 24), j2 = reduce_axis("j", 24), j3 = reduce_axis("j", 24);
    const Tensor s2 = compute("s2", {40, 24}, [&](Expr i, Expr j) {
        return sum(cast(f32, first.o(0, i, 0, d)) * cast(f32, k(0, j, 0, d)), d) * 0.3;
    });
    const Tensor m2 = compute("m2", {40}, [&](Expr i) { return reduce_max(s2(i, j1), j1); });
    const Tensor l2 = compute("l2", {40}, [&](Expr i) { return sum(exp(s2(i, j2) - m2(i)), j2); });
    const Tensor o2 = compute("o2", {40, 8}, [&](Expr i, Expr e) {
        return cast(bf16, sum(exp(s2(i, j3) - m2(i)) * cast(f32, v(0, j3, 0, e)), j3) / l2(i));
    });
    const Schedule s = choose_schedule({o2}, device_target());
    SCOPED_TRACE(s.explain());
    EXPECT_EQ(build(s).kernels().size(), 2U);
    expect_given(s, {o2}, 5);
}

/// Scores that are results, weights of another softmax, sums that leave out terms, other types: as ever.
TEST_P(StreamedAttention, WhatIsNoneStaysAsItIs) {
    auto expect_none = [&](const std::vector<Tensor>& given) {
        const Schedule s = choose_schedule(given, device_target());
        EXPECT_THAT(s.explain(), Not(HasSubstr(found_text)));
        expect_given(s, given, 3);
    };
    PlainAttention a;
    a.order = Order::RowsAlone, a.rows = 24, a.keys = 32;
    a.declare();
    expect_none({a.o, a.s});
    const Axis j1 = reduce_axis("j", 32), j2 = reduce_axis("j", 16), j3 = reduce_axis("j", 32);
    auto exponential = [&](const Expr& i, const Expr& j) { return exp(a.s(i, j) - a.m(i)); };
    const Tensor half = compute("half", {24}, [&](Expr i) { return sum(exponential(i, j2), j2); });
    expect_none({compute("o", {24, 8}, [&](Expr i, Expr e) {
        return cast(bf16, sum(exponential(i, j1) * cast(f32, a.v(j1, e)), j1) / half(i));
    })});
    const Tensor other = compute("other", {24}, [&](Expr i) { return sum(exponential(i, j3) * 2.0, j3); });
    expect_none({compute("o", {24, 8}, [&](Expr i, Expr e) {
        return cast(bf16, sum(exponential(i, j1) * cast(f32, a.v(j1, e)), j1) / other(i));
    })});
    PlainAttention few;
    few.order = Order::RowsAlone, few.rows = 4, few.keys = 32;
    few.declare();
    expect_none({few.o});
}

}  // namespace
}  // namespace tw::schedules
