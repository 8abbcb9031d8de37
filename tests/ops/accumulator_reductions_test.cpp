// Reductions over sums of tensor cores, whose elements lanes share: through shared memory, or within lanes, which then
// combine their parts. Whole numbers, bit for bit.
#include <fmt/format.h>

#include "tests/ops/random_cases.h"
#include "tests/ops/whole_numbers.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

class AccumulatorReductions : public RandomCases {
protected:
    AccumulatorReductions() : RandomCases(41) {}
};
TW_ON_EACH_DEVICE(AccumulatorReductions);

enum class Along { Rows, Columns, Both };
enum class Reducer { Sum, Max, Argmax };

struct Options {
    bool group = true;  ///< wgmma, else mma_sync
    int64_t m = 64, n = 32, blocks = 1;
    Along along = Along::Columns;
    Reducer reducer = Reducer::Sum;
    bool elements = false;    ///< the reduction is over elements made of the sums, in registers of their own
    bool terms_first = true;  ///< loops ordered terms, then data
    int64_t inner = 0;        ///< the terms' last loop is split so, if that divides
    int64_t tiles = 1;        ///< of terms, one after another: each is multiplied where it is reduced
};

/// r, reduced over rows, columns or both of a product of m x n, in blocks of what it keeps.
struct Reduced {
    Tensor a, b, product, elements;
    std::vector<Tensor> results;

    explicit Reduced(const Options& o) {
        int64_t rows = o.m * (o.along == Along::Columns ? o.blocks : o.along == Along::Rows ? o.tiles : 1);
        int64_t columns = o.n * (o.along == Along::Rows ? o.blocks : o.along == Along::Columns ? o.tiles : 1);
        a = input("a", bf16, {rows, 32}), b = input("b", bf16, {columns, 32});
        Axis k = reduce_axis("k", 32), u = reduce_axis("u", rows), w = reduce_axis("w", columns);
        product = compute("product", {rows, columns},
                          [&](Expr i, Expr j) { return sum(cast(f32, a(i, k)) * cast(f32, b(j, k)), k); });
        elements = compute("elements", {rows, columns}, [&](Expr i, Expr j) { return relu(product(i, j)) + 1.0; });
        const Tensor& from = o.elements ? elements : product;
        auto reduced = [&](const Expr& x, const std::vector<Axis>& axes) {
            if (o.reducer == Reducer::Argmax) return argmax(x, axes[0]);
            return std::vector<Expr>{o.reducer == Reducer::Sum ? sum(x, axes) : reduce_max(x, axes)};
        };
        int64_t kept = o.along == Along::Columns ? rows : o.along == Along::Rows ? columns : 1;
        results = compute_tuple("r", {kept}, [&](const std::vector<Expr>& at) {
            if (o.along == Along::Columns) return reduced(from(at[0], w), {w});
            if (o.along == Along::Rows) return reduced(from(u, at[0]), {u});
            return reduced(from(u, w) + cast(f32, at[0]), {u, w});
        });
    }
};

/// What `reader` reads stands under the loop: the product, multiplied there, and elements, if they are used.
void place(Schedule& s, const Reduced& p, const Options& o, const Loop& loop, Memory memory) {
    if (o.elements) {
        s.at(p.elements, loop);
        s.set_memory(p.elements, memory);
    }
    s.at(p.product, loop);
    s.set_memory(p.product, o.elements ? Memory::Registers : memory);
    auto [i, j] = s.loops<2>(p.product);
    auto [ko, ki] = s.split(s.reduce(p.product), 16);
    s.order({ko, i, j, ki});
    s.stage(p.product, p.a, Memory::Shared, ko);
    s.stage(p.product, p.b, Memory::Shared, ko);
    s.mma(p.product, o.group ? wgmma : mma_sync, {.m = i, .n = j, .k = ki});
}

