#include "schedules/row_operators.h"

#include <limits>
#include <numbers>

namespace tw::schedules {
namespace {

const double epsilon = 1e-5;  // of the variance, as in the usual layers

Shape rows_of(const Tensor& x) { return {x.shape()[0]}; }
Shape shape_of(const Tensor& x) { return {x.shape()[0], x.shape()[1]}; }

/// The sums of so many values in one pass.
Reducer reducer_of_sums(const std::string& name, size_t count) {
    return make_reducer(name, std::vector<Expr>(count, constant(f32, 0.0)),
                        [](const std::vector<Expr>& x, const std::vector<Expr>& y) {
                            std::vector<Expr> sums;
                            for (size_t v = 0; v < x.size(); ++v) sums.push_back(x[v] + y[v]);
                            return sums;
                        });
}

/// The elements as f32, whatever they are stored as.
auto reader(const Tensor& stored) {
    return [stored](const Expr& i, const Expr& j) { return cast(f32, stored(i, j)); };
}

}  // namespace

Tensor kept_rows(const Tensor& stored) {
    return compute("row", shape_of(stored), [&](Expr i, Expr j) { return stored(i, j); });
}

std::vector<Tensor> row_sum(const Tensor& stored, const Axis& k, Type result) {
    auto x = reader(stored);
    return {compute("y", rows_of(stored), [&](Expr i) { return cast(result, sum(x(i, k), k)); })};
}

std::vector<Tensor> softmax(const Tensor& stored, const Axis& k, Type result) {
    auto x = reader(stored);
    Tensor largest = compute("largest", rows_of(stored), [&](Expr i) { return reduce_max(x(i, k), k); });
    Tensor shifted = compute("shifted", shape_of(stored), [&](Expr i, Expr j) { return exp(x(i, j) - largest(i)); });
    Tensor scale = compute("scale", rows_of(stored), [&](Expr i) { return 1 / sum(shifted(i, k), k); });
    return {compute("y", shape_of(stored), [&](Expr i, Expr j) { return cast(result, shifted(i, j) * scale(i)); })};
}

std::vector<Tensor> standardise(const Tensor& stored, const Axis& k, Type result) {
    auto x = reader(stored);
    std::vector<Tensor> moments =
        compute_tuple("moments", rows_of(stored), [&](const std::vector<Expr>& i) { return welford(x(i[0], k), {k}); });
    return {compute("y", shape_of(stored), [&](Expr i, Expr j) {
        return cast(result, (x(i, j) - moments[0](i)) / sqrt(moments[1](i) / moments[2](i) + epsilon));
    })};
}

std::vector<Tensor> layernorm(const Tensor& stored, const Axis& k, Type result) {
    auto x = reader(stored);
    Tensor gain = input("gain", result, {stored.shape()[1]}), bias = input("bias", result, {stored.shape()[1]});
    Expr count = cast(f32, k.extent);
    Tensor mean = compute("mean", rows_of(stored), [&](Expr i) { return sum(x(i, k), k) / count; });
    auto centred = [&](const Expr& i, const Expr& j) { return x(i, j) - mean(i); };
    Tensor scale = compute("scale", rows_of(stored),
                           [&](Expr i) { return rsqrt(sum(centred(i, k) * centred(i, k), k) / count + epsilon); });
    return {compute("y", shape_of(stored), [&](Expr i, Expr j) {
        return cast(result, centred(i, j) * scale(i) * cast(f32, gain(j)) + cast(f32, bias(j)));
    })};
}

std::vector<Tensor> rmsnorm(const Tensor& stored, const Axis& k, Type result) {
    auto x = reader(stored);
    Tensor gain = input("gain", result, {stored.shape()[1]});
    Tensor scale = compute("scale", rows_of(stored),
                           [&](Expr i) { return rsqrt(sum(x(i, k) * x(i, k), k) / cast(f32, k.extent) + epsilon); });
    return {compute("y", shape_of(stored),
                    [&](Expr i, Expr j) { return cast(result, x(i, j) * scale(i) * cast(f32, gain(j))); })};
}

std::vector<Tensor> row_argmax(const Tensor& stored, const Axis& k, Type) {
    auto x = reader(stored);
    return compute_tuple("largest", rows_of(stored), [&](const std::vector<Expr>& i) { return argmax(x(i[0], k), k); });
}

std::vector<Tensor> row_argmax_of_kept(const Tensor& stored, const Axis& k, Type) {
    auto x = reader(stored);
    const Expr none = constant(i32, int64_t{std::numeric_limits<int32_t>::max()});
    Tensor most = compute("most", rows_of(stored), [&](Expr i) { return reduce_max(x(i, k), k); });
    Tensor place = compute("place", rows_of(stored),
                           [&](Expr i) { return reduce_min(select(x(i, k) == most(i), cast(i32, k), none), k); });
    return compute_tuple("largest", rows_of(stored), [&](const std::vector<Expr>& i) {
        const Expr found = place(i[0]), nowhere = constant(i64, std::numeric_limits<int64_t>::max());
        return std::vector<Expr>{most(i[0]), select(found == none, nowhere, cast(i64, found))};
    });
}

std::vector<Tensor> row_moments(const Tensor& stored, const Axis& k, Type) {
    auto x = reader(stored);
    return compute_tuple("moments", rows_of(stored), [&](const std::vector<Expr>& i) {
        std::vector<Expr> parts = welford(x(i[0], k), {k});
        return std::vector<Expr>{parts[0], parts[1] / parts[2]};
    });
}

std::vector<Tensor> similarity(const Tensor& stored, const Axis& k, Type result) {
    auto x = reader(stored);
    Tensor query = input("query", result, {stored.shape()[1]});
    const Expr of_query = cast(f32, query(k));
    return {compute("y", rows_of(stored), [&](Expr i) {
        // The query's own sum in each row, which reads it anyway: less than a kernel in front.
        static const Reducer reducer = reducer_of_sums("three_sums", 3);
        const std::vector<Expr> sums =
            reduce(reducer, {x(i, k) * of_query, x(i, k) * x(i, k), of_query * of_query}, {k});
        Expr squares = sums[1] * sums[2];
        return select(squares > constant(f32, 0.0), sums[0] / sqrt(squares), constant(f32, 0.0));
    })};
}

namespace {

/// The gradient of a row operator's result, kept as its operand is.
auto given_gradient(const Tensor& x, Type type) {
    Tensor dy = input("dy", type, shape_of(x));
    return reader(compute("dy_row", shape_of(x), [&](Expr i, Expr j) { return dy(i, j); }));
}

/// Of what is standardised, with the adjoint g of the result: scale * (g - mean of g - standardised * mean of both).
Tensor gradient_of_norm(const Tensor& x, const Axis& k, Type result, bool centred) {
    auto stored = reader(x), dy = given_gradient(x, result);
    Tensor gain = input("gain", result, {x.shape()[1]}), scale = input("scale", f32, rows_of(x)),
           mean = centred ? input("mean", f32, rows_of(x)) : Tensor();
    auto standardised = [&](const Expr& i, const Expr& j) {
        return (centred ? stored(i, j) - mean(i) : stored(i, j)) * scale(i);
    };
    auto adjoint = [&](const Expr& i, const Expr& j) { return dy(i, j) * cast(f32, gain(j)); };
    std::vector<Tensor> sums = compute_tuple("sums", rows_of(x), [&](const std::vector<Expr>& i) {
        static const Reducer reducer = reducer_of_sums("two_sums", 2);
        return reduce(reducer, {adjoint(i[0], k), adjoint(i[0], k) * standardised(i[0], k)}, {k});
    });
    Expr count = cast(f32, k.extent);
    return compute("dx", shape_of(x), [&](Expr i, Expr j) {
        Expr along = standardised(i, j) * (sums[1](i) / count), rest = adjoint(i, j) - along;
        return cast(result, scale(i) * (centred ? rest - sums[0](i) / count : rest));
    });
}

}  // namespace

std::vector<Tensor> softmax_gradient(const Tensor& y, const Axis& k, Type result) {
    auto stored = reader(y), dy = given_gradient(y, result);
    Tensor total = compute("total", rows_of(y), [&](Expr i) { return sum(stored(i, k) * dy(i, k), k); });
    return {
        compute("dx", shape_of(y), [&](Expr i, Expr j) { return cast(result, stored(i, j) * (dy(i, j) - total(i))); })};
}

std::vector<Tensor> layernorm_gradient(const Tensor& x, const Axis& k, Type result) {
    return {gradient_of_norm(x, k, result, true)};
}

std::vector<Tensor> rmsnorm_gradient(const Tensor& x, const Axis& k, Type result) {
    return {gradient_of_norm(x, k, result, false)};
}

std::vector<Tensor> cross_entropy(const Tensor& x, const Axis& k, Type) {
    auto element = reader(x);
    Tensor label = input("label", i64, rows_of(x));
    Tensor largest = compute("largest", rows_of(x), [&](Expr i) { return reduce_max(element(i, k), k); });
    Tensor total = compute("total", rows_of(x),
                           [&](Expr i) { return sum(exp2((element(i, k) - largest(i)) * std::numbers::log2e), k); });
    return {compute("loss", rows_of(x), [&](Expr i) { return largest(i) + log(total(i)) - element(i, label(i)); })};
}

std::vector<Tensor> cross_entropy_gradient(const Tensor& x, const Axis&, Type result) {
    auto element = reader(x);
    Tensor label = input("label", i64, rows_of(x)), loss = input("loss", f32, rows_of(x)),
           dloss = input("dloss", f32, rows_of(x));
    Tensor total = compute("total", rows_of(x), [&](Expr i) { return loss(i) + element(i, label(i)); });  // of the log
    Tensor target = compute("target", rows_of(x), [&](Expr i) { return cast(i32, label(i)); });
    return {compute("dx", shape_of(x), [&](Expr i, Expr j) {
        Expr share = exp2((element(i, j) - total(i)) * std::numbers::log2e);
        return cast(result, (share - select(target(i) == cast(i32, j), 1.0, 0.0)) * dloss(i));
    })};
}

const std::map<std::string, RowOperator>& row_operators() {
    static const std::map<std::string, RowOperator> all = {{"row_sum", row_sum},
                                                           {"softmax", softmax},
                                                           {"layernorm", layernorm},
                                                           {"rmsnorm", rmsnorm},
                                                           {"argmax", row_argmax},
                                                           {"moments", row_moments},
                                                           {"similarity", similarity},
                                                           {"softmax_gradient", softmax_gradient},
                                                           {"layernorm_gradient", layernorm_gradient},
                                                           {"rmsnorm_gradient", rmsnorm_gradient},
                                                           {"cross_entropy", cross_entropy},
                                                           {"cross_entropy_gradient", cross_entropy_gradient}};
    return all;
}

}  // namespace tw::schedules
