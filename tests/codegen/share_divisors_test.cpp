#include <cmath>
#include <random>

#include <gmock/gmock.h>

#include "codegen/thread_ir/thread_walk.h"
#include "codegen/thread_passes/thread_passes.h"
#include "tests/codegen/run_threads.h"
#include "thread_kernels.h"

namespace tw::codegen {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr int warp_of_dividends = 8;

/// y[thread, d] of `copies` elements of a thread, each some value divided by another.
struct Dividends {
    int copies;
    ThreadKernel kernel = empty_kernel("dividends", warp_of_dividends);
    Buffer x = make_buffer("x", f32, Memory::Global, {warp_of_dividends * copies}),
           y = make_buffer("y", f32, Memory::Global, {warp_of_dividends * copies});
    Buffer held = make_buffer("held", f32, Memory::Registers, {copies}),
           total = make_buffer("total", f32, Memory::Registers, {1});
    Expr d = index_variable("d", 0, copies - 1);

    explicit Dividends(int count) : copies(count) {
        add_argument(kernel, x, false);
        add_argument(kernel, y, true);
    }
    Expr sum() const { return load(total, {integer(0)}); }
    Expr own() const { return load(held, {d}); }
    ThreadKernel with(const Expr& value, bool changes_total = false) {
        const Expr first = index_variable("first", 0, copies - 1), last = index_variable("last", 0, copies - 1);
        std::vector<ThreadStmt> body{store(held, {d}, value)};
        if (changes_total) body.push_back(store(total, {integer(0)}, sum() + 1.0));
        kernel.body =
            in_order({declare(held), declare(total), store(total, {integer(0)}, constant(f32, 3.0)),
                      unrolled(first, copies, {store(held, {first}, load(x, {kernel.thread * copies + first}))}),
                      unrolled(d, copies, std::move(body)),
                      unrolled(last, copies, {store(y, {kernel.thread * copies + last}, load(held, {last}))})});
        verify_thread_ir(kernel);
        return kernel;
    }
    std::string after(const Expr& value, bool changes_total = false) {
        return to_string(share_divisors(with(value, changes_total)).body);
    }
};

TEST(ShareDivisors, OfElementsWithOneDivisor) {
    Dividends four(4);
    EXPECT_THAT(four.after(exp(four.own()) / four.sum()), HasSubstr("held[d] = divided(exp(held[d]), total[0])"));
}

/// A divisor for each column of several rows: columns stand inside, each has one for all rows.
TEST(ShareDivisors, OfRowsWithOneDivisorAColumn) {
    constexpr int rows = 5, columns = 3;
    ThreadKernel kernel = empty_kernel("columns", warp_of_dividends);
    const Buffer y = make_buffer("y", f32, Memory::Global, {warp_of_dividends * rows * columns});
    const Buffer held = make_buffer("held", f32, Memory::Registers, {rows * columns}),
                 total = make_buffer("total", f32, Memory::Registers, {columns});
    add_argument(kernel, y, true);
    const Expr r = index_variable("r", 0, rows - 1), c = index_variable("c", 0, columns - 1),
               d = index_variable("d", 0, columns - 1);
    const Expr element = load(held, {r * columns + c}), divisor = load(total, {c});
    auto after = [&](const Expr& value) {
        kernel.body = in_order(
            {declare(held), declare(total), unrolled(d, columns, {store(total, {d}, cast(f32, d) + 2.0)}),
             unrolled(r, rows, {unrolled(c, columns, {store(y, {(kernel.thread * rows + r) * columns + c}, value)})})});
        return to_string(share_divisors(kernel).body);
    };
    EXPECT_THAT(after(element / divisor), HasSubstr("divided(held[r * 3 + c], total[c])"));
    EXPECT_THAT(after(divisor / element), Not(HasSubstr("divided")));
    EXPECT_THAT(after(load(total, {c}) * 3.0 / divisor), Not(HasSubstr("divided"))) << "the same in all rows";
}

/// Few elements, divisors of their own, one that the loop changes, constants, and quotients that are all alike.
TEST(ShareDivisors, NothingElse) {
    Dividends three(3), four(4);
    EXPECT_THAT(three.after(three.own() / three.sum()), Not(HasSubstr("divided")));
    EXPECT_THAT(four.after(four.sum() / four.own()), Not(HasSubstr("divided")));
    EXPECT_THAT(four.after(four.own() / four.sum(), true), Not(HasSubstr("divided")));
    EXPECT_THAT(four.after(four.own() / 7.0), Not(HasSubstr("divided")));
    EXPECT_THAT(four.after(four.own() * (7.0 / four.sum())), Not(HasSubstr("divided")));
}

/// Values of random expressions are those without the pass.
TEST(ShareDivisors, ChangesNoResult) {
    std::mt19937 random(11);
    auto between = [&](int least, int most) { return std::uniform_int_distribution<int>(least, most)(random); };
    int found = 0;
    for (int round = 0; round < 200; ++round) {
        Dividends c(between(2, 8));
        const std::function<Expr(int)> value = [&](int depth) -> Expr {
            const int kind = depth == 4 ? 5 : between(0, depth == 0 ? 2 : 6);
            if (kind == 0) return c.own();
            if (kind == 1) return c.sum();
            if (kind == 2) return constant(f32, between(1, 5));
            if (kind == 3) return value(depth - 1) * value(depth - 1);
            if (kind == 4) return max(value(depth - 1), value(depth - 1));
            return value(depth - 1) / (value(depth - 1) * value(depth - 1) + 1.0);
        };
        const ThreadKernel plain = c.with(value(4), between(0, 3) == 0), changed = share_divisors(plain);
        verify_thread_ir(changed);
        Machine before, after;
        for (int n = 0; n < warp_of_dividends * c.copies; ++n)
            before.memory["x"].push_back(static_cast<double>(between(-3, 3)));
        before.memory["y"].assign(static_cast<size_t>(warp_of_dividends * c.copies), std::nan(""));
        after = before;
        run_threads(plain, before);
        run_threads(changed, after);
        ASSERT_EQ(before.memory["y"], after.memory["y"]) << to_string(plain) << to_string(changed);
        found += to_string(changed) != to_string(plain);
    }
    EXPECT_GT(found, 20);
}

}  // namespace
}  // namespace tw::codegen
