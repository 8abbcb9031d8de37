// Numbers at the edges of their types: the declaration, the schedule's tree and the printed kernel agree on every bit.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "dsl/check_sizes.h"
#include "tests/dsl/random_edge_expr.h"
#include "tests/ops/random_cases.h"

namespace tw {
namespace {

class NumberEdges : public RandomCases {
protected:
    NumberEdges() : RandomCases(31) {}

    /// Declaration, tree and kernel.
    void expect_agreement(const std::vector<Tensor>& outputs, const Bindings& bindings) const {
        Schedule s(outputs, device_target());
        std::vector<HostArray> declared = interpret_plain(outputs, bindings), tree = interpret_tree(s.tree(), bindings);
        for (size_t k = 0; k < outputs.size(); ++k) {
            std::string name = fmt::format("{} (output {})", to_string(outputs[k].operation()->outputs[k].body), k);
            auto differs = difference(name, tree[k], declared[k], bitwise);
            EXPECT_FALSE(differs) << *differs;
        }
        expect_declared(s, bindings, bitwise);
    }

    static std::vector<Tensor> all_of(const Tensor& x, const std::vector<std::function<Expr(Expr)>>& functions) {
        return compute_tuple("y", {x.shape()[0]}, [&](const std::vector<Expr>& i) {
            std::vector<Expr> bodies;
            for (const auto& function : functions) bodies.push_back(function(x(i[0])));
            return bodies;
        });
    }

