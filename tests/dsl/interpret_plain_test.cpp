// The interpreter of declarations, which evaluates many points at once, against one that takes them one by one.
#include <algorithm>
#include <cmath>
#include <random>
#include <unordered_map>

#include <gtest/gtest.h>

#include "dsl/interpret.h"
#include "dsl/plain_arithmetic.h"
#include "support/overloaded.h"

namespace tw {
namespace {

using Values = std::unordered_map<const ExprNode*, Value>;

/// The value of an expression at one point, by definition. Inputs alone are read.
class ValueAtPoint {
public:
    ValueAtPoint(const Bindings& given, Precision precision) : given_(given), precision_(precision) {}

    Value operator()(const Expr& expr, const Values& values) const {
        auto of = [&](const Expr& e) { return (*this)(e, values); };
        auto truth = [](bool value) { return Value{Type::Bool, 0, value}; };
        const Type type = numbers_of(expr.type());
        return std::visit(
            Overloaded{
                [&](const IntConstant& n) { return make_value(type, n.value); },
                [&](const FloatConstant& n) { return make_value(type, n.value); },
                [&](const Variable&) { return values.at(expr.id()); },
                [&](const Cast& n) { return convert(type, of(n.a)); },
                [&](const Select& n) { return of(n.condition).integer ? of(n.yes) : of(n.no); },
                [&](const Unary& n) {
                    Value a = of(n.a);
                    if (n.op == UnaryOp::Not) return truth(!a.integer);
                    return is_float(type) ? make_value(type, apply_plainly(n.op, a.real))
                                          : make_value(type, -a.integer);
                },
                [&](const Binary& n) {
                    Value a = of(n.a);
                    if (n.op == BinaryOp::And && !a.integer) return truth(false);
                    if (n.op == BinaryOp::Or && a.integer) return truth(true);
                    Value b = of(n.b);
                    if (is_lazy(n.op)) return b;
                    const bool reals = is_float(a.type);
                    if (is_comparison(n.op))
                        return truth(reals ? compare(n.op, a.real, b.real) : compare(n.op, a.integer, b.integer));
                    if (reals) return make_value(type, apply_plainly(n.op, a.real, b.real));
                    EXPECT_FALSE(divides(n.op) && b.integer == 0);
                    return make_value(type, apply_plainly(n.op, a.integer, b.integer));
                },
                [&](const Read& n) {
                    std::vector<int64_t> indices;
                    for (const Expr& index : n.indices) indices.push_back(of(index).integer);
                    return convert(type, given_.inputs.at(n.operation->name).at(indices));
                },
                [&](const Reduce& n) { return reduced(n, values)[n.component]; },
                [&](const auto&) { return Value{}; },
            },
            (*expr).kind);
    }

private:
    Type numbers_of(Type type) const { return precision_ == Precision::Float64 && is_float(type) ? Type::F64 : type; }

    std::vector<Value> reduced(const Reduce& node, const Values& outside) const {
        std::vector<Value> totals;
        std::vector<int64_t> shape, point(node.axes.size());
        for (const Expr& identity : node.reducer->identity) totals.push_back((*this)(identity, outside));
        for (const Expr& axis : node.axes) shape.push_back((*this)(axis.as<Variable>()->extent, outside).integer);
        if (std::count(shape.begin(), shape.end(), 0)) return totals;
        do {
            Values inside = outside;
            for (size_t d = 0; d < point.size(); ++d) inside[node.axes[d].id()] = {Type::I64, 0, point[d]};
            Values operands;
            for (size_t c = 0; c < totals.size(); ++c) {
                operands[node.reducer->left[c].id()] = totals[c];
                operands[node.reducer->right[c].id()] = (*this)(node.values[c], inside);
            }
            for (size_t c = 0; c < totals.size(); ++c) totals[c] = (*this)(node.reducer->combined[c], operands);
        } while (advance(point, shape));
        return totals;
    }

    const Bindings& given_;
    Precision precision_;
};

/// x -> a x + b, one behind the other.
std::vector<Expr> composed_maps(const std::vector<Expr>& a, const std::vector<Expr>& b) {
    return {a[0] * b[0], a[1] * b[0] + b[1]};
}

/// Bodies of f32 with reductions in reductions, over axes whose extents differ from point to point, reads and divisions
/// that fail where no condition guards them, and nodes that stand in several places.
class RandomBodies {
public:
    explicit RandomBodies(uint64_t seed) : random_(seed) {}

    int64_t pick(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }

    /// Of indices that have values.
    Expr number(const std::vector<Expr>& indices, int depth) {
        Expr made = fresh_number(indices, depth);
        for (int again = pick(0, 4) == 0 ? 2 : 0; again > 0; --again)
            made = pick(0, 1) ? made * made : select(condition(indices, depth - 1), made, made - 1.0);
        return made;
    }

