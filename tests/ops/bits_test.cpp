// Bits taken for those of other types, numbers of 4 bits, and least and largest floats that blocks combine atomically.
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "dsl/differentiate.h"
#include "dsl/four_bits.h"
#include "ops/runner.h"
#include "schedules/choose.h"
#include "tests/ops/on_each_device.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

class Bits : public OnEachDevice {
protected:
    Schedule chosen(const std::vector<Tensor>& outputs) const {
        return schedules::choose_schedule(outputs, device_target());
    }
    HostArray any_bits(Type type, const std::vector<int64_t>& shape) {
        HostArray array = host_array(type, shape);
        for (std::byte& each : array.bytes) each = std::byte(random_());
        return array;
    }
    std::mt19937 random_{std::random_device()()};
};
TW_ON_EACH_DEVICE(Bits);

/// There and back again, through every pair of types.
TEST_P(Bits, AreThoseOfAnotherType) {
    const std::vector<std::vector<Type>> kin{{f32, i32, u32}, {f64, i64}, {e4m3, e5m2, i8, u8}, {f16, bf16}};
    for (const std::vector<Type>& types : kin)
        for (Type from : types)
            for (Type to : types) {
                if (is_float(from) && from != to) continue;  // a NaN's bits need not survive
                SCOPED_TRACE(fmt::format("{} as {}", name_of(from), name_of(to)));
                Tensor x = input("x", from, {100});
                Tensor y = compute("y", {100}, [&](Expr i) { return bitcast(to, x(i)); });
                HostArray values = any_bits(from, {100});
                Executable executable(build(chosen({y})), device_);
                std::vector<HostArray> got = run_on(executable, {{{"x", values}}, {}, {}});
                for (int64_t i = 0; i < 100; ++i) {
                    const Value wanted = load_element(to, &values.bytes[size_t(i * bytes_of(to))]),
                                is = load_element(to, &got[0].bytes[size_t(i * bytes_of(to))]);
                    if (is_float(to) && std::isnan(wanted.real))
                        EXPECT_TRUE(std::isnan(is.real)) << i;
                    else
                        EXPECT_TRUE(is.real == wanted.real && is.integer == wanted.integer) << i;
                }
            }
}

/// Indices have 32 bits where these suffice; their bits as those of an i64 are all 64.
TEST_P(Bits, OfIndicesAreAll64) {
    Tensor x = input("x", i32, {40});
    Tensor y = compute("y", {40}, [&](Expr i) {
        return bitcast(f64, i) + bitcast(f64, cast(i64, x(i)) + (int64_t{1023} << 52)) +
               bitcast(f64, constant(i64, 5)) + bitcast(f64, select(i < 7, i, i + 1) * 3);
    });
    HostArray values = host_array(i32, {40});
    fill_integers(values, 0, 1000, static_cast<uint32_t>(random_()));
    expect_declared(chosen({y}), {{{"x", values}}, {}, {}});
}

/// Keys of u32 that are in the order of floats, as a radix sort has them, and halves of words as bf16.
TEST_P(Bits, OfFloatsAreKeysThatSort) {
    Tensor x = input("x", f32, {1000});
    Tensor key = compute("key", {1000}, [&](Expr i) {
        const Expr bits = bitcast(u32, x(i));
        return select((bits >> 31) == 1, bits ^ 0xffffffffu, bits ^ 0x80000000u);
    });
    Tensor half = compute("half", {1000}, [&](Expr i) { return bitcast(f32, bitcast(u32, x(i)) & 0xffff0000u); });
    HostArray values = host_array(f32, {1000});
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < 1000; ++i) {
        const float value = std::ldexp(normal(random_), static_cast<int>(random_() % 40) - 20);
        std::memcpy(&values.bytes[size_t(i * 4)], &value, 4);
    }
    const Bindings bindings{{{"x", values}}, {}, {}};
    expect_declared(chosen({key, half}), bindings);
    std::vector<HostArray> got = interpret_plain({key, half}, bindings);
    auto number = [&](const HostArray& array, int64_t i) {
        return load_element(array.type, &array.bytes[size_t(i * 4)]);
    };
    for (int64_t i = 1; i < 1000; ++i) {
        const float a = static_cast<float>(number(values, i - 1).real), b = static_cast<float>(number(values, i).real);
        EXPECT_EQ(a < b, number(got[0], i - 1).integer < number(got[0], i).integer) << a << " " << b;
        EXPECT_EQ(static_cast<float>(number(got[1], i).real),
                  std::bit_cast<float>(std::bit_cast<uint32_t>(b) & 0xffff0000u));
    }
}

