// What choose_schedule makes of products that tensor cores can compute: right in every shape and layout, and on the
// units wherever a tiling is legal.
#include <functional>
#include <random>

#include <gmock/gmock.h>

#include "dsl/interpret.h"
#include "dsl/named_tensor.h"
#include "ops/check.h"
#include "ops/executable.h"
#include "schedules/choose.h"
#include "schedules/tuned_records.h"
#include "tests/schedules/integers_for.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

std::mt19937 random_numbers(11);
int64_t between(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_numbers); }
bool chance() { return between(0, 1) == 1; }
template <class T>
T one_of(std::initializer_list<T> list) {
    return list.begin()[between(0, static_cast<int64_t>(list.size()) - 1)];
}

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
const auto on_units = AnyOf(HasSubstr("wgmma"), HasSubstr("mma_sync"));

Bindings strided_as_declared(const std::vector<Tensor>& outputs, Bindings bindings) {
    for (const auto& operation : operations_of(outputs)) {
        if (!operation->is_input() || operation->strides.empty()) continue;
        HostArray& dense = bindings.inputs.at(operation->name);
        std::vector<int64_t> strides, at(dense.shape.size());
        for (const Expr& stride : operation->strides) strides.push_back(require_constant(stride));
        HostArray array = host_array(dense.type, dense.shape, strides);
        do array.set(at, dense.at(at));
        while (advance(at, dense.shape));
        dense = array;
    }
    return bindings;
}

/// Integers: sums are exact in every order, so that the kernels agree with the declaration bit for bit.
std::string expect_right(const std::vector<Tensor>& outputs, const std::string& arch = "sm_90a") {
    Schedule s = schedules::choose_schedule(outputs, target(arch));
    std::string steps = s.trace_as_cpp();
    SCOPED_TRACE(steps);
    Bindings bindings = strided_as_declared(outputs, integers_for(outputs, 2));
    Executable executable(build(s), open_device("emulated:" + arch));
    std::vector<HostArray> got = run_on(executable, bindings), expected = interpret_plain(outputs, bindings);
    for (size_t k = 0; k < outputs.size(); ++k) {
        auto differs = difference(outputs[k].name(), got[k], expected[k], equal_values);
        EXPECT_FALSE(differs) << *differs;
    }
    return steps;
}

/// An operand in either layout; tf32 lies in f32.
struct Operand2 {
    Tensor x;
    bool transposed;
    Type type;

    Operand2(const std::string& name, Type type, int64_t batch, int64_t rows, int64_t columns)
        : transposed(chance()), type(type) {
        Shape shape{transposed ? columns : rows, transposed ? rows : columns};
        if (batch) shape.insert(shape.begin(), batch);
        x = input(name, type == tf32 ? f32 : type, shape);
    }
    Expr operator()(const std::vector<Expr>& batch, Expr row, Expr column) const {
        std::vector<tw::Operand> indices(batch.begin(), batch.end());
        if (transposed) std::swap(row, column);
        indices.push_back(row);
        indices.push_back(column);
        Expr element = x.read(indices);
        return type == tf32 ? truncate_tf32(element) : cast(type == i8 ? i32 : f32, element);
    }
};

Tensor random_product(int round, Type type, int64_t m, int64_t n, int64_t k, int64_t batch) {
    Operand2 a("a", type, batch, m, k), b("b", type, batch, k, n);
    Tensor bias = input("bias", f32, {n}), scale = input("scale", f32, {m}), old = input("old", f32, {m, n});
    Axis r = reduce_axis("r", k);
    Shape shape{m, n};
    if (batch) shape.insert(shape.begin(), batch);
    bool swapped = chance();
    return compute("y", shape, [&](const std::vector<Expr>& axes) {
        std::vector<Expr> around(axes.begin(), axes.end() - 2);
        Expr i = axes[axes.size() - 2], j = axes.back();
        Expr left = a(around, i, r), right = b(around, r, j);
        Expr dot = swapped ? sum(right * left, r) : sum(left * right, r);
        Expr x = type == i8 ? cast(f32, dot) : dot;
        switch (round % 6) {
            case 0: return dot;
            case 1: return cast(one_of({bf16, f16}), max(x + bias(j), 0.0));
            case 2: return select((i + j) % 3 == 0, x, -x) + scale(i);
            case 3: return min(x, 64.0) * 0.5 + old(i, j);
            case 4: return cast(i32, x) % 7;
            default: return cast(bf16, select(x > 3.0, x * 2.0, old(i, j)));
        }
    });
}

