// Kernels that compute with the bits of u32, and dropout: as declared, whatever the schedule.
#include "dsl/differentiate.h"
#include "dsl/philox.h"
#include "ops/check.h"
#include "ops/program.h"
#include "tests/ops/random_cases.h"

namespace tw {
namespace {

class Words : public RandomCases {
protected:
    Words() : RandomCases(77) {}

    HostArray words(int64_t elements) {
        HostArray array = host_array(u32, {elements});
        for (int64_t i = 0; i < elements; ++i) {
            const int64_t small = between(0, 40), wide = int64_t{between(0, 65535)} << 16 | between(0, 65535);
            array.set({i}, make_value(u32, chance() ? small : wide));
        }
        return array;
    }
};
TW_ON_EACH_DEVICE(Words);

TEST_P(Words, AreCombined) {
    constexpr int64_t elements = 1000;
    const Tensor a = input("a", u32, {elements}), b = input("b", u32, {elements});
    const std::vector<Tensor> y = compute_tuple("y", {elements}, [&](const std::vector<Expr>& i) {
        const Expr x = a(i[0]), s = b(i[0]);
        return std::vector<Expr>{x & s,
                                 x | s,
                                 x ^ s,
                                 x << s,
                                 x >> s,
                                 mul_high(x, s),
                                 x << 5,
                                 x >> (s & 31),
                                 (x ^ (s & 0xff)) + (x >> 7 | s << 25),
                                 (x & s) * 3u,
                                 select((x | s) == s, x, s)};
    });
    Schedule s(y, device_target());
    auto [i] = s.loops<1>(y[0]);
    auto [block, thread_index] = s.split(i, 128, Tail::Mask, {"block", "thread_index"});
    s.bind(block, grid.x);
    s.bind(thread_index, thread);
    expect_declared(s, {.inputs = {{"a", words(elements)}, {"b", words(elements)}}, .sizes = {}, .scalars = {}});
    expect_compiles(build(s));
    const std::string text = build(s).cuda();
    for (const char* part : {"a[i] & b[i]", "tw::shift_left(", "tw::mul_high(", "<< 5u"})
        EXPECT_NE(text.find(part), std::string::npos) << text;
}

/// Reductions of words: a parity by the threads of a block.
TEST_P(Words, AreReduced) {
    const Tensor a = input("a", u32, {6, 300});
    const Reducer parity = make_reducer("parity", {constant(u32, 0)},
                                        [](const auto& x, const auto& y) { return std::vector<Expr>{x[0] ^ y[0]}; });
    Axis k = reduce_axis("k", 300);
    const Tensor y = compute("y", {6}, [&](Expr i) { return reduce(parity, {a(i, k)}, {k})[0]; });
    Schedule s({y}, device_target());
    auto [outer, inner] = s.split(s.reduce(y), 32, Tail::Mask, {"outer", "inner"});
    s.bind(s.loops<1>(y)[0], grid.x);
    s.bind(inner, thread);
    HostArray data = words(6 * 300);
    data.shape = {6, 300}, data.strides = {300, 1};
    expect_declared(s, {.inputs = {{"a", data}}, .sizes = {}, .scalars = {}});
}

/// Of a tensor's element as seed: two tilings of one mask, and of its gradient.
TEST_P(Words, DropTheSameElementsInAnyTiling) {
    constexpr int64_t rows = 50, columns = 70;
    const Tensor x = input("x", f32, {rows, columns}), seed = input("seed", u32, {1});
    const Tensor y = compute("y", {rows, columns},
                             [&](Expr i, Expr j) { return dropout(exp(x(i, j)), 0.25, seed(0), i * columns + j); });
    const Tensor dx = gradients(y, input("dy", f32, {rows, columns}), {x})[0];
    for (const Tensor& out : {y, dx})
        for (int64_t width : {4, 8, 7}) {
            Schedule s({out}, device_target());
            auto [i, j] = s.loops<2>(out);
            auto [outer, inner] = s.split(j, width, Tail::Mask, {"outer", "inner"});
            s.bind(i, grid.x);
            s.bind(outer, thread);
            s.unroll(inner);
            Bindings bindings = random_bindings(s.outputs(), 5);
            bindings.inputs["seed"].set({0}, make_value(u32, int64_t{0xfeedbeef}));
            expect_declared(s, bindings, near(1, 4));
            expect_compiles(build(s));
        }
}

/// What is dropped is read with its neighbours, not under a condition of its own.
TEST(Dropout, ReadsVectors) {
    const Tensor x = input("x", bf16, {4, 64});
    const Tensor y = compute("y", {4, 64}, [&](Expr i, Expr j) {
        return cast(bf16, dropout(cast(f32, x(i, j)), 0.25, scalar("seed", u32), i * 64 + j));
    });
    Schedule s({y}, target("sm_90a"));
    auto [i, j] = s.loops<2>(y);
    auto [outer, inner] = s.split(j, 8, {"outer", "inner"});
    s.bind(i, grid.x);
    s.bind(outer, thread);
    s.bind(inner, tw::vector);
    const std::string text = build(s).cuda();
    EXPECT_NE(text.find("tw::load<8>("), std::string::npos) << text;
}

}  // namespace
}  // namespace tw
