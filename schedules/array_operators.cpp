#include "schedules/array_operators.h"

#include "dsl/philox.h"

namespace tw::schedules {
namespace {

/// v as f32, to compute with.
Expr wide(const Expr& v) { return cast(f32, v); }

}  // namespace

Declared column_sum(const Tensor& x) {
    Axis k = reduce_axis("k", x.shape()[0]);
    return {{compute("y", {x.shape()[1]}, [&](Expr j) { return cast(x.type(), sum(wide(x(k, j)), k)); })}};
}

Declared full_sum(const Tensor& x) {
    Axis k = reduce_axis("k", x.shape()[0]);
    return {{compute("y", {}, [&](const std::vector<Expr>&) { return sum(wide(x(k)), k); })}};
}

Declared dot(int64_t count, Type type) {
    Tensor a = input("a", type, {count}), b = input("b", type, {count});
    Axis k = reduce_axis("k", count);
    return {{compute("y", {}, [&](const std::vector<Expr>&) { return sum(wide(a(k)) * wide(b(k)), k); })}};
}

Declared transpose(const Tensor& x) {
    return {{compute("y", {x.shape()[1], x.shape()[0]}, [&](Expr i, Expr j) { return x(j, i); })}};
}

Declared gelu_bias(const Tensor& x) {
    Tensor bias = input("bias", x.type(), {x.shape()[1]});
    return {{compute("y", {x.shape()[0], x.shape()[1]},
                     [&](Expr i, Expr j) { return cast(x.type(), gelu(wide(x(i, j)) + wide(bias(j)))); })}};
}

Declared dropout(const Tensor& x) {
    Tensor seed = input("seed", u32, {1});
    Expr rows = x.shape()[0], columns = x.shape()[1];
    return {{compute("y", {rows, columns}, [&](Expr i, Expr j) {
        return cast(x.type(), tw::dropout(wide(x(i, j)), 0.1, seed(0), i * columns + j));
    })}};
}

Declared embedding(int64_t positions, int64_t words, int64_t width, Type type) {
    Tensor table = input("table", type, {words, width}), ids = input("ids", i32, {positions});
    return {{compute("y", {positions, width}, [&](Expr p, Expr j) { return table(cast(i64, ids(p)), j); })}};
}

Declared embedding_gradient(int64_t positions, int64_t words, int64_t width, Type type) {
    Tensor upstream = input("y_gradient", type, {positions, width}), ids = input("ids", i32, {positions});
    Axis p = reduce_axis("p", positions);
    return {{compute("gradient", {words, width}, [&](Expr w, Expr j) {
        return sum(select(cast(i64, ids(p)) == w, wide(upstream(p, j)), constant(f32, 0.0)), p);
    })}};
}

Declared adamw(int64_t count) {
    Tensor p = input("p", f32, {count}), g = input("g", f32, {count});
    Tensor m = input("m", f32, {count}), v = input("v", f32, {count});
    Expr lr = scalar("lr", f32), beta1 = scalar("beta1", f32), beta2 = scalar("beta2", f32), eps = scalar("eps", f32);
    Expr decay = scalar("decay", f32), correction1 = scalar("correction1", f32),
         correction2 = scalar("correction2", f32);
    std::vector<Tensor> next = compute_tuple("next", {count}, [&](const std::vector<Expr>& index) {
        Expr i = index[0];
        Expr mean = m(i) + (1 - beta1) * (g(i) - m(i)), square = v(i) + (1 - beta2) * (g(i) * g(i) - v(i));
        Expr direction = mean * correction1 / (sqrt(square * correction2) + eps);
        return std::vector<Expr>{p(i) - lr * (direction + decay * p(i)), mean, square};
    });
    return {next, {{next[0], p}, {next[1], m}, {next[2], v}}};
}

}  // namespace tw::schedules
