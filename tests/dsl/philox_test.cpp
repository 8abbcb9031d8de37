// Random numbers of counters, and dropout by them.
#include "dsl/philox.h"

#include <cmath>

#include <gtest/gtest.h>

#include "dsl/differentiate.h"
#include "dsl/interpret.h"
#include "dsl/simplify.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

using Words = std::array<uint32_t, 4>;

Words drawn(const Words& counter, const std::array<uint32_t, 2>& key) {
    const std::array<Expr, 4> words = philox({counter[0], counter[1], counter[2], counter[3]}, {key[0], key[1]});
    Words result;
    for (size_t n = 0; n < 4; ++n) result[n] = static_cast<uint32_t>(as_constant(simplify(words[n])).value());
    return result;
}

/// The known answers that its authors publish (Random123, kat_vectors).
TEST(Philox, GivesKnownAnswers) {
    EXPECT_EQ(drawn({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
    EXPECT_EQ(drawn({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
              (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
    EXPECT_EQ(drawn({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
              (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, RefusesOtherTypes) {
    Expr i = index_variable("i", 0, 7), x = scalar("x", f32), seed = scalar("seed", u32);
    EXPECT_ERROR(philox({i, 0, 0, 0}, {0, 0}), "philox: counters and keys are u32, not i64; use cast(u32, x)");
    EXPECT_ERROR(is_kept(0.1, seed, x), "is_kept: the index is a place, i64, not f32; use cast(i64, x)");
    EXPECT_ERROR(is_kept(-0.1, seed, i),
                 "is_kept: a probability of -0.1 leaves nothing to scale; give 0 <= probability < 1");
    EXPECT_ERROR(dropout(x, 1, seed, i), "dropout: a probability of 1 leaves nothing to scale");
    EXPECT_ERROR(dropout(i, 0.1, seed, i), "dropout: i64 is scaled as f32 or f64; use cast(f32, x)");
}

class Dropout : public testing::Test {
protected:
    static constexpr int64_t elements = 1 << 14;
    Tensor x = input("x", f32, {elements});
    Expr seed = scalar("seed", u32);
    Bindings bindings = [] {
        Bindings ones;
        ones.inputs["x"] = host_array(f32, {elements});
        for (int64_t i = 0; i < elements; ++i) ones.inputs["x"].set({i}, make_value(f32, 1.0));
        ones.scalars["seed"] = make_value(u32, int64_t{7});
        return ones;
    }();

    Tensor dropped(double probability, int64_t first = 0) {
        return compute("y", {elements}, [&](Expr i) { return dropout(x(i), probability, seed, i + first); });
    }
    HostArray values(const Tensor& y) { return interpret_plain({y}, bindings)[0]; }
};

/// Within five standard deviations; what is kept is scaled up.
TEST_F(Dropout, KeepsItsShare) {
    for (double probability : {0.1, 0.5, 0.9}) {
        const HostArray y = values(dropped(probability));
        double kept = 0;
        for (int64_t i = 0; i < elements; ++i) {
            const double value = y.at({i}).real;
            EXPECT_TRUE(value == 0 || std::abs(value * (1 - probability) - 1) < 1e-6) << value;
            kept += value != 0;
        }
        const double deviation = std::sqrt(elements * probability * (1 - probability));
        EXPECT_NEAR(kept, elements * (1 - probability), 5 * deviation) << probability;
    }
    EXPECT_EQ(values(dropped(0)).at({5}).real, 1);
}

/// Elements follow others nowhere: of all pairs at a distance, both are kept as often as if one knew nothing of the
/// other.
TEST_F(Dropout, OfNeighboursIsIndependent) {
    const HostArray y = values(dropped(0.5));
    for (int64_t distance : {1, 2, 3, 4, 5, 8, 64}) {
        double both = 0;
        for (int64_t i = 0; i < elements; ++i)
            both += y.at({i}).real != 0 && y.at({(i + distance) % elements}).real != 0;
        EXPECT_NEAR(both, elements / 4.0, 5 * std::sqrt(elements * 3 / 16.0)) << distance;
    }
}

TEST_F(Dropout, DependsOnSeedAndIndexAlone) {
    const HostArray y = values(dropped(0.5)), later = values(dropped(0.5, 6)),
                    far = values(dropped(0.5, int64_t{1} << 34));
    bindings.scalars["seed"] = make_value(u32, int64_t{8});
    const HostArray other = values(dropped(0.5));
    int64_t differ = 0, differ_far = 0;
    for (int64_t i = 0; i + 6 < elements; ++i) {
        EXPECT_EQ(later.at({i}).real, y.at({i + 6}).real);
        differ += other.at({i}).real != y.at({i}).real;
        differ_far += far.at({i}).real != y.at({i}).real;  // the upper half of the counter counts
    }
    EXPECT_NEAR(static_cast<double>(differ), elements / 2.0, 5 * std::sqrt(elements / 4.0));
    EXPECT_NEAR(static_cast<double>(differ_far), elements / 2.0, 5 * std::sqrt(elements / 4.0));
}

/// The gradient has the mask of the function.
TEST_F(Dropout, HasItsGradient) {
    const Tensor y = dropped(0.3), dx = gradients(y, input("dy", f32, {elements}), {x})[0];
    bindings.inputs["dy"] = bindings.inputs["x"];
    const HostArray forward = values(y), backward = values(dx);
    for (int64_t i = 0; i < elements; ++i) ASSERT_EQ(forward.at({i}).real, backward.at({i}).real) << i;
}

}  // namespace
}  // namespace tw
