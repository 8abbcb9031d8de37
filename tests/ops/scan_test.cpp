// Scans: sums, maxima, recurrences of all terms up to a place, in linear work. Whole numbers, bit for bit.
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

}  // namespace
}  // namespace tw
