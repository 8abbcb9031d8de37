// Mutations of scans that threads share: each is caught, or provably changes nothing.
#include <gtest/gtest.h>

#include "dsl/declare_scan.h"
#include "schedules/catalog.h"
#include "tests/verify/expect_all_caught.h"

namespace tw::fuzz {
namespace {

/// Rows of two warps in two steps; of a recurrence, whose pairs are not commutative, or of maxima from the end on.
Schedule scanned_rows(const Target& target, bool recurrence) {
    Tensor x = input("x", recurrence ? i32 : f32, {2, 240});
    Axis j = reduce_axis("j", 240);
    Reducer pairs = make_reducer(
        "recurrence", {constant(Type::I32, 1), constant(Type::I32, 0)},
        [](const std::vector<Expr>& a, const std::vector<Expr>& b) {
            return std::vector<Expr>{a[0] * b[0], b[0] * a[1] + b[1]};
        },
        false);
    Tensor y = compute("y", {2, 240}, [&](Expr i, Expr t) {
        if (!recurrence) return scan(reduce_max, x(i, j), j, t, {.exclusive = true, .reverse = true});
        return scan(pairs, {x(i, j) * 2 + 1, x(i, j) + 3}, j, t)[1];  // odd: products tell all of their factors
    });
    Schedule s({y}, target);
    auto [i, t] = s.loops<2>(y);
    s.bind(i, grid.x);
    auto [step, share, term] = s.split(s.running(y, t), {128, 2}, Tail::Mask, {"step", "share", "term"});
    s.bind(share, thread);
    return s;
}

/// TW_FUZZ_SCAN_MUTATIONS sets their number (0: all).
TEST(FuzzScans, EveryMutantIsCaught) {
    MutationOptions options;
    for (bool recurrence : {false, true})
        options.programs.push_back({.name = recurrence ? "recurrence" : "running maxima",
                                    .description = "",
                                    .make = [=](const Target& target) { return scanned_rows(target, recurrence); }});
    options.count = number_from_environment("TW_FUZZ_SCAN_MUTATIONS", 80);
    options.original_seeds = 5;
    expect_all_caught(options);
}

}  // namespace
}  // namespace tw::fuzz
