// Steps of training, declared.
#pragma once
#include <string>
#include <vector>

#include <fmt/format.h>

#include "dsl/differentiate.h"
#include "schedules/declared.h"
#include "schedules/normalization.h"

namespace tw {

/// The loss, and w -= rate dw of each parameter.
inline schedules::Declared descent(const Tensor& loss, const std::vector<Tensor>& parameters) {
    const Tensor rate = input("rate", f32, {});
    const Tensor one = compute("one", {}, [](const std::vector<Expr>&) { return constant(f32, 1.0); });
    const std::vector<Tensor> found = gradients(loss, one, parameters);
    schedules::Declared step{{loss}};
    for (size_t k = 0; k < parameters.size(); ++k) {
        const Tensor &w = parameters[k], &dw = found[k];
        const Tensor next =
            compute(fmt::format("next{}", k), {w.shape().begin(), w.shape().end()}, [&](const std::vector<Expr>& at) {
                const std::vector<Operand> own(at.begin(), at.end());
                return w.read(own) - rate() * dw.read(own);
            });
        step.outputs.push_back(next);
        step.in_place.emplace_back(next, w);
    }
    return step;
}

/// Down the mean of squared differences between h and y.
inline schedules::Declared step_towards(const Tensor& y, const Tensor& h, const std::vector<Tensor>& parameters) {
    const Axis i = reduce_axis("i", h.shape()[0]), j = reduce_axis("j", h.shape()[1]);
    const Tensor loss = compute("loss", {}, [&](const std::vector<Expr>&) {
        const Expr d = h(i, j) - y(i, j);
        return sum(d * d, {i, j}) * (1.0 / static_cast<double>(require_constant(h.shape()[0])));
    });
    return descent(loss, parameters);
}

inline Tensor product_of_rows(const std::string& name, const Tensor& x, const Tensor& w) {
    const Axis r = reduce_axis("r", x.shape()[1]);
    return compute(name, {x.shape()[0], w.shape()[0]}, [&](Expr i, Expr j) { return sum(x(i, r) * w(j, r), r); });
}

/// Rows through `layers` layers of tanh.
inline schedules::Declared step_of_layers(int layers, int64_t rows, int64_t width) {
    const Tensor x = input("x", f32, {rows, width}), y = input("y", f32, {rows, width});
    std::vector<Tensor> weights;
    Tensor h = x;
    for (int k = 0; k < layers; ++k) {
        weights.push_back(input(fmt::format("w{}", k), f32, {width, width}));
        const Tensor z = product_of_rows(fmt::format("z{}", k), h, weights.back());
        h = compute(fmt::format("h{}", k), {rows, width}, [&](Expr i, Expr j) { return tanh(z(i, j)); });
    }
    return step_towards(y, h, weights);
}

/// Rows through layers of these widths, with biases and ReLU between them, and the mean cross-entropy with labels.
inline schedules::Declared step_of_classifier(int64_t rows, const std::vector<int64_t>& widths) {
    const Tensor label = input("label", i32, {rows});
    std::vector<Tensor> parameters;
    Tensor h = input("x", f32, {rows, widths[0]});
    const size_t layers = widths.size() - 1;
    for (size_t k = 0; k < layers; ++k) {
        const Tensor w = input(fmt::format("w{}", k), f32, {widths[k + 1], widths[k]}), in = h,
                     b = input(fmt::format("b{}", k), f32, {widths[k + 1]});
        parameters.insert(parameters.end(), {w, b});
        const Axis r = reduce_axis("r", widths[k]);
        const Tensor z = compute(fmt::format("z{}", k), {rows, widths[k + 1]},
                                 [&](Expr i, Expr j) { return sum(in(i, r) * w(j, r), r) + b(j); });
        h = k + 1 == layers
                ? z
                : compute(fmt::format("h{}", k), {rows, widths[k + 1]}, [&](Expr i, Expr j) { return relu(z(i, j)); });
    }
    const Axis c = reduce_axis("c", widths.back()), i = reduce_axis("i", rows);
    const Tensor most = stop_gradient(compute("most", {rows}, [&](Expr n) { return reduce_max(h(n, c), c); }));
    const Tensor total = compute("total", {rows}, [&](Expr n) { return sum(exp(h(n, c) - most(n)), c); });
    const Tensor of_row =
        compute("of_row", {rows}, [&](Expr n) { return most(n) + log(total(n)) - h(n, cast(i64, label(n))); });
    const Tensor loss = compute(
        "loss", {}, [&](const std::vector<Expr>&) { return sum(of_row(i), i) * (1.0 / static_cast<double>(rows)); });
    return descent(loss, parameters);
}

/// Rows through blocks of a transformer without attention: layer norm, two products with GELU between them, residual.
inline schedules::Declared step_of_blocks(int blocks, int64_t rows, int64_t width) {
    const Tensor y = input("y", f32, {rows, width});
    std::vector<Tensor> parameters;
    auto parameter = [&](int block, const char* name, const Shape& shape) {
        parameters.push_back(input(fmt::format("block{}_{}", block, name), f32, shape));
        return parameters.back();
    };
    Tensor h = input("x", f32, {rows, width});
    for (int k = 0; k < blocks; ++k) {
        auto name = [&](const char* of) { return fmt::format("block{}_{}", k, of); };
        const Tensor gain = parameter(k, "gain", {width}), bias = parameter(k, "bias", {width}),
                     up = parameter(k, "up", {4 * width, width}), up_bias = parameter(k, "up_bias", {4 * width}),
                     down = parameter(k, "down", {width, 4 * width});
        const Tensor n = schedules::layer_norm(name("n"), h, 1, {gain, bias}), z = product_of_rows(name("z"), n, up);
        const Tensor g =
            compute(name("g"), {rows, 4 * width}, [&](Expr i, Expr j) { return gelu(z(i, j) + up_bias(j)); });
        const Tensor o = product_of_rows(name("o"), g, down), was = h;
        h = compute(name("h"), {rows, width}, [&](Expr i, Expr j) { return was(i, j) + o(i, j); });
    }
    return step_towards(y, h, parameters);
}

}  // namespace tw