TEST(ChooseProducts, OfAnyShapeAndLayout) {
    int units = 0, rounds = 24;
    for (int round = 0; round < rounds; ++round) {
        Type type = one_of({bf16, f16, tf32, i8, e4m3, e5m2});
        auto extent = [&] { return chance() ? 16 * between(1, 10) : between(1, 150); };
        int64_t batch = between(0, 3) == 0 ? between(1, 3) : 0;
        Tensor y = random_product(round, type, extent(), extent(), extent(), batch);
        SCOPED_TRACE(to_string(*y.operation()));
        std::string steps = expect_right({y}, round % 5 == 0 ? "sm_80" : "sm_90a");
        units += testing::Value(steps, on_units);
    }
    EXPECT_GT(units, rounds / 2);
}

TEST(ChooseProducts, WholeTilesTakeWarpgroups) {
    for (Type type : {bf16, f16, i8, e4m3, tf32}) {
        Tensor a = input("a", type == tf32 ? f32 : type, {128, 64}), b = input("b", a.type(), {96, 64});
        Axis k = reduce_axis("k", 64);
        auto factor = [&](const Expr& x) { return type == tf32 ? truncate_tf32(x) : cast(type == i8 ? i32 : f32, x); };
        Tensor c =
            compute("anything", {128, 96}, [&](Expr i, Expr j) { return sum(factor(a(i, k)) * factor(b(j, k)), k); });
        EXPECT_THAT(expect_right({c}), HasSubstr("wgmma"));
    }
}

// Products of products, of elements made before, and beside what is no product.
TEST(ChooseProducts, AmongOtherStages) {
    constexpr int64_t M = 96, K = 64, N = 80;
    Tensor x = input("x", bf16, {M, K}), w = input("w", bf16, {N, K}), v = input("v", bf16, {M, N});
    Axis k = reduce_axis("k", K), j = reduce_axis("j", N), i2 = reduce_axis("i2", M);
    Tensor doubled = compute("doubled", {M, K}, [&](Expr i, Expr e) { return cast(bf16, cast(f32, x(i, e)) * 2.0); });
    Tensor hidden = compute("hidden", {M, N}, [&](Expr i, Expr e) {
        return cast(bf16, max(sum(cast(f32, doubled(i, k)) * cast(f32, w(e, k)), k), 0.0) * 0.125);
    });
    Tensor gram =
        compute("gram", {M, M}, [&](Expr i, Expr e) { return sum(cast(f32, hidden(i, j)) * cast(f32, v(e, j)), j); });
    Tensor rows = compute("rows", {M}, [&](Expr i) { return reduce_max(gram(i, i2), i2); });
    Tensor same =
        compute("same", {M, M}, [&](Expr i, Expr e) { return sum(cast(f32, x(i, k)) * cast(f32, x(e, k)), k); });
    std::string steps = expect_right({hidden, rows, same});
    EXPECT_THAT(steps, HasSubstr("s.mma(hidden, "));
    EXPECT_THAT(steps, HasSubstr("s.mma(gram, "));
    EXPECT_THAT(steps, HasSubstr("s.mma(same, "));
}

/// Distances by magnitudes, which are summed, and the cheapest ways of each of some graphs, of which the least counts.
TEST(ChooseProducts, OfAnyTermsAndReducers) {
    const auto in_tiles = AllOf(HasSubstr("pipeline"), HasSubstr("Memory::Shared"), HasSubstr("\"thread_m\""));
    Axis k = reduce_axis("k", 37);
    Tensor a = input("a", f32, {45, 37}), b = input("b", bf16, {50, 37});
    EXPECT_THAT(expect_right({compute("d", {45, 50},
                                      [&](Expr i, Expr j) { return sum(abs(a(i, k) - cast(f32, b(j, k))), k); })}),
                in_tiles);
    Tensor from = input("from", i32, {37, 3, 21}), to = input("to", i32, {3, 37, 33});
    EXPECT_THAT(
        expect_right({compute("c", {3, 21, 33},
                              [&](Expr n, Expr i, Expr j) { return reduce_min(from(k, n, i) + to(n, k, j), k); })}),
        AllOf(in_tiles, HasSubstr("s.cut(k_outer, where_partial(c))")));
}