    static Bindings given(const Tensor& x, const std::vector<Value>& values) {
        Bindings bindings;
        HostArray& array = bindings.inputs[x.name()] = host_array(x.type(), {static_cast<int64_t>(values.size())});
        for (size_t e = 0; e < values.size(); ++e) array.set({static_cast<int64_t>(e)}, values[e]);
        return bindings;
    }
    void expect_agreement(Type type, const std::vector<Value>& values,
                          const std::vector<std::function<Expr(Expr)>>& functions) const {
        Tensor x = input("x", type, {static_cast<int64_t>(values.size())});
        expect_agreement(all_of(x, functions), given(x, values));
    }
};
TW_ON_EACH_DEVICE(NumberEdges);

constexpr Type kTypes[] = {boolean, i8, u8, i32, u32, i64, f16, bf16, tf32, e4m3, e5m2, f32, f64};
constexpr Type kNarrow[] = {f16, bf16, tf32, e4m3, e5m2};

std::function<Expr(Expr)> through(std::vector<Type> types) {
    return [types](Expr x) {
        for (Type type : types) x = cast(type, x);
        return x;
    };
}

/// Numbers of a narrow format, ties between neighbours, and what lies right beside those, near one another and over all
/// magnitudes; infinities and NaN.
std::vector<Value> telling_numbers(Type type, uint64_t seed, int count) {
    RandomEdgeExprs random(seed);
    std::vector<Value> values;
    for (int k = 0; k < count; ++k) {
        Value edge = random.number(is_float(type) ? i64 : type);
        if (!is_float(type) && k % 2) {
            values.push_back(edge);
            continue;
        }
        int64_t digits = random.pick(1 << 11, (1 << 12) - 1) << random.pick(0, 1);
        double real = std::ldexp(static_cast<double>(digits), static_cast<int>(random.pick(-40, 52)));
        if (is_float(type) && k % 8 == 0) real = std::ldexp(real, static_cast<int>(random.pick(-140, 100)));
        if (is_float(type) && k % 8 == 1) real = static_cast<double>(edge.integer);
        real *= 1 + static_cast<double>(random.pick(-1, 1)) * 0x1p-40;
        if (random.pick(0, 1)) real = -real;
        values.push_back(convert(type, {f64, real, 0}));
    }
    if (is_float(type))
        for (double special : {0.0, -0.0, HUGE_VAL, -HUGE_VAL, std::nan("")})
            values.push_back(convert(type, {f64, special, 0}));
    return values;
}

// Chains of conversions: floats between integers saturate, integers wrap, and each float is rounded to once.
TEST_P(NumberEdges, ChainsOfCasts) {
    for (Type from : kTypes) {
        std::vector<std::function<Expr(Expr)>> chains;
        for (int k = 0; k < 12; ++k) chains.push_back(through({kTypes[between(0, 12)], kTypes[between(0, 12)]}));
        for (Type between : {f32, f64}) chains.push_back(through({between, from == i8 ? u8 : i8}));
        chains.push_back(through({f64, from == u32 ? i32 : u32}));
        SCOPED_TRACE(name_of(from));
        expect_agreement(from, telling_numbers(from, 5, 200), chains);
    }
}

TEST_P(NumberEdges, NarrowFloatsAreRoundedToOnce) {
    for (Type from : {f64, i32, u32, i64, f32}) {
        std::vector<std::function<Expr(Expr)>> functions;
        for (Type narrow : kNarrow) {
            functions.push_back(through({narrow}));
            functions.push_back(through({narrow, f32}));
            if (is_float(from)) functions.push_back([=](Expr x) { return round_to(narrow, x); });
            if (from == f64) functions.push_back([=](Expr x) { return round_to(narrow, x * 3.0); });
        }
        SCOPED_TRACE(name_of(from));
        expect_agreement(from, telling_numbers(from, 6, 1500), functions);
    }
}

// Infinities of e5m2, which only conversions from other types saturate, and all else.
TEST_P(NumberEdges, EveryPatternOfTheNarrowTypes) {
    for (Type type : kNarrow) {
        const int64_t bytes = bytes_of(type), count = bytes == 1 ? 256 : 65536;
        Tensor x = input("x", type, {count});
        Bindings bindings;
        HostArray& array = bindings.inputs["x"] = host_array(type, {count});
        for (int64_t k = 0; k < count; ++k) {
            uint32_t bits = static_cast<uint32_t>(bytes == 4 ? k << 16 | (k & 7) << 13 : k);
            std::memcpy(&array.bytes[static_cast<size_t>(k * bytes)], &bits, static_cast<size_t>(bytes));
        }
        SCOPED_TRACE(name_of(type));
        expect_agreement(all_of(x, {through({}), through({f32}), through({f64}), through({f32, type}), through({i32}),
                                    through({e5m2}), through({bf16}), through({boolean})}),
                         bindings);
    }
}

// Literals are rounded once, too, not by way of f32.
TEST_P(NumberEdges, LiteralsOfNarrowTypes) {
    Expr beside = make_expr(f64, FloatConstant{1 + 0x1p-8 + 0x1p-40});
    std::vector<std::function<Expr(Expr)>> functions;
    for (Type narrow : kNarrow)
        functions.push_back([=](Expr x) { return select(x > 0, cast(narrow, beside), cast(narrow, x)); });
    expect_agreement(i32, {{i32, 0, 1}, {i32, 0, -1}}, functions);
}

// What wraps at the edges, everywhere alike.
TEST_P(NumberEdges, LeastAndLargestIntegers) {
    for (Type type : {i32, u32, i64}) {
        std::vector<Value> values = telling_numbers(type, 7, 100);
        Value least = type == i64   ? Value{i64, 0, std::numeric_limits<int64_t>::min()}
                      : type == i32 ? Value{i32, 0, std::numeric_limits<int32_t>::min()}
                                    : Value{u32, 0, 0};
        Value largest{type, 0, wrap_to_type(type, least.integer - 1)};
        for (const Value& value : {least, largest, Value{type, 0, wrap_to_type(type, -1)}}) values.push_back(value);
        Expr low = constant(least), high = constant(largest),
             minus_one = constant(Value{type, 0, wrap_to_type(type, -1)});
        std::vector<std::function<Expr(Expr)>> functions = {
            [](Expr x) { return -x; },
            [](Expr x) { return 0 - x; },
            [](Expr x) { return abs(x); },
            [](Expr x) { return abs(-x); },
            [](Expr x) { return x + x; },
            [](Expr x) { return x * 3 - 1; },
            [=](Expr x) { return x / minus_one; },
            [=](Expr x) { return x % minus_one; },
            [=](Expr x) { return high < x; },
            [=](Expr x) { return x <= high; },
            [=](Expr x) { return x < low + 1; },
            [](Expr x) { return x < x + 1; },
            [](Expr x) { return (x * 8 + 3) / 8; },
            [](Expr x) { return (x * 8 + 3) % 4; },
            [=](Expr x) { return min(x - 1, high) - low; },
            [](Expr x) { return select(x - 1 < x, x, -x); },
        };
        if (type != u32) {
            functions.push_back([=](Expr x) { return x / low; });
            functions.push_back([=](Expr x) { return x % low; });
        }
        SCOPED_TRACE(name_of(type));
        expect_agreement(type, values, functions);
    }
}

// Random expressions of data and places; what they mean by definition is the fourth to agree.
TEST_P(NumberEdges, RandomExpressions) {
    constexpr int64_t elements = 24;
    constexpr int kernels = 12, outputs = 8;
    const int shuffled = GTEST_FLAG_GET(shuffle) ? testing::UnitTest::GetInstance()->random_seed() : 0;
    const uint64_t seed = 20261123 + static_cast<uint64_t>(shuffled);
    fmt::print("seed {}\n", seed);
    RandomEdgeExprs exprs(seed);
    std::vector<Tensor> inputs;
    for (const Expr& v : exprs.data()) inputs.push_back(input(to_string(v), v.type(), {elements}));
    for (int kernel = 0; kernel < kernels; ++kernel) {
        std::vector<Values> values;
        Bindings bindings;
        bindings.sizes["n"] = exprs.pick(1, 4096);
        for (const Tensor& x : inputs) bindings.inputs[x.name()] = host_array(x.type(), {elements});
        for (int64_t e = 0; e < elements; ++e) {
            values.push_back(exprs.assignment());
            for (size_t v = 0; v < inputs.size(); ++v)
                bindings.inputs[inputs[v].name()].set({e}, values[e].at(exprs.data()[v].id()));
            values[e][exprs.i.id()].integer = e % 8;
            values[e][exprs.x.id()].integer = e - 20;
            values[e][exprs.far.id()].integer = RandomEdgeExprs::kFar + e % 10;
            values[e][exprs.n.id()].integer = bindings.sizes["n"];
        }
        auto is_defined = [&](const Expr& expr) {
            return std::all_of(values.begin(), values.end(),
                               [&](const Values& v) { return ValueByDefinition(v)(expr).has_value(); });
        };
        std::vector<Expr> chosen;
        std::vector<Tensor> y = compute_tuple("y", {elements}, [&](const std::vector<Expr>& e) {
            Substitution places = {
                {exprs.i, e[0] % 8}, {exprs.x, e[0] - 20}, {exprs.far, e[0] % 10 + RandomEdgeExprs::kFar}};
            for (size_t v = 0; v < inputs.size(); ++v) places.emplace_back(exprs.data()[v], inputs[v](e[0]));
            std::vector<Expr> bodies;
            while (bodies.size() < outputs) {
                Expr expr = exprs.any(static_cast<int>(exprs.pick(2, 4)));
                Expr body = substitute(expr, places);
                try {
                    check_indices("", body, std::source_location::current());
                } catch (const Error&) {
                    continue;  // a place that leaves 64 bits
                }
                if (!is_defined(expr)) continue;
                chosen.push_back(expr);
                bodies.push_back(body);
            }
            return bodies;
        });
        std::vector<HostArray> declared = interpret_plain(y, bindings);
        for (int64_t e = 0; e < elements; ++e)
            for (size_t k = 0; k < chosen.size(); ++k)
                ASSERT_EQ(declared[k].at({e}).integer, ValueByDefinition(values[e])(chosen[k])->integer)
                    << to_string(chosen[k]) << "\n"
                    << exprs.text_of(values[e]);
        expect_agreement(y, bindings);
        if (kernel < 4) expect_compiles(build(Schedule(y, target("sm_90a"))));
        if (HasFailure()) FAIL() << "kernel " << kernel;
    }
}

}  // namespace
}  // namespace tw
