// What is made of sums of rows, with sums over all rows beside it, in one pass.
#include <gmock/gmock.h>

#include "ops/executable.h"
#include "schedules/choose.h"
#include "tests/ops/random_cases.h"
#include "tests/ops/whole_numbers.h"

namespace tw::schedules {
namespace {

using testing::HasSubstr;
using testing::Not;

class RowsAndSums : public RandomCases {
protected:
    RowsAndSums() : RandomCases(17) {}
    Type any_float() { return std::array{f32, bf16, f16}[static_cast<size_t>(between(0, 2))]; }
};
TW_ON_EACH_DEVICE(RowsAndSums);

/// Like the gradients of a norm of rows: dx of two sums of each row, sums over rows of what these are made of. Of small
/// whole numbers, whose sums are exact.
struct NormGradients {
    Tensor dx, dgain, dbias, level;

    NormGradients(int64_t rows, int64_t columns, Type of_dy, Type of_x, Type of_dx, bool has_residual) {
        const Tensor dy = input("dy", of_dy, {rows, columns}), x = input("x", of_x, {rows, columns});
        const Tensor gain = input("gain", f32, {columns}), mean = input("mean", f32, {rows});
        const Tensor rest = input("rest", of_dx, {rows, columns});
        const auto slope = [&](const Operand& i, const Operand& j) { return cast(f32, dy(i, j)); };
        const auto centred = [&](const Operand& i, const Operand& j) { return cast(f32, x(i, j)) - mean(i); };
        const Axis k = reduce_axis("k", columns), n = reduce_axis("n", columns);
        const Axis r = reduce_axis("r", rows), q = reduce_axis("q", rows);
        level = compute("level", {rows}, [&](Expr i) { return sum(slope(i, k) * gain(k), k); });
        const Tensor along = compute("along", {rows}, [&](Expr i) { return sum(slope(i, n) * centred(i, n), n); });
        dx = compute("dx", {rows, columns}, [&](Expr i, Expr j) {
            const Expr made = slope(i, j) * gain(j) + (level(i) + centred(i, j) * along(i)) * 0x1p-6;
            return cast(of_dx, has_residual ? made + cast(f32, rest(i, j)) : made);
        });
        dgain = compute("dgain", {columns}, [&](Expr j) { return sum(slope(r, j) * centred(r, j), r); });
        dbias = compute("dbias", {columns}, [&](Expr j) { return sum(slope(q, j), q) + 1.0; });
    }
};

/// Rows of any width, in whole vectors and not, as many as divide evenly among blocks and not.
TEST_P(RowsAndSums, OnePass) {
    for (const int64_t columns : {64, 100, 33, 130, 8 * between(9, 40), between(17, 300)}) {
        const int64_t rows = 1024 + between(0, 2) * between(0, 90);
        const NormGradients g(rows, columns, any_float(), any_float(), any_float(), chance());
        std::vector<Tensor> outputs{g.dx, g.dgain};
        if (chance()) outputs.push_back(g.dbias);
        SCOPED_TRACE(fmt::format("{} x {}", rows, columns));
        const Schedule s = choose_schedule(outputs, device_target());
        EXPECT_THAT(s.explain(), HasSubstr("by the kernel of the rows that it sums"));
        Executable executable(build(s), device_);
        EXPECT_EQ(executable.kernels().size(), 2u) << s.to_string();  // all, and the sums of its blocks
        expect_declared(executable, outputs, whole_numbers(outputs, static_cast<unsigned>(columns)), near(1));
    }
}

/// With a second result of rows, and where few rows are summed, there is a kernel for the rows and one for the sums.
TEST_P(RowsAndSums, Apart) {
    for (const int64_t rows : {1024, 900}) {
        const NormGradients g(rows, 96, bf16, f32, f32, false);
        std::vector<Tensor> outputs{g.dx, g.dgain};
        if (rows == 1024) outputs.push_back(g.level);
        const Schedule s = choose_schedule(outputs, device_target());
        EXPECT_THAT(s.explain(), Not(HasSubstr("by the kernel of the rows that it sums")));
        EXPECT_THAT(s.explain(), HasSubstr("rows of 96 elements, kept in registers by one kernel"));
        Executable executable(build(s), device_);
        expect_declared(executable, outputs, whole_numbers(outputs, 5), near(1));
    }
}

}  // namespace
}  // namespace tw::schedules