TEST_P(Bits, HaveErrorsAndNoGradient) {
    Tensor x = input("x", f32, {8}), h = input("h", f16, {8}), b = input("b", boolean, {8}), t = input("t", tf32, {8});
    EXPECT_ERROR(bitcast(u32, h(0)), "f16 has 2 bytes and u32 has 4; cast to a type of as many bytes first");
    EXPECT_ERROR(bitcast(u8, b(0)), "bool has no bits of its own; use select(x, 1, 0)");
    EXPECT_ERROR(bitcast(u32, t(0)), "tf32 has no bits of its own; use f32");
    EXPECT_EQ(to_string(bitcast(i32, x(0))), "bitcast(i32, x[0])");
    EXPECT_EQ(bitcast(f32, x(0)).as<Bitcast>(), nullptr);
    Tensor y = compute("y", {8}, [&](Expr i) { return x(i) * 3.0 + bitcast(f32, bitcast(u32, x(i)) & 0xff800000u); });
    const Tensor dx = gradients(y, input("dy", f32, Shape{8}), {x})[0];
    const Bindings bindings = random_bindings({dx}, random_());
    const std::vector<HostArray> got = interpret_plain({dx}, bindings);
    for (size_t at = 0; at < got[0].bytes.size(); at += 4)
        EXPECT_EQ(load_element(f32, &got[0].bytes[at]).real,
                  3 * static_cast<float>(load_element(f32, &bindings.inputs.at("dy").bytes[at]).real));
}

/// Packed, and read by a sum and element by element.
TEST_P(Bits, FourOfANumber) {
    for (int64_t columns : {1, 7, 64}) {
        Tensor x = input("x", i32, {9, columns});
        auto number = [&](const std::vector<Expr>& at) { return x(at[0], at[1]); };
        Tensor bytes = pack_4_bits("bytes", {9, columns}, number);
        EXPECT_EQ(as_constant(bytes.shape()[1]), (columns + 1) / 2);
        Tensor up = compute("up", {9, columns}, [&](Expr i, Expr j) { return u4(bytes, {i, j}); });
        Tensor down = compute("down", {9, columns}, [&](Expr i, Expr j) { return i4(bytes, {i, j}); });
        Axis k = reduce_axis("k", columns);
        Tensor total = compute("total", {9}, [&](Expr i) { return sum(i4(bytes, {i, k}), k); });
        HostArray values = host_array(i32, {9, columns});
        fill_integers(values, -8, 7, static_cast<uint32_t>(random_()));
        const Bindings bindings{{{"x", values}}, {}, {}};
        expect_declared(chosen({up, down, total}), bindings);
        std::vector<HostArray> got = interpret_plain({up, down}, bindings);
        for (size_t at = 0; at < values.bytes.size(); at += 4) {
            const int64_t given = load_element(i32, &values.bytes[at]).integer;
            EXPECT_EQ(load_element(i32, &got[0].bytes[at]).integer, given & 15);
            EXPECT_EQ(load_element(i32, &got[1].bytes[at]).integer, given);
        }
    }
    Tensor f = input("f", f32, {4, 4}), bytes = input("bytes", u8, {4, 4});
    EXPECT_ERROR(u4(Tensor(), {0}), "u4: the tensor is undefined");
    EXPECT_ERROR(pack_4_bits("p", {}, [&](const std::vector<Expr>&) { return Expr(1); }),
                 "give at least one dimension");
    EXPECT_ERROR(u4(f, {0, 0}), "'f' is f32; numbers of 4 bits lie two in an element of u8");
    EXPECT_ERROR(i4(bytes, {0}), "'bytes' has 2 dimensions, not 1");
    EXPECT_ERROR(pack_4_bits("p", {4, 4}, [&](const std::vector<Expr>& at) { return f(at[0], at[1]); }),
                 "its numbers are f32; round and cast them to i32");
    EXPECT_ERROR(pack_4_bits("p", {size("n", {.max = 8})}, [&](const std::vector<Expr>&) { return Expr(1); }),
                 "two numbers share a byte, so it is a constant");
}