// What no unit takes, or only in part: by the other rules.
TEST(ChooseProducts, OtherwiseAsEver) {
    Tensor a = input("a", bf16, {64, 64}), b = input("b", f16, {64, 64}), f = input("f", f32, {64, 64});
    Tensor narrow = input("narrow", bf16, {64, 4}), strided = input("strided", bf16, {64, 64}, {65, 1});
    Axis k = reduce_axis("k", 64), few = reduce_axis("few", 4), q = reduce_axis("q", 8),
         place = reduce_axis("place", 8);
    auto of = [](const Expr& x) { return cast(f32, x); };
    auto product = [&](const std::function<Expr(Expr, Expr)>& element) { return compute("y", {64, 64}, element); };
    for (const Tensor& y : {
             product([&](Expr i, Expr j) { return sum(of(a(i, k)) * of(b(j, k)), k); }),
             product([&](Expr i, Expr j) { return sum(f(i, k) * of(b(j, k)), k); }),
             product([&](Expr i, Expr j) { return sum(of(narrow(i, few)) * of(a(few, j)), few); }),
             product([&](Expr i, Expr j) { return reduce_max(of(a(i, k)) * of(strided(j, k)), k); }),
             product([&](Expr i, Expr j) {
                 return sum(of(a(i, q * 8 + place)) * of(strided(q * 8 + place, j)), {q, place});
             }),
         })
        EXPECT_THAT(expect_right({y}), testing::Not(on_units));
    EXPECT_THAT(expect_right({product([&](Expr i, Expr j) { return sum(of(a(i, k)) * of(strided(j, k)), k); })}),
                HasSubstr("mma_sync"));
    // A sum of rows is a tensor of its own, which the elements behind the product read.
    EXPECT_THAT(expect_right({product(
                    [&](Expr i, Expr j) { return sum(of(a(i, k)) * of(strided(k, j)), k) + sum(of(a(j, k)), k); })}),
                HasSubstr("mma_sync"));
}

// Between others, too, a reduction is shared only if it has few results.
/// One row, of whose matrix nothing is read again: elements that are alone are not copied first.
TEST(ChooseProducts, OfOneOddRowAreSumsOfColumns) {
    for (const int64_t n : {3151, 3152}) {
        const Tensor a = input("a", f32, {1, 47584}), b = input("b", f32, {47584, n});
        const Axis k = reduce_axis("k", 47584);
        const Tensor c = compute("c", {1, n}, [&](Expr i, Expr j) { return sum(a(i, k) * b(k, j), k); });
        const std::string steps = schedules::choose_schedule({c}, target("sm_90a")).trace_as_cpp();
        EXPECT_EQ(steps.find("s.stage(") == std::string::npos, n % 2 == 1) << steps;
    }
}

TEST(ChooseProducts, IntermediateSums) {
    Tensor a = input("a", f32, {80, 16}), b = input("b", f32, {80, 16});
    Axis k = reduce_axis("k", 16), j = reduce_axis("j", 80);
    Tensor product = compute("product", {80, 80}, [&](Expr i, Expr e) { return sum(a(i, k) * b(e, k), k); });
    Tensor most = compute("most", {80}, [&](Expr i) { return reduce_max(product(i, j), j); });
    EXPECT_THAT(expect_right({most}), HasSubstr("s.stage(product, a, Memory::Shared"));
    Tensor apart = compute("apart", {80, 80}, [&](Expr i, Expr e) { return sum(abs(a(i, k) - b(e, k)), k); });
    Tensor least = compute("least", {80}, [&](Expr i) { return reduce_min(apart(i, j), j); });
    std::string steps = expect_right({least});
    size_t shared = 0;
    for (size_t at = 0; (at = steps.find("{\"share\", \"element\"}", at)) != std::string::npos; ++at) ++shared;
    EXPECT_EQ(shared, 1) << steps;
}

/// Lanes that store nothing divide by nothing.
TEST(ChooseProducts, BehindWhichIntegersAreDivided) {
    const Tensor a = input("a", i8, {40, 64}), b = input("b", i8, {24, 64}), d = input("d", i32, {40});
    Axis k = reduce_axis("k", 64);
    const Tensor c =
        compute("c", {40, 24}, [&](Expr i, Expr j) { return sum(cast(i32, a(i, k)) * cast(i32, b(j, k)), k) / d(i); });
    const Schedule s = schedules::choose_schedule({c}, target("sm_90a"));
    Bindings bindings = integers_for({c}, 2);
    fill_integers(bindings.inputs.at("d"), 1, 5, 3);
    Executable executable(build(s), open_device("emulated:sm_90a"));
    auto differs = difference("c", run_on(executable, bindings)[0], interpret_plain({c}, bindings)[0], equal_values);
    EXPECT_FALSE(differs) << *differs << s.trace_as_cpp();
    EXPECT_THAT(s.trace_as_cpp(), on_units);
}

