#include "schedules/lying_pixels.h"

#include <algorithm>
#include <functional>

#include "dsl/simplify.h"
#include "dsl/stage.h"
#include "schedules/convolution.h"
#include "schedules/loading_roles.h"
#include "schedules/sum_of_parts.h"
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

bool is_one(const Expr& axis) {
    const Expr& extent = axis.as<Variable>()->extent;
    return extent.defined() && is_constant(extent, 1);
}

/// 0 for each axis of a single iteration.
Substitution zeros_of(const std::vector<Expr>& axes) {
    Substitution zeros;
    for (const Expr& axis : axes)
        if (is_one(axis)) zeros.emplace_back(axis, integer(0));
    return zeros;
}

/// The product of the dimensions from the second on.
int64_t pixels_of(const Tensor& images) {
    int64_t pixels = 1;
    for (int d = 2; d < images.rank(); ++d) pixels *= extent_at(images, d);
    return pixels;
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
        if (!found) return {};
        zeros_ = zeros_of(sum->axes);
        for (size_t d = 0; d < axes().size(); ++d)
            if (is_constant(tensor_.shape()[d], 1)) zeros_.emplace_back(axes()[d], integer(0));
        for (const Expr& condition : found->conditions)
            if (prove(simplify(substitute(condition, zeros_))) != true) return {};
        std::vector<Expr> terms = sum->axes;
        std::erase_if(terms, is_one);
        for (int turn = 0; turn < 2; ++turn) {
            const Read &a = *found->reads[static_cast<size_t>(turn)], &b = *found->reads[static_cast<size_t>(1 - turn)];
            if (terms.size() == 1) term_ = terms[0];
            if (auto product = terms.size() == 1 ? of_channels(a, b) : std::nullopt) return product;
            if (auto product = of_pixels(a, b, terms)) return product;
        }
        return {};
    }

