// What stands under a loop: how much of it an iteration needs.
#include <gmock/gmock.h>

#include "tests/ops/random_cases.h"
#include "tests/ops/whole_numbers.h"

namespace tw {
namespace {

class Regions : public RandomCases {
protected:
    Regions() : RandomCases(31) {}
};
TW_ON_EACH_DEVICE(Regions);

// Sums as long as the element's place says, or data up to a constant: a row's copy has the row's terms.
TEST_P(Regions, BoxesOfLengthsByPlace) {
    for (int round = 0; round < 12; ++round) {
        int64_t rows = between(3, 40), columns = between(2, 12), step = columns + between(0, 3), most = columns;
        Tensor x = input("x", f32, {rows * step}), length = input("length", i32, {rows});
        int form = round % 4;
        Tensor y = compute("y", {rows, columns}, [&](Expr t, Expr e) {
            Expr terms = form == 0   ? e + 1
                         : form == 1 ? columns - e
                         : form == 2 ? e / 2 * 2 + 1
                                     : min(cast(i64, length(t)), columns);
            if (form == 2) most = (columns - 1) / 2 * 2 + 1;
            Axis k = reduce_axis("k", terms);
            Expr place = chance() ? t * step + min(k, columns - 1) : t * step + k;
            return sum(x(place) * cast(f32, k + 1), k);
        });
        Schedule s({y}, device_target());
        auto [t, e] = s.loops<2>(y);
        Memory memory = chance() ? Memory::Registers : Memory::Shared;
        if (memory == Memory::Registers) {
            auto [block, inside] = s.split(t, 8, Tail::Mask);
            s.bind(block, grid.x);
            s.bind(inside, thread);
            s.stage(y, x, memory, inside);
        } else {
            s.bind(t, grid.x);
            s.bind(e, thread);
            s.stage(y, x, memory, t);
        }
        SCOPED_TRACE(s.to_string());
        EXPECT_THAT(s.to_string(), testing::HasSubstr(fmt::format(": f32 [{}] in ", most)));
        expect_declared(s, whole_numbers({y}, round));
    }
}

// Terms of a triangle's blocks: no box is larger than what the last row sums.
TEST_P(Regions, BoxesOfTriangles) {
    for (int64_t columns : {20, 32, 50}) {
        Tensor x = input("x", f32, {32, 64});
        Tensor y = compute("y", {32, columns}, [&](Expr i, Expr j) {
            Axis k = reduce_axis("k", i / 8 * 8 + 8);
            return sum(x(i, k) * x(i, k + j % 16), k);
        });
        Schedule s({y}, device_target());
        auto [i, j] = s.loops<2>(y);
        auto [bi, ii] = s.split(i, 8);
        s.order({bi, ii, j});
        s.bind(bi, grid.x);
        s.bind(j, thread);
        s.stage(y, x, Memory::Shared, bi);
        EXPECT_THAT(s.to_string(), testing::HasSubstr("f32 [8, 47] in shared"));
        expect_declared(s, whole_numbers({y}, 3));
    }
}

}  // namespace
}  // namespace tw
