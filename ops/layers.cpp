#include "ops/layers.h"

#include <cmath>
#include <functional>
#include <numeric>

#include "dsl/differentiate.h"
#include "dsl/simplify.h"
#include "ops/broadcasting.h"
#include "ops/parameters.h"
#include "ops/views.h"
#include "support/error.h"

namespace tw::nn {
namespace {

const Operator& linear_operator() {
    static const Operator op("linear", [](const std::vector<tw::Tensor>& in) {
        const tw::Tensor &x = in[0], &w = in[1], &b = in[2];
        const Type type = computed_type(x.type());
        Axis k = reduce_axis("k", x.shape()[1]);
        return compute("linear", {x.shape()[0], w.shape()[0]}, [&](Expr i, Expr j) {
            const Expr product = tw::sum(tw::cast(type, x(i, k)) * tw::cast(type, w(j, k)), k);
            return tw::cast(x.type(), product + tw::cast(type, b(j)));
        });
    });
    return op;
}

const Operator& mse_loss_operator() {
    static const Operator op("mse_loss", [](const std::vector<tw::Tensor>& in) {
        std::vector<Axis> axes;
        std::vector<Operand> at;
        Expr count = integer(1);
        for (const Expr& extent : in[0].shape()) {
            axes.push_back(reduce_axis(fmt::format("d{}", axes.size()), extent));
            at.emplace_back(axes.back());
            count = simplify(count * extent);
        }
        const Expr error = in[0].read(at) - in[1].read(at);
        return compute("loss", {}, [&] { return sum(error * error, axes) / cast(f32, count); });
    });
    return op;
}

/// log(1 + exp(-|x|)) + max(x, 0). With u the rounded sum, log(u) small / (u - 1) has the error of the logarithm alone
/// (Goldberg, What every computer scientist should know about floating-point arithmetic, theorem 4).
Expr softplus_of(const Expr& x) {
    const Expr small = tw::exp(-tw::abs(x)), one = constant(x.type(), 1.0), u = one + small;
    return tw::max(x, constant(x.type(), 0.0)) + select(u == one, small, tw::log(u) * small / (u - one));
}

/// exp(x) - 1 = tanh(x / 2) (exp(x) + 1), without the cancellation.
Expr exp_less_one(const Expr& x) { return tw::tanh(x * 0.5) * (tw::exp(x) + 1.0); }

/// Rows of a table, and, if these are given, those of `places` in turn added.
const Operator& embedding_operator() {
    static const Operator op("embedding", [](const std::vector<tw::Tensor>& in) {
        const tw::Tensor &table = in[0], &ids = in[1];
        std::vector<Extent> shape(ids.shape().begin(), ids.shape().end());
        shape.emplace_back(table.shape()[1]);
        return compute("embedded", shape, [&](const std::vector<Expr>& at) {
            const Expr element = table(ids.read({at.begin(), at.end() - 1}), at.back());
            return in.size() == 2 ? element : element + in[2](at[0] % in[2].shape()[0], at.back());
        });
    });
    return op;
}

/// The row's maximum cancels: it is there for the range of exp.
const Operator& cross_entropy_operator() {
    static const Operator op("cross_entropy", [](const std::vector<tw::Tensor>& in) {
        const tw::Tensor &x = in[0], &label = in[1];
        const Expr &batch = x.shape()[0], &classes = x.shape()[1];
        Axis c = reduce_axis("c", classes), b = reduce_axis("b", batch);
        tw::Tensor top = stop_gradient(compute("top", {batch}, [&](Expr i) { return reduce_max(x(i, c), c); }));
        tw::Tensor total = compute("total", {batch}, [&](Expr i) { return sum(exp(x(i, c) - top(i)), c); });
        tw::Tensor row = compute("row", {batch}, [&](Expr i) { return log(total(i)) + top(i) - x(i, label(i)); });
        return compute("loss", {}, [&] { return sum(row(b), b) / cast(f32, batch); });
    });
    return op;
}

}  // namespace

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias, std::source_location where) {
    if (x.shape().size() < 2 || weight.shape().size() != 2 || x.shape().back() != weight.shape()[1])
        user_error(where, "linear: x is {}, the weight {}; x must be [..., in] and the weight [out, in]",
                   shape_text(x.shape()), shape_text(weight.shape()));
    if (bias.shape() != std::vector<int64_t>{weight.shape()[0]})
        user_error(where, "linear: the weight is {}, the bias {}; the bias must be [out]", shape_text(weight.shape()),
                   shape_text(bias.shape()));
    check_one_type("linear, of x and the weight", x, weight, where);
    check_one_type("linear, of x and the bias", x, bias, where);
    if (x.shape().size() == 2) return linear_operator()({x, weight, bias}, where);
    std::vector<int64_t> shape = x.shape();
    shape.back() = weight.shape()[0];
    const Tensor rows = reshape(x, {-1, x.shape().back()}, where);
    return reshape(linear_operator()({rows, weight, bias}, where), shape, where);
}

Tensor relu(const Tensor& x, std::source_location where) {
    static const Operator op("relu", of_each("relu", tw::relu));
    return op({x}, where);
}
Tensor gelu(const Tensor& x, std::source_location where) {
    static const Operator op("gelu", of_each("gelu", tw::gelu));
    return op({x}, where);
}

Tensor silu(const Tensor& x, std::source_location where) {
    static const Operator op("silu", of_each("silu", tw::silu));
    return op({x}, where);
}
Tensor tanh(const Tensor& x, std::source_location where) {
    static const Operator op("tanh", of_each("tanh", tw::tanh));
    return op({x}, where);
}
Tensor sigmoid(const Tensor& x, std::source_location where) {
    static const Operator op("sigmoid", of_each("sigmoid", tw::sigmoid));
    return op({x}, where);
}

