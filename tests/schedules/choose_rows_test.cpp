// Rows that choose_schedule finds: the kernels that hand-made schedules give, whatever is computed along them.
#include "schedules/choose_rows.h"

#include <cmath>

#include <gmock/gmock.h>

#include "dsl/differentiate.h"
#include "ops/check.h"
#include "ops/executable.h"
#include "runtime/driver/emulated_device.h"
#include "schedules/catalog.h"
#include "schedules/choices.h"
#include "schedules/choose.h"
#include "schedules/normalization.h"
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

/// Of long sums, each thread adds few terms one after another, however many rows there are; of what is not rounded,
/// blocks of few threads run side by side.
TEST(ChooseRows, LongSumsHaveMoreThreads) {
    for (const auto& [name, threads] : {std::pair{"similarity_5952x61072_f16", 1024}, {"argmax_5952x61072_f32", 256}}) {
        const Schedule s = find_kernel(name)->make(target("sm_90a"));
        EXPECT_THAT(build(s).cuda(), testing::HasSubstr(fmt::format("__launch_bounds__({}, 1)", threads))) << name;
    }
}

/// Where neighbours lie at multiples of few bytes, more threads have narrow vectors each, but few rows of wide ones.
TEST(ChooseRows, OfNarrowVectorsHaveMoreThreads) {
    for (const auto& [name, threads] : {std::pair{"softmax_gradient_41768x62_f16", 8},
                                        {"softmax_60000x50_bf16", 4},
                                        {"softmax_40000x97_f16", 16},
                                        {"softmax_gradient_30001x61_f32", 16},
                                        {"layernorm_40000x90_f16", 8},
                                        {"softmax_20000x33_f32", 8},
                                        {"softmax_40000x64_f16", 8}}) {
        const std::string cuda = build(find_kernel(name)->make(target("sm_90a"))).cuda();
        for (int lanes = 1; lanes <= 32; lanes *= 2)
            EXPECT_EQ(cuda.find(fmt::format(", {})", lanes)) != std::string::npos, lanes < threads) << name << lanes;
    }
}

/// Of two operands, a thread of 512 keeps no more than what its registers hold as floats, too.
TEST(ChooseRows, KeepWhatRegistersHold) {
    auto is_kept = [](const char* name) {
        const std::string steps = find_kernel(name)->make(target("sm_90a")).trace_as_cpp();
        return steps.find("s.set_memory(x_row, Memory::Registers);") != std::string::npos;
    };
    EXPECT_TRUE(is_kept("layernorm_gradient_64x20000_bf16"));
    EXPECT_FALSE(is_kept("layernorm_gradient_64x29864_bf16"));
    EXPECT_TRUE(is_kept("layernorm_64x29864_bf16"));
    EXPECT_TRUE(is_kept("layernorm_64x40960_f32"));
    EXPECT_FALSE(is_kept("layernorm_64x50000_f32"));
}

/// Long rows lie in shared memory where more blocks have room so than in registers, or where these have none. Of a
/// block, all registers that it may have; of two, half.
TEST(ChooseRows, KeepInSharedMemoryWhatRegistersDoNotHold) {
    auto blocks_of = [](const char* name) {
        const Schedule s = find_kernel(name)->make(target("sm_90a"));
        const std::string steps = s.trace_as_cpp();
        const size_t occupancy = steps.find("s.occupancy(");
        if (steps.find("Memory::Shared);") == std::string::npos) return 0;
        return occupancy == std::string::npos ? 1 : std::stoi(steps.substr(steps.find(", ", occupancy) + 2));
    };
    EXPECT_EQ(blocks_of("rmsnorm_gradient_16383x13568_bf16"), 2);
    EXPECT_EQ(blocks_of("rmsnorm_gradient_64x13568_bf16"), 0);  // a block each, of more threads
    EXPECT_EQ(blocks_of("rmsnorm_5504x29696_bf16"), 2);
    EXPECT_EQ(blocks_of("rmsnorm_5504x8192_bf16"), 0);
    EXPECT_EQ(blocks_of("softmax_9600x36864_bf16"), 2);
    EXPECT_EQ(blocks_of("softmax_8192x50304_bf16"), 0);  // in one pass
    EXPECT_EQ(blocks_of("softmax_3000x45056_f32"), 1);
    EXPECT_EQ(blocks_of("softmax_3000x60000_f32"), 0);
    EXPECT_EQ(blocks_of("softmax_gradient_2000x30000_bf16"), 1);
    EXPECT_EQ(blocks_of("softmax_gradient_2000x50000_bf16"), 0);
    EXPECT_EQ(blocks_of("cross_entropy_8960x20000_bf16"), 0);  // stores no rows: in one pass
}