Schedule scheduled(const Reduced& p, const Options& o, const Target& target, Memory memory) {
    Schedule s(p.results, target);
    auto [i] = s.loops<1>(p.results[0]);
    auto [block, inside] = s.split(i, o.along == Along::Columns ? o.m : o.along == Along::Rows ? o.n : 1);
    std::vector<Loop> terms{s.reduce(p.results[0])};
    if (o.along == Along::Both) terms.push_back(s.reduce(p.results[0], 1));
    if (o.inner && o.tiles == 1) {
        auto [outer, inner] = s.split(terms.back(), o.inner);
        terms.back() = outer;
        terms.push_back(inner);
    }
    std::vector<Loop> order{block};
    Loop tile = block;
    if (o.tiles > 1) {
        auto [outer, inner] = s.split(terms[0], o.along == Along::Rows ? o.m : o.n);
        terms[0] = inner;
        order.push_back(tile = outer);
    }
    if (!o.terms_first) order.push_back(inside);
    order.insert(order.end(), terms.begin(), terms.end());
    if (o.terms_first) order.push_back(inside);
    s.order(order);
    s.bind(block, grid.x);
    place(s, p, o, tile, memory);
    return s;
}

TEST_P(AccumulatorReductions, AreRightOrRefused) {
    int combined = 0;
    for (int round = 0; round < 20; ++round) {
        Options o{.group = chance(), .n = 8 * between(2, 6), .blocks = between(1, 2)};
        o.m = o.group ? 64 : 16 * between(1, 3);
        o.along = static_cast<Along>(between(0, 2));
        o.reducer = static_cast<Reducer>(between(0, o.along == Along::Both ? 1 : 2));
        o.elements = chance();
        o.terms_first = between(0, 3) > 0;
        if (o.along != Along::Both && o.terms_first) o.tiles = between(1, 3);
        int64_t terms = o.along == Along::Rows ? o.m : o.n;
        for (int64_t inner : {2, 4, 8, 16})
            if (chance() && terms % inner == 0 && o.reducer != Reducer::Argmax) o.inner = inner;
        Reduced p(o);
        Schedule shared = scheduled(p, o, device_target(), Memory::Shared);
        SCOPED_TRACE(shared.trace_as_cpp());
        expect_declared(shared, whole_numbers(p.results, round));
        Schedule registers = scheduled(p, o, device_target(), Memory::Registers);
        try {
            const std::string explained = build(registers).explain();
            EXPECT_NE(explained.find("lanes combine their parts of it"), std::string::npos) << explained;
            expect_declared(registers, whole_numbers(p.results, round + 100));
            ++combined;
        } catch (const Error& error) {
            std::string what = error.what();
            EXPECT_NE(what.find("lives in registers, but an element that one thread writes"), std::string::npos)
                << what;
            // The step that placed the accumulators, or the elements made of them, under the reduction.
            EXPECT_EQ(what.find("accumulator_reductions_test.cpp:"), 0u) << what;
            EXPECT_NE(what.find(": s.at("), std::string::npos) << what;
        }
    }
    EXPECT_GT(combined, 5);
}

/// y = product - its row's (or column's) largest, all in registers: whoever reads a total has it.
TEST_P(AccumulatorReductions, AreReadInRegisters) {
    for (bool group : {false, true})
        for (bool rows : {false, true}) {
            const int64_t m = group ? 64 : 32, n = 40;
            Tensor a = input("a", bf16, {2 * m, 32}), b = input("b", bf16, {n, 32});
            Axis k = reduce_axis("k", 32), t = reduce_axis("t", rows ? m : n);
            Tensor product = compute("product", {2 * m, n},
                                     [&](Expr i, Expr j) { return sum(cast(f32, a(i, k)) * cast(f32, b(j, k)), k); });
            Tensor largest = compute("largest", rows ? Shape{2, n} : Shape{2 * m}, [&](const std::vector<Expr>& at) {
                return reduce_max(rows ? product(at[0] * m + t, at[1]) : product(at[0], t), t);
            });
            Tensor y = compute("y", {2 * m, n},
                               [&](Expr i, Expr j) { return product(i, j) - (rows ? largest(i / m, j) : largest(i)); });
            Schedule s({y}, device_target());
            auto [i, j] = s.loops<2>(y);
            auto [block, mi] = s.split(i, m);
            s.bind(block, grid.x);
            for (const Tensor& placed : {largest, product}) {
                s.at(placed, block);
                s.set_memory(placed, Memory::Registers);
            }
            std::vector<Loop> order{s.reduce(largest)};
            for (Loop loop : s.data_loops(largest)) order.push_back(loop);
            s.order(order);
            auto [pi, pj] = s.loops<2>(product);
            auto [ko, ki] = s.split(s.reduce(product), 16);
            s.order({ko, pi, pj, ki});
            s.stage(product, a, Memory::Shared, ko);
            s.stage(product, b, Memory::Shared, ko);
            s.mma(product, group ? wgmma : mma_sync, {.m = pi, .n = pj, .k = ki});
            SCOPED_TRACE(s.trace_as_cpp());
            expect_declared(s, whole_numbers({y}, 3));
        }
}

