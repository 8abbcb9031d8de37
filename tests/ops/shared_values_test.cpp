// Expressions are graphs: what stands in several places is written, computed and walked once.
#include <chrono>
#include <functional>

#include "dsl/differentiate.h"
#include "tests/ops/random_cases.h"

namespace tw {
namespace {

using Grow = std::function<Expr(const Expr& value, const Expr& i, int step)>;

Expr grown(Expr value, const Expr& i, int steps, const Grow& grow) {
    for (int step = 0; step < steps; ++step) value = grow(value, i, step);
    return value;
}

HostArray random_numbers(Type type, int64_t elements) {
    HostArray array = host_array(type, {elements});
    fill_integers(array, -9, 9, 7);
    return array;
}

size_t occurrences(const std::string& text, const std::string& part) {
    size_t count = 0;
    for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++count;
    return count;
}

/// Doubled steps at most double what a step adds to the text, whatever the first steps take.
void expect_linear_text(const std::function<Tensor(int steps)>& declare) {
    auto size = [&](int steps) { return build(Schedule({declare(steps)}, target("sm_90a"))).cuda().size(); };
    size_t one = size(30), two = size(60), four = size(120);
    EXPECT_LE(four - two, 2 * (two - one) * 5 / 4) << one << ", " << two << ", " << four;
}

class SharedValues : public RandomCases {
protected:
    SharedValues() : RandomCases(913) {}

    /// A graph of whole numbers in which every node may be used by any later one, also behind conditions that keep it
    /// from reading beside a table, or from dividing by zero.
    Expr random_graph(const Tensor& x, const Tensor& table, const Expr& i, int nodes) {
        std::vector<Expr> numbers{x(i), padded(x, 3)(i + between(-40, 40)), cast(i32, i)};
        std::vector<Expr> flags{x(i) > 0, i < between(0, 70)};
        auto number = [&] { return numbers[numbers.size() - 1 - between(0, std::min<int>(5, numbers.size() - 1))]; };
        auto flag = [&] { return flags[flags.size() - 1 - between(0, std::min<int>(3, flags.size() - 1))]; };
        for (int n = 0; n < nodes; ++n) {
            Expr a = number(), b = number(), c = flag();
            switch (between(0, 11)) {
                case 0: numbers.push_back(a * b + a); break;
                case 1: numbers.push_back(a - b * 3); break;
                case 2: numbers.push_back(max(a, b) * min(a, 5)); break;
                case 3:
                case 4: numbers.push_back(select(c, a * 3 + b, a - b)); break;
                case 5: numbers.push_back(select(c, a * b, select(flag(), a + 1, 2))); break;
                case 6: numbers.push_back(select(b > 0, a / b + a % b, a)); break;
                case 7: {
                    Expr inside = a >= 0 && a < 16;
                    numbers.push_back(select(inside, table(a) * 3, b));
                    flags.push_back(inside && table(a) > 2);
                    break;
                }
                case 8: numbers.push_back(padded(x, 1)(i + between(-70, 70)) * a + b); break;
                case 9: flags.push_back(a < b && c); break;
                case 10: flags.push_back((c && a % 4 == 1) || b > 5); break;
                case 11: numbers.push_back(abs(a) % 16); break;
            }
        }
        Expr sum = number();
        for (int n = 0; n < 3; ++n) sum = select(flag(), sum + number(), sum * 5 - number());
        return sum;
    }

