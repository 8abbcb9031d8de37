// Sums in parts, which a second kernel adds: what its threads read at once, and what comes out of it.
#include "schedules/sum_of_parts.h"

#include "schedules/elementwise.h"
#include "tests/ops/on_each_device.h"
#include "tests/schedules/integers_for.h"
#include "verify/random.h"

namespace tw::schedules {
namespace {

/// Sums of `terms` terms, in parts of `length`.
Schedule in_parts(int64_t rows, int64_t columns, int64_t terms, int64_t length, Type type, const Target& target) {
    Tensor x = input("x", f32, {terms, rows, columns}), bias = input("bias", f32, {columns});
    Axis k = reduce_axis("k", terms);
    Tensor c = compute("c", {rows, columns}, [&](Expr i, Expr j) { return cast(type, sum(x(k, i, j), k) + bias(j)); });
    Schedule s({c}, target);
    Stage parts = split_sum(s, c, length);
    std::vector<Loop> order = s.data_loops(parts);
    order.push_back(s.reduce(parts));
    s.order(order);
    schedule_each_element(s, parts);
    return s;
}

class SumsOfParts : public OnEachDevice {};
TW_ON_EACH_DEVICE(SumsOfParts);

// Few and many parts, the last one shorter; matrices whose parts begin at multiples of 16 bytes, of 8 and of 4, so
// small that each element has a thread, and larger.
TEST_P(SumsOfParts, AreWhatTheDeclarationSays) {
    fuzz::Random random(31);
    int wide = 0, narrow = 0, single = 0, many = 0;
    for (int round = 0; round < 24; ++round) {
        const int64_t rows = random.between(8, 40), columns = random.between(16, 60), length = random.between(1, 3),
                      parts = random.chance(0.3) ? random.between(9, 20) : random.between(2, 8),
                      terms = parts * length - random.between(0, length - 1), elements = rows * columns;
        Target some = device_target();
        some.multiprocessors = random.pick<int>({1, 1, 2, 132});
        SCOPED_TRACE(fmt::format("{} x {}, {} terms in {} parts", rows, columns, terms, parts));
        Schedule s = in_parts(rows, columns, terms, length, random.pick<Type>({f32, bf16}), some);
        Executable executable(build(s), device_);
        const std::string& cuda = executable.program().kernels().back().cuda;
        const bool reads_four = cuda.find("tw::load<4>(c_partial") != std::string::npos,
                   have_four = elements / 4 >= 128 * some.multiprocessors;
        EXPECT_EQ(reads_four, have_four && elements % 4 == 0) << cuda;
        wide += reads_four;
        narrow += have_four && elements % 4 != 0;
        single += !have_four;
        many += parts > 8;
        expect_declared(executable, s.outputs(), integers_for(s.outputs(), 4));
    }
    EXPECT_GT(wide, 3);
    EXPECT_GT(narrow, 0);
    EXPECT_GT(single, 3);
    EXPECT_GT(many, 3);
}

}  // namespace
}  // namespace tw::schedules
