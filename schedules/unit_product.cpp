#include "schedules/unit_product.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <set>
#include <span>

#include "codegen/cost/operation_costs.h"
#include "dsl/scaled_product.h"
#include "dsl/simplify.h"
#include "dsl/stage.h"
#include "schedules/declared_as.h"
#include "schedules/self_products.h"
#include "schedules/thin_product.h"
#include "schedules/tuned_records.h"
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

Tensor tensor_of(const Factor& factor) { return {factor.read->operation, factor.read->output}; }

/// Dense inputs, views of such, and what other kernels make.
bool may_join_axes(const Operation& operation) {
    const Operation* whole = &operation;
    while (is_again(*whole)) whole = whole->outputs[0].body.as<Read>()->operation.get();
    return whole->is_input() ? whole->strides.empty() : whole == &operation;
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

/// Dimensions of what is read that together are the axis, which lie one behind the other in memory; nothing if there is
/// but one, or others.
std::optional<JoinedAxes> joined_dimensions(const Factor& factor, const Expr& axis) {
    const auto& indices = factor.read->indices;
    const auto is_of = [&](const Expr& index) { return contains(index, axis); };
    const auto first = std::ranges::find_if(indices, is_of);
    const auto last = std::find_if_not(first, indices.end(), is_of);
    if (last - first < 2 || std::any_of(last, indices.end(), is_of)) return {};
    const auto at = static_cast<int>(first - indices.begin()), count = static_cast<int>(last - first);
    Expr place = integer(0);
    for (int d = at; d < at + count; ++d)
        place = place * factor.read->operation->shape[static_cast<size_t>(d)] + indices[static_cast<size_t>(d)];
    if (!simplify(place).same(axis) || !may_join_axes(*factor.read->operation)) return {};
    return JoinedAxes{tensor_of(factor), at, at + count - 1};
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

/// Whether an instruction can take them beside those of the first product: of one type, for all rows, with terms side
/// by side where that type asks for it; what reads a tensor that another one reads, too, reads the same element.
bool goes_with(const FactorPair& factors, const FactorPair& first, const Expr& term,
               const std::vector<Factor>& others) {
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

/// Dimensions of what is read from the first on that are these axes, one behind the other; nothing if there are none.
std::optional<int> dimension_of(const Read& read, std::span<const Expr> axes) {
    const auto found =
        std::ranges::search(read.indices, axes, [](const Expr& index, const Expr& axis) { return index.same(axis); });
    if (found.empty() || !may_join_axes(*read.operation)) return {};
    return static_cast<int>(found.begin() - read.indices.begin());
}

/// Lets so many last axes of c be the columns; false if they do not lie so in c's operand.
bool join_columns(UnitProduct& product, const Factor& of_columns, std::span<const Expr> columns) {
    if (columns.size() == 1) return true;
    const auto at = dimension_of(*of_columns.read, columns);
    if (!at) return false;
    for (const Expr& axis : columns.first(columns.size() - 1)) product.shape.n *= extent_of(axis).value_or(0);
    const auto count = static_cast<int>(columns.size()), rank = product.c.rank();
    product.joined = {{product.b, *at, *at + count - 1}, {product.c, rank - count, rank - 1}};
    return product.shape.n > 0;
}

/// About how many instructions a node becomes that is a number of an element, not of its place.
double instructions_of(const Expr& node) {
    constexpr double division = 9, read = 2;
    if (is_integer(node.type())) return 0;
    const double of_function = codegen::operations_of_function(node);
    if (node.as<Unary>()) return of_function;
    if (const auto* both = node.as<Binary>()) return of_function + (both->op == BinaryOp::Div ? division : 1);
    if (node.as<Read>()) return read;
    return node.as<Fma>() || node.as<Select>() || node.as<Cast>() ? 1 : 0;
}

}  // namespace

double instructions_besides_sums(const Expr& body) {
    std::set<const void*> of_terms;
    double count = 0;
    visit(body, [&](const Expr& e) {
        if (e.as<Reduce>()) visit(e, [&](const Expr& term) { of_terms.insert(term.id()); });
    });
    visit(body, [&](const Expr& e) { count += of_terms.contains(e.id()) ? 0 : instructions_of(e); });
    return body.as<Cast>() ? count - 1 : count;
}

namespace {

/// The product of any extents, whose columns are the last axes of c, so many.
std::optional<UnitProduct> product_of_factors(const Tensor& c, size_t num_columns = 1) {
    const Operation& operation = *c.operation();
    const auto& axes = operation.axes;
    if (operation.is_input() || operation.outputs.size() != 1 || axes.size() < num_columns + 1) return {};
    const Reduce* sum = only_reduction(operation.outputs[0].body);
    if (!sum || sum->axes.size() != 1 || sum->values.size() != 1 || atomic_operation(*sum->reducer) != BinaryOp::Add)
        return {};
    const size_t row_at = axes.size() - 1 - num_columns;
    const Expr &row = axes[row_at], &column = axes.back(), &term = sum->axes[0];
    const std::vector<FactorPair> factors = all_factors_of(*sum, row, column);
    auto m = as_constant(c.shape()[row_at]), n = as_constant(c.shape().back()), k = extent_of(term);
    if (factors.empty() || !m || !n || !k) return {};
    const auto& [a, b, rows_of_matrix] = factors[0];
    UnitProduct product{c, tensor_of(a), tensor_of(b)};
    product.shape = {.m = *m, .n = *n, .k = *k, .operand = a.type, .result = c.type()};
    product.shape.made = instructions_besides_sums(operation.outputs[0].body);
    if (!join_columns(product, b, std::span(axes).last(num_columns))) return {};
    for (size_t d = row_at + 1; d < axes.size(); ++d)
        if (depends(a, axes[d]) || !depends(b, axes[d])) return {};
    for (const FactorPair& each : factors)
        for (const Factor& factor : {each.of_rows, each.of_columns})
            if (const auto joined = joined_dimensions(factor, term))
                product.joined.push_back(*joined);
            else
                product.terms_of_block = std::gcd(product.terms_of_block, terms_side_by_side(factor, term, *k));
    for (size_t p = 1; p < factors.size(); ++p)
        product.more.push_back({tensor_of(factors[p].of_rows), tensor_of(factors[p].of_columns)});
    product.shape.transpose_a = !contains(a.read->indices.back(), term);
    product.shape.transpose_b = contains(b.read->indices.back(), term);
    for (size_t d = 0; d < row_at; ++d) {
        auto extent = as_constant(c.shape()[d]);
        if (!extent || *extent == 0) return {};
        product.shape.batch = std::max<int64_t>(product.shape.batch, 1) * *extent;
    }
    if (rows_of_matrix > 0) {
        if (*m % rows_of_matrix != 0 || num_columns > 1) return {};
        product.rows_of_matrix = product.shape.m = rows_of_matrix;
        product.shape.batch = std::max<int64_t>(product.shape.batch, 1) * (*m / rows_of_matrix);
    }
    return product;
}

/// Has rows of as many axes of c in front of the row as may be; false if there are none.
bool join_rows(UnitProduct& product, size_t num_columns) {
    const std::vector<Expr>& axes = product.c.operation()->axes;
    const Reduce& sum = *only_reduction(body_of(product.c));
    const auto row = static_cast<int>(axes.size() - 1 - num_columns);
    const FactorPair factors = all_factors_of(sum, axes[static_cast<size_t>(row)], axes.back())[0];
    for (int first = 0; first < row; ++first) {
        const std::span<const Expr> own(axes.begin() + first, axes.begin() + row + 1);
        const auto at = dimension_of(*factors.of_rows.read, own);
        if (!at || std::ranges::any_of(own, [&](const Expr& axis) { return depends(factors.of_columns, axis); }))
            continue;
        for (const Expr& axis : own.first(own.size() - 1)) {
            product.shape.m *= *extent_of(axis);
            product.shape.batch /= *extent_of(axis);
        }
        if (product.shape.batch == 1) product.shape.batch = 0;
        product.joined.push_back({product.a, *at, *at + row - first});
        product.joined.push_back({product.c, first, row});
        return true;
    }
    return false;
}

bool fills_instructions(const TensorProductShape& shape) {
    return std::min({shape.m, shape.n, shape.k}) >= least_extent;
}

}  // namespace

std::optional<UnitProduct> unit_product(const Tensor& c) {
    auto product = product_of_factors(c);
    return product && fills_instructions(product->shape) ? product : std::nullopt;
}

std::optional<UnitProduct> product_of_joined_axes(const Tensor& c) {
    constexpr int64_t rows_of_any_tile = 256;
    for (size_t num_columns = c.operation()->axes.size(); num_columns-- > 1;) {
        auto product = product_of_factors(c, num_columns);
        if (!product || product->rows_of_matrix > 0 || !product->more.empty()) continue;
        const bool may_have_rows = product->shape.batch > 0 && product->shape.m % rows_of_any_tile != 0;
        const bool has_rows = may_have_rows && join_rows(*product, num_columns);
        if ((has_rows || num_columns > 1) && fills_instructions(product->shape)) return product;
    }
    return {};
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

/// Matrices in the last dimension of a batch; 0 if there is none.
int64_t neighbouring_matrices(const UnitProduct& product) {
    const int rank = product.c.rank();
    const auto extent = [&](int d) { return as_constant(product.c.shape()[static_cast<size_t>(d)]).value_or(0); };
    if (product.rows_of_matrix > 0) return extent(rank - 2) / product.rows_of_matrix;
    int row = rank - 2;
    for (const JoinedAxes& joined : product.joined)
        if (joined.tensor.same(product.c)) row = joined.last == rank - 1 ? joined.first - 1 : joined.first;
    return row > 0 ? extent(row - 1) : 0;
}

}  // namespace

std::vector<ProductTiling> tilings_of(const UnitProduct& product, const Target& target) {
    TensorProductShape shape = product.shape;
    shape.neighbours = neighbouring_matrices(product);
    const auto products = static_cast<int64_t>(product.more.size()) + 1;
    shape.k *= products;
    std::vector<ProductTiling> tilings{best_tiling(shape, target)};
    // A record may say what cannot be built.
    if (takes_warpgroups(shape, target) && tuned_tiling(shape, target) == tilings[0])
        tilings.emplace_back(warpgroup_tiles(shape, target));
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
