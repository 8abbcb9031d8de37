// Scans: sums, maxima, recurrences of all terms up to a place, in linear work. Whole numbers, bit for bit.
#include "dsl/declare_scan.h"
#include "dsl/differentiate.h"
#include "tests/ops/random_cases.h"
#include "tests/ops/whole_numbers.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

class Scans : public RandomCases {
protected:
    Scans() : RandomCases(43) {}

    /// h_t = a_t h_{t-1} + b_t, in numbers modulo 2^32: pairs (a, b) that are not commutative.
    static Reducer recurrence() {
        return make_reducer(
            "recurrence", {constant(Type::I32, 1), constant(Type::I32, 0)},
            [](const std::vector<Expr>& a, const std::vector<Expr>& b) {
                return std::vector<Expr>{a[0] * b[0], b[0] * a[1] + b[1]};
            },
            false);
    }

    /// Along `axis` of [rows, columns], by one of several reducers.
    Tensor random_scan(int64_t rows, int64_t columns, int axis, const ScanOptions& options) {
        const int kind = between(0, 4);
        Tensor x = input("x", kind == 1 ? f32 : i32, {rows, columns});
        Axis j = reduce_axis("j", axis == 0 ? rows : columns);
        return compute("y", {rows, columns}, [&](Expr r, Expr c) {
            const Expr t = axis == 0 ? r : c;
            const Expr term = axis == 0 ? x(j, c) : x(r, j);
            if (kind == 0) return scan(sum, term, j, t, options);
            if (kind == 1) return scan(sum, term, j, t, options) * 2 + 1;
            if (kind == 2) return scan(reduce_max, term, j, t, options);
            if (kind == 3) return scan(reduce_min, term * 3 - 1, j, t, options);
            return scan(recurrence(), {term, term + cast(i32, j)}, j, t, options)[1];
        });
    }

    /// Splits the running loop into steps, threads and terms of a thread, some of them absent.
    void split_among_threads(Schedule& s, Loop running) {
        const int form = between(0, 5);
        const int64_t share = form < 3 ? int64_t{1} << between(1, 6) : between(2, 70), own = between(1, 5);
        auto [step, in_step] = s.split(running, share * own, Tail::Mask, {"step", "in_step"});
        auto [part, term] = s.split(in_step, own, Tail::Mask, {"part", "term"});
        if (form % 3 == 1 && share % 2 == 0) {
            auto [group, member] = s.split(part, share / 2, {"group", "member"});
            s.bind(group, thread);
            s.bind(member, thread);
        } else if (form != 5) {
            s.bind(part, thread);
        }
    }

    /// Parts for blocks, whose totals are a scan of their own.
    void take_apart(Schedule& s, const Tensor& y, Loop running, Loop other) {
        Stage totals = s.rfactor(y, s.split(running, between(1, 40), Tail::Mask)[0]);
        Stage before = s.readers(totals)[0];
        (void)other;
        for (Loop loop : s.all_loops(before))
            if (chance() && as_constant(s.extent(loop)).value_or(0) <= 16) s.bind(loop, thread);
        if (chance()) s.bind(s.reduce(totals), thread);
        split_among_threads(s, s.all_loops(y).back());
    }
};
TW_ON_EACH_DEVICE(Scans);

TEST_P(Scans, AnyReducerAxisDirectionAndSchedule) {
    for (int round = 0; round < 60; ++round) {
        const int axis = between(0, 1);
        const ScanOptions options{.exclusive = chance(), .reverse = chance()};
        Tensor y = random_scan(between(1, 9), between(1, 150), axis, options);
        Schedule s({y}, device_target());
        auto [r, c] = s.loops<2>(y);
        Loop along = axis == 0 ? r : c, other = axis == 0 ? c : r;
        const int form = between(0, 5);
        if (form > 0) {
            along = s.running(y, along);
            s.order(chance() ? std::vector<Loop>{other, along} : std::vector<Loop>{along, other});
        }
        if (form == 2) s.split(along, between(1, 9), Tail::Mask);
        if (form == 3 || form == 4) split_among_threads(s, along);
        if (form == 5) take_apart(s, y, along, other);
        SCOPED_TRACE(s.trace_as_cpp());
        SCOPED_TRACE(s.to_string());
        const Bindings data = whole_numbers({y}, round);
        s.check_each_step(data);
        EXPECT_EQ(replay(s.save(), {y}, device_target()).to_string(), s.to_string());
        expect_declared(s, data);
        if (HasFailure()) return;
    }
}

