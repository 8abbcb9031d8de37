// Sums of differences from a mean are left out, however these are written, and nothing else; norms of users have
// gradients whose sums do not wait for each other.
#include "dsl/zero_sums.h"

#include <set>

#include "tests/dsl/expect_gradients.h"
#include "verify/random.h"

namespace tw {
namespace {

/// Terms over channels and some axes, linear in differences of values from their mean or not.
class RandomTerms {
public:
    explicit RandomTerms(uint64_t seed) : random_(7, seed) {
        const int64_t count = random_.between(1, 3), place = random_.below(count + 1);
        for (int64_t n = 0; n <= count; ++n) shape_.emplace_back(n == place ? channels : random_.between(1, 4));
        for (int64_t n = 0; n <= count; ++n)
            if (n == place)
                channel_ = axes_.size();
            else
                axes_.push_back(reduce_axis("n", shape_[static_cast<size_t>(n)]));
        x_ = input("x", f64, shape_), y_ = input("y", f64, shape_);
        f_ = input("f", f64, {channels}), g_ = input("g", f64, {channels});
        centred_ =
            compute("centred", shape_, [&](const std::vector<Expr>& at) { return value(at) - mean(at[channel_]); });
        spread_ = compute("spread", shape_, [&](const std::vector<Expr>& at) { return f_(at[channel_]) * 0.5; });
        products_ =
            compute("products", shape_, [&](const std::vector<Expr>& at) { return other(1, at) + zero(1, at); });
    }

    static constexpr int64_t channels = 3;
    const std::vector<Axis>& axes() const { return axes_; }
    std::vector<Tensor> inputs() const { return {x_, y_, f_, g_}; }
    std::vector<Expr> at(const Expr& channel) const {
        std::vector<Expr> place(axes_.begin(), axes_.end());
        place.insert(place.begin() + static_cast<std::ptrdiff_t>(channel_), channel);
        return place;
    }

    /// Adds up to zero.
    Expr zero(int depth, const std::vector<Expr>& at) {
        const Expr f = f_(at[channel_]), g = g_(at[channel_]);
        if (depth == 0) return difference(at);
        switch (random_.below(8)) {
            case 0: return -zero(depth - 1, at);
            case 1: return f * zero(depth - 1, at);
            case 2: return zero(depth - 1, at) / exp(g);
            case 3: return zero(depth - 1, at) + zero(depth - 1, at);
            case 4: return zero(depth - 1, at) - zero(depth - 1, at);
            case 5:
                return select(f < g, zero(depth - 1, at), random_.chance(0.5) ? constant(f64, 0.0) : difference(at));
            case 6: return spread_.read({at.begin(), at.end()}) * 3.0 * zero(depth - 1, at);
            default: return difference(at);
        }
    }
    /// Does not.
    Expr other(int depth, const std::vector<Expr>& at) {
        const Expr y = y_.read({at.begin(), at.end()});
        if (depth == 0) return y * f_(at[channel_]);
        switch (random_.below(5)) {
            case 0: return y * zero(depth - 1, at);
            case 1: return select(y < 0.9, zero(depth - 1, at), 0.0);
            case 2: return value(at) + mean(at[channel_]);
            case 3: return value(at) - mean(at[channel_]) * 1.25;
            default: return y - g_(at[channel_]);
        }
    }
    Expr read_products(const std::vector<Expr>& at) const { return products_.read({at.begin(), at.end()}); }

private:
    Expr difference(const std::vector<Expr>& at) {
        const Expr& channel = at[channel_];
        switch (random_.below(6)) {
            case 0: return mean(channel) - value(at);
            case 1: return value(at) + -mean(channel);
            case 2: return centred_.read({at.begin(), at.end()});
            case 3: return value(at) * 0.25 - mean(channel) / 4.0;
            default: return value(at) - mean(channel);
        }
    }
    Expr value(const std::vector<Expr>& at) const { return exp(x_.read({at.begin(), at.end()})); }
    /// A tensor of its own each time; its axes may stand in another order.
    Expr mean(const Expr& channel) {
        double count = 1;
        std::vector<Axis> axes, order;
        for (const Axis& axis : axes_) {
            axes.push_back(reduce_axis("k", axis.extent));
            count *= static_cast<double>(require_constant(axis.extent));
        }
        order = axes;
        random_.shuffle(order);
        auto sum_of = [&](const Expr& c, double factor) {
            std::vector<Expr> at(axes.begin(), axes.end());
            at.insert(at.begin() + static_cast<std::ptrdiff_t>(channel_), c);
            return sum(factor == 1 ? value(at) : value(at) * factor, order);
        };
        const std::string name = "m" + std::to_string(++means_);
        const int64_t way = random_.below(5);
        const Tensor made = compute(name, {channels}, [&](Expr c) {
            return way == 0   ? sum_of(c, 1)
                   : way == 1 ? sum_of(c, 1 / count)
                   : way == 2 ? sum_of(c, -1) * (-1 / count)
                              : sum_of(c, 1) / count;
        });
        if (way == 0) return made(channel) / count;
        if (way != 3) return made(channel);
        return compute(name + "_copy", {channels}, [&](Expr c) { return made(c); })(channel);
    }

