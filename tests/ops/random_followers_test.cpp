// Followers of leaders that read a raster, placed anywhere: each placement is refused, or right.
#include <random>

#include <gtest/gtest.h>

#include "dsl/interpret.h"
#include "dsl/schedule.h"
#include "ops/check.h"
#include "support/error.h"

namespace tw {
namespace {

class RandomFollowers {
public:
    explicit RandomFollowers(unsigned seed) : random_(seed) {}

    /// y[n, t, f] = raster[n rows + t, f] + 1, what blocks of the raster's places hold, and what is made of that.
    void declare() {
        const bool one_pixel = between(0, 7) == 0;  // of several places
        rows = one_pixel ? 4 : 4 * between(1, 4);
        const int64_t pixels = one_pixel  ? 1
                               : chance() ? rows
                                          : std::max<int64_t>(1, rows - between(0, 3)),
                      images = one_pixel ? 1 : between(1, 4), filters = between(1, 4), places = images * rows;
        has_gaps = pixels < rows;
        const int64_t block = chance() ? rows : chance() ? 4 : 2, other = chance() ? block : rows;
        const Tensor x = input("x", f32, {places, filters});
        raster = compute("raster", {places, filters}, [&](Expr m, Expr f) { return x(m, f) * 2.0; });
        y = compute("y", {images, pixels, filters},
                    [&](Expr n, Expr t, Expr f) { return raster(n * rows + t, f) + 1.0; });
        const Axis r = reduce_axis("r", block), u = reduce_axis("u", other);
        largest = compute("largest", {places / block, filters},
                          [&](Expr q, Expr f) { return reduce_max(raster(q * block + r, f), r); });
        switch (between(0, 3)) {
            case 0:
                behind = compute("centred", {places, filters},
                                 [&](Expr m, Expr f) { return raster(m, f) - largest(m / block, f); });
                break;
            case 1:
                behind = compute("reversed", {places / block, filters},
                                 [&](Expr q, Expr f) { return largest((places / block - 1) - q, f) + 1.0; });
                break;
            case 2:
                behind = compute("scaled", {images, pixels, filters}, [&](Expr n, Expr t, Expr f) {
                    return y(n, t, f) + largest((n * rows + t) / block, f);
                });
                break;
            default:
                behind = compute("sums", {places / other, filters}, [&](Expr q, Expr f) {
                    return largest(q * other / block, f) + sum(raster(q * other + u, f), u);
                });
        }
    }

    /// The leader's loops: by images, by places of the raster, or by columns and images.
    std::vector<Loop> split(Schedule& s) {
        auto [n, t, f] = s.loops<3>(y);
        const int64_t form = between(0, 2);
        if (form == 1) {
            std::vector<Loop> parts{n, t};
            if (has_gaps) {
                auto [one, row] = s.split(t, rows, Tail::Mask, {"one", "row"});
                parts = {n, one, row};
            }
            auto [tile, in] = s.split(s.fuse(parts, "place"), 4 * between(1, 3), Tail::Mask, {"tile", "in"});
            auto [outer, inner] = s.split(in, chance() ? 2 : 4, Tail::Mask, {"outer", "inner"});
            return {tile, outer, inner, f};
        }
        auto [to, ti] = s.split(t, between(1, 4), Tail::Mask, {"to", "ti"});
        if (form == 0) return {n, to, ti, f};
        auto [fo, fi] = s.split(f, 2, Tail::Mask, {"fo", "fi"});
        return {n, fo, to, ti, fi};
    }

    /// How many stages were placed.
    int place(Schedule& s, const std::vector<Loop>& loops) {
        int placed = 0;
        auto attempt = [&](const Tensor& tensor, const Loop& loop) {
            try {
                s.at(tensor, loop);
                return ++placed, true;
            } catch (const Error&) {
                return false;
            }
        };
        auto anywhere = [&](const Tensor& tensor) {
            for (int k = 0; k < 4; ++k)
                if (attempt(tensor, loops[static_cast<size_t>(between(0, static_cast<int64_t>(loops.size()) - 2))]))
                    return;
        };
        anywhere(largest);
        if (between(0, 3) > 0)
            anywhere(behind);
        else
            attempt(behind, s.all_loops(largest)[0]);
        anywhere(raster);
        return placed;
    }

    bool chance() { return between(0, 1) == 1; }
    std::vector<Tensor> outputs() const { return {y, largest, behind}; }

private:
    int64_t between(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }

    std::mt19937 random_;
    Tensor raster, y, largest, behind;
    int64_t rows = 0;
    bool has_gaps = false;
};

TEST(RandomFollowers, AreRefusedOrRight) {
    RandomFollowers followers(3);
    int right = 0;
    for (int round = 0; round < 2500; ++round) {
        followers.declare();
        Schedule s(followers.outputs(), target("sm_90a"));
        const std::vector<Loop> loops = followers.split(s);
        s.order(loops);
        if (followers.chance()) s.bind(loops[0], grid.x);
        if (followers.place(s, loops) < 2) continue;
        Bindings bindings = random_bindings(followers.outputs(), static_cast<unsigned>(round));
        for (auto& [name, array] : bindings.inputs) fill_integers(array, -9, 9, static_cast<uint64_t>(round));
        SCOPED_TRACE(s.trace_as_cpp());
        std::vector<HostArray> got;
        ASSERT_NO_THROW(got = interpret_tree(s.tree(), bindings));
        const std::vector<HostArray> expected = interpret_plain(followers.outputs(), bindings);
        for (size_t k = 0; k < got.size(); ++k) {
            const auto differs = difference(followers.outputs()[k].name(), got[k], expected[k]);
            ASSERT_FALSE(differs) << *differs;
        }
        ++right;
    }
    EXPECT_GT(right, 1000);
}

}  // namespace
}  // namespace tw
