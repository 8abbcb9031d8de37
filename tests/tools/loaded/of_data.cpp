// Kernels whose addresses and loops data decide.
#include <tilewright/kernel.h>

using namespace tw;

TW_KERNEL("loaded_gather", [](const Target& target) -> Schedule {
    Tensor x = input("x", f32, {4, 8}), row = input("row", i32, {32});
    Tensor y = compute("y", {32, 8}, [&](Expr i, Expr j) { return x(row(i), j) * 2.0f; });
    Schedule s({y}, target);
    auto [i, j] = s.loops<2>(y);
    s.bind(i, grid.x);
    s.bind(j, thread);
    s.stage(y, x, Memory::Shared, i);
    return s;
});

TW_KERNEL("loaded_lengths", [](const Target& target) -> Schedule {
    Tensor x = input("x", f32, {16, 24}), length = input("length", i32, {16});
    Tensor y = compute("y", {16}, [&](Expr i) {
        Axis r = reduce_axis("r", length(i));
        return sum(x(i, r), r);
    });
    Schedule s({y}, target);
    s.bind(s.loops<1>(y)[0], thread);
    return s;
});

TW_KERNEL("loaded_segments", [](const Target& target) -> Schedule {
    Expr n = size("n", {.min = 1, .max = 300});
    Tensor x = input("x", f32, {n}), first = input("first", i32, {17});
    std::vector<Tensor> best = compute_tuple("best", {"value", "place"}, {16}, [&](const std::vector<Expr>& i) {
        Axis r = reduce_axis("r", first(i[0] + 1) - first(i[0]));
        return argmax(x(first(i[0]) + r), r);
    });
    Schedule s(best, target);
    s.bind(s.loops<1>(best[0])[0], thread);
    return s;
});