    fuzz::Random random_;
    Shape shape_;
    size_t channel_ = 0;
    std::vector<Axis> axes_;
    Tensor x_, y_, f_, g_, centred_, spread_, products_;
    int means_ = 0;
};

/// Sums of a term, before and after; zeros if nothing is left.
struct BeforeAndAfter {
    Tensor before, after;
    bool is_undefined = false, is_same = false;
};
BeforeAndAfter summed(const RandomTerms& terms, const std::function<Expr(const std::vector<Expr>& at)>& term) {
    BeforeAndAfter result;
    Expr last;
    result.before =
        compute("before", {RandomTerms::channels}, [&](Expr c) { return sum(term(terms.at(c)), terms.axes()); });
    result.after = compute("after", {RandomTerms::channels}, [&](Expr c) {
        const Operation& before = *result.before.operation();
        const Expr whole = substitute(before.outputs[0].body, {{before.axes[0], c}}), left = without_zero_sums(whole);
        result.is_undefined = !left.defined(), result.is_same = left.same(whole);
        return left.defined() ? left : constant(f64, 0.0);
    });
    return result;
}

void expect_equal(const BeforeAndAfter& sums, const RandomTerms& terms, uint64_t seed) {
    Bindings bindings;
    for (const Tensor& tensor : terms.inputs()) bindings.inputs[tensor.name()] = random_array(tensor, ++seed);
    const std::vector<HostArray> got = interpret_plain({sums.before, sums.after}, bindings);
    const auto report = difference("after", got[1], got[0], near(0, 1e-9));
    EXPECT_FALSE(report) << *report;
}

TEST(ZeroSums, OfRandomTermsAreLeftOut) {
    for (uint64_t round = 0; round < 300; ++round) {
        RandomTerms terms(round);
        const auto sums = summed(terms, [&](const auto& at) { return terms.zero(3, at); });
        SCOPED_TRACE(text(sums.before));
        EXPECT_TRUE(sums.is_undefined);
        expect_equal(sums, terms, round);
    }
}

TEST(ZeroSums, BesideOtherTermsAreLeftOut) {
    int changed = 0;
    for (uint64_t round = 0; round < 300; ++round) {
        RandomTerms terms(1000 + round);
        const auto sums = summed(terms, [&](const auto& at) {
            const Expr other = terms.other(2, at), zero = terms.zero(2, at);
            switch (round % 4) {
                case 0: return other + zero;
                case 1: return zero - other;
                case 2: return (zero + other) * 0.5 - terms.other(1, at);
                default: return terms.read_products(at);
            }
        });
        SCOPED_TRACE(text(sums.before) + "\n" + text(sums.after));
        EXPECT_FALSE(sums.is_undefined || sums.is_same);
        changed += text(sums.after).size() < text(sums.before).size();
        expect_equal(sums, terms, round);
    }
    EXPECT_GT(changed, 150);
}

/// What looks alike.
TEST(ZeroSums, OfNothingElse) {
    const Tensor x = input("x", f32, {6, 4}), y = input("y", f32, {6, 4}), f = input("f", f32, {6});
    const Axis k = reduce_axis("k", 4), n = reduce_axis("n", 4), half = reduce_axis("h", 3);
    const Tensor mean = compute("mean", {6}, [&](Expr i) { return sum(x(i, k), k) / 4; });
    auto stays = [&](const std::function<Expr(Expr i)>& term) {
        bool same = false;
        compute("t", {6}, [&](Expr i) {
            const Expr whole = sum(term(i), n);
            same = without_zero_sums(whole).same(whole);
            return whole;
        });
        return same;
    };
    EXPECT_FALSE(stays([&](Expr i) { return (x(i, n) - mean(i)) * f(i); }));
    auto differs_from = [&](const Tensor& m) { return stays([&](Expr i) { return x(i, n) - m(i); }); };
    auto of = [&](const std::function<Expr(Expr i)>& body) { return compute("m", {6}, body); };
    EXPECT_FALSE(differs_from(of([&](Expr i) { return sum(x(i, k), k) * 0.25; })));
    EXPECT_TRUE(differs_from(of([&](Expr i) { return sum(x(i, k), k) / 3; })));
    EXPECT_TRUE(differs_from(of([&](Expr i) { return sum(x(i, k), k); })));
    EXPECT_TRUE(differs_from(of([&](Expr i) { return sum(x(i, half), half) / 4; })));
    EXPECT_TRUE(differs_from(of([&](Expr i) { return sum(x(i, half), half) / 3; })));
    EXPECT_TRUE(differs_from(of([&](Expr i) { return sum(y(i, k), k) / 4; })));
    EXPECT_TRUE(differs_from(of([&](Expr i) { return sum(x(5 - i, k), k) / 4; })));
    EXPECT_TRUE(differs_from(of([&](Expr i) { return sum(x(i, 3 - k), k) / 4; })));  // zero, but for its order
    EXPECT_TRUE(differs_from(of([&](Expr i) { return reduce_max(x(i, k), k) / 4; })));
    EXPECT_TRUE(differs_from(of([&](Expr i) { return sum(abs(x(i, k)), k) / 4; })));
    EXPECT_TRUE(differs_from(of([&](Expr i) { return round_to(bf16, sum(x(i, k), k) / 4); })));
    EXPECT_TRUE(differs_from(stop_gradient(mean)));  // gradients of gradients go through x alone
    EXPECT_TRUE(stays([&](Expr i) { return x(i, n) + mean(i); }));
    EXPECT_TRUE(stays([&](Expr i) { return (x(i, n) - mean(i)) * (x(i, n) - mean(i)); }));
    EXPECT_TRUE(stays([&](Expr i) { return f(i) / (x(i, n) - mean(i)); }));
    EXPECT_TRUE(stays([&](Expr i) { return max(x(i, n) - mean(i), 0.0); }));
    EXPECT_TRUE(stays([&](Expr i) { return select(n < 2, x(i, n) - mean(i), 0.0); }));
    EXPECT_TRUE(stays([&](Expr i) { return round_to(f16, x(i, n) - mean(i)); }));
    EXPECT_TRUE(stays([&](Expr i) { return x(i, n) - mean(n); }));
}

TEST(ZeroSums, OverNamedSizes) {
    const Expr rows = size("rows", {.min = 1, .max = 100}), columns = size("columns", {.min = 1, .max = 100});
    const Tensor x = input("x", bf16, {rows, columns, 3});
    const Axis i = reduce_axis("i", rows), j = reduce_axis("j", columns), k = reduce_axis("k", rows),
               l = reduce_axis("l", columns);
    auto is_zero_over = [&](const Expr& count) {
        const Tensor mean = compute("mean", {3}, [&](Expr c) {
            return sum(cast(f32, x(i, j, c)), {i, j}) / cast(f32, count);
        });
        bool is_zero = false;
        compute("t", {3}, [&](Expr c) {
            const Expr whole = sum(cast(f32, x(k, l, c)) - mean(c), {l, k});
            is_zero = !without_zero_sums(whole).defined();
            return whole;
        });
        return is_zero;
    };
    EXPECT_TRUE(is_zero_over(rows * columns));
    EXPECT_TRUE(is_zero_over(columns * rows));
    EXPECT_FALSE(is_zero_over(rows));
    EXPECT_FALSE(is_zero_over(rows * columns - 1));
}

/// A norm over all but some dimensions, as somebody writes it.
struct OwnNorm {
    Tensor x, y;
    explicit OwnNorm(fuzz::Random& random) {
        const int64_t rows = random.between(2, 5), columns = random.between(2, 5), channels = random.between(1, 3);
        const bool is_in_stages = random.chance(0.5), takes_root = random.chance(0.5);
        const double count = static_cast<double>(rows * columns);
        x = input("x", f64, {rows, channels, columns});
        const Axis i = reduce_axis("i", rows), j = reduce_axis("j", columns);
        const Tensor mean = compute("mean", {channels}, [&](Expr c) { return sum(x(i, c, j), {i, j}) / count; });
        const Tensor centred =
            compute("centred", {rows, channels, columns}, [&](Expr n, Expr c, Expr m) { return x(n, c, m) - mean(c); });
        auto off = [&](const Expr& n, const Expr& c, const Expr& m) {
            return is_in_stages ? centred(n, c, m) : x(n, c, m) - mean(c);
        };
        const Tensor variance = compute("variance", {channels}, [&](Expr c) {
            return sum(off(i, c, j) * off(i, c, j), {j, i}) * (1 / count);
        });
        y = compute("y", {rows, channels, columns}, [&](Expr n, Expr c, Expr m) {
            return takes_root ? off(n, c, m) / sqrt(variance(c) + 0.03) : off(n, c, m) * rsqrt(variance(c) + 0.03);
        });
    }
};

/// The longest chain of reductions that need each other.
int passes(const Tensor& tensor, std::map<const Operation*, int>& known) {
    const Operation& operation = *tensor.operation();
    if (operation.is_input()) return 0;
    if (auto found = known.find(&operation); found != known.end()) return found->second;
    int before = 0;
    bool reduces = false;
    visit(operation.outputs[0].body, [&](const Expr& e) {
        reduces = reduces || e.as<Reduce>();
        if (auto read = e.as<Read>()) before = std::max(before, passes({read->operation, read->output}, known));
    });
    return known[&operation] = before + reduces;
}

/// Mean, variance, and one pass for all sums of the gradient.
TEST(ZeroSums, GradientsOfNormsTakeOnePassMore) {
    fuzz::Random random(3);
    for (int round = 0; round < 12; ++round) {
        const OwnNorm norm(random);
        const Tensor adjoint = input("dy", f64, norm.y.shape());
        std::map<const Operation*, int> known;
        EXPECT_EQ(passes(gradients(norm.y, adjoint, {norm.x})[0], known), 3);
        expect_gradients(norm.y, {norm.x}, {}, static_cast<uint64_t>(round));
        const Tensor squared = compute("squared", {norm.y.shape().begin(), norm.y.shape().end()},
                                       [&](Expr n, Expr c, Expr m) { return norm.y(n, c, m) * norm.x(n, c, m); });
        const Tensor once = gradients(squared, adjoint, {norm.x})[0];
        Bindings bindings;
        bindings.inputs["dy"] = random_array(adjoint, 5);
        if (!HasFatalFailure())
            expect_gradients(once, {norm.x}, bindings, static_cast<uint64_t>(round));  // of gradients
    }
}

}  // namespace
}  // namespace tw