TEST(ChooseProducts, TakeTheTilingOfTheirRecord) {
    const Tensor a = input("a", bf16, {256, 128}), b = input("b", bf16, {256, 128});
    Axis k = reduce_axis("k", 128);
    const Tensor c = compute(
        "c", {256, 256}, [&](Expr i, Expr j) { return cast(bf16, sum(cast(f32, a(i, k)) * cast(f32, b(j, k)), k)); });
    auto explained = [&](const std::string& tiling) {
        const schedules::RecordsInUse in_use({{.kernel = "gemm_bf16_256x256x128_tb",
                                               .tiling = tiling,
                                               .schedule = {},
                                               .device = "NVIDIA H200",
                                               .arch = "sm_90a",
                                               .version = {}}});
        return schedules::choose_schedule({c}, target("sm_90a")).explain();
    };
    EXPECT_THAT(explained("64x64x64g1s4r"), HasSubstr("'c': tiling 64x64x64g1s4r, from its record"));
    EXPECT_THAT(explained("128x192x64g2s9r"),  // of more stages than there is shared memory for
                HasSubstr("'c' is not as its record says, by tiling 128x192x64g2s9r, from its record: "));
    EXPECT_THAT(schedules::choose_schedule({c}, target("sm_90a")).explain(), HasSubstr(", by the model of its time"));
}

/// Whatever is computed behind the sums, by about as many instructions as a record has there.
TEST(ChooseProducts, TakeTheRecordOfAsManyInstructions) {
    const Tensor a = input("a", bf16, {512, 128}), b = input("b", bf16, {256, 128}), bias = input("bias", bf16, {256});
    const Axis k = reduce_axis("k", 128);
    auto explained = [&](const std::function<Expr(Expr)>& made) {
        const Tensor c = compute("c", {512, 256}, [&](Expr i, Expr j) {
            return cast(bf16, made(sum(cast(f32, a(i, k)) * cast(f32, b(j, k)), k) + cast(f32, bias(j))));
        });
        const schedules::RecordsInUse in_use({{.kernel = "gemm_bf16_512x256x128_tb_bias_gelu_tanh",
                                               .tiling = "64x64x64g1s4r",
                                               .schedule = {},
                                               .device = "NVIDIA H200",
                                               .arch = "sm_90a",
                                               .version = {}}});
        return schedules::choose_schedule({c}, target("sm_90a")).explain();
    };
    EXPECT_THAT(explained([](const Expr& x) { return gelu_tanh(x); }), HasSubstr("64x64x64g1s4r, from its record"));
    EXPECT_THAT(explained([](const Expr& x) { return gelu(x); }), HasSubstr(", by the model of its time"));
    EXPECT_THAT(explained([](const Expr& x) { return max(x, 0.0); }), HasSubstr(", by the model of its time"));
}

/// A product of a matrix with itself has a second tensor of its columns: steps are of the schedule's own tensors.
TEST(ChooseProducts, OfTensorsDeclaredAnewAreReplayedOverOutputs) {
    const Tensor x = input("x", bf16, {128, 64});
    const Axis k = reduce_axis("k", 64);
    const Tensor g = compute(
        "g", {128, 128}, [&](Expr i, Expr j) { return cast(bf16, sum(cast(f32, x(i, k)) * cast(f32, x(j, k)), k)); });
    const Target limits = target("sm_90a");
    Schedule s = schedules::choose_schedule({g}, limits);
    ASSERT_FALSE(s.outputs()[0].same(g)) << s.explain();
    EXPECT_EQ(replay(s.save(), s.outputs(), limits).to_string(), s.to_string());
    EXPECT_ERROR(replay(s.save(), {g}, limits),
                 "some of which a rule may have declared anew: give its outputs(), replay(s.save(), s.outputs(), ");
    EXPECT_ERROR(
        s.data_loops(g),
        "'g' is not computed in this schedule, which computes another tensor of that name, as where a rule has "
        "declared it anew; take named_tensor(s.outputs(), \"g\")");
    EXPECT_EQ(Schedule(s.outputs(), limits).data_loops(named_tensor(s.outputs(), "g")).size(), 2u);
}

}  // namespace
}  // namespace tw