// The gradient of a scan of sums is a scan that runs the other way: as whole numbers, and known as one.
/// What a condition keeps in the tensor for all terms but the last one, which nobody counts.
TEST_P(Scans, OfAllButOneTermReadNoOther) {
    for (const bool reverse : {false, true}) {
        const Tensor x = input("x", f32, {3, 113});
        const Axis j = reduce_axis("j", 114);
        const Tensor y = compute("y", {3, 114}, [&](Expr i, Expr t) {
            const Expr term = padded(x, 0)(i, reverse ? j - 1 : Expr(j));
            return scan(sum, term, j, t, {.exclusive = true, .reverse = reverse});
        });
        Schedule s({y}, device_target());
        split_among_threads(s, s.running(y, s.loops<2>(y)[1]));
        SCOPED_TRACE(s.trace_as_cpp());
        expect_declared(s, whole_numbers({y}, 1));
    }
}

TEST_P(Scans, GradientsAreScans) {
    for (int round = 0; round < 12; ++round) {
        const ScanOptions options{.exclusive = round % 2 == 1, .reverse = round / 2 % 2 == 1};
        const int64_t rows = between(1, 5), columns = between(2, 60);
        Tensor x = input("x", f32, {rows, columns}), dy = input("dy", f32, {rows, columns});
        Axis j = reduce_axis("j", columns);
        Tensor y = compute("y", {rows, columns}, [&](Expr i, Expr t) { return scan(sum, x(i, j), j, t, options) * 3; });
        const std::vector<Tensor> gradient = gradients(y, dy, {x});
        Schedule s(gradient, device_target());
        split_among_threads(s, s.running(gradient[0], s.loops<2>(gradient[0])[1]));
        SCOPED_TRACE(s.trace_as_cpp());
        expect_declared(s, whole_numbers(gradient, round));
        // By its meaning: x[u] counts for y[t] at every t that has it among its terms.
        Axis t = reduce_axis("t", columns);
        Tensor meant = compute("meant", {rows, columns}, [&](Expr i, Expr u) {
            const Expr a = options.reverse ? Expr(t) : u, b = options.reverse ? u : Expr(t);
            return sum(select(options.exclusive ? a < b : a <= b, dy(i, t) * 3, 0), t);
        });
        const Bindings data = whole_numbers({meant}, round);
        const auto differs = difference("d_x", interpret_plain(gradient, data)[0], interpret_plain({meant}, data)[0]);
        EXPECT_FALSE(differs) << *differs;
    }
}

// Offsets of rows of many lengths, in the kernel that gathers by them: a scan that others read, placed and then run.
TEST_P(Scans, OffsetsThatRowsAreGatheredBy) {
    const int64_t rows = 37, most = 6;
    Tensor lengths = input("lengths", i32, {rows}), packed = input("packed", f32, {rows * most});
    Axis j = reduce_axis("j", rows), term = reduce_axis("term", most);
    Tensor offsets = compute("offsets", {rows}, [&](Expr i) {
        return scan(sum, min(max(cast(i64, lengths(j)), 0), most), j, i, {.exclusive = true});
    });
    Tensor sums = compute("sums", {rows}, [&](Expr i) {
        return sum(select(term < cast(i64, lengths(i)), packed(min(offsets(i) + term, rows * most - 1)), 0), term);
    });
    Schedule s({sums}, device_target());
    auto [block, row] = s.split(s.loops<1>(sums)[0], 37);
    s.bind(block, grid.x);
    s.bind(row, thread);
    s.at(offsets, block);
    s.set_memory(offsets, Memory::Shared);
    Loop along = s.running(offsets, s.loops<1>(offsets)[0]);
    auto [part, own] = s.split(along, 2, Tail::Mask);
    s.bind(part, thread);
    Bindings data = whole_numbers({sums}, 3);
    fill_integers(data.inputs.at("lengths"), 0, static_cast<int>(most), 5);
    expect_declared(s, data);
}