    /// The declaration, the schedule's tree and the kernel agree.
    void expect_one_result(const Schedule& s, const Bindings& bindings) const {
        expect_declared(s, bindings);
        auto declared = interpret_plain(s.outputs(), bindings), tree = TreeInterpreter(s.tree()).run(bindings);
        auto differs = difference("the tree", tree[0], declared[0], bitwise);
        EXPECT_FALSE(differs) << *differs;
    }
};
TW_ON_EACH_DEVICE(SharedValues);

TEST_P(SharedValues, RandomGraphs) {
    for (int round = 0; round < 24; ++round) {
        Tensor x = input("x", i32, {64}), table = input("table", i32, {16});
        int nodes = between(4, 40);
        Tensor y = compute("y", {64}, [&](Expr i) { return random_graph(x, table, i, nodes); });
        Schedule s({y}, device_target());
        if (chance()) {
            auto [block, of] = s.split(s.data_loops(y)[0], chance() ? 32 : 24, Tail::Mask);
            s.bind(block, grid.x);
            s.bind(of, thread);
        }
        expect_one_result(s, {{{"x", random_numbers(i32, 64)}, {"table", random_numbers(i32, 16)}}, {}, {}});
        if (HasFailure()) break;
    }
}

/// A value that several, separate conditions lead to, each time from the one before: its reads are there where one of
/// the conditions holds, and nowhere else.
Tensor behind_conditions(const Tensor& x, const Tensor& limit, int steps) {
    return compute("y", {64}, [&](Expr i) {
        return grown(cast(i32, i), i, steps, [&](const Expr& value, const Expr& at, int step) {
            Expr inside = value >= 0 && value < 64;
            return select(limit(at) > step, select(inside, x(value), 1) * 3 + value,
                          select(limit(at) > step - 4, value - 1, 2));
        });
    });
}

TEST_P(SharedValues, BehindConditions) {
    Tensor x = input("x", i32, {64}), limit = input("limit", i32, {64});
    Bindings bindings{{{"x", random_numbers(i32, 64)}, {"limit", random_numbers(i32, 64)}}, {}, {}};
    expect_one_result(Schedule({behind_conditions(x, limit, 30)}, device_target()), bindings);
}

TEST_P(SharedValues, DeepChains) {
    Tensor x = input("x", f32, {4}), y = input("y", f32, {4});
    HostArray halves = host_array(f32, {4}), numbers = host_array(f32, {4});
    for (int64_t i = 0; i < 4; ++i) {
        halves.set({i}, make_value(f32, i % 2 ? 0.5 : -0.5));
        numbers.set({i}, make_value(f32, double(i)));
    }
    Bindings bindings{{{"x", halves}, {"y", numbers}}, {}, {}};
    const int steps =
        GetParam() == "emulated" ? 10000 : 2000;  // NVRTC's time grows with the square of a chain's length
    auto chain = [&](const Grow& grow) {
        return compute("z", {4}, [&](Expr i) { return grown(x(i), i, steps, grow); });
    };
    expect_one_result(Schedule({chain([](auto& e, auto&, int) { return e + 1; })}, device_target()), bindings);
    expect_one_result(Schedule({chain([&](auto& e, auto& i, int) { return e * x(i) + y(i); })}, device_target()),
                      bindings);
}

TEST(SharedValuesText, NamesWhatIsUsedTwice) {
    Tensor x = input("x", f32, {64});
    Tensor y = compute("y", {64}, [&](Expr i) {
        Expr t = tanh(x(i) * 3.0);
        return t * (1.0 - t * t);
    });
    std::string text = build(Schedule({y}, target("sm_90a"))).cuda();
    std::string kernel = text.substr(text.find("__global__"));
    EXPECT_EQ(occurrences(kernel, "tw::tanh("), 1u) << kernel;
    EXPECT_EQ(occurrences(kernel, "const float e_1 = tw::tanh("), 1u) << kernel;
}

TEST(SharedValuesText, KeepsConditionsBeforeWhatTheyGuard) {
    Tensor x = input("x", i32, {64}), table = input("table", i32, {8});
    Tensor y = compute("y", {64}, [&](Expr i) {
        Expr read = table(x(i)) * 5 + 1;
        return select(x(i) >= 0 && x(i) < 8, read * read * (read + 2), 0);
    });
    std::string text = build(Schedule({y}, target("sm_90a"))).cuda();
    std::string kernel = text.substr(text.find("__global__"));
    EXPECT_EQ(occurrences(kernel, "table["), 1u) << kernel;
    EXPECT_NE(kernel.find("if (needs_"), std::string::npos) << kernel;
}

TEST(SharedValuesText, GrowsWithTheNodes) {
    Tensor x = input("x", f32, {64}), m = input("m", i32, {64}), limit = input("limit", i32, {64});
    auto chain = [](const Tensor& of, const Grow& grow) {
        return [=](int steps) { return compute("y", {64}, [&](Expr i) { return grown(of(i), i, steps, grow); }); };
    };
    auto begin = std::chrono::steady_clock::now();
    expect_linear_text(chain(x, [](auto& e, auto&, int) { return e + e; }));
    expect_linear_text(chain(x, [&](auto& e, auto& i, int) { return e * (2.0 - x(i) * e); }));
    expect_linear_text(chain(x, [&](auto& e, auto& i, int) { return select(e > x(i), e * 2.0, tanh(e)); }));
    expect_linear_text(chain(m, [&](auto& e, auto& i, int) { return select(e > m(i), e * e, min(e, e * 7)); }));
    expect_linear_text(chain(m, [&](auto& e, auto& i, int n) { return (e * e + m(i)) % 97 + e / (n + 2); }));
    expect_linear_text([&](int steps) { return behind_conditions(m, limit, steps); });
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::minutes(1));
}

TEST(SharedValuesText, SoDoGradients) {
    Tensor x = input("x", f32, {64}), given = input("given", f32, {64});
    auto derivative = [&](const Grow& grow) {
        return [&, grow](int steps) {
            Tensor y = compute("y", {64}, [&](Expr i) { return grown(x(i), i, steps, grow); });
            return gradients(y, given, {x})[0];
        };
    };
    expect_linear_text(derivative([&](auto& e, auto& i, int) { return e * (2.0 - x(i) * e); }));
    expect_linear_text(derivative([](auto& e, auto&, int) { return sigmoid(e) * e + e; }));
    expect_linear_text(derivative([](auto& e, auto&, int) { return max(e, tanh(e) * 3.0); }));
    expect_linear_text(derivative([&](auto& e, auto& i, int) { return relu(e * x(i) + 1.0); }));
}

}  // namespace
}  // namespace tw
