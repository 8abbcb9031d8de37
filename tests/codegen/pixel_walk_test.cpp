// Walks over pixels, against the indices that they stand for.
#include "codegen/async/pixel_walk.h"

#include <random>

#include <gtest/gtest.h>

#include "dsl/simplify.h"

namespace tw::codegen {
namespace {

/// A copy of windows of images: tile t of so many pixels, for tap (r, s), of fused pixels or of some rows of an image.
class WalkTest : public testing::Test {
protected:
    int64_t between(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }
    bool chance() { return between(0, 1) == 1; }

    void draw() {
        images_ = between(1, 4), rows_ = between(1, 9), columns_ = between(1, 9);
        pixels_ = between(1, 60);
        const bool whole_rows = between(0, 3) == 0;
        if (whole_rows) pixels_ = columns_ * between(1, rows_);
        const int64_t count = images_ * rows_ * columns_;
        tile_ = index_variable("t", 0, (count + pixels_ - 1) / pixels_ - 1);
        const int64_t taps_h = between(1, 4), taps_w = between(1, 4);
        tap_h_ = index_variable("r", 0, taps_h - 1), tap_w_ = index_variable("s", 0, taps_w - 1);
        pixel_ = index_variable("pixel", 0, pixels_ - 1);
        const Expr fused = tile_ * pixels_ + pixel_;
        const int64_t step_h = between(1, 3), step_w = between(1, 3), sign = chance() ? 1 : -1;
        const Expr h = fused / columns_ % rows_ * step_h + tap_h_ * (sign * between(1, 3)) - between(-2, 3);
        const Expr w = fused % columns_ * step_w + tap_w_ * (sign * between(1, 3)) - between(-2, 3);
        indices_ = {simplify(fused / (rows_ * columns_)), simplify(h), simplify(w), index_variable("c", 0, 63)};
        shape_ = {integer(images_), integer(between(1, 12)), integer(between(1, 12)), integer(64)};
    }

    int64_t at(const Expr& expr, const Substitution& values) const {
        return as_constant(simplify(substitute(expr, values))).value();
    }

    /// As the hardware goes: the base steps in its bounding box, row after row and image after image.
    void expect_walk(const PixelWalk& walk, Substitution values) const {
        values.emplace_back(pixel_, integer(0));
        int64_t image = at(walk.image, values);
        std::vector<int64_t> base, offset;
        for (const PixelWalk::Dimension& dimension : walk.dimensions) {
            base.push_back(at(dimension.base, values));
            offset.push_back(at(dimension.offset, values));
            ASSERT_GE(offset.back(), 0);
        }
        for (int64_t p = 0; p < pixels_; ++p) {
            values.back().second = integer(p);
            bool inside = true, found = image >= 0 && image < images_;
            for (size_t d = 0; d < 3; ++d) {
                const int64_t wanted = at(indices_[d], values), extent = *as_constant(shape_[d]);
                const int64_t read = d == 0 ? image : base[2 - d] + offset[2 - d];
                inside = inside && wanted >= 0 && wanted < extent;
                found = found && read >= 0 && read < extent;
            }
            for (size_t d = 0; d < 3 && inside; ++d)
                ASSERT_EQ(d == 0 ? image : base[2 - d] + offset[2 - d], at(indices_[d], values)) << "pixel " << p;
            ASSERT_EQ(inside, found) << "pixel " << p;
            for (size_t d = 0; d <= 2; ++d) {
                if (d == 2) {
                    ++image;
                    break;
                }
                base[d] += walk.dimensions[d].step;
                if (base[d] < *as_constant(shape_[2 - d]) + walk.dimensions[d].upper) break;
                base[d] = walk.dimensions[d].lower;
            }
        }
    }

    std::mt19937 random_{160};
    int64_t images_ = 0, rows_ = 0, columns_ = 0, pixels_ = 0;
    Expr tile_, tap_h_, tap_w_, pixel_;
    std::vector<Expr> indices_, shape_;
};

TEST_F(WalkTest, ReadsWhatTheIndicesSay) {
    constexpr int rounds = 1500;
    int legal = 0;
    for (int round = 0; round < rounds; ++round) {
        draw();
        const PixelWalk walk = walk_of({pixel_, integer(pixels_)}, indices_, shape_);
        if (!walk.reason.empty()) continue;
        ++legal;
        SCOPED_TRACE(to_string(indices_[0]) + ", " + to_string(indices_[1]) + ", " + to_string(indices_[2]));
        const auto last = [](const Expr& variable) { return variable.as<Variable>()->max.value(); };
        for (int64_t t = 0; t <= last(tile_); ++t)
            for (int64_t r = 0; r <= last(tap_h_); ++r)
                ASSERT_NO_FATAL_FAILURE(expect_walk(
                    walk, {{tile_, integer(t)}, {tap_h_, integer(r)}, {tap_w_, integer(between(0, last(tap_w_)))}}));
    }
    EXPECT_GT(legal, rounds * 8 / 10);
}

TEST_F(WalkTest, IsNoneWhereTheIndicesDoNotGoFromPixelToPixel) {
    auto reason = [](const Expr& pixel, int64_t extent, const std::vector<Expr>& indices) {
        std::vector<Expr> shape(indices.size(), integer(300));
        return walk_of({pixel, integer(extent)}, indices, shape).reason;
    };
    const Expr p = index_variable("p", 0, 63), c = index_variable("c", 0, 63), t = index_variable("t", 0, 999);
    EXPECT_EQ(reason(p, 64, {p / 8, p % 8, c}), "");
    EXPECT_NE(reason(p, 64, {p % 8, p / 8, c}), "");                  // columns first
    EXPECT_NE(reason(p, 64, {p / 8, p % 4, c}), "");                  // rows of 8, columns of 4
    EXPECT_NE(reason(p, 64, {(p + 1) / 8, p % 8, c}), "");            // rows begin elsewhere
    EXPECT_NE(reason(p, 64, {p / 8, p % 8 * 9, c}), "");              // steps of 9
    EXPECT_NE(reason(p, 64, {p / 8, p % 8 - p / 16, c}), "");         // skewed
    EXPECT_NE(reason(p, 64, {p, c}), "");                             // a matrix is a box
    EXPECT_NE(reason(p, 2000, {p / 8, p % 8, c}), "");                // more pixels than a box has
    EXPECT_NE(reason(p, 64, {integer(0), p / 8, p % 8 + t, c}), "");  // farther than offsets reach
}

}  // namespace
}  // namespace tw::codegen
