// What tutorials 13 and 14 share: products of bf16 in the tiles of tutorial 12, whatever is made of them.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "include/tilewright/dsl.h"

namespace tw {

/// A product over rows of `a` and of `b`, and what is made of it.
struct Product {
    Tensor a, b;
    std::vector<Tensor> outputs;
};

using Epilogue = std::function<std::vector<Expr>(const Expr& sum, const Expr& i, const Expr& j)>;

/// Outputs over [m, n], made of sum_k a[i, k] * b[j, k] and its indices.
inline Product product(const std::string& name, int64_t m, int64_t n, int64_t k, const Epilogue& epilogue) {
    Product p{input("a", bf16, {m, k}), input("b", bf16, {n, k}), {}};
    Axis r = reduce_axis("k", k);
    p.outputs = compute_tuple(name, {m, n}, [&](const std::vector<Expr>& at) {
        return epilogue(sum(cast(f32, p.a(at[0], r)) * cast(f32, p.b(at[1], r)), r), at[0], at[1]);
    });
    return p;
}

/// What tutorial 12 has below the loop over k: boxes by one role; products, and all that is made of them, by another.
inline void load_and_multiply(Schedule& s, const StageRef& sums, const Tensor& a, const Tensor& b, Loop ko,
                              const MmaLoops& loops, const Tensor& result) {
    Stage as = s.stage(sums, a, Memory::Shared, ko), bs = s.stage(sums, b, Memory::Shared, ko);
    s.mma(sums, wgmma, loops);
    s.pipeline(ko, {.stages = 3, .in_flight = 1});
    s.roles({{"load", warps(1), registers(40), {as, bs}}, {"math", warpgroups(2), registers(232), {result}}});
}

/// Tutorial 12's tiles of 128 x 64: the loop whose iteration makes one, and those below.
struct Tiles {
    Loop tile, ko;
    MmaLoops unit;
};

inline Tiles tiles_of(Schedule& s, const Tensor& c, int blocks) {
    auto [i, j] = s.loops<2>(c);
    auto [bi, it] = s.split(i, 128, Tail::Mask, {"bi", "it"});
    auto [bj, nj] = s.split(j, 64, Tail::Mask, {"bj", "nj"});
    auto [wi, mi] = s.split(it, 64, {"wi", "mi"});
    auto [ko, ki] = s.split(s.reduce(c), 64, Tail::Mask, {"ko", "ki"});
    s.order({bi, bj, wi, ko, mi, nj, ki});
    s.persistent({bi, bj}, {.blocks = blocks});
    s.bind(wi, warpgroup);
    return {bj, ko, {.m = mi, .n = nj, .k = ki}};
}

}  // namespace tw
