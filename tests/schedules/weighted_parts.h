// A sum of products, each of them by weights of its rows, as a schedule of one's own: what blocks of scales, experts
// and chunks of linear attention have in common.
#pragma once
#include <optional>

#include "schedules/catalog.h"
#include "tests/schedules/expect_right.h"

namespace tw::schedules {

/// c[i, j] = sum_part weight[part, i] (the product of the terms of a part), of these rows in tiles of 64, 64 columns
/// and so many parts of five, each of 64 terms; the weights come by this memory, if any.
inline Schedule weighted_parts(int64_t rows, const Extent& parts, std::optional<Memory> by = {}) {
    const int64_t most = 5, terms = 64;
    const Tensor a = input("a", bf16, {rows, most * terms}), b = input("b", bf16, {64, most * terms});
    const Tensor weight = input("weight", f32, {parts, rows});
    const Axis inside = reduce_axis("inside", terms), part = reduce_axis("part", parts);
    const Tensor product = compute("product", {most, rows, 64}, [&](Expr p, Expr i, Expr j) {
        return sum(cast(f32, a(i, p * terms + inside)) * cast(f32, b(j, p * terms + inside)), inside);
    });
    const Tensor c =
        compute("c", {rows, 64}, [&](Expr i, Expr j) { return sum(product(part, i, j) * weight(part, i), part); });
    Schedule s({c}, target("sm_90a"));
    auto [i, j] = s.loops<2>(c);
    Loop step = s.reduce(c);
    auto [tile, row] = s.split(i, 64, Tail::Mask, {"tile", "row"});
    auto [group, own] = s.split(row, 64, {"group", "own"});
    s.order({tile, group, step, own, j});
    s.bind(tile, grid.x);
    s.bind(group, warpgroup);
    s.at(product, step);
    s.set_memory(product, Memory::Registers);
    auto [p, pi, pj] = s.loops<3>(product);
    auto [outer, inner] = s.split(s.reduce(product), 64, Tail::Mask, {"outer", "inner"});
    s.order({p, outer, pi, pj, inner});
    s.stage(product, a, Memory::Shared, outer);
    s.stage(product, b, Memory::Shared, outer);
    if (by) s.stage(c, weight, *by, step);
    s.mma(product, wgmma, {.m = pi, .n = pj, .k = inner});
    return s;
}

}  // namespace tw::schedules
