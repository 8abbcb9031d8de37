#include "schedules/unit_product.h"

#include <algorithm>

#include "dsl/stage.h"
#include "schedules/thin_product.h"

namespace tw::schedules {
namespace {

constexpr int64_t least_extent = 16;  // rows or terms of an instruction; less leaves most of it empty

/// An element that a unit reads as `type`.
struct Factor {
    const Read* read;
    Type type;
};

std::optional<Factor> factor_of(const Expr& expr) {
    if (const Unary* function = expr.as<Unary>(); function && function->op == UnaryOp::TruncateTf32)
        if (const Read* read = function->a.as<Read>(); read && function->a.type() == f32) return Factor{read, tf32};
    const Cast* cast = expr.as<Cast>();
    const Read* read = cast ? cast->a.as<Read>() : nullptr;
    if (!read) return {};
    Type type = cast->a.type();
    bool multiplied = type == bf16 || type == f16 || type == e4m3 || type == e5m2 || type == i8;
    if (!multiplied || expr.type() != (type == i8 ? i32 : f32)) return {};
    return Factor{read, type};
}

bool depends(const Factor& factor, const Expr& axis) {
    const auto& indices = factor.read->indices;
    return std::any_of(indices.begin(), indices.end(), [&](const Expr& index) { return contains(index, axis); });
}

std::optional<int64_t> extent_of(const Expr& axis) {
    const Variable* variable = axis.as<Variable>();
    return variable->extent.defined() ? as_constant(variable->extent) : std::nullopt;
}

/// The sum's factors, that of the rows first.
std::optional<std::pair<Factor, Factor>> factors_of(const Reduce& sum, const Expr& row, const Expr& column) {
    const Binary* times = sum.values[0].as<Binary>();
    if (!times || times->op != BinaryOp::Mul) return {};
    auto a = factor_of(times->a), b = factor_of(times->b);
    if (!a || !b || a->type != b->type || a->read->operation == b->read->operation) return {};
    if (depends(*a, column)) std::swap(a, b);
    bool rows = depends(*a, row) && !depends(*a, column), columns = depends(*b, column) && !depends(*b, row);
    if (!rows || !columns || !depends(*a, sum.axes[0]) || !depends(*b, sum.axes[0])) return {};
    return std::pair(*a, *b);
}

}  // namespace

const Reduce* only_reduction(const Expr& body) {
    const Reduce* found = nullptr;
    int count = 0;
    visit(body, [&](const Expr& e) {
        if (!e.as<Reduce>()) return;
        found = e.as<Reduce>();
        ++count;
    });
    return count == 1 ? found : nullptr;
}

namespace {

/// The product of any extents.
std::optional<UnitProduct> product_of_factors(const Tensor& c) {
    const Operation& operation = *c.operation();
    if (operation.is_input() || operation.outputs.size() != 1 || c.rank() < 2) return {};
    const Reduce* sum = only_reduction(operation.outputs[0].body);
    if (!sum || sum->axes.size() != 1 || sum->values.size() != 1 || atomic_operation(*sum->reducer) != BinaryOp::Add)
        return {};
    const auto& axes = operation.axes;
    const Expr &row = axes[axes.size() - 2], &column = axes.back(), &term = sum->axes[0];
    auto factors = factors_of(*sum, row, column);
    auto m = as_constant(c.shape()[axes.size() - 2]), n = as_constant(c.shape().back()), k = extent_of(term);
    if (!factors || !m || !n || !k) return {};
    const auto& [a, b] = *factors;
    UnitProduct product{c, {a.read->operation, a.read->output}, {b.read->operation, b.read->output}, {}};
    product.shape = {.m = *m, .n = *n, .k = *k, .operand = a.type, .result = c.type()};
    product.shape.transpose_a = !contains(a.read->indices.back(), term);
    product.shape.transpose_b = contains(b.read->indices.back(), term);
    for (size_t d = 0; d + 2 < axes.size(); ++d) {
        auto extent = as_constant(c.shape()[d]);
        if (!extent || *extent == 0) return {};
        product.shape.batch = std::max<int64_t>(product.shape.batch, 1) * *extent;
    }
    return product;
}

}  // namespace

std::optional<UnitProduct> unit_product(const Tensor& c) {
    auto product = product_of_factors(c);
    if (!product || std::min({product->shape.m, product->shape.n, product->shape.k}) < least_extent) return {};
    return product;
}

std::optional<UnitProduct> thin_product(const Tensor& c) {
    auto product = product_of_factors(c);
    if (!product || !is_thin(product->shape)) return {};
    return product;
}

std::vector<ProductTiling> tilings_of(const UnitProduct& product, const Target& target) {
    std::vector<ProductTiling> tilings{best_tiling(product.shape, target)};
    if (!std::holds_alternative<TensorTiles>(tilings[0])) tilings.push_back(tensor_tiles(product.shape, target));
    return tilings;
}

}  // namespace tw::schedules
