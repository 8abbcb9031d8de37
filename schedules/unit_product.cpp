#include "schedules/unit_product.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "dsl/scaled_product.h"
#include "dsl/stage.h"
#include "schedules/thin_product.h"
#include "schedules/whole_tiles.h"

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

/// How many rows in turn read the same, if the factor knows of the row only in which of such blocks it is; else 0.
int64_t rows_that_share(const Factor& factor, const Expr& row) {
    int64_t rows = 0;
    auto as_block = [&](const Expr& e) -> Expr {
        const Binary* quotient = e.as<Binary>();
        if (!quotient || quotient->op != BinaryOp::Div || !quotient->a.same(row)) return {};
        const auto divisor = as_constant(quotient->b);
        if (!divisor || *divisor <= 0) return {};
        rows = std::gcd(rows, *divisor);
        return integer(0);
    };
    auto depends_otherwise = [&](const Expr& index) { return contains(transform(index, as_block), row); };
    const bool only_so = std::ranges::none_of(factor.read->indices, depends_otherwise);
    return only_so ? rows : 0;
}

/// How many terms in turn the factor reads side by side, if that is not all that its tensor has there; else 0.
int64_t terms_side_by_side(const Factor& factor, const Expr& term, int64_t all) {
    int64_t terms = 0;
    auto see = [&](const Expr& e) {
        const Binary* part = e.as<Binary>();
        if (part && (part->op == BinaryOp::Div || part->op == BinaryOp::Mod) && contains(part->a, term))
            terms = std::gcd(terms, as_constant(part->b).value_or(1));
    };
    for (const Expr& index : factor.read->indices) {
        visit(index, see);
        if (!index.same(term) && contains(index, term)) terms = std::gcd(terms, all);
    }
    return terms;
}

std::optional<int64_t> extent_of(const Expr& axis) {
    const Variable* variable = axis.as<Variable>();
    return variable->extent.defined() ? as_constant(variable->extent) : std::nullopt;
}

/// What a sum multiplies, and how many rows in turn have a matrix of their own; 0 if all have the same.
struct FactorPair {
    Factor of_rows, of_columns;
    int64_t rows_of_matrix = 0;
};

std::optional<FactorPair> factors_of(const Reduce& sum, const SignedProduct& product, const Expr& row,
                                  const Expr& column) {
    auto a = factor_of(product.a), b = factor_of(product.b);
    if (!a || !b || a->type != b->type || a->read->operation == b->read->operation) return {};
    if (depends(*a, column)) std::swap(a, b);
    const bool has_blocks = depends(*b, row);
    const int64_t rows_of_matrix = has_blocks ? rows_that_share(*b, row) : 0;
    if (!depends(*a, row) || depends(*a, column) || !depends(*b, column)) return {};
    if (has_blocks && rows_of_matrix == 0) return {};
    if (!depends(*a, sum.axes[0]) || !depends(*b, sum.axes[0])) return {};
    return FactorPair{*a, *b, rows_of_matrix};
}

Tensor tensor_of(const Factor& factor) { return {factor.read->operation, factor.read->output}; }

/// Whether an instruction can take them beside those of the first product: of one type, for all rows, with terms side
/// by side where that type asks for it; what reads a tensor that another one reads, too, reads the same element.
bool goes_with(const FactorPair& factors, const FactorPair& first, const Expr& term, const std::vector<Factor>& others) {
    auto along_terms = [&](const Factor& factor) { return contains(factor.read->indices.back(), term); };
    const bool any_layout = bytes_of(first.of_rows.type) == 2;
    const bool is_alike = factors.of_rows.type == first.of_rows.type && factors.rows_of_matrix == 0 &&
                          first.rows_of_matrix == 0 &&
                          (any_layout || (along_terms(factors.of_rows) == along_terms(first.of_rows) &&
                                          along_terms(factors.of_columns) == along_terms(first.of_columns)));
    return is_alike && std::ranges::all_of(others, [&](const Factor& other) {
               return std::ranges::all_of(std::array{factors.of_rows, factors.of_columns}, [&](const Factor& own) {
                   return !tensor_of(own).same(tensor_of(other)) ||
                          std::ranges::equal(own.read->indices, other.read->indices, equal);
               });
           });
}

