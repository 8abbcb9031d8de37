// How ops become wide accesses: results of tuples, copies between unlike layouts, loads in flight, exchanged tuples.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include "codegen/lower.h"
#include "codegen/print/print_cuda.h"
#include "dsl/schedule.h"

namespace tw::codegen {
namespace {

std::string text_of(const Schedule& s) {
    std::string text;
    for (const KernelText& kernel : lower(s.tree(), s.target()).kernels)
        text += kernel.cuda.substr(kernel.cuda.find("extern \"C\" __global__"));
    return text;
}

int count(const std::string& text, const std::string& part) {
    int found = 0;
    for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
    return found;
}

/// Elements of `y` on threads, `neighbours` each.
std::string elementwise_text(const std::vector<Tensor>& y, int64_t neighbours) {
    Schedule s(y, target("sm_90a"));
    auto [share, element] = s.split(s.loops<1>(y[0])[0], neighbours);
    s.bind(share, thread);
    s.bind(element, tw::vector);
    return text_of(s);
}

TEST(Vectors, EachOutputOfATupleIsStoredWide) {
    Tensor x = input("x", f32, {256});
    std::string text =
        elementwise_text(compute_tuple("y", {256},
                                       [&](const std::vector<Expr>& i) {
                                           return std::vector<Expr>{x(i[0]) + 1.0, x(i[0]) * 2.0, -x(i[0])};
                                       }),
                         4);
    EXPECT_EQ(count(text, "store<4>(&y_"), 3) << text;
    EXPECT_EQ(count(text, "load<4>"), 1) << text;
}

TEST(Vectors, TheNarrowestOutputOfATupleSetsTheWidth) {
    Tensor x = input("x", bf16, {256});
    std::string text = elementwise_text(compute_tuple("y", {256},
                                                      [&](const std::vector<Expr>& i) {
                                                          return std::vector<Expr>{x(i[0]), cast(f32, x(i[0]))};
                                                      }),
                                        8);
    EXPECT_EQ(count(text, "store<4>(&y_"), 2) << text;
    EXPECT_EQ(count(text, "load<8>"), 1) << text;
}

/// y[i, j] = x[j, i] through a shared tile of 64 x 64.
std::string transposed_text(Type type, int64_t neighbours) {
    Tensor x = input("x", type, {64, 64});
    Tensor y = compute("y", {64, 64}, [&](Expr i, Expr j) { return x(j, i); });
    Schedule s({y}, target("sm_90a"));
    auto [i, j] = s.loops<2>(y);
    auto [block, row] = s.split(i, 64);
    auto [share, element] = s.split(j, neighbours);
    s.bind(block, grid.x);
    s.bind(row, thread);
    s.bind(share, thread);
    s.bind(element, tw::vector);
    s.stage(y, x, Memory::Shared, block);
    return text_of(s);
}

TEST(Vectors, CopiesLoadSixteenBytesWhateverTheyStore) {
    for (auto [type, neighbours] : {std::pair<Type, int64_t>{bf16, 8}, {f32, 4}}) {
        std::string text = transposed_text(type, type == f32 ? 8 : 16);
        EXPECT_EQ(count(text, fmt::format("load<{}>(x_values", neighbours)), 1) << text;
        EXPECT_EQ(count(text, "copy<"), 0) << text;
    }
}

std::string dot_text(Type type, int operands) {
    const int64_t terms = 1 << 16;
    std::vector<Tensor> inputs;
    for (int o = 0; o < operands; ++o) inputs.push_back(input(fmt::format("x{}", o), type, {terms}));
    Axis k = reduce_axis("k", terms);
    Tensor y = compute("y", {}, [&](const std::vector<Expr>&) {
        Expr product = cast(f32, inputs[0](k));
        for (int o = 1; o < operands; ++o) product = product * cast(f32, inputs[o](k));
        return sum(product, k);
    });
    Schedule s({y}, target("sm_90a"));
    auto [step, inside] = s.split(s.reduce(y), 64 * 16 / bytes_of(type), {"step", "inside"});
    auto [share, element] = s.split(inside, 16 / bytes_of(type), {"share", "element"});
    s.order({share, step, element});
    s.bind(share, thread);
    s.unroll(element);
    return text_of(s);
}

TEST(Vectors, UnrolledCopiesKeepAtMost128BytesInFlight) {
    for (auto [type, operands, copies] : {std::tuple<Type, int, int>{f32, 1, 8}, {f32, 2, 4}, {bf16, 4, 2}}) {
        std::string text = dot_text(type, operands);
        EXPECT_EQ(count(text, fmt::format("step_inner < {};", copies)), 1) << text;
        EXPECT_EQ(count(text, "#pragma unroll 1\n"), 1) << text;
    }
}

TEST(Vectors, ComponentsThatCommuteAreExchangedAsTheyAre) {
    auto text = [](const CombineTerms& combine) {
        Tensor x = input("x", f32, {64});
        Axis k = reduce_axis("k", 64);
        Reducer reducer = make_reducer("two", {constant(f32, 0.0), constant(f32, 0.0)}, combine);
        std::vector<Tensor> y = compute_tuple("y", {}, [&](const std::vector<Expr>&) {
            return reduce(reducer, {x(k), x(k) * x(k)}, {k});
        });
        Schedule s(y, target("sm_90a"));
        s.bind(s.split(s.reduce(y[0]), 32)[1], thread);
        return text_of(s);
    };
    std::string apart = text([](const std::vector<Expr>& a, const std::vector<Expr>& b) {
        return std::vector<Expr>{a[0] + b[0], max(a[1], b[1])};
    });
    EXPECT_EQ(count(apart, "shuffle_xor"), 10) << apart;
    EXPECT_EQ(count(apart, " ? "), 0) << apart;
    std::string together = text([](const std::vector<Expr>& a, const std::vector<Expr>& b) {
        return std::vector<Expr>{a[0] + b[0], a[1] + b[1] + a[0] * b[0]};
    });
    EXPECT_EQ(count(together, "shuffle_xor"), 10) << together;
    EXPECT_GT(count(together, " ? "), 0) << together;
}

TEST(Vectors, NothingIsLaunchedForAnEmptyResultWithStatistics) {
    Tensor x = input("x", f32, {3, 0});
    Axis k = reduce_axis("k", 0);
    Tensor largest = compute("largest", {3}, [&](Expr i) { return reduce_max(x(i, k), k); });
    Tensor y = compute("y", {3, 0}, [&](Expr i, Expr j) { return x(i, j) - largest(i); });
    Schedule s({y}, target("sm_90a"));
    s.at(largest, s.loops<2>(y)[0]);
    EXPECT_TRUE(lower(s.tree(), s.target()).kernels.empty());
    Schedule alone({largest}, target("sm_90a"));
    EXPECT_EQ(lower(alone.tree(), alone.target()).kernels.size(), 1u);
}

}  // namespace
}  // namespace tw::codegen
