#include "schedules/tilings_to_try.h"

#include <algorithm>

#include "schedules/choose_windows.h"
#include "schedules/elementwise.h"
#include "schedules/replace_tensors.h"
#include "schedules/unit_product.h"
#include "schedules/window_terms.h"

namespace tw::schedules {
namespace {

/// Made together with the output that alone reads it, or by itself.
std::vector<TiledProduct> with_readers(const RedeclaredDepthwise& depthwise, const std::vector<Tensor>& outputs) {
    const Tensor& c = depthwise.convolution.sums[0];
    std::vector<TiledProduct> found;
    if (const Tensor reader = only_reader(depthwise.result, outputs); reader.defined()) {
        found.push_back({c, {}, {}, depthwise});
        std::get<RedeclaredDepthwise>(found[0].tiles).result = reader;
    }
    found.push_back({c, {}, {}, depthwise});
    return found;
}

/// Convolutions that were declared anew have enough of everything.
std::vector<WindowProduct> products_of(const Tensor& c, const RedeclaredConvolutions& declared,
                                       const std::vector<Tensor>& outputs) {
    std::vector<WindowProduct> products = window_products(c, outputs);
    if (products.empty() && holds(declared.sums, c))
        if (auto product = window_product(c, outputs)) products.push_back(*product);
    return products;
}

}  // namespace

bool is_redeclared(const Tensor& sums, const RedeclaredConvolutions& declared) {
    return std::ranges::any_of(declared.halos,
                               [&](const RedeclaredHalo& halo) { return halo.convolution.sums.same(sums); }) ||
           std::ranges::any_of(declared.depthwise, [&](const RedeclaredDepthwise& depthwise) {
               return depthwise.convolution.sums[0].same(sums);
           });
}

std::vector<TiledProduct> tilings_to_try(const Tensor& c, const RedeclaredConvolutions& declared,
                                         const std::vector<LyingPixels>& lying, const std::vector<Tensor>& outputs,
                                         const Target& target) {
    std::vector<TiledProduct> found;
    for (const RedeclaredHalo& halo : declared.halos)
        if (halo.convolution.sums.same(c)) return {{c, {}, {}, halo, halo.is_from_record}};
    for (const RedeclaredDepthwise& depthwise : declared.depthwise)
        if (depthwise.convolution.sums[0].same(c)) return with_readers(depthwise, outputs);
    for (const LyingPixels& given : lying)
        if (given.sums.name() == c.name()) {
            const LyingPixels own = over_operands_of(given, c, outputs);
            found.push_back({c, own.filters, own.images, own});
        }
    const std::vector<WindowProduct> products = products_of(c, declared, outputs);
    for (const WindowProduct& windows : products)
        for (TiledWindows& tiled : tilings_with_neighbours(windows, declared.summed, outputs, target))
            found.push_back({c, windows.a, windows.b, std::move(tiled)});
    for (const WindowProduct& windows : products) {
        for (const RecordedTiles& recorded : declared.recorded)
            if (recorded.sums.same(c) && (recorded.tiles.parts == 1 || windows.form.takes_parts) &&
                (recorded.tiles.box_columns > 0 || !windows.form.turns_result))
                found.push_back({c, windows.a, windows.b, TiledWindows{windows, recorded.tiles}, true});
        for (const ConvolutionTiles& tiles : tilings_of(windows, target))
            found.push_back({c, windows.a, windows.b, TiledWindows{windows, tiles}});
    }
    for (TiledProduct& product : products_on_units(c, outputs, target)) found.push_back(std::move(product));
    if (auto threads = product_of_threads(c, target)) found.push_back(*threads);
    return found;
}

}  // namespace tw::schedules