    Tensor x = input("x", f32, {11}), half = input("half", bf16, {5, 3}), table = input("table", i32, {9});

private:
    /// x or table at a place that may lie outside, guarded.
    Expr guarded(const Tensor& tensor, const Expr& index, const Expr& otherwise) {
        Expr element = make_expr(tensor.type(), Read{tensor.operation(), 0, {index}, true});
        if (pick(0, 1)) return select(index < 0 || tensor.shape()[0] <= index, otherwise, element);
        return select(index >= 0 && index < tensor.shape()[0], element, otherwise);
    }

    Expr index(const std::vector<Expr>& indices, int depth) {
        auto one = [&] { return index(indices, depth - 1); };
        if (depth <= 0 || pick(0, 3) == 0)
            return indices.empty() || pick(0, 3) == 0 ? constant(i64, pick(-3, 9))
                                                      : indices[pick(0, static_cast<int64_t>(indices.size()) - 1)];
        switch (pick(0, 6)) {
            case 0: return one() + one();
            case 1: return one() - one();
            case 2: return one() * constant(i64, pick(-2, 3));
            case 3: return min(one(), one());
            case 4: return select(condition(indices, depth - 1), one(), one());
            case 5: return cast(i64, guarded(table, one(), constant(i32, pick(-2, 12))));
            default: {
                Expr divisor = one();
                return select(divisor != 0, binary(pick(0, 1) ? BinaryOp::Div : BinaryOp::Mod, one(), divisor), one());
            }
        }
    }

    Expr condition(const std::vector<Expr>& indices, int depth) {
        if (depth > 0 && pick(0, 2) == 0) {
            Expr a = condition(indices, depth - 1), b = condition(indices, depth - 1);
            return pick(0, 2) == 0 ? !a : pick(0, 1) ? a && b : a || b;
        }
        if (depth > 1 && pick(0, 2) == 0) return number(indices, depth - 2) < number(indices, depth - 2);
        Expr divisor = index(indices, depth - 1), other = index(indices, depth - 1);
        switch (pick(0, 3)) {
            case 0: return divisor != 0 && binary(BinaryOp::Div, other, divisor) < 2;
            case 1: return divisor == 0 || binary(BinaryOp::Mod, other, divisor) == 0;
            case 2: return divisor == other;
            default: return divisor <= other;
        }
    }

    Expr fresh_number(const std::vector<Expr>& indices, int depth) {
        auto one = [&] { return number(indices, depth - 1); };
        if (depth <= 0) return guarded(x, index(indices, 1), constant(f32, 0.5));
        switch (pick(0, 10)) {
            case 0: return one() + one();
            case 1: return one() * one();
            case 2: return pick(0, 1) ? max(one(), one()) : one() / one();
            case 3: return pick(0, 1) ? -one() : exp(one() * 0.25);
            case 4: return select(condition(indices, depth - 1), one(), one());
            case 5: return cast(f32, cast(bf16, one()));
            case 6: return cast(f32, index(indices, depth));
            case 7:
                return cast(f32, half(cast(i64, cast(i32, index(indices, 2) % 5)),
                                      cast(i64, cast(i32, index(indices, 2) % 3))));
            default: return reduction(indices, depth - 1);
        }
    }

    Expr extent(const std::vector<Expr>& indices) {
        switch (pick(0, 4)) {
            case 0: return index(indices, 2) % constant(i64, pick(1, 6));
            case 1: return cast(i64, guarded(table, index(indices, 1), constant(i32, 2)));
            case 2: return constant(i64, pick(0, 3));
            default: return constant(i64, pick(1, 7));
        }
    }

    Expr reduction(const std::vector<Expr>& indices, int depth) {
        std::vector<Axis> axes;
        std::vector<Expr> inside = indices;
        for (int64_t d = pick(1, 2); d > 0; --d) {
            axes.push_back(reduce_axis("r" + std::to_string(++num_axes_), extent(indices)));
            inside.push_back(axes.back());
        }
        Expr term = number(inside, depth), other = number(inside, depth - 1);
        switch (pick(0, 5)) {
            case 0: return reduce_max(term, axes);
            case 1: return prod(term, axes);
            case 2: return cast(f32, sum(cast(i32, index(inside, depth)), axes));
            case 3: {
                std::vector<Expr> best = argmax(term, axes[0]);
                return axes.size() > 1 ? sum(term, axes) : select(best[1] < 3, best[0], cast(f32, best[1]));
            }
            case 4: {
                Reducer reducer = make_reducer("maps", {constant(f32, 1.0), constant(f32, 0.0)}, composed_maps, false);
                std::vector<Expr> map = reduce(reducer, {term, other}, axes);
                return map[pick(0, 1)] + map[1];
            }
            default: return sum(term, axes);
        }
    }

