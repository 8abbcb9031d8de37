#include "schedules/matrix_factors.h"

#include <algorithm>
#include <vector>

#include "dsl/stage.h"
#include "schedules/unit_product.h"

namespace tw::schedules {
namespace {

constexpr int64_t unknown_extent = 4096;  // taken for that of a named size
constexpr int64_t most_batches = 65535;   // of grid.z; parts of k are none then

/// Indexed by different variables. What is computed is stored: it is read many times.
bool is_matrix(const Read& read) {
    if (read.guarded) return false;
    for (size_t d = 0; d < read.indices.size(); ++d) {
        const auto others = read.indices.begin() + static_cast<std::ptrdiff_t>(d) + 1;
        auto is_it = [&](const Expr& other) { return other.same(read.indices[d]); };
        if (!read.indices[d].as<Variable>() || std::any_of(others, read.indices.end(), is_it)) return false;
    }
    return true;
}

bool indexes(const Read& read, const Expr& axis) {
    return std::ranges::any_of(read.indices, [&](const Expr& index) { return index.same(axis); });
}

/// The elements that the term is made of, each place once.
std::vector<const Read*> reads_of_term(const Expr& term) {
    std::vector<const Read*> reads;
    visit(term, [&](const Expr& e) {
        const Read* read = e.as<Read>();
        auto is_it = [&](const Read* known) {
            return known->operation == read->operation && known->output == read->output &&
                   std::ranges::equal(known->indices, read->indices, equal);
        };
        if (read && std::ranges::none_of(reads, is_it)) reads.push_back(read);
    });
    return reads;
}

/// Two elements that are read as they are, and multiplied.
bool is_plain_product(const Expr& term) {
    const Binary* times = term.as<Binary>();
    return times && times->op == BinaryOp::Mul && times->a.as<Read>() && times->b.as<Read>();
}

}  // namespace

std::optional<MatrixFactors> matrix_factors(const Tensor& c) {
    constexpr int64_t least_extent = 16, least_terms = 4;  // of terms that are no plain products
    const Operation& operation = *c.operation();
    if (c.rank() < 2 || operation.outputs.size() != 1) return {};
    const Reduce* reduction = only_reduction(operation.outputs[0].body);
    if (!reduction || reduction->axes.size() != 1 || reduction->values.size() != 1 || !reduction->reducer->commutative)
        return {};
    const Expr& term = reduction->values[0];
    const std::vector<const Read*> reads = reads_of_term(term);
    if (reads.size() != 2 || reads[0]->operation == reads[1]->operation) return {};
    const Read *a = reads[0], *b = reads[1];
    const std::vector<Expr>& axes = operation.axes;
    const Expr &k = reduction->axes[0], &i = axes[axes.size() - 2], &j = axes.back();
    if (!is_matrix(*a) || !is_matrix(*b)) return {};
    if (!indexes(*a, i)) std::swap(a, b);
    if (!indexes(*a, i) || !indexes(*a, k) || !indexes(*b, k) || !indexes(*b, j)) return {};
    if (indexes(*a, j) || indexes(*b, i)) return {};
    const Variable* along = k.as<Variable>();
    auto extent = along->extent.defined() ? as_constant(along->extent) : std::nullopt;
    const bool has_parts = extent.has_value();
    if (!extent && along->max) extent = *along->max + 1;
    if (!extent) return {};
    auto extent_of = [&](size_t d) { return as_constant(c.shape()[d]).value_or(unknown_extent); };
    ProductShape shape{.m = extent_of(axes.size() - 2), .n = extent_of(axes.size() - 1), .k = *extent};
    for (size_t d = 0; d + 2 < axes.size(); ++d) {
        if (!as_constant(c.shape()[d])) return {};
        shape.batch *= extent_of(d);
    }
    shape.has_parts = has_parts;
    shape.transpose_a = a->indices.back().same(i);
    shape.transpose_b = b->indices.back().same(k);
    auto row_of = [](const Read& read) { return as_constant(read.operation->shape.back()).value_or(0); };
    auto stride_of = [](const Read& read) {
        const std::vector<Expr>& strides = read.operation->strides;
        return strides.size() < 2 ? 0 : as_constant(strides[strides.size() - 2]).value_or(0);
    };
    shape.a_row = row_of(*a), shape.b_row = row_of(*b);
    shape.a_stride = stride_of(*a), shape.b_stride = stride_of(*b);
    const bool is_plain = is_plain_product(term) && atomic_operation(*reduction->reducer) == BinaryOp::Add;
    const bool is_large = std::min(shape.m, shape.n) >= least_extent && shape.k >= least_terms;
    if (!is_large && (!is_plain || c.rank() > 2)) return {};
    if (shape.batch < 1 || shape.batch > most_batches) return {};
    return MatrixFactors{Tensor(a->operation, a->output), Tensor(b->operation, b->output), shape,
                         is_plain && c.rank() == 2};
}

}  // namespace tw::schedules