Tensor softplus(const Tensor& x, std::source_location where) {
    static const Operator op("softplus", of_each_with_slope("softplus", softplus_of, tw::sigmoid));
    check_float("softplus", x, where);
    return op({x}, where);
}
Tensor leaky_relu(const Tensor& x, double slope, std::source_location where) {
    check_float("leaky_relu", x, where);
    return operator_with("leaky_relu", fmt::format("{}", slope), of_each("leaky_relu", [slope](const Expr& e) {
                             return select(e > 0.0, e, e * slope);
                         }))({x}, where);
}
Tensor elu(const Tensor& x, double alpha, std::source_location where) {
    check_float("elu", x, where);
    const auto element = [alpha](const Expr& e) { return select(e > 0.0, e, exp_less_one(e) * alpha); };
    const auto slope = [alpha](const Expr& e) { return select(e > 0.0, constant(e.type(), 1.0), tw::exp(e) * alpha); };
    return operator_with("elu", fmt::format("{}", alpha), of_each_with_slope("elu", element, slope))({x}, where);
}

Tensor flatten(const Tensor& x, std::source_location where) {
    if (x.shape().size() < 2) user_error(where, "flatten: x is {}; give [batch, extents...]", shape_text(x.shape()));
    const std::vector<int64_t>& shape = x.shape();
    return reshape(x, {shape[0], std::accumulate(shape.begin() + 1, shape.end(), int64_t{1}, std::multiplies<>())},
                   where);
}

Tensor embedding(const Tensor& table, const Tensor& ids, const Tensor& places, std::source_location where) {
    if (table.shape().size() != 2 || ids.shape().size() != 1 || ids.type() != i32 || places.shape().size() != 2 ||
        places.shape()[1] != table.shape()[1])
        user_error(where,
                   "embedding: the table is {}, ids are {} {}, places {}; give [words, width], i32 [rows] and [length, "
                   "width]",
                   shape_text(table.shape()), name_of(ids.type()), shape_text(ids.shape()), shape_text(places.shape()));
    return embedding_operator()({table, ids, places}, where);
}

Tensor embedding(const Tensor& table, const Tensor& ids, std::source_location where) {
    if (table.shape().size() != 2 || ids.shape().empty() || ids.type() != i32)
        user_error(where, "embedding: the table is {}, ids are {} {}; give [words, width] and i32 [...]",
                   shape_text(table.shape()), name_of(ids.type()), shape_text(ids.shape()));
    return embedding_operator()({table, ids}, where);
}

Tensor cross_entropy(const Tensor& logits, const Tensor& labels, std::source_location where) {
    if (logits.shape().size() != 2 || labels.type() != i32 || labels.shape() != std::vector<int64_t>{logits.shape()[0]})
        user_error(where, "cross_entropy: logits are {}, labels {} {}; give [batch, classes] and i32 [batch]",
                   shape_text(logits.shape()), name_of(labels.type()), shape_text(labels.shape()));
    return cross_entropy_operator()({logits, labels}, where);
}

Tensor mse_loss(const Tensor& x, const Tensor& y, std::source_location where) {
    if (x.shape() != y.shape() || x.shape().empty())
        user_error(where, "mse_loss: x is {}, y {}; give two of one shape with at least one extent",
                   shape_text(x.shape()), shape_text(y.shape()));
    return mse_loss_operator()({x, y}, where);
}

void check_labels(const std::vector<int32_t>& labels, int64_t classes, std::source_location where) {
    for (size_t i = 0; i < labels.size(); ++i)
        if (labels[i] < 0 || labels[i] >= classes)
            user_error(where, "check_labels: label {} is {}, outside of 0..{}; give numbers of classes", i, labels[i],
                       classes - 1);
}

double accuracy(const HostArray& logits, const std::vector<int32_t>& labels, std::source_location where) {
    if (logits.shape.size() != 2 || logits.shape[0] != int64_t(labels.size()))
        user_error(where, "accuracy: logits are {}, labels [{}]; give [batch, classes] and [batch]",
                   shape_text(logits.shape), labels.size());
    int64_t right = 0;
    for (int64_t i = 0; i < logits.shape[0]; ++i) {
        int64_t best = 0;
        for (int64_t c = 1; c < logits.shape[1]; ++c)
            if (logits.at({i, c}).real > logits.at({i, best}).real) best = c;
        right += best == labels[size_t(i)];
    }
    return labels.empty() ? 0 : double(right) / double(labels.size());
}

namespace {

/// The square root of it, by which weights of so many inputs are divided.
double root_of_size(const char* layer, int64_t size, int64_t other) {
    if (size <= 0 || other <= 0) throw_error(Error, "{}: sizes are {} and {}; give positive ones", layer, size, other);
    return std::sqrt(static_cast<double>(size));
}

}  // namespace

Linear::Linear(std::shared_ptr<Backend> backend, int64_t in, int64_t out, uint64_t seed)
    : weight_(register_parameter(
          "weight", uniform_parameter(backend, {out, in}, 1 / root_of_size("Linear", in, out), 2 * seed, "weight"))),
      bias_(register_parameter("bias",
                               uniform_parameter(backend, {out}, 1 / std::sqrt(double(in)), 2 * seed + 1, "bias"))) {}

Embedding::Embedding(const std::shared_ptr<Backend>& backend, int64_t words, int64_t width, uint64_t seed)
    : weight_(register_parameter(
          "weight",
          uniform_parameter(backend, {words, width}, 1 / root_of_size("Embedding", width, words), seed, "table"))) {}

}  // namespace tw::nn
