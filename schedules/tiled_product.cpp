#include "schedules/tiled_product.h"

#include <algorithm>

#include <fmt/format.h>

#include "dsl/simplify.h"
#include "dsl/stage.h"
#include "schedules/choose_windows.h"
#include "schedules/convolution_tilings.h"
#include "schedules/elements_of_product.h"
#include "schedules/made_elements.h"
#include "schedules/matrix_factors.h"
#include "schedules/sums_behind.h"
#include "schedules/tensor_product_names.h"
#include "schedules/thin_product.h"
#include "schedules/tuned_records.h"
#include "schedules/unit_product.h"
#include "schedules/views.h"

namespace tw::schedules {
namespace {

bool holds_reduction(const Operation& operation) {
    bool found = false;
    for (const auto& output : operation.outputs)
        if (output.body.defined()) visit(output.body, [&](const Expr& e) { found = found || e.as<Reduce>(); });
    return found;
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

std::vector<TiledProduct> products_on_units(const Tensor& c, const std::vector<Tensor>& outputs, const Target& target) {
    std::vector<TiledProduct> found;
    if (const auto with = register_product(c, outputs)) {
        const TensorProduct& p = with->product;
        for (const ProductTiling& tiling : tilings_of(*with, target))
            found.push_back({c, p.a, p.b, TiledRegisters{*with, tiling}, tiling == tuned_tiling(with->shape, target)});
    }
    auto add = [&](const UnitProduct& unit, const std::vector<ProductTiling>& tilings) {
        for (const ProductTiling& tiling : tilings)
            found.push_back({c, unit.a, unit.b, tiling, unit.more.empty() && tiling == tuned_tiling(unit.shape, target),
                             unit.more, unit.joined});
    };
    if (const auto joined = product_of_joined_axes(c)) add(*joined, tilings_of(*joined, target));
    if (const auto unit = unit_product(c)) {
        const std::vector<Tensor> elements = elements_of_product(c, outputs);
        const ElementTilings together = tilings_with_elements(c, elements, outputs, target);
        auto add_with_elements = [&](const std::vector<ProductTiling>& tilings) {
            for (const ProductTiling& tiling : tilings)
                found.push_back({.c = c, .a = unit->a, .b = unit->b, .tiles = tiling, .elements = elements});
        };
        add_with_elements(together.faster);
        add(*unit, tilings_of(*unit, target));
        add_with_elements(together.others);  // for who searches
    } else if (const auto thin = thin_product(c))
        if (const auto tuned = tuned_tiling(thin->shape, target)) add(*thin, {*tuned});
    return found;
}

std::optional<TiledProduct> product_of_threads(const Tensor& c, const Target& target) {
    if (const auto thin = thin_product(c))
        return TiledProduct{thin->c, thin->a, thin->b, ProductTiling(thin_tiles(thin->shape, target))};
    const auto factors = matrix_factors(c);
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

namespace {

bool is_row_of_single_elements(const TiledProduct& product) {
    if (!std::holds_alternative<ProductTiles>(product.tiles)) return false;
    const auto factors = matrix_factors(product.c);
    return factors && factors->shape.m == 1 && !factors->shape.transpose_b && row_of_b(factors->shape) % 2 != 0;
}

}  // namespace

void add_column_reductions(std::vector<TiledProduct>& found, const Tensor& c, const std::vector<Tensor>& outputs) {
    const auto plain = column_reduction(c);
    if (!plain) return;
    TiledProduct with = *plain;
    ColumnReduction& columns = std::get<ColumnReduction>(with.tiles);
    columns.beside = elements_beside_sums(c, outputs);
    std::vector<TiledProduct> own{*plain};
    if (!columns.beside.kept.empty()) own.insert(own.begin(), with);
    const bool are_first = !found.empty() && is_row_of_single_elements(found.front());
    found.insert(are_first ? found.begin() : found.end(), own.begin(), own.end());
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
    for (const std::array<Tensor, 2>& product : p.more) add({product[0], product[1]});
    if (const TiledRegisters* registers = std::get_if<TiledRegisters>(&p.tiles))
        add({registers->with.product.c}), add(registers->with.product.scales);
    std::erase_if(found, [](const Tensor& t) { return !t.defined() || t.operation()->is_input(); });
    return found;
}

std::vector<Tensor> views_for(const std::vector<TiledProduct>& products, const std::vector<Tensor>& outputs,
                              std::vector<Tensor> others) {
    std::vector<Tensor> found = std::move(others);
    auto is_known = [](const std::vector<Tensor>& tensors, const Tensor& t) {
        return std::ranges::any_of(tensors, [&](const Tensor& each) { return each.same(t); });
    };
    for (const TiledProduct& p : products) {
        if (!std::holds_alternative<ProductTiling>(p.tiles) && !std::holds_alternative<ProductTiles>(p.tiles)) continue;
        for (const Tensor& operand : stored_for(p))
            if (reshaped_from(*operand.operation()) && !is_known(outputs, operand) && !is_known(found, operand))
                found.push_back(operand);
    }
    return found;
}

void join_axes(Schedule& s, const std::vector<TiledProduct>& products) {
    std::vector<JoinedAxes> all;
    for (const TiledProduct& p : products)
        for (const JoinedAxes& own : p.joined)
            if (std::ranges::none_of(all, [&](const JoinedAxes& other) {
                    return other.tensor.same(own.tensor) && other.first == own.first && other.last == own.last;
                }))
                all.push_back(own);
    for (const JoinedAxes& each : all) s.join_axes(each.tensor, each.first, each.last);
}

std::vector<Tensor> operands_of_windows(const std::vector<TiledProduct>& products) {
    std::vector<Tensor> found;
    for (const TiledProduct& p : products) {
        const RedeclaredHalo* halo = std::get_if<RedeclaredHalo>(&p.tiles);
        if (halo) found.insert(found.end(), {halo->convolution.x, halo->convolution.w});
        if (std::holds_alternative<TiledWindows>(p.tiles)) found.insert(found.end(), {p.a, p.b});
        if (const RedeclaredDepthwise* depthwise = std::get_if<RedeclaredDepthwise>(&p.tiles))
            found.insert(found.end(), depthwise->whole.begin(), depthwise->whole.end());
    }
    std::erase_if(found, [](const Tensor& t) { return t.operation()->is_input(); });
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
    if (const TiledRegisters* registers = std::get_if<TiledRegisters>(&p.tiles)) add({registers->with.product.c});
    add(p.elements);
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
    if (const TiledRegisters* registers = std::get_if<TiledRegisters>(&p.tiles))
        return std::visit([&](const auto& tiles) { schedule_tensor_product(s, registers->with.product, tiles); },
                          registers->tiling);
    const TensorProduct product{
        .a = p.a, .b = p.b, .bias = {}, .c = p.c, .left = p.a, .right = p.b, .more = p.more, .elements = p.elements};
    std::visit([&](const auto& tiles) { schedule_tensor_product(s, product, tiles); },
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
    else if (const TiledRegisters* registers = std::get_if<TiledRegisters>(&p.tiles))
        text = tiling_text(registers->tiling);
    else
        text = tiling_text(std::get<ProductTiling>(p.tiles));
    std::string beside;
    for (const Tensor& each : p.elements) beside += fmt::format("{}'{}'", beside.empty() ? "" : ", ", each.name());
    return fmt::format("tiling {}, {}{}", text, p.is_from_record ? "from its record" : "by the model of its time",
                       beside.empty() ? "" : fmt::format(", whose kernel makes {} of its results", beside));
}

}  // namespace tw::schedules
