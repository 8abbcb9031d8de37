#include "schedules/tiled_product.h"

#include <algorithm>

#include <fmt/format.h>

#include "dsl/simplify.h"
#include "schedules/choose_windows.h"
#include "schedules/convolution_tilings.h"
#include "schedules/tensor_product_names.h"
#include "schedules/unit_product.h"

namespace tw::schedules {
namespace {

/// The matrices of sum_k a * b, and k's extent.
struct Factors {
    Tensor a, b;
    int64_t k;
};

bool holds_reduction(const Operation& operation) {
    bool found = false;
    for (const auto& output : operation.outputs)
        if (output.body.defined()) visit(output.body, [&](const Expr& e) { found = found || e.as<Reduce>(); });
    return found;
}

/// A matrix in memory, indexed by two different variables: reductions are kernels of their own.
bool is_matrix(const Read* read) {
    return read && (read->operation->is_input() || holds_reduction(*read->operation)) && read->indices.size() == 2 &&
           read->indices[0].as<Variable>() && read->indices[1].as<Variable>() &&
           !read->indices[0].same(read->indices[1]);
}

bool indexes(const Read& read, const Expr& axis) { return read.indices[0].same(axis) || read.indices[1].same(axis); }

std::optional<Factors> factors_of(const Tensor& c) {
    if (c.rank() != 2 || c.operation()->outputs.size() != 1) return {};
    std::vector<const Reduce*> reductions;
    visit(c.operation()->outputs[0].body, [&](const Expr& expr) {
        if (const Reduce* reduce = expr.as<Reduce>()) reductions.push_back(reduce);
    });
    if (reductions.size() != 1 || reductions[0]->axes.size() != 1 || reductions[0]->values.size() != 1 ||
        reductions[0]->reducer->name != "sum")
        return {};
    const Binary* times = reductions[0]->values[0].as<Binary>();
    if (!times || times->op != BinaryOp::Mul) return {};
    const Read *a = times->a.as<Read>(), *b = times->b.as<Read>();
    const Expr &k = reductions[0]->axes[0], &i = c.operation()->axes[0], &j = c.operation()->axes[1];
    if (!is_matrix(a) || !is_matrix(b) || a->operation == b->operation) return {};
    if (!indexes(*a, i)) std::swap(a, b);
    if (!indexes(*a, i) || !indexes(*a, k) || !indexes(*b, k) || !indexes(*b, j)) return {};
    const Variable* along = k.as<Variable>();
    auto extent = along->extent.defined() ? as_constant(along->extent) : std::nullopt;
    if (!extent && along->max) extent = *along->max + 1;
    if (!extent) return {};
    return Factors{Tensor(a->operation, a->output), Tensor(b->operation, b->output), *extent};
}

ProductTiles tiles_of_threads(const Tensor& c, int64_t k, const Target& target) {
    auto extent = [&](size_t d) { return as_constant(c.shape()[d]).value_or(4096); };
    return product_tiles(extent(0), extent(1), k, target);
}

std::optional<ColumnReduction> column_reduction_of(const Tensor& c) {
    constexpr int64_t least_rows = 1024, least_columns = 8, vector_bytes = 16;
    const Operation& operation = *c.operation();
    const auto columns = c.rank() == 1 ? as_constant(c.shape()[0]) : std::nullopt;
    if (!columns || *columns < least_columns || operation.outputs.size() != 1) return {};
    const Reduce* reduction = only_reduction(operation.outputs[0].body);
    if (!reduction) return {};
    int64_t rows = 1;
    for (const Expr& axis : reduction->axes) {
        const Expr& extent = axis.as<Variable>()->extent;
        rows *= extent.defined() ? as_constant(extent).value_or(0) : 0;
    }
    int64_t bytes = 0;  // of an element
    for (const Expr& value : reduction->values)
        visit(value, [&](const Expr& e) {
            const Read* read = e.as<Read>();
            if (read && !read->indices.empty() && read->indices.back().same(operation.axes[0]))
                bytes = std::max<int64_t>(bytes, bytes_of(e.type()));
        });
    if (rows < least_rows || bytes == 0) return {};
    const int64_t neighbours = vector_bytes / bytes;
    return ColumnReduction{rows, column_threads(rows, *columns, *columns % neighbours == 0 ? neighbours : 1)};
}

}  // namespace

std::optional<TiledProduct> product_of_threads(const Tensor& c, const Target& target) {
    const auto factors = factors_of(c);
    if (!factors) return {};
    return TiledProduct{c, factors->a, factors->b, tiles_of_threads(c, factors->k, target)};
}

std::optional<TiledProduct> column_reduction(const Tensor& c) {
    const auto columns = column_reduction_of(c);
    if (!columns) return {};
    return TiledProduct{c, {}, {}, *columns};
}

void schedule_tiled(Schedule& s, const TiledProduct& p) {
    if (const TiledWindows* windows = std::get_if<TiledWindows>(&p.tiles))
        return schedule_window_product(s, windows->product, windows->tiles);
    if (const TiledPixels* pixels = std::get_if<TiledPixels>(&p.tiles))
        return schedule_lying_pixels(s, pixels->product, pixels->tiling);
    if (const RedeclaredHalo* halo = std::get_if<RedeclaredHalo>(&p.tiles))
        return schedule_halo(s, halo->convolution, halo->tiles);
    if (const ColumnReduction* columns = std::get_if<ColumnReduction>(&p.tiles))
        return schedule_column_reduction(s, p.c, columns->rows, columns->threads);
    if (const ProductTiles* threads = std::get_if<ProductTiles>(&p.tiles))
        return schedule_product(s, p.c, p.a, p.b, *threads);
    std::visit([&](const auto& tiles) { schedule_tensor_product(s, p.c, p.a, p.b, tiles); },
               std::get<ProductTiling>(p.tiles));
}

std::string tiling_of(const TiledProduct& p) {
    std::string text;
    if (const TiledWindows* windows = std::get_if<TiledWindows>(&p.tiles))
        text = tiling_text(ConvolutionTiling(windows->tiles));
    else if (const RedeclaredHalo* halo = std::get_if<RedeclaredHalo>(&p.tiles))
        text = tiling_text(ConvolutionTiling(halo->tiles));
    else if (const TiledPixels* pixels = std::get_if<TiledPixels>(&p.tiles))
        text = tiling_text(pixels->tiling);
    else
        text = tiling_text(std::get<ProductTiling>(p.tiles));
    return fmt::format("tiling {}, {}", text, p.is_from_record ? "from its record" : "by the model of its time");
}

}  // namespace tw::schedules
