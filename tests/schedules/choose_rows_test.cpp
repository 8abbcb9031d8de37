// Rows that choose_schedule finds: the kernels that hand-made schedules give, whatever is computed along them.
#include "schedules/choose_rows.h"

#include <cmath>

#include <gmock/gmock.h>

#include "dsl/differentiate.h"
#include "ops/check.h"
#include "ops/executable.h"
#include "runtime/driver/emulated_device.h"
#include "schedules/catalog.h"
#include "schedules/choose.h"
#include "schedules/normalization.h"
#include "schedules/row_operators.h"
#include "tests/ops/random_cases.h"
#include "tests/ops/whole_numbers.h"

namespace tw::schedules {
namespace {

struct Cost {
    size_t kernels = 0;
    double bytes = 0, sectors = 0;
};

/// Runs the schedule on the emulator and checks its results.
Cost cost_of(const Schedule& s, const std::vector<Tensor>& outputs, const Bindings& launch) {
    const auto device = open_device("emulated:sm_90a");
    as_emulated(*device).set_options({.statistics = true});
    const Program program = build(s);
    Executable executable(program, device);
    const std::vector<HostArray> got = run_on(executable, launch);
    const auto statistics = as_emulated(*device).statistics();
    for (size_t k = 0; k < outputs.size(); ++k) {
        const CheckResult result = check_output(outputs[k], launch, got[k], {.approximate = program.approximate()});
        EXPECT_TRUE(result.ok) << result.text << "\n" << s.explain() << program.cuda();
    }
    return {program.kernels().size(), static_cast<double>(statistics.global_bytes),
            static_cast<double>(statistics.global_sectors)};
}

struct Case {
    const char* name;
    int64_t rows, columns;
    Type type;
};

/// The declaration alone, without rows to keep, has the kernel that is made by hand.
TEST(ChooseRows, CostsWhatHandMadeKernelsDo) {
    for (const Case& each : {
             Case{"row_sum", 40, 1000, bf16},
             {"row_sum", 300, 64, f32},
             {"row_sum", 7, 37, bf16},
             {"softmax", 5, 1000, f32},
             {"softmax", 64, 768, bf16},
             {"softmax", 130, 64, f16},
             {"softmax", 7, 37, f32},
             {"softmax", 2, 33000, bf16},
             {"softmax", 2, 50257, bf16},
             {"layernorm", 5, 1000, bf16},
             {"layernorm", 3, 2048, f32},
             {"layernorm", 40, 768, bf16},
             {"rmsnorm", 5, 1000, f32},
             {"rmsnorm", 40, 768, bf16},
             {"rmsnorm", 2, 40000, bf16},
             {"moments", 5, 1000, bf16},
             {"softmax_gradient", 5, 1000, f32},
             {"softmax_gradient", 40, 768, bf16},
             {"layernorm_gradient", 5, 1000, f32},
             {"layernorm_gradient", 40, 768, bf16},
             {"rmsnorm_gradient", 3, 37, f32},
             {"cross_entropy", 5, 1000, f32},
             {"cross_entropy", 3, 2051, bf16},
             {"cross_entropy", 2, 17000, bf16},
         }) {
        const std::string name = fmt::format("{}_{}x{}_{}", each.name, each.rows, each.columns, name_of(each.type));
        SCOPED_TRACE(name);
        const Tensor x = input("x", each.type, {each.rows, each.columns});
        const std::vector<Tensor> y = row_operators().at(each.name)(x, reduce_axis("k", each.columns), each.type);
        const Bindings launch = random_bindings(y, 5);
        const Schedule by_hand = find_kernel(name)->make(target("sm_90a")),
                       chosen = choose_schedule(y, target("sm_90a"));
        const Cost wanted = cost_of(by_hand, y, launch), got = cost_of(chosen, y, launch);
        EXPECT_EQ(got.kernels, wanted.kernels) << chosen.explain() << chosen.to_string();
        EXPECT_LE(got.bytes, wanted.bytes * 1.02) << chosen.explain() << chosen.to_string();
        EXPECT_LE(got.sectors, wanted.sectors * 1.02) << chosen.explain() << chosen.to_string();
    }
}

/// x [R, C] f32.
Tensor matrix(int64_t rows, int64_t columns) { return input("x", f32, {rows, columns}); }

size_t kernels_of(const std::vector<Tensor>& outputs) {
    const Schedule s = choose_schedule(outputs, target("sm_90a"));
    SCOPED_TRACE(s.explain() + s.to_string());
    return cost_of(s, outputs, random_bindings(outputs, 3)).kernels;
}

/// Reductions inside of an element, also of each other, that are the same for a row.
TEST(ChooseRows, OfOneExpression) {
    const Tensor x = matrix(6, 24);
    const Axis k = reduce_axis("k", 24), q = reduce_axis("q", 24), r = reduce_axis("r", 24);
    EXPECT_EQ(kernels_of({compute("y", {6, 24}, [&](Expr i, Expr j) { return x(i, j) / (2 + sum(x(i, k), k)); })}), 1u);
    EXPECT_EQ(kernels_of({compute("y", {6, 24},
                                  [&](Expr i, Expr j) {
                                      Expr most = reduce_max(x(i, k), k);
                                      return exp(x(i, j) - most) / sum(exp(x(i, q) - reduce_max(x(i, r), r)), q);
                                  })}),
              1u);
}

/// What columns are summed of needs the numbers of rows, which the rows' kernel stores for that.
TEST(ChooseRows, WhoseNumbersOthersRead) {
    const Tensor x = matrix(1100, 64), dy = input("dy", f32, {1100, 64}), gain = input("gain", f32, {64});
    const Axis k = reduce_axis("k", 64), q = reduce_axis("q", 64), n = reduce_axis("n", 1100);
    const Tensor mean = compute("mean", {1100}, [&](Expr i) { return sum(x(i, k), k) / 64.0; });
    const Tensor scale = compute("scale", {1100}, [&](Expr i) {
        return rsqrt(sum((x(i, q) - mean(i)) * (x(i, q) - mean(i)), q) / 64.0 + 1e-3);
    });
    const Tensor y = compute("y", {1100, 64}, [&](Expr i, Expr j) { return (x(i, j) - mean(i)) * scale(i) * gain(j); });
    const Tensor dgain =
        compute("dgain", {64}, [&](Expr j) { return sum(dy(n, j) * (x(n, j) - mean(n)) * scale(n), n); });
    EXPECT_LE(kernels_of({y, dgain}), 3u);  // columns in chunks are two
    EXPECT_EQ(kernels_of({y, mean, scale}), 1u);
}

/// Of elements that lie in no memory rows have their own, which read what is kept: a product has others.
TEST(ChooseRows, HaveElementsOfTheirOwn) {
    const Tensor x = matrix(24, 40), dy = input("dy", f32, {24, 40}), v = input("v", f32, {40, 24});
    const Axis k = reduce_axis("k", 40), q = reduce_axis("q", 40), n = reduce_axis("n", 40), c = reduce_axis("c", 24);
    const Tensor most = compute("most", {24}, [&](Expr i) { return reduce_max(x(i, k), k); });
    const Tensor p = compute("p", {24, 40}, [&](Expr i, Expr j) { return exp2(x(i, j) - most(i)) * dy(i, j); });
    const Tensor total = compute("total", {24}, [&](Expr i) { return sum(p(i, q) + x(i, q), q); });
    const Tensor y = compute("y", {24, 24}, [&](Expr i, Expr e) { return sum(p(i, n) * v(n, e), n); });
    const Tensor column = compute("column", {40}, [&](Expr j) { return sum(p(c, j), c); });
    EXPECT_LE(kernels_of({total, y, column}), 5u);
}

/// The next row's number is there only behind all rows.
TEST(ChooseRows, AreApartWhereOtherRowsAreRead) {
    const Tensor x = matrix(20, 100);
    const Axis k = reduce_axis("k", 100), q = reduce_axis("q", 100);
    const Tensor m = compute("m", {20}, [&](Expr i) { return sum(x(i, k), k); });
    const Tensor next = compute("next", {20}, [&](Expr i) { return sum(x(i, q) * m((i + 1) % 20), q); });
    EXPECT_EQ(kernels_of({next}), 2u);
    const Tensor turned = compute("turned", {20, 100}, [&](Expr i, Expr j) { return x(i, 99 - j) - m(i); });
    EXPECT_EQ(kernels_of({turned}), 1u);
}

/// Columns of a kernel between rows and rows: what comes behind is another kernel.
TEST(ChooseRows, NeedNothingOfThemselvesThroughOthers) {
    const Tensor x = matrix(64, 64);
    const Axis k = reduce_axis("k", 64), n = reduce_axis("n", 64), q = reduce_axis("q", 64);
    const Tensor m = compute("m", {64}, [&](Expr i) { return sum(x(i, k), k); });
    const Tensor column = compute("column", {64}, [&](Expr j) { return sum(x(n, j) * m(n), n); });
    const Tensor y = compute("y", {64}, [&](Expr i) { return sum(x(i, q) * column(q), q) + m(i); });
    EXPECT_EQ(kernels_of({y}), 3u);
    const std::string how = choose_schedule({y}, target("sm_90a")).explain();
    EXPECT_THAT(how, testing::HasSubstr("'m': rows of 64 elements"));
    EXPECT_THAT(how, testing::HasSubstr("'y': rows of 64 elements"));
}

TEST(ChooseRows, SayHowTheyAreMade) {
    const Tensor x = matrix(20, 100);
    const Axis k = reduce_axis("k", 100);
    const Tensor m = compute("m", {20}, [&](Expr i) { return sum(x(i, k), k); });
    const Tensor y = compute("y", {20, 100}, [&](Expr i, Expr j) { return x(i, j) - m(i); });
    EXPECT_THAT(choose_schedule({y, m}, target("sm_90a")).explain(),
                testing::HasSubstr("'y', 'm': rows of 100 elements, kept in registers by one kernel"));
    const Tensor wide = matrix(2, 100000);
    const Axis a = reduce_axis("a", 100000), b = reduce_axis("b", 100000);
    const Tensor most = compute("most", {2}, [&](Expr i) { return reduce_max(wide(i, a), a); });
    const Tensor total = compute("total", {2}, [&](Expr i) { return sum(exp(wide(i, b) - most(i)), b); });
    EXPECT_THAT(choose_schedule({total}, target("sm_90a")).explain(),
                testing::HasSubstr("'total': rows of 100000 elements, in one pass by one kernel"));
}

/// The catalog's declarations by rule.
TEST(ChooseRows, HaveNames) {
    EXPECT_EQ(find_kernel("no_such_kernel_automatic"), nullptr);
    const CatalogEntry* entry = find_kernel("layernorm_5x1000_bf16_automatic");
    ASSERT_NE(entry, nullptr);
    EXPECT_THAT(entry->make(target("sm_90a")).explain(), testing::HasSubstr("'y': rows of 1000 elements"));
}

/// Formulas along rows: numbers of each row, each made of the row's elements and of the number before, and elements
/// that are made of them.
class RandomRows : public RandomCases {
protected:
    RandomRows() : RandomCases(77) {}