// Each lane adds what it has of the columns, or rows, that are as far apart as tiles of the unit; those parts leave the
// registers, and are added by a kernel behind.
TEST_P(AccumulatorReductions, OfALanesOwn) {
    for (int round = 0; round < 8; ++round) {
        Options o{.group = chance(), .n = 8 * between(2, 6), .blocks = between(1, 2)};
        o.m = o.group ? 64 : 16 * between(2, 3);
        o.along = o.group || chance() ? Along::Columns : Along::Rows;
        o.reducer = chance() ? Reducer::Sum : Reducer::Max;
        o.elements = chance();
        Reduced p(o);
        Schedule s(p.results, device_target());
        auto [tiles, lanes] = s.split(s.reduce(p.results[0]), o.along == Along::Columns ? 8 : 16);
        Stage parts = s.rfactor(p.results[0], lanes);
        std::vector<Loop> data = s.data_loops(parts);
        ASSERT_EQ(data.size(), 2u);
        auto [block, inside] = s.split(data[1], o.along == Along::Columns ? o.m : o.n);
        s.order({block, s.reduce(parts), data[0], inside});
        s.bind(block, grid.x);
        place(s, p, o, block, Memory::Registers);
        SCOPED_TRACE(s.trace_as_cpp());
        expect_declared(s, whole_numbers(p.results, round));
    }
}

// Who follows a tile reduces over it in shared memory.
TEST_P(AccumulatorReductions, BehindATile) {
    for (bool group : {false, true})
        for (bool rows : {false, true}) {
            int64_t m = group ? 64 : 16, n = 32;
            Tensor a = input("a", bf16, {2 * m, 32}), b = input("b", bf16, {2 * n, 32});
            Axis k = reduce_axis("k", 32), t = reduce_axis("t", rows ? m : n);
            Tensor y = compute("y", {2 * m, 2 * n}, [&](Expr i, Expr j) {
                return cast(bf16, relu(sum(cast(f32, a(i, k)) * cast(f32, b(j, k)), k)));
            });
            Tensor z =
                rows ? compute("z", {2, 2 * n}, [&](Expr q, Expr j) { return sum(cast(f32, y(q * m + t, j)), t); })
                     : compute("z", {2 * m, 2}, [&](Expr i, Expr q) { return sum(cast(f32, y(i, q * n + t)), t); });
            auto with_tile_in = [&](Memory memory) {
                Schedule s({y, z}, device_target());
                auto [i, j] = s.loops<2>(y);
                auto [bi, mi] = s.split(i, m);
                auto [bj, nj] = s.split(j, n);
                auto [ko, ki] = s.split(s.reduce(y), 32);
                s.order({bi, bj, ko, mi, nj, ki});
                s.bind(bi, grid.y);
                s.bind(bj, grid.x);
                s.at(z, bj);
                if (memory == Memory::Registers) s.order({s.reduce(z), s.data_loops(z)[0], s.data_loops(z)[1]});
                s.stage(y, memory, bj);
                s.stage(y, a, Memory::Shared, ko);
                s.stage(y, b, Memory::Shared, ko);
                s.mma(y, group ? wgmma : mma_sync, {.m = mi, .n = nj, .k = ki});
                return s;
            };
            expect_declared(with_tile_in(Memory::Shared), whole_numbers({y, z}, 5));
            expect_declared(with_tile_in(Memory::Registers), whole_numbers({y, z}, 6));
        }
}

