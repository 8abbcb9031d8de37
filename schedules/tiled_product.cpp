#include "schedules/tiled_product.h"

#include <algorithm>

#include <fmt/format.h>

#include "dsl/simplify.h"
#include "schedules/choose_windows.h"
#include "schedules/convolution_tilings.h"
#include "schedules/made_elements.h"
#include "schedules/sums_behind.h"
#include "schedules/tensor_product_names.h"
#include "schedules/thin_product.h"
#include "schedules/unit_product.h"

namespace tw::schedules {
namespace {

/// The matrices of sum_k a * b, and what is known of their extents and layouts.
struct Factors {
    Tensor a, b;
    ProductShape shape;
};

constexpr int64_t unknown_extent = 4096;  // taken for that of a named size

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
    auto extent_of = [&](size_t d) { return as_constant(c.shape()[d]).value_or(unknown_extent); };
    ProductShape shape{.m = extent_of(0), .n = extent_of(1), .k = *extent};
    shape.transpose_a = a->indices[0].same(k);
    shape.transpose_b = b->indices[1].same(k);
    return Factors{Tensor(a->operation, a->output), Tensor(b->operation, b->output), shape};
}

}  // namespace

std::vector<Tensor> RedeclaredHalo::tensors() const {
    const HaloConvolution& c = convolution;
    std::vector<Tensor> found{c.result, c.raster, c.image, c.taps, c.made, c.sums, c.pixel, c.beside};
    std::erase_if(found, [](const Tensor& t) { return !t.defined(); });
    return found;
}

std::vector<Tensor> RedeclaredDepthwise::tensors() const {
    std::vector<Tensor> found{result, convolution.taps};
    for (const std::vector<Tensor>& more : {convolution.sums, convolution.tiled, convolution.copies})
        found.insert(found.end(), more.begin(), more.end());
    std::erase_if(found, [](const Tensor& t) { return !t.defined(); });
    return found;
}

std::optional<TiledProduct> product_of_threads(const Tensor& c, const Target& target) {
    if (const auto thin = thin_product(c))
        return TiledProduct{thin->c, thin->a, thin->b, ProductTiling(thin_tiles(thin->shape, target))};
    const auto factors = factors_of(c);
    if (!factors) return {};
    if (const auto thin = thin_tiles(factors->shape, target))
        return TiledProduct{c, factors->a, factors->b, ProductTiling(*thin)};
    return TiledProduct{c, factors->a, factors->b, product_tiles(factors->shape, target)};
}

std::optional<TiledProduct> column_reduction(const Tensor& c) {
    const auto columns = column_reduction_of(c);
    if (!columns) return {};
    return TiledProduct{c, {}, {}, *columns};
}

namespace {

/// What lies in memory and is read at each element's own place.
Tensor tensor_beside(const Tensor& result, const std::vector<Tensor>& outputs) {
    const auto made = made_result(result, outputs);
    if (!made || !made->beside.defined()) return {};
    const Operation& operation = *made->beside.operation();
    const bool is_output = std::ranges::any_of(outputs, [&](const Tensor& t) { return t.same(made->beside); });
    return operation.is_input() || is_output || holds_reduction(operation) ? made->beside : Tensor();
}

}  // namespace

std::vector<TiledWindows> tilings_with_neighbours(const WindowProduct& windows,
                                                  const std::vector<SummedWindowResult>& summed,
                                                  const std::vector<Tensor>& outputs, const Target& target) {
    const ConvolutionForm& form = windows.form;
    std::vector<TiledWindows> found;
    if (form.sums_pixels || form.has_phases() || form.turns_result || form.group > 0) return found;
    const auto sums =
        std::ranges::find_if(summed, [&](const SummedWindowResult& each) { return each.of.same(windows.result); });
    const Tensor totals = sums == summed.end() ? Tensor() : sums->totals,
                 beside = tensor_beside(windows.result, outputs);
    if (!totals.defined() && !beside.defined()) return found;
    const std::vector<Tensor> behind = totals.defined() ? sums->beside : std::vector<Tensor>();
    const bool arrives = beside.defined() || !behind.empty();
    WindowProduct product = windows;
    product.form.takes_parts = product.form.terms_are_neighbours = false;  // tiles of round numbers of columns
    for (const bool has_beside : {true, false}) {
        if (has_beside ? !arrives : !totals.defined()) continue;
        for (const ConvolutionTiles& tiles : tilings_of(product, target)) {
            const TileNeighbours around{.beside = has_beside, .sums = totals.defined()};
            found.push_back({product, with_room(tiles, around, product.form.extents, target), totals, {}});
            if (!has_beside) continue;
            found.back().beside_behind = behind;
            if (beside.defined()) found.back().beside = {beside};
        }
    }
    return found;
}

Tensor totals_of(const TiledProduct& product) {
    if (const TiledWindows* windows = std::get_if<TiledWindows>(&product.tiles)) return windows->totals;
    if (const RedeclaredHalo* halo = std::get_if<RedeclaredHalo>(&product.tiles)) return halo->totals;
    return {};
}

void schedule_tiled(Schedule& s, const TiledProduct& p) {
    if (const TiledWindows* windows = std::get_if<TiledWindows>(&p.tiles)) {
        const WindowNeighbours around{.beside = windows->beside, .beside_behind = windows->beside_behind};
        if (windows->totals.defined())
            return schedule_windows_and_sums(s, windows->product, windows->tiles, windows->totals, around);
        if (!windows->beside.empty()) return void(schedule_windows(s, windows->product, windows->tiles, around));
        return schedule_window_product(s, windows->product, windows->tiles);
    }
    if (const LyingPixels* pixels = std::get_if<LyingPixels>(&p.tiles)) return schedule_lying_pixels(s, *pixels);
    if (const RedeclaredHalo* halo = std::get_if<RedeclaredHalo>(&p.tiles)) {
        if (halo->totals.defined()) return schedule_halo_and_sums(s, halo->convolution, halo->tiles, halo->totals);
        return schedule_halo(s, halo->convolution, halo->tiles);
    }
    if (const RedeclaredDepthwise* depthwise = std::get_if<RedeclaredDepthwise>(&p.tiles))
        return schedule_depthwise(s, depthwise->convolution, depthwise->result);
    if (const ColumnReduction* columns = std::get_if<ColumnReduction>(&p.tiles))
        return schedule_column_reduction(s, p.c, columns->rows, columns->threads);
    if (const ProductTiles* threads = std::get_if<ProductTiles>(&p.tiles))
        return schedule_product(s, p.c, p.a, p.b, *threads);
    std::visit([&](const auto& tiles) { schedule_tensor_product(s, p.c, p.a, p.b, tiles); },
               std::get<ProductTiling>(p.tiles));
}

std::string tiling_of(const TiledProduct& p) {
    if (std::holds_alternative<LyingPixels>(p.tiles)) return "tiles of matrices, of pixels as they lie";
    std::string text;
    if (const TiledWindows* windows = std::get_if<TiledWindows>(&p.tiles))
        text = tiling_text(ConvolutionTiling(windows->tiles));
    else if (const RedeclaredHalo* halo = std::get_if<RedeclaredHalo>(&p.tiles))
        text = tiling_text(ConvolutionTiling(halo->tiles));
    else if (const RedeclaredDepthwise* depthwise = std::get_if<RedeclaredDepthwise>(&p.tiles))
        text = tiling_text(depthwise->convolution.tiles);
    else
        text = tiling_text(std::get<ProductTiling>(p.tiles));
    return fmt::format("tiling {}, {}", text, p.is_from_record ? "from its record" : "by the model of its time");
}

}  // namespace tw::schedules