/// Numbers of both signs, zeros of both, infinities; NaN is passed over, as min and max do.
HostArray floats_of_all_kinds(const std::vector<int64_t>& shape, std::mt19937& random) {
    HostArray values = host_array(f32, shape);
    const std::vector<float> special{0.0f, -0.0f, INFINITY, -INFINITY, NAN, -NAN, 1e-42f, -1e-42f};
    std::normal_distribution<float> normal;
    for (size_t at = 0; at < values.bytes.size(); at += 4) {
        const float value = random() % 8 == 0 ? special[random() % special.size()] : normal(random);
        std::memcpy(&values.bytes[at], &value, 4);
    }
    return values;
}

TEST_P(Bits, BlocksTakeTheLargestFloat) {
    for (int trial = 0; trial < 4; ++trial) {
        const int64_t n = 1 + static_cast<int64_t>(random_() % 400), rows = 1 + static_cast<int64_t>(random_() % 4);
        const bool largest = trial % 2 == 0;
        Tensor x = input("x", f32, {rows, n});
        Axis k = reduce_axis("k", n);
        Tensor y =
            compute("y", {rows}, [&](Expr i) { return largest ? reduce_max(x(i, k), k) : reduce_min(x(i, k), k); });
        Schedule s({y}, device_target());
        auto [chunk, in_chunk] = s.split(s.reduce(y), 32, Tail::Mask);
        const Stage parts = s.rfactor(y, chunk, Combine::Atomic);
        EXPECT_TRUE(s.deterministic());
        const Loop row = s.data_loops(parts)[1];
        s.order({chunk, row});
        s.bind(chunk, grid.x);
        s.bind(row, thread);
        expect_declared(s, {{{"x", floats_of_all_kinds({rows, n}, random_)}}, {}, {}}, equal_values);
    }
}

TEST_P(Bits, EachTermCountsForTheLargestOfItsSegment) {
    const int64_t terms = 300, segments = 7, width = 5;
    Tensor x = input("x", f32, {terms, width}), segment = input("segment", i32, {terms});
    Axis p = reduce_axis("p", terms);
    const double none = -std::numeric_limits<double>::infinity();
    Tensor y = compute("y", {segments, width}, [&](Expr s, Expr j) {
        return reduce_max(select(cast(i64, segment(p)) == s, x(p, j), constant(f32, none)), p);
    });
    Schedule s({y}, device_target());
    const Stage updates = s.scatter(y, Combine::Atomic);
    auto [term, column] = s.loops<2>(updates);
    auto [block, t] = s.split(term, 64, Tail::Mask);
    s.order({block, t, column});
    s.bind(block, grid.x);
    s.bind(t, thread);
    HostArray at = host_array(i32, {terms});
    fill_integers(at, 0, segments, static_cast<uint32_t>(random_()));  // some belong to none
    expect_declared(s, {{{"x", floats_of_all_kinds({terms, width}, random_)}, {"segment", at}}, {}, {}}, equal_values);
}

}  // namespace
}  // namespace tw