// Also where a reduction is a product that a unit computes, of bytes, whose lanes have other terms.
/// Rows of a triangle in ragged tiles: where its diagonal leaves terms out in any row that there is, no mask asks
/// whether they exist; a diagonal further right needs the mask.
TEST_P(AccumulatorReductions, OfTriangles) {
    constexpr int64_t tile = 32;
    for (int round = 0; round < 8; ++round) {
        const int64_t n = between(65, 150), beyond = between(-3, 3), kind = between(0, 2);
        Tensor a = input("a", bf16, {n, 32}), b = input("b", bf16, {n, 32});
        Axis k = reduce_axis("k", 32), w = reduce_axis("w", n);
        Tensor product =
            compute("product", {n, n}, [&](Expr i, Expr j) { return sum(cast(f32, a(i, k)) * cast(f32, b(j, k)), k); });
        const Expr outside = kind == 0 ? -infinity : kind == 1 ? infinity : constant(f32, 0.0);
        Tensor elements = compute(
            "elements", {n, n}, [&](Expr i, Expr j) { return select(j <= i + beyond, product(i, j) - 5.0, outside); });
        Tensor r = compute("r", {n}, [&](Expr i) {
            const Expr x = elements(i, w) * 2.0;
            return kind == 0 ? reduce_max(x, w) : kind == 1 ? reduce_min(x, w) : sum(x, w);
        });
        Schedule s({r}, device_target());
        auto [block, row] = s.split(s.loops<1>(r)[0], 64, Tail::Mask);
        auto [step, term] = s.split(s.reduce(r), tile, Tail::Mask);
        s.order({block, step, term, row});
        s.bind(block, grid.x);
        s.at(elements, step);
        s.set_memory(elements, Memory::Registers);
        s.at(product, step);
        s.set_memory(product, Memory::Registers);
        auto [i, j] = s.loops<2>(product);
        auto [ko, ki] = s.split(s.reduce(product), 16);
        s.order({ko, i, j, ki});
        s.stage(product, a, Memory::Shared, step);
        s.stage(product, b, Memory::Shared, step);
        s.mma(product, chance() ? wgmma : mma_sync, {.m = i, .n = j, .k = ki});
        SCOPED_TRACE(s.trace_as_cpp());
        expect_declared(s, whole_numbers({r}, round));
        const bool no_mask = build(s).explain().find("selects leave terms out") != std::string::npos;
        EXPECT_EQ(no_mask, beyond <= 0 && n % tile != 0) << n << " rows, diagonal " << beyond << ", kind " << kind;
    }
}

/// What a condition reads before the one that leaves a term out is read for that term, too: the mask stays with it.
TEST_P(AccumulatorReductions, OfSelectsThatReadBeforeTheyAskKeepTheirMasks) {
    for (const bool asks_first : {false, true}) {
        const int64_t terms = 32 * between(0, 2) + between(4, 31);
        const Tensor x = input("x", f32, {3}), place = input("place", i32, {terms});
        const Axis r = reduce_axis("r", terms);
        const Tensor y = compute("y", {11}, [&](Expr i) {
            const Expr here = r < 3, counts = cast(i64, place(r)) == i;
            return sum(select(asks_first ? here && counts : counts && here, padded(x, 0)(r), 0), r);
        });
        Schedule s({y}, device_target());
        s.bind(s.split(s.reduce(y), 32, Tail::Mask)[1], thread);
        SCOPED_TRACE(s.trace_as_cpp());
        expect_declared(s, whole_numbers({y}, 1));
        const bool no_mask = build(s).explain().find("selects leave terms out") != std::string::npos;
        EXPECT_EQ(no_mask, asks_first) << s.trace_as_cpp();
    }
}

/// A product with an element that selects make zero still reads the other one: the mask stays with which that is
/// copied, or else was never stored.
TEST_P(AccumulatorReductions, OfProductsWithCopiesThatMasksCut) {
    for (int round = 0; round < 6; ++round) {
        const int64_t taps = between(3, 7), n = between(1, 4);
        const Tensor w = input("w", f32, {taps}), x = input("x", f32, {n});
        const Axis t = reduce_axis("t", taps);
        const Tensor y = compute("y", {n}, [&](Expr i) { return sum(w(t) * padded(x, 0)(i + t - 3), t); });
        Schedule s({y}, device_target());
        auto [block, inside] = s.split(s.reduce(y), 8, Tail::Mask);
        s.stage(y, w, Memory::Registers, inside);
        s.split(block, between(2, 5), Tail::Mask);
        SCOPED_TRACE(s.trace_as_cpp());
        expect_declared(s, whole_numbers({y}, round));
    }
}