    std::mt19937_64 random_;
    int num_axes_ = 0;
};

Bindings random_data(uint64_t seed) {
    Bindings given{
        {{"x", host_array(f32, {11})}, {"half", host_array(bf16, {5, 3})}, {"table", host_array(i32, {9})}}, {}, {}};
    fill_uniform(given.inputs["x"], -2, 2, seed);
    fill_uniform(given.inputs["half"], -2, 2, seed + 1);
    fill_integers(given.inputs["table"], -2, 11, seed + 2);
    given.inputs["x"].set({static_cast<int64_t>(seed % 11)}, make_value(f32, std::nan("")));
    given.inputs["x"].set({static_cast<int64_t>(seed % 7)}, make_value(f32, -0.0));
    return given;
}

void expect_as_one_by_one(const std::vector<Tensor>& outputs, const Bindings& given, const std::string& context) {
    const Operation& operation = *outputs[0].operation();
    for (Precision precision : {Precision::Declared, Precision::Float64}) {
        std::vector<HostArray> got = interpret_plain(outputs, given, precision), wanted = got;
        for (HostArray& array : wanted) fill_poison(array);
        std::vector<int64_t> point(got[0].shape.size());
        do {
            Values values;
            for (size_t d = 0; d < point.size(); ++d) values[operation.axes[d].id()] = {Type::I64, 0, point[d]};
            for (size_t o = 0; o < wanted.size(); ++o)
                wanted[o].set(point, ValueAtPoint(given, precision)(operation.outputs[o].body, values));
        } while (advance(point, got[0].shape));
        for (size_t o = 0; o < wanted.size(); ++o)
            ASSERT_EQ(difference("y", got[o], wanted[o]), std::nullopt) << context << to_string(operation);
    }
}

// Other seeds: --gtest_shuffle --gtest_repeat=20.
TEST(InterpretPlain, ManyPointsAtOnceAreAsOneByOne) {
    const int shuffled = GTEST_FLAG_GET(shuffle) ? testing::UnitTest::GetInstance()->random_seed() : 0;
    const uint64_t first_seed = 20261127 + static_cast<uint64_t>(shuffled);
    const std::vector<std::vector<int64_t>> shapes = {{}, {1}, {4}, {300}, {7, 5}, {3, 90}};
    for (uint64_t seed = first_seed; seed < first_seed + 100; ++seed) {
        RandomBodies bodies(seed);
        const std::vector<int64_t>& shape = shapes[seed % shapes.size()];
        std::vector<Tensor> outputs = compute_tuple("y", Shape(shape.begin(), shape.end()), [&](const auto& indices) {
            Expr first = bodies.number(indices, shape.size() == 1 ? 3 : 2);
            return std::vector<Expr>{first, bodies.number(indices, 2) + first};
        });
        expect_as_one_by_one(outputs, random_data(seed), fmt::format("seed {}\n", seed));
        if (HasFatalFailure()) return;
    }
}

// More terms than fit beside each other, of points that have different numbers of them.
TEST(InterpretPlain, LongReductionsKeepTheirOrder) {
    Tensor x = input("x", f32, {3, 40, 50}), rows = input("rows", i32, {3});
    std::vector<Tensor> outputs = compute_tuple("y", {3}, [&](const std::vector<Expr>& at) {
        Axis i = reduce_axis("i", rows(at[0])), j = reduce_axis("j", 50 - at[0] * 7);
        Reducer reducer = make_reducer("maps", {constant(f32, 1.0), constant(f32, 0.0)}, composed_maps, false);
        std::vector<Expr> map = reduce(reducer, {x(at[0], i, j), x(at[0], i, j) * 0.5}, {i, j});
        std::vector<Expr> best = argmax(x(at[0], 0, j), j);
        return std::vector<Expr>{sum(x(at[0], i, j), {i, j}), map[1] + map[0], cast(f32, best[1]) + best[0]};
    });
    Bindings given{{{"x", host_array(f32, {3, 40, 50})}, {"rows", host_array(i32, {3})}}, {}, {}};
    fill_uniform(given.inputs["x"], -1.4, 1.4, 7);
    for (auto [row, length] : {std::pair(0, 40), {1, 0}, {2, 31}})
        given.inputs["rows"].set({row}, make_value(i32, int64_t{length}));
    expect_as_one_by_one(outputs, given, "");
}

// 2^100 places, of one value each.
TEST(InterpretPlain, SharedNodesAreEvaluatedOnceAtAPoint) {
    Tensor x = input("x", f32, {300});
    Axis r = reduce_axis("r", 3);
    Tensor y = compute("y", {300}, [&](Expr i) {
        Expr value = x(i) + sum(x(i) * cast(f32, r), r);
        for (int level = 0; level < 100; ++level)
            value = select(value < 0.5, value * 0.5f, 0.25f) + select(value < 0.75 || value == 4, value, 1.0f);
        return value;
    });
    Bindings given{{{"x", host_array(f32, {300})}}, {}, {}};
    fill_uniform(given.inputs["x"], -1, 1, 3);
    HostArray got = interpret_plain({y}, given)[0];
    for (int64_t i = 0; i < 300; ++i) {
        auto at = static_cast<float>(given.inputs["x"].at({i}).real);
        float value = at + ((0 + at * 1) + at * 2);
        for (int level = 0; level < 100; ++level)
            value = (value < 0.5f ? value * 0.5f : 0.25f) + (value < 0.75f || value == 4 ? value : 1.0f);
        ASSERT_EQ(got.at({i}).real, value) << i;
    }
}

}  // namespace
}  // namespace tw