private:
    const std::vector<Expr>& axes() const { return tensor_.operation()->axes; }
    bool is(const Expr& index, const Expr& wanted) const {
        return equal(simplify(substitute(index, zeros_)), simplify(substitute(wanted, zeros_)));
    }

    /// Whether the operand is read at [n, c, p...].
    bool are_images(const Read& read) const {
        if (read.indices.size() != axes().size()) return false;
        for (size_t d = 0; d < axes().size(); ++d) {
            if (d != 1 && !equal(read.operation->shape[d], tensor_.shape()[d])) return false;
            if (!is(read.indices[d], d == 1 ? term_ : axes()[d])) return false;
        }
        return true;
    }
    /// Whether it is read at [rows, columns, 0...].
    bool are_filters(const Read& read, const Expr& rows, const Expr& columns) const {
        if (read.indices.size() < 2 || !is(read.indices[0], rows) || !is(read.indices[1], columns)) return false;
        const auto shape = Tensor(read.operation, read.output).shape();
        return std::all_of(shape.begin() + 2, shape.end(), [](const Expr& extent) { return is_constant(extent, 1); });
    }

    std::optional<LyingPixels> of_channels(const Read& images, const Read& filters) const {
        const Expr& row = axes()[1];
        const bool is_transposed = are_filters(filters, term_, row);
        if (!are_images(images) || (!is_transposed && !are_filters(filters, row, term_))) return {};
        const Expr& terms = term_.as<Variable>()->extent;  // all channels of both
        if (!terms.defined() || !equal(terms, images.operation->shape[1]) ||
            !equal(terms, filters.operation->shape[is_transposed ? 0 : 1]))
            return {};
        LyingPixels found{{}, {filters.operation, filters.output}, {images.operation, images.output}, {}};
        found.shape = {.m = extent_at(tensor_, 1),
                       .n = pixels_of(tensor_),
                       .k = extent_at(found.images, 1),
                       .batch = extent_at(tensor_, 0),
                       .operand = found.images.type(),
                       .result = tensor_.type(),
                       .transpose_a = is_transposed};
        const TensorProductShape& s = found.shape;
        const int64_t row_of_filters = is_transposed ? s.m : s.k;
        if (s.batch < 1 || std::min({s.m, s.n, s.k}) < least_extent || s.n % piece != 0 || row_of_filters % piece != 0)
            return {};
        found.sums = declared([&](const std::vector<Expr>& at) { return sum_of_channels(found, at); });
        return found;
    }
    static Expr sum_of_channels(const LyingPixels& product, const std::vector<Expr>& at) {
        const Axis c = reduce_axis("c", product.shape.k);
        std::vector<Operand> of_images(at.begin(), at.end()),
            of_filters(static_cast<size_t>(product.filters.rank()), integer(0));
        of_images[1] = c;
        of_filters[0] = at[1], of_filters[1] = c;
        if (product.shape.transpose_a) std::swap(of_filters[0], of_filters[1]);
        return sum(cast(f32, product.filters.read(of_filters)) * cast(f32, product.images.read(of_images)), c);
    }

    /// Whether the operand is read at [n, channel, p...], each of n and p... another one of the terms, or 0; these.
    std::optional<std::vector<Expr>> places(const Read& read, const Expr& channel) const {
        if (read.indices.size() != axes().size() || !is(read.indices[1], channel)) return {};
        std::vector<Expr> found;
        for (size_t d = 0; d < read.indices.size(); ++d)
            if (d != 1) found.push_back(simplify(substitute(read.indices[d], zeros_)));
        return found;
    }
    std::optional<LyingPixels> of_pixels(const Read& dy, const Read& x, const std::vector<Expr>& terms) const {
        for (int d = 2; d < tensor_.rank(); ++d)
            if (extent_at(tensor_, d) != 1) return {};
        const auto of_dy = places(dy, axes()[0]), of_x = places(x, axes()[1]);
        if (!of_dy || !of_x || !std::ranges::equal(*of_dy, *of_x, equal)) return {};
        LyingPixels found{{}, {dy.operation, dy.output}, {x.operation, x.output}, {}, true};
        const auto whole = [&](const Tensor& tensor, const Expr& place, size_t d) {
            const Expr& extent = tensor.shape()[d];
            if (is_constant(extent, 1)) return is_constant(place, 0);
            const auto term = std::ranges::find_if(terms, [&](const Expr& e) { return e.same(place); });
            return term != terms.end() && equal(term->as<Variable>()->extent, extent);
        };
        size_t several = 0;
        for (size_t k = 0; k < of_dy->size(); ++k)  // each place another term
            for (size_t l = 0; l < k; ++l)
                if (!is_constant((*of_dy)[k], 0) && equal((*of_dy)[k], (*of_dy)[l])) return {};
        for (size_t k = 0; k < of_dy->size(); ++k) {
            const size_t d = k == 0 ? 0 : k + 1;
            if (!whole(found.filters, (*of_dy)[k], d) || !whole(found.images, (*of_dy)[k], d)) return {};
            several += is_constant(found.images.shape()[d], 1) ? 0 : 1;
        }
        found.shape = {.m = extent_at(tensor_, 0),
                       .n = extent_at(tensor_, 1),
                       .k = pixels_of(found.images),
                       .batch = extent_at(found.images, 0),
                       .operand = found.images.type(),
                       .result = tensor_.type()};
        const TensorProductShape& s = found.shape;
        if (several != terms.size() || std::min({s.m, s.n, s.k}) < least_extent || s.k % piece != 0) return {};
        found.sums = declared([&](const std::vector<Expr>& at) { return sum_of_pixels(found, at); });
        return found;
    }
    /// Over images, and pixels of one as a single axis.
    static Expr sum_of_pixels(const LyingPixels& product, const std::vector<Expr>& at) {
        const Axis n = reduce_axis("n", product.shape.batch), i = reduce_axis("i", product.shape.k);
        std::vector<Operand> of_filters(at.begin(), at.end());
        Expr rest = i;
        for (int d = product.images.rank() - 1; d > 2; --d) {
            of_filters[static_cast<size_t>(d)] = rest % extent_at(product.images, d);
            rest = rest / extent_at(product.images, d);
        }
        of_filters[2] = rest;
        std::vector<Operand> of_images = of_filters;
        of_filters[0] = of_images[0] = n;
        of_filters[1] = at[0], of_images[1] = at[1];
        return sum(cast(f32, product.filters.read(of_filters)) * cast(f32, product.images.read(of_images)), {n, i});
    }

    Tensor declared(const std::function<Expr(const std::vector<Expr>&)>& total_at) const {
        const Operation& operation = *tensor_.operation();
        return compute(
            operation.name, {operation.shape.begin(), operation.shape.end()},
            [&](const std::vector<Expr>& at) {
                const Expr total = total_at(at);
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

LyingPixels over_operands_of(const LyingPixels& product, const Tensor& sums, const std::vector<Tensor>& outputs) {
    LyingPixels own = product;
    own.sums = sums;
    const Expr body = with_elements(sums.operation()->outputs[0].body, outputs, false);
    visit(body, [&](const Expr& e) {
        const Read* read = e.as<Read>();
        if (!read) return;
        const Tensor tensor(read->operation, read->output);
        for (Tensor* operand : {&own.filters, &own.images})
            if (operand->name() == tensor.name()) *operand = tensor;
    });
    return own;
}

namespace {

void join_from(Schedule& s, const Tensor& tensor, int first) {
    if (tensor.rank() - 1 > first) s.join_axes(tensor, first, tensor.rank() - 1);
}

/// Tiles of the model, of parts that have equally many images.
ConvolutionTiles tiles_of_pixels(const TensorProductShape& shape, const Target& target) {
    ConvolutionForm form;
    form.sums_pixels = true;
    form.extents = {shape.m, shape.n, shape.batch * rounded_up(shape.k, 64)};
    form.result = shape.result;
    ConvolutionTiles tiles = convolution_tiles(form, target).value_or(ConvolutionTiles{});
    tiles.parts = std::min(tiles.parts, shape.batch);
    while (shape.batch % tiles.parts != 0) --tiles.parts;
    return tiles;
}

/// Sums over the pixels of some images by each block, in steps that end with an image.
void schedule_sum_of_images(Schedule& s, const LyingPixels& product) {
    const ConvolutionTiles tiles = tiles_of_pixels(product.shape, s.target());
    Stage sums = s[product.sums];
    std::vector<Loop> blocks;
    if (tiles.parts > 1) {
        const Loop images = s.all_loops(sums)[2];
        sums = s.rfactor(product.sums, s.split(images, product.shape.batch / tiles.parts, {"part", "image"})[0]);
        schedule_sum_of_parts(s, product.sums, tiles.parts);
        blocks.push_back(s.data_loops(sums)[0]);
    }
    const std::vector<Loop> data = s.data_loops(sums);
    std::vector<Loop> terms = s.all_loops(sums);
    std::erase_if(terms, [&](const Loop& loop) {
        return std::ranges::any_of(data, [&](const Loop& other) { return other.id == loop.id; });
    });
    auto [row_tile, row] = s.split(data[data.size() - 2], tiles.rows, Tail::Mask, {"row_tile", "row"});
    auto [warpgroup_row, m] = s.split(row, tiles.rows / tiles.warpgroups, {"warpgroup_m", "m"});
    auto [column_tile, n] = s.split(data.back(), tiles.columns, Tail::Mask, {"column_tile", "n"});
    auto [piece_of_image, k] = s.split(terms[1], tiles.terms, Tail::Mask, {"piece", "k"});
    blocks.insert(blocks.end(), {row_tile, column_tile});
    std::vector<Loop> order = blocks;
    order.insert(order.end(), {warpgroup_row, terms[0], piece_of_image, m, n, k});
    s.order(order);
    const Loop step = s.fuse(terms[0], piece_of_image, "step");
    s.persistent(blocks);
    s.bind(warpgroup_row, warpgroup);
    const Stage left = s.stage(sums, product.filters, Memory::Shared, step),
                right = s.stage(sums, product.images, Memory::Shared, step);
    s.mma(sums, wgmma, {.m = m, .n = n, .k = k});
    s.pipeline(step, {.stages = tiles.stages, .in_flight = 1});
    s.roles(
        loading_roles(s.target(), {left, right}, sums, {.warpgroups = tiles.warpgroups, .loading = 40, .most = 240}));
}

}  // namespace

void schedule_lying_pixels(Schedule& s, const LyingPixels& product, std::source_location where) {
    CalledFrom caller(where);
    join_from(s, product.images, 2);
    join_from(s, product.sums, product.sums_pixels ? 1 : 2);
    join_from(s, product.filters, product.sums_pixels ? 2 : 1);
    if (product.sums_pixels) return schedule_sum_of_images(s, product);
    std::visit(
        [&](const auto& tiles) { schedule_tensor_product(s, product.sums, product.filters, product.images, tiles); },
        best_tiling(product.shape, s.target()));
}

}  // namespace tw::schedules