TEST(AccumulatorReductionErrors, NameTheStagesAndTheWayOut) {
    Tensor q = input("q", bf16, {32, 16}), k = input("k", bf16, {32, 16}), v = input("v", f32, {32, 16});
    Axis t = reduce_axis("t", 16), u = reduce_axis("u", 32);
    Tensor scores =
        compute("scores", {32, 32}, [&](Expr i, Expr j) { return sum(cast(f32, q(i, t)) * cast(f32, k(j, t)), t); });
    Tensor p = compute("p", {32, 32}, [&](Expr i, Expr j) { return relu(scores(i, j)); });
    Tensor o =
        compute("o", {32, 16}, [&](Expr i, Expr j) { return sum(truncate_tf32(p(i, u)) * truncate_tf32(v(u, j)), u); });
    auto attempt = [&](Memory memory) {
        Schedule s({o}, target("sm_90a"));
        auto [i, j] = s.loops<2>(o);
        auto [wi, mi] = s.split(i, 16);
        auto [uo, ui] = s.split(s.reduce(o), 32);
        s.order({wi, uo, mi, j, ui});
        s.bind(wi, warp);
        s.at(p, uo);
        s.at(scores, uo);
        s.set_memory(scores, Memory::Registers);
        s.set_memory(p, memory);
        s.stage(o, v, Memory::Shared, uo);
        s.mma(o, mma_sync, {.m = mi, .n = j, .k = ui});
        auto [si, sj] = s.loops<2>(scores);
        auto [to, ti] = s.split(s.reduce(scores), 16);
        s.order({to, si, sj, ti});
        s.stage(scores, q, Memory::Shared, to);
        s.stage(scores, k, Memory::Shared, to);
        s.mma(scores, mma_sync, {.m = si, .n = sj, .k = ti});
        build(s);
    };
    attempt(Memory::Shared);
    EXPECT_ERROR(attempt(Memory::Registers),
                 "'o' reduces over the columns of 'p' by the loop 'u_inner', but lanes share these accumulators in "
                 "registers, from where mma_m16n8k8 takes rows of elements of 1 or 2 bytes alone; keep 'p' in shared "
                 "memory and reduce there: "
                 "set_memory(p, Memory::Shared), or stage a copy");
}

/// Lanes have terms in an order of their own: the last of those that count cannot be told.
TEST(AccumulatorReductionErrors, OfReducersThatDoNotCommute) {
    Tensor a = input("a", bf16, {16, 16}), b = input("b", bf16, {16, 16});
    Axis k = reduce_axis("k", 16), t = reduce_axis("t", 16);
    Tensor product =
        compute("product", {16, 16}, [&](Expr i, Expr j) { return sum(cast(f32, a(i, k)) * cast(f32, b(j, k)), k); });
    auto last = make_reducer(
        "last", {Expr(0.0)},
        [](const std::vector<Expr>& x, const std::vector<Expr>& y) {
            return std::vector{select(y[0] != 0.0, y[0], x[0])};
        },
        false);
    Tensor r = compute("r", {16}, [&](Expr i) { return reduce(last, {product(i, t)}, {t})[0]; });
    Schedule s({r}, target("sm_90a"));
    auto [i] = s.loops<1>(r);
    auto [block, inside] = s.split(i, 16);
    s.order({block, s.reduce(r), inside});
    s.bind(block, grid.x);
    s.at(product, block);
    s.set_memory(product, Memory::Registers);
    auto [pi, pj] = s.loops<2>(product);
    auto [ko, ki] = s.split(s.reduce(product), 16);
    s.order({ko, pi, pj, ki});
    s.mma(product, mma_sync, {.m = pi, .n = pj, .k = ki});
    EXPECT_ERROR(build(s), "in no order, and the reducer 'last' is not commutative; keep 'product' in shared");
}

}  // namespace
}  // namespace tw
