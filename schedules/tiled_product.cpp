#include "schedules/tiled_product.h"

#include <algorithm>

#include <fmt/format.h>

#include "dsl/simplify.h"
#include "dsl/stage.h"
#include "schedules/choose_windows.h"
#include "schedules/convolution_tilings.h"
#include "schedules/made_elements.h"
#include "schedules/sums_behind.h"
#include "schedules/tensor_product_names.h"
#include "schedules/thin_product.h"
#include "schedules/unit_product.h"

namespace tw::schedules {
namespace {

/// The matrices of sum_k a * b, or of any reduction of terms f(a, b), and what is known of their extents and layouts.
struct MatrixFactors {
    Tensor a, b;
    ProductShape shape;
    bool is_plain = true;  ///< sums of products of two elements, of one matrix
};

constexpr int64_t unknown_extent = 4096;  // taken for that of a named size
constexpr int64_t most_batches = 65535;   // of grid.z; parts of k are none then

bool holds_reduction(const Operation& operation) {
    bool found = false;
    for (const auto& output : operation.outputs)
        if (output.body.defined()) visit(output.body, [&](const Expr& e) { found = found || e.as<Reduce>(); });
    return found;
}

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

/// Of the last two axes, and of matrices for each element of those before.
std::optional<MatrixFactors> factors_of(const Tensor& c) {
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
    if (!extent && along->max) extent = *along->max + 1;
    if (!extent) return {};
    auto extent_of = [&](size_t d) { return as_constant(c.shape()[d]).value_or(unknown_extent); };
    ProductShape shape{.m = extent_of(axes.size() - 2), .n = extent_of(axes.size() - 1), .k = *extent};
    for (size_t d = 0; d + 2 < axes.size(); ++d) {
        if (!as_constant(c.shape()[d])) return {};
        shape.batch *= extent_of(d);
    }
    shape.transpose_a = a->indices.back().same(i);
    shape.transpose_b = b->indices.back().same(k);
    const bool is_plain = is_plain_product(term) && atomic_operation(*reduction->reducer) == BinaryOp::Add;
    const bool is_large = std::min(shape.m, shape.n) >= least_extent && shape.k >= least_terms;
    if (!is_large && (!is_plain || c.rank() > 2)) return {};
    if (shape.batch < 1 || shape.batch > most_batches) return {};
    return MatrixFactors{Tensor(a->operation, a->output), Tensor(b->operation, b->output), shape, is_plain && c.rank() == 2};
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
    if (const auto thin = factors->is_plain ? thin_tiles(factors->shape, target) : std::nullopt)
        return TiledProduct{c, factors->a, factors->b, ProductTiling(*thin)};
    // Terms that are no products take registers of their own.
    constexpr int64_t most_sums = 128, most_of_other_terms = 64;
    ProductTiles tiles = product_tiles(factors->shape, target, factors->is_plain ? most_sums : most_of_other_terms);
    if (!factors->is_plain || bytes_of(factors->a.type()) > 4) tiles.blocks = 1;  // counted on for f32 alone
    return TiledProduct{c, factors->a, factors->b, tiles};
}

std::optional<TiledProduct> column_reduction(const Tensor& c) {
    const auto columns = column_reduction_of(c);
    if (!columns) return {};
    return TiledProduct{c, {}, {}, *columns};
}

std::vector<TiledProduct> column_reductions(const Tensor& c, const std::vector<Tensor>& outputs) {
    const auto plain = column_reduction(c);
    if (!plain) return {};
    TiledProduct with = *plain;
    ColumnReduction& columns = std::get<ColumnReduction>(with.tiles);
    columns.beside = elements_beside_sums(c, outputs);
    if (columns.beside.kept.empty()) return {*plain};
    return {with, *plain};
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

std::vector<Tensor> stored_for(const TiledProduct& p) {
    std::vector<Tensor> found{p.a, p.b};
    auto add = [&](const std::vector<Tensor>& tensors) { found.insert(found.end(), tensors.begin(), tensors.end()); };
    if (const RedeclaredDepthwise* depthwise = std::get_if<RedeclaredDepthwise>(&p.tiles))
        add(depthwise->tensors()), add(depthwise->whole);
    if (const RedeclaredHalo* halo = std::get_if<RedeclaredHalo>(&p.tiles))
        add({halo->convolution.x, halo->convolution.w}), add(halo->whole), add(halo->tensors());
    if (const ColumnReduction* columns = std::get_if<ColumnReduction>(&p.tiles)) add(columns->beside.made);
    std::erase_if(found, [](const Tensor& t) { return !t.defined() || t.operation()->is_input(); });
    return found;
}

bool makes(const TiledProduct& p, const Schedule& s, Stage stage) {
    std::vector<Tensor> made{p.c, totals_of(p)};
    auto add = [&](const std::vector<Tensor>& tensors) { made.insert(made.end(), tensors.begin(), tensors.end()); };
    if (const RedeclaredDepthwise* depthwise = std::get_if<RedeclaredDepthwise>(&p.tiles)) made = depthwise->tensors();
    if (const RedeclaredHalo* halo = std::get_if<RedeclaredHalo>(&p.tiles)) add(halo->tensors());
    if (const TiledWindows* windows = std::get_if<TiledWindows>(&p.tiles)) made.push_back(windows->product.result);
    if (const ColumnReduction* columns = std::get_if<ColumnReduction>(&p.tiles))
        add(columns->beside.made), add(columns->beside.kept);
    return std::ranges::any_of(made, [&](const Tensor& t) { return t.defined() && s[t].id == stage.id; });
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
    if (const ColumnReduction* columns = std::get_if<ColumnReduction>(&p.tiles)) {
        const ColumnTerms terms = schedule_column_reduction(s, p.c, columns->rows, columns->threads);
        return keep_beside(s, columns->beside, terms.innermost, terms.vector);
    }
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