    struct Formula {
        std::vector<Tensor> outputs;
        double bytes = 0;   ///< of rows, each operand and result once
        double beside = 0;  ///< of what each stage may read again: gains, a number for each row
    };

    Type any_type() { return std::array{f32, bf16, f16}[static_cast<size_t>(between(0, 2))]; }

    void choose_shape() {
        rows_.clear();
        elements_ = 1;
        for (int left = between(1, 3); left > 0; --left) rows_.emplace_back(between(1, left == 1 ? 12 : 3));
        for (const Extent& extent : rows_) elements_ *= static_cast<double>(require_constant(extent.expr));
        int64_t columns = between(8, std::array{12, 300, 3000}[static_cast<size_t>(between(0, 2))]);
        if (chance()) columns = columns / 8 * 8;
        columns_ = {columns};
        if (chance() && columns % 4 == 0) columns_ = {columns / 4, 4};
        elements_ *= static_cast<double>(columns);
        whole_ = rows_;
        whole_.insert(whole_.end(), columns_.begin(), columns_.end());
    }
    std::vector<Operand> row_of(const std::vector<Expr>& at) const {
        return {at.begin(), at.begin() + static_cast<std::ptrdiff_t>(rows_.size())};
    }

    /// What is reduced, or stored, of an element.
    Expr value(const std::vector<Expr>& at, const std::vector<Tensor>& numbers, bool has_gain) {
        Expr v = cast(f32, operands_[0].read({at.begin(), at.end()}));
        for (size_t k = 1; k < operands_.size(); ++k)
            if (chance()) v = v + cast(f32, operands_[k].read({at.begin(), at.end()})) * 0.5;
        if (chance()) v = max(v, -v);
        if (has_gain && chance())
            v = v * gain_.read({at.begin() + static_cast<std::ptrdiff_t>(rows_.size()), at.end()});
        if (!numbers.empty() && chance()) v = v - numbers.back().read(row_of(at)) * 0.125;
        return v;
    }
    Tensor number(int k, const std::vector<Tensor>& before, bool has_gain) {
        std::vector<Axis> axes;
        for (const Extent& extent : columns_) axes.push_back(reduce_axis("k", extent));
        const bool adds = chance(), is_exponential = chance();
        return compute(fmt::format("number{}", k), rows_, [&](const std::vector<Expr>& row) {
            std::vector<Expr> at = row;
            at.insert(at.end(), axes.begin(), axes.end());
            Expr term = value(at, before, has_gain);
            if (is_exponential && !before.empty()) term = exp(0.0625 * (term - before.back().read(row_of(at))));
            return adds ? sum(term, axes) / elements_ : reduce_max(term, axes);
        });
    }
    Formula formula() {
        choose_shape();
        Formula made;
        operands_.clear();
        for (int k = between(1, 3); k > 0; --k) operands_.push_back(input(fmt::format("x{}", k), any_type(), whole_));
        for (const Tensor& x : operands_) made.bytes += elements_ * bytes_of(x.type());
        gain_ = input("gain", f32, columns_);
        const bool has_gain = chance();
        std::vector<Tensor> numbers;
        for (int k = between(1, 3); k > 0; --k) numbers.push_back(number(k, numbers, has_gain));
        for (int k = between(0, 2); k > 0; --k) {
            const Type type = any_type();
            made.outputs.push_back(compute(fmt::format("y{}", k), whole_, [&](const std::vector<Expr>& at) {
                return cast(type, value(at, numbers, has_gain) - numbers.back().read(row_of(at)));
            }));
            made.bytes += elements_ * bytes_of(type);
        }
        for (const Tensor& each : numbers)
            if (each.same(numbers.back()) ? made.outputs.empty() || chance() : between(0, 3) == 0)
                made.outputs.push_back(each);
        // Threads of the last block that have no row may read another one's.
        const double rows =
            elements_ / static_cast<double>(columns_.size() == 1 ? require_constant(columns_[0].expr)
                                                                 : require_constant(columns_[0].expr) * 4);
        const auto together = static_cast<double>(row_threads(static_cast<int64_t>(elements_ / rows), 4).rows);
        const double padding = std::ceil(rows / together) * together / rows;
        made.bytes *= padding;
        const double stages = static_cast<double>(made.outputs.size() + numbers.size());
        made.beside = padding * stages * elements_ * ((has_gain ? 4 : 0) + 4 / 8.0);
        return made;
    }

    Shape rows_, columns_, whole_;
    double elements_ = 0;
    std::vector<Tensor> operands_;
    Tensor gain_;
};
TW_ON_EACH_DEVICE(RandomRows);

/// Everything along the same rows is one kernel, which reads each of them once.
TEST_P(RandomRows, AreOneKernelThatReadsThemOnce) {
    for (int round = 0; round < 24; ++round) {
        const Formula made = formula();
        const Schedule s = choose_schedule(made.outputs, target("sm_90a"));
        SCOPED_TRACE(fmt::format("round {}\n{}{}", round, s.explain(), s.to_string()));
        const Cost cost = cost_of(s, made.outputs, random_bindings(made.outputs, static_cast<uint64_t>(round)));
        EXPECT_EQ(cost.kernels, 1u);
        EXPECT_LE(cost.bytes, made.bytes + made.beside);
        if (HasFailure()) return;
    }
}

}  // namespace
}  // namespace tw::schedules
