// Computations that no schedule of the library knows, as a user would write them: declared, scheduled, run on vectors
// of numbers, and compared with plain loops of C++.
#include <cmath>

#include "ops/runner.h"
#include "tests/ops/on_each_device.h"

namespace tw {
namespace {

std::vector<float> scattered_numbers(size_t count, uint64_t step, double low, double high) {
    std::vector<float> values(count);
    for (size_t n = 0; n < count; ++n) values[n] = float(low + (high - low) * double(n * step % 1009) / 1009);
    return values;
}

class OwnComputations : public OnEachDevice {};
TW_ON_EACH_DEVICE(OwnComputations);

// The nearest of many points, and how far it is. Distances are made by the lane that compares them, and never stored.
TEST_P(OwnComputations, NearestPoints) {
    const int64_t queries = 100, points = 130, dimensions = 5;
    Tensor q = input("q", f32, {queries, dimensions}), p = input("p", f32, {points, dimensions});
    Axis d = reduce_axis("d", dimensions), k = reduce_axis("k", points);
    Tensor distance = compute("distance", {queries, points},
                              [&](Expr i, Expr j) { return sum((q(i, d) - p(j, d)) * (q(i, d) - p(j, d)), d); });
    std::vector<Tensor> nearest =
        compute_tuple("nearest", {queries}, [&](const std::vector<Expr>& i) { return argmax(-distance(i[0], k), k); });
    Schedule s(nearest, device_target());
    auto [block, row] = s.split(s.loops<1>(nearest[0])[0], 8, Tail::Mask);
    auto [step, share] = s.split(s.reduce(nearest[0]), 32, Tail::Mask);
    s.order({block, row, share, step});
    s.bind(block, grid.x);
    s.bind(row, warp);
    s.bind(share, lane);
    s.at(distance, step);
    s.check_each_step(random_bindings(nearest, 1));

    std::vector<float> from = scattered_numbers(queries * dimensions, 7919, -1, 1);
    std::vector<float> to = scattered_numbers(points * dimensions, 104729, -1, 1);
    Runner runner(s, device_);
    runner.set("q", from).set("p", to).run();
    const std::string values = runner.program().tree().outputs[0]->name,
                      places = runner.program().tree().outputs[1]->name;
    std::vector<float> value = runner.read<float>(values);
    std::vector<int64_t> place = runner.read<int64_t>(places);
    for (int64_t i = 0; i < queries; ++i) {
        auto squared = [&](int64_t j) {
            double sum = 0;
            for (int64_t n = 0; n < dimensions; ++n)
                sum += std::pow(double(from[i * dimensions + n]) - double(to[j * dimensions + n]), 2);
            return sum;
        };
        double least = squared(0);
        for (int64_t j = 1; j < points; ++j) least = std::min(least, squared(j));
        EXPECT_NEAR(-value[i], least, 1e-6) << i;
        ASSERT_TRUE(place[i] >= 0 && place[i] < points) << place[i];
        EXPECT_NEAR(squared(place[i]), least, 1e-6) << i;
    }
    CheckResult check = runner.check();
    EXPECT_TRUE(check.ok) << check.text;
}

// A moving average whose weights decay and are gated: y[i] = sum_w a^w g[i - w] x[i - w] / sum_w a^w g[i - w], both
// sums in one pass. The gates of a tile, and of the seven rows before it, are made once, in shared memory.
TEST_P(OwnComputations, GatedMovingAverage) {
    const int64_t times = 150, channels = 40, window = 8;
    Tensor x = input("x", f16, {times, channels}), logit = input("logit", f32, {times, channels});
    Expr a = scalar("a", f32);
    Axis w = reduce_axis("w", window);
    Tensor gate = compute("gate", {times, channels}, [&](Expr i, Expr j) { return 1.0 / (1.0 + exp(-logit(i, j))); });
    Reducer two_sums = make_reducer("two_sums", {constant(f32, 0.0), constant(f32, 0.0)},
                                    [](const std::vector<Expr>& l, const std::vector<Expr>& r) {
                                        return std::vector{l[0] + r[0], l[1] + r[1]};
                                    });
    Tensor y = compute("y", {times, channels}, [&](Expr i, Expr j) {
        Expr weight = padded(gate, 0.0)(i - w, j) * exp(cast(f32, w) * log(a));
        auto sums = reduce(two_sums, {weight * cast(f32, padded(x, 0.0)(i - w, j)), weight}, {w});
        return sums[0] / sums[1];
    });
    Schedule s({y}, device_target());
    auto [i, j] = s.loops<2>(y);
    auto [bi, ti] = s.split(i, 16, Tail::Mask);
    auto [bj, tj] = s.split(j, 32, Tail::Mask);
    s.order({bi, bj, ti, tj});
    s.bind(bi, grid.y);
    s.bind(bj, grid.x);
    s.bind(tj, thread);
    s.at(gate, bj);
    s.set_memory(gate, Memory::Shared);
    s.stage(y, x, Memory::Shared, bj);

    std::vector<float> xs = scattered_numbers(times * channels, 613, -2, 2);
    for (float& value : xs) value = float(round_to_type(f16, value));
    std::vector<float> logits = scattered_numbers(times * channels, 277, -3, 3);
    Runner runner(s, device_);
    runner.set("x", xs).set("logit", logits).set("a", 0.875).run();
    std::vector<float> got = runner.read<float>("y");
    for (int64_t t = 0; t < times; ++t)
        for (int64_t c = 0; c < channels; ++c) {
            double weighted = 0, weights = 0;
            for (int64_t back = 0; back < window && back <= t; ++back) {
                const int64_t at = (t - back) * channels + c;
                const double weight = std::pow(0.875, double(back)) / (1 + std::exp(-double(logits[at])));
                weighted += weight * xs[at];
                weights += weight;
            }
            ASSERT_NEAR(got[t * channels + c], weighted / weights, 1e-5) << t << ", " << c;
        }
    CheckResult check = runner.check();
    EXPECT_TRUE(check.ok) << check.text;
}

}  // namespace
}  // namespace tw