// A moving average: the difference of two elements of one scan, over columns side by side.
TEST_P(Scans, MovingSumsAsDifferences) {
    const int64_t steps = 75, columns = 48, window = 8;
    Tensor x = input("x", f32, {steps, columns});
    Axis j = reduce_axis("j", steps);
    Tensor total = compute("total", {steps, columns}, [&](Expr t, Expr c) { return scan(sum, x(j, c), j, t); });
    Tensor y = compute("y", {steps, columns}, [&](Expr t, Expr c) {
        return total(t, c) - select(t >= window, total(max(t - window, 0), c), 0);
    });
    Schedule s({y}, device_target());
    auto [t, c] = s.loops<2>(total);
    Loop along = s.running(total, t);
    auto [thread_of, element] = s.split(c, 4);
    s.order({thread_of, along, element});
    s.bind(thread_of, thread);
    s.bind(element, vector);
    expect_declared(s, whole_numbers({y}, 1));
}

// Floats in f16 and f32, accumulated in f32: the error against float64 is that of a sum in any order.
TEST_P(Scans, OfFloatsAreCloseToFloat64) {
    for (Type type : {Type::F16, Type::F32}) {
        const int64_t columns = 3000;
        Tensor x = input("x", type, {2, columns});
        Axis j = reduce_axis("j", columns);
        Tensor y = compute("y", {2, columns}, [&](Expr i, Expr t) { return scan(sum, cast(f32, x(i, j)), j, t); });
        Schedule s({y}, device_target());
        auto [step, share, term] =
            s.split(s.running(y, s.loops<2>(y)[1]), {512, 4}, Tail::Mask, {"step", "share", "term"});
        s.bind(share, thread);
        const Bindings data = random_bindings({y}, 7);
        Executable executable(build(s), device_);
        const CheckResult check = check_output(y, data, run_on(executable, data)[0]);
        EXPECT_TRUE(check.ok) << check.text;
    }
}

TEST_P(Scans, WhatIsNoScanIsRefused) {
    Tensor x = input("x", f32, {8, 16});
    Axis j = reduce_axis("j", 16), k = reduce_axis("k", 4);
    auto scheduled = [&](const Tensor& y) { return Schedule({y}, device_target()); };
    auto declared = [&](const auto& body) { return compute("y", {8, 16}, body); };
    Tensor plain = declared([&](Expr i, Expr t) { return x(i, t) + 1.0; });
    Tensor all = declared([&](Expr i, Expr t) { return sum(x(i, j) * cast(f32, t), j); });
    Tensor changing = declared([&](Expr i, Expr t) { return scan(sum, x(i, j) * cast(f32, t), j, t); });
    Tensor two = declared([&](Expr i, Expr t) {
        Axis up = reduce_axis("up", t + 1);
        return sum(x(i, up) * cast(f32, k), {up, k});
    });
    Tensor backwards = declared([&](Expr i, Expr t) {
        Axis from = reduce_axis("from", 16 - t);
        return cast(f32, reduce(recurrence(), {cast(i32, x(i, t + from)), cast(i32, x(i, t + from) + 1.0)}, {from})[1]);
    });
    Tensor y = declared([&](Expr i, Expr t) { return scan(sum, x(i, j), j, t); });
    auto run = [&](const Tensor& what, int loop) {
        Schedule s = scheduled(what);
        s.running(what, s.loops<2>(what)[loop]);
    };
    EXPECT_ERROR(run(plain, 1), "reduces nothing, so there is nothing to scan");
    EXPECT_ERROR(run(all, 1), "an element has 16 terms, which is neither the iteration nor one more");
    EXPECT_ERROR(run(y, 0), "which is neither the iteration nor one more");
    EXPECT_ERROR(run(changing, 1), "the terms themselves change with");
    EXPECT_ERROR(run(two, 1), "'y' reduces along 2 axes");
    EXPECT_ERROR(run(backwards, 1), "declare the scan in reverse");
    Schedule s = scheduled(y);
    auto [i, t] = s.loops<2>(y);
    Schedule touched = s;
    touched.split(touched.reduce(y), 4, Tail::Mask);
    EXPECT_ERROR(touched.running(y, t), "was scheduled already");
    EXPECT_ERROR(s.running(y, s.reduce(y)), "is no data loop of 'y'");
    s.running(y, t);
    EXPECT_ERROR(s.running(y, t), "runs already");
    auto [outer, inner] = s.split(t, 4);
    EXPECT_ERROR(s.order({inner, outer}), "keep them in their order");
    EXPECT_ERROR(s.reverse(inner), "cannot go the other way");
    EXPECT_ERROR(s.rfactor(y, inner), "is not the outer part of a split");
    EXPECT_ERROR(s.rfactor(y, outer, Combine::Atomic), "leave out Combine::Atomic");
    auto [first, second] = s.split(inner, 2);
    s.bind(outer, thread);
    EXPECT_ERROR(s.bind(second, thread), "bind parts that stand directly in each other");
}