/// One kernel that loads and stores each element once, gains for each row, and twice what goes through registers in
/// chunks, whose second load is of the first cache.
TEST(ChooseRows, MoveWhatTheyMust) {
    constexpr double once = 1.04, with_gains = 2.05, in_chunks = 2.05, with_numbers = 2.8;
    for (const auto& [name, times] : std::vector<std::pair<std::string, double>>{
             {"row_sum_40x1000_bf16", once},
             {"row_sum_300x64_f32", once},
             {"row_sum_7x37_bf16", once},
             {"softmax_5x1000_f32", once},
             {"softmax_64x768_bf16", once},
             {"softmax_130x64_f16", once},
             {"softmax_7x37_f32", once},
             {"softmax_2x33000_bf16", once},
             {"softmax_2x40001_f32", once},
             {"softmax_2x45000_f32", once},
             {"softmax_2x60000_f32", in_chunks},
             {"softmax_2x50257_bf16", in_chunks},
             {"softmax_gradient_2x23003_f16", once},
             {"layernorm_2x56000_f16", with_gains},
             {"layernorm_gradient_2x22000_f32", with_gains},
             {"layernorm_5x1000_bf16", 1.5 * with_gains},
             {"layernorm_3x2048_f32", with_gains},
             {"layernorm_40x768_bf16", with_gains},
             {"rmsnorm_5x1000_f32", with_gains},
             {"rmsnorm_40x768_bf16", with_gains},
             {"rmsnorm_2x40000_bf16", with_gains},
             {"moments_5x1000_bf16", once},
             {"softmax_gradient_5x1000_f32", once},
             {"softmax_gradient_40x768_bf16", once},
             {"layernorm_gradient_5x1000_f32", with_gains},
             {"layernorm_gradient_40x768_bf16", with_gains},
             {"rmsnorm_gradient_3x37_f32", with_numbers},
             {"cross_entropy_5x1000_f32", in_chunks},
             {"cross_entropy_3x2051_bf16", in_chunks},
             {"cross_entropy_2x17000_bf16", in_chunks},
         }) {
        SCOPED_TRACE(name);
        const CatalogEntry& entry = *find_kernel(name);
        const Schedule s = entry.make(target("sm_90a"));
        const Cost cost = cost_of(s, s.outputs(), random_bindings(s.outputs(), 5));
        EXPECT_EQ(cost.kernels, 1u) << s.explain() << s.to_string();
        EXPECT_LE(cost.bytes, entry.bytes * times) << s.explain() << s.to_string();
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

    /// `flat`: the last dimension of rows and the one of columns are one dimension of what is stored.
    void choose_shape(bool flat) {
        flat_ = flat;
        rows_.clear();
        elements_ = 1;
        for (int left = between(1, 3); left > 0; --left)
            rows_.emplace_back(between(flat && left == 1 ? 2 : 1, left == 1 ? 12 : 3));
        for (const Extent& extent : rows_) elements_ *= static_cast<double>(require_constant(extent.expr));
        int64_t columns = between(8, std::array{12, 300, 3000}[static_cast<size_t>(between(0, 2))]);
        if (chance()) columns = columns / 8 * 8;
        columns_ = {columns};
        if (!flat && chance() && columns % 4 == 0) columns_ = {columns / 4, 4};
        elements_ *= static_cast<double>(columns);
        whole_ = rows_;
        whole_.insert(whole_.end(), columns_.begin(), columns_.end());
        if (!flat) return;
        whole_.pop_back();
        whole_.back() = require_constant(rows_.back().expr) * columns;
    }
    /// Where an element of a row and a column is stored, and back.
    std::vector<Operand> place_of(const std::vector<Expr>& at) const {
        std::vector<Operand> place(at.begin(), at.end());
        if (!flat_) return place;
        place.pop_back();
        place.back() = at[at.size() - 2] * columns_[0].expr + at.back();
        return place;
    }
    std::vector<Expr> element_at(const std::vector<Expr>& place) const {
        std::vector<Expr> at = place;
        if (!flat_) return at;
        at.back() = place.back() / columns_[0].expr;
        at.push_back(place.back() % columns_[0].expr);
        return at;
    }
    std::vector<Operand> row_of(const std::vector<Expr>& at) const {
        return {at.begin(), at.begin() + static_cast<std::ptrdiff_t>(rows_.size())};
    }

    /// What is reduced, or stored, of an element.
    Expr value(const std::vector<Expr>& at, const std::vector<Tensor>& numbers, bool has_gain) {
        Expr v = cast(f32, operands_[0].read(place_of(at)));
        for (size_t k = 1; k < operands_.size(); ++k)
            if (chance()) v = v + cast(f32, operands_[k].read(place_of(at))) * 0.5;
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
    Formula formula(bool flat) {
        choose_shape(flat);
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
            made.outputs.push_back(compute(fmt::format("y{}", k), whole_, [&](const std::vector<Expr>& place) {
                const std::vector<Expr> at = element_at(place);
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

    /// One kernel, which reads each row once.
    void expect_one_kernel(bool flat) {
        for (int round = 0; round < 24; ++round) {
            const Formula made = formula(flat);
            const Schedule s = choose_schedule(made.outputs, target("sm_90a"));
            SCOPED_TRACE(fmt::format("round {}\n{}{}", round, s.explain(), s.to_string()));
            const Cost cost = cost_of(s, made.outputs, random_bindings(made.outputs, static_cast<uint64_t>(round)));
            EXPECT_EQ(cost.kernels, 1u) << [&] {
                const Choices by_rule;
                return choose_schedule(made.outputs, target("sm_90a")).explain();
            }();
            EXPECT_LE(cost.bytes, made.bytes + made.beside);
            if (HasFailure()) return;
        }
    }

    bool flat_ = false;
    Shape rows_, columns_, whole_;
    double elements_ = 0;
    std::vector<Tensor> operands_;
    Tensor gain_;
};
TW_ON_EACH_DEVICE(RandomRows);

TEST_P(RandomRows, AreOneKernelThatReadsThemOnce) { expect_one_kernel(false); }
/// Groups of 32 elements of a row, say, with a scale each.
TEST_P(RandomRows, ThatLieSideBySideInOneDimensionAreToo) { expect_one_kernel(true); }

}  // namespace
}  // namespace tw::schedules