/// The factors of all products of the sum, if it is one of such that have one accumulation.
std::vector<FactorPair> all_factors_of(const Reduce& sum, const Expr& row, const Expr& column) {
    const auto products = sum_of_products(sum.values[0]);
    if (!products || products->scale.defined()) return {};
    std::vector<FactorPair> all;
    std::vector<Factor> others;
    for (const SignedProduct& product : products->products) {
        const auto own = factors_of(sum, product, row, column);
        const bool subtracts_integers = product.negative && own && own->of_rows.type == i8;
        if (!own || subtracts_integers || (!all.empty() && !goes_with(*own, all[0], sum.axes[0], others))) return {};
        all.push_back(*own);
        others.insert(others.end(), {own->of_rows, own->of_columns});
    }
    return all;
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
    const std::vector<FactorPair> factors = all_factors_of(*sum, row, column);
    auto m = as_constant(c.shape()[axes.size() - 2]), n = as_constant(c.shape().back()), k = extent_of(term);
    if (factors.empty() || !m || !n || !k) return {};
    const auto& [a, b, rows_of_matrix] = factors[0];
    UnitProduct product{c, tensor_of(a), tensor_of(b)};
    product.shape = {.m = *m, .n = *n, .k = *k, .operand = a.type, .result = c.type()};
    for (const FactorPair& each : factors)
        for (const Factor& factor : {each.of_rows, each.of_columns})
            product.terms_of_block = std::gcd(product.terms_of_block, terms_side_by_side(factor, term, *k));
    for (size_t p = 1; p < factors.size(); ++p)
        product.more.push_back({tensor_of(factors[p].of_rows), tensor_of(factors[p].of_columns)});
    product.shape.transpose_a = !contains(a.read->indices.back(), term);
    product.shape.transpose_b = contains(b.read->indices.back(), term);
    for (size_t d = 0; d + 2 < axes.size(); ++d) {
        auto extent = as_constant(c.shape()[d]);
        if (!extent || *extent == 0) return {};
        product.shape.batch = std::max<int64_t>(product.shape.batch, 1) * *extent;
    }
    if (rows_of_matrix > 0) {
        if (*m % rows_of_matrix != 0) return {};
        product.rows_of_matrix = product.shape.m = rows_of_matrix;
        product.shape.batch = std::max<int64_t>(product.shape.batch, 1) * (*m / rows_of_matrix);
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
    if (!product || product->rows_of_matrix > 0 || !product->more.empty() || !is_thin(product->shape)) return {};
    return product;
}

int64_t rows_of_matrix(const Tensor& c) {
    const auto product = product_of_factors(c);
    return product ? product->rows_of_matrix : 0;
}

namespace {

constexpr int64_t most_stages_of_few_terms = 12;

/// A step sums terms of one block, with as many bytes under way.
template <class Tiles>
void step_within_blocks(Tiles& tiles, int64_t terms_of_block) {
    const int64_t wanted = tiles.block_k;
    tiles.block_k = std::gcd(wanted, terms_of_block);
    if (tiles.stages > 1)
        tiles.stages = static_cast<int>(std::max<int64_t>(
            tiles.stages,
            std::min(most_stages_of_few_terms, tiles.stages * wanted / std::max<int64_t>(tiles.block_k, 1))));
}
void step_within_blocks(ThinTiles&, int64_t) {}  // threads read single elements

/// A step sums as many terms of all products together as it would of one, or as few as an instruction takes.
template <class Tiles>
void step_through_all(Tiles& tiles, int64_t products, Type operand) {
    const int64_t wanted = tiles.block_k, under_way = wanted * tiles.stages, least = 32 / bytes_of(operand);
    while (tiles.block_k * products > wanted && tiles.block_k % (2 * least) == 0) tiles.block_k /= 2;
    const int64_t stages = std::min(most_stages_of_few_terms, under_way / (tiles.block_k * products));
    if (tiles.stages > 1) tiles.stages = static_cast<int>(std::max<int64_t>(stages, 2));
    if constexpr (requires { tiles.promotion_interval; })
        tiles.promotion_interval = divided(tiles.promotion_interval / products, tiles.block_k) * tiles.block_k;
}
void step_through_all(ThinTiles&, int64_t, Type) {}

}  // namespace

std::vector<ProductTiling> tilings_of(const UnitProduct& product, const Target& target) {
    TensorProductShape shape = product.shape;
    const auto products = static_cast<int64_t>(product.more.size()) + 1;
    shape.k *= products;
    std::vector<ProductTiling> tilings{best_tiling(shape, target)};
    const bool by_units_alone = product.rows_of_matrix > 0 || products > 1;
    if (by_units_alone && std::holds_alternative<ThinTiles>(tilings[0])) tilings.clear();
    if (tilings.empty() || !std::holds_alternative<TensorTiles>(tilings[0]))
        tilings.push_back(tensor_tiles(shape, target));
    if (products > 1)
        for (ProductTiling& tiling : tilings)
            std::visit([&](auto& tiles) { step_through_all(tiles, products, shape.operand); }, tiling);
    if (product.terms_of_block > 0)
        for (ProductTiling& tiling : tilings)
            std::visit([&](auto& tiles) { step_within_blocks(tiles, product.terms_of_block); }, tiling);
    return tilings;
}

}  // namespace tw::schedules