TEST_P(Scans, StepsThatWouldBreakOneAreRefused) {
    Tensor x = input("x", f32, {8, 16});
    Axis j = reduce_axis("j", 16);
    Tensor y = compute("y", {8, 16}, [&](Expr i, Expr t) { return scan(sum, x(i, j), j, t); });
    Tensor z = compute("z", {8, 16}, [&](Expr i, Expr t) { return scan(reduce_max, x(i, j), j, t); });
    Schedule s({y, z}, device_target());
    s.running(z, s.loops<2>(z)[1]);
    Loop along = s.running(y, s.loops<2>(y)[1]);
    EXPECT_ERROR(s.join_axes(y, 0, 1), "which this step would change; do it before running");
    EXPECT_ERROR(s.stream({z, y}, along), "and cannot share another one");
    Loop outer = s.split(along, 4)[0];
    s.stage(y, x, Memory::Shared, outer);
    EXPECT_ERROR(s.rfactor(y, outer), "do this step before they are placed");
    Tensor guarded = compute("guarded", {8, 16}, [&](Expr i, Expr t) { return sum(select(j <= t, x(i, j), 0), j); });
    Schedule atomic({guarded}, device_target());
    Stage updates = atomic.rfactor(guarded, atomic.split(atomic.reduce(guarded), 4)[0], Combine::Atomic);
    EXPECT_ERROR(atomic.running(updates, atomic.data_loops(updates)[2]), "which is neither the iteration nor one more");
    Tensor sums = compute("sums", {8}, [&](Expr i) { return sum(x(i, j), j); });
    Tensor squares = compute("squares", {8}, [&](Expr i) { return sum(x(i, j) * x(i, j), j); });
    Schedule streamed({sums, squares}, device_target());
    streamed.stream({sums, squares}, streamed.reduce(squares));
    EXPECT_ERROR(streamed.running(squares, streamed.loops<1>(squares)[0]), "is already computed by atomics");
}

TEST_P(Scans, OfDeclarationsThatAreNoneAreRefused) {
    Tensor x = input("x", f32, {16});
    Axis j = reduce_axis("j", 16);
    EXPECT_ERROR(scan(sum, x(j), Axis(), integer(1)), "the axis is undefined");
    EXPECT_ERROR(scan(sum, x(j), j, constant(Type::F32, 1.0)), "the place is f32");
    const auto over = [&](int64_t places, const ScanOptions& options) {
        compute("y", {places}, [&](Expr t) { return scan(sum, cast(f32, j), j, t, options); });
    };
    for (const bool reverse : {false, true}) {
        EXPECT_NO_THROW(over(16, {.reverse = reverse}));
        EXPECT_ERROR(over(17 + reverse, {.exclusive = reverse, .reverse = reverse}),
                     "scan: the place i may lie outside of the axis 'j', which has 16 terms; give an axis as long as");
    }
    EXPECT_NO_THROW(over(17, {.exclusive = true}));
    EXPECT_ERROR(scan(nullptr, x(j), j, integer(1)), "the reduction is no function");
}

// Where a reader needs elements in the middle alone, a scan would have to begin there.
TEST_P(Scans, PartsOfRowsAreNoPlace) {
    Tensor x = input("x", f32, {4, 64});
    Axis j = reduce_axis("j", 64);
    Tensor y = compute("y", {4, 64}, [&](Expr i, Expr t) { return scan(sum, x(i, j), j, t); });
    Tensor z = compute("z", {4, 64}, [&](Expr i, Expr t) { return y(i, t) * 2; });
    Schedule s({z}, device_target());
    auto [i, t] = s.loops<2>(z);
    auto [outer, inner] = s.split(t, 16);
    s.running(y, s.loops<2>(y)[1]);
    EXPECT_ERROR(s.at(y, outer), "place it before running");
    Schedule placed({z}, device_target());
    auto [row, column] = placed.loops<2>(z);
    auto [part, element] = placed.split(column, 16);
    placed.at(y, part);
    EXPECT_ERROR(placed.running(y, placed.loops<2>(y)[1]), "which is neither the iteration nor one more");
}

}  // namespace
}  // namespace tw
