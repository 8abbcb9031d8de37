#include "schedules/lying_pixels.h"

#include <algorithm>

#include "dsl/simplify.h"
#include "dsl/stage.h"
#include "schedules/unit_product.h"
#include "schedules/whole_tiles.h"
#include "schedules/window_terms.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

constexpr int64_t least_extent = 16;  // of rows, columns and terms

int64_t extent_at(const Tensor& tensor, int dimension) {
    return as_constant(tensor.shape()[static_cast<size_t>(dimension)]).value_or(0);
}

/// The sum's only axis of several iterations, and a substitution by 0 of all others. Undefined: there is not one.
Expr only_term(const Reduce& sum, Substitution& zeros) {
    Expr term;
    for (const Expr& axis : sum.axes) {
        const Expr& extent = axis.as<Variable>()->extent;
        if (!extent.defined() || !as_constant(extent)) return {};
        if (is_constant(extent, 1)) {
            zeros.emplace_back(axis, integer(0));
            continue;
        }
        if (term.defined()) return {};
        term = axis;
    }
    return term;
}

class Search {
public:
    Search(const Tensor& tensor, const std::vector<Tensor>& outputs) : tensor_(tensor), outputs_(outputs) {}

    std::optional<LyingPixels> run() {
        const Operation& operation = *tensor_.operation();
        if (operation.is_input() || operation.outputs.size() != 1 || tensor_.rank() < 3) return {};
        body_ = with_elements(operation.outputs[0].body, outputs_, false);
        const Reduce* sum = only_reduction(body_);
        if (!sum || sum->values.size() != 1 || sum->values[0].type() != f32 ||
            atomic_operation(*sum->reducer) != BinaryOp::Add)
            return {};
        const auto found = term_of(*sum, outputs_);
        term_ = only_term(*sum, zeros_);
        if (!found || !term_.defined()) return {};
        for (const Expr& condition : found->conditions)
            if (prove(simplify(substitute(condition, zeros_))) != true) return {};
        for (int turn = 0; turn < 2; ++turn)
            if (auto product = of_operands(*found->reads[turn], *found->reads[1 - turn])) return product;
        return {};
    }

private:
    const std::vector<Expr>& axes() const { return tensor_.operation()->axes; }
    bool is(const Expr& index, const Expr& wanted) const { return equal(simplify(substitute(index, zeros_)), wanted); }

    /// Whether the operand is read at [n, c, p...].
    bool are_images(const Read& read) const {
        if (read.indices.size() != axes().size()) return false;
        for (size_t d = 0; d < axes().size(); ++d)
            if (!is(read.indices[d], d == 1 ? term_ : axes()[d])) return false;
        return true;
    }
    /// Whether it is read at [rows, columns, 0...].
    bool are_filters(const Read& read, const Expr& rows, const Expr& columns) const {
        if (read.indices.size() < 2 || !is(read.indices[0], rows) || !is(read.indices[1], columns)) return false;
        const auto shape = Tensor(read.operation, read.output).shape();
        return std::all_of(shape.begin() + 2, shape.end(), [](const Expr& extent) { return is_constant(extent, 1); });
    }

    std::optional<LyingPixels> of_operands(const Read& images, const Read& filters) const {
        const Expr& row = axes()[1];
        const bool is_transposed = are_filters(filters, term_, row);
        if (!are_images(images) || (!is_transposed && !are_filters(filters, row, term_))) return {};
        LyingPixels found{{}, {filters.operation, filters.output}, {images.operation, images.output}, {}};
        int64_t pixels = 1;
        for (int d = 2; d < tensor_.rank(); ++d) pixels *= extent_at(tensor_, d);
        found.shape = {.m = extent_at(tensor_, 1),
                       .n = pixels,
                       .k = extent_at(found.images, 1),
                       .batch = extent_at(tensor_, 0),
                       .operand = found.images.type(),
                       .result = tensor_.type(),
                       .transpose_a = is_transposed};
        const TensorProductShape& s = found.shape;
        const int64_t row_of_filters = is_transposed ? s.m : s.k;
        if (s.batch < 1 || std::min({s.m, s.n, s.k}) < least_extent || s.n % piece != 0 || row_of_filters % piece != 0)
            return {};
        found.sums = declared(found);
        return found;
    }

    Tensor declared(const LyingPixels& product) const {
        const Operation& operation = *tensor_.operation();
        return compute(
            operation.name, {operation.shape.begin(), operation.shape.end()},
            [&](const std::vector<Expr>& at) {
                const Axis c = reduce_axis("c", product.shape.k);
                std::vector<Operand> of_images(at.begin(), at.end()),
                    of_filters(static_cast<size_t>(product.filters.rank()), integer(0));
                of_images[1] = c;
                of_filters[0] = at[1], of_filters[1] = c;
                if (product.shape.transpose_a) std::swap(of_filters[0], of_filters[1]);
                const Expr total =
                    sum(cast(f32, product.filters.read(of_filters)) * cast(f32, product.images.read(of_images)), c);
                Substitution renamed;
                for (size_t d = 0; d < at.size(); ++d) renamed.emplace_back(operation.axes[d], at[d]);
                const Expr rest = substitute(body_, renamed);
                return transform(rest, [&](const Expr& e) { return e.as<Reduce>() ? total : Expr(); });
            },
            operation.where);
    }

    const Tensor tensor_;
    const std::vector<Tensor>& outputs_;
    Expr body_, term_;
    Substitution zeros_;
};

}  // namespace

std::optional<LyingPixels> lying_pixels(const Tensor& tensor, const std::vector<Tensor>& outputs) {
    return Search(tensor, outputs).run();
}

void schedule_lying_pixels(Schedule& s, const LyingPixels& product, const ProductTiling& tiling,
                           std::source_location where) {
    CalledFrom caller(where);
    auto join = [&](const Tensor& tensor, int first) {
        if (tensor.rank() - 1 > first) s.join_axes(tensor, first, tensor.rank() - 1);
    };
    join(product.sums, 2);
    join(product.images, 2);
    join(product.filters, 1);
    std::visit(
        [&](const auto& tiles) { schedule_tensor_product(s, product.sums, product.filters, product.images, tiles); },
        tiling);
}

}  // namespace tw::schedules
