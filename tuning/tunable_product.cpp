#include <algorithm>

#include "bench/random_data.h"
#include "schedules/tensor_product_names.h"
#include "schedules/tensor_product_space.h"
#include "support/error.h"
#include "tuning/tunable.h"

namespace tw::tuning {
namespace {

using schedules::ProductTiling;
using schedules::TensorProduct;
using schedules::TensorProductShape;

/// Inputs that say what is multiplied: experts, each with rows one after another, or numbers of rows that count.
bool fill_choices(const TensorProduct& product, const std::string& input, HostArray& array, uint64_t seed) {
    const bool rows = product.rows.defined() && input == product.rows.name();
    const bool experts = product.expert.defined() && input == product.expert.name();
    if (rows) fill_integers(array, 0, require_constant(product.a.shape()[1]), seed);
    if (experts) bench::fill_ascending(array, {0, static_cast<double>(require_constant(product.b.shape()[0]))}, seed);
    return rows || experts;
}

std::vector<std::string> tilings_of(const TensorProductShape& shape, const Target& target) {
    const ProductTiling today = best_tiling(shape, target);
    std::vector<std::string> texts{tiling_text(today)};
    for (const ProductTiling& tiling : tensor_product_space(shape, target))
        if (tiling != today) texts.push_back(tiling_text(tiling));
    return texts;
}

Schedule scheduled(const TensorProduct& product, const std::string& text, const Target& target) {
    const auto tiling = schedules::parse_tiling(text);
    if (!tiling) throw_error(Error, "'{}' is no tiling of a product, as 128x192x64g2s4r is", text);
    return tensor_product_schedule(product, *tiling, target);
}

}  // namespace

std::optional<Tunable> tunable_product(const std::string& name) {
    const auto named = schedules::parse_tensor_product(name);
    if (!named) return {};
    if (named->tiling)
        throw_error(Error, "'{}' tells its tiling already; leave out {}", name, name.substr(name.find("_tile")));
    const TensorProductShape shape = named->shape;
    const TensorProduct product = declare_tensor_product(shape);
    const bool keeps_few_bits = bytes_of(shape.operand) == 1 && is_float(shape.operand);  // sums of fp8
    Tunable tunable;
    tunable.name = name;
    tunable.outputs = {product.c};
    tunable.tilings = [=](const Target& target) { return tilings_of(shape, target); };
    tunable.spread = [=](const Target& target, size_t count) {
        std::vector<std::string> texts;
        for (const ProductTiling& tiling : spread_tensor_product_space(shape, target, count))
            texts.push_back(tiling_text(tiling));
        return texts;
    };
    tunable.schedule = [=](const std::string& tiling, const Target& target) {
        return scheduled(product, tiling, target);
    };
    tunable.flops = 2 * static_cast<double>(std::max<int64_t>(shape.batch, 1)) * terms_of_rows(shape) *
                    static_cast<double>(shape.n);
    tunable.fill = [=](const std::string& input, HostArray& array, uint64_t seed) {
        return fill_choices(product, input, array, seed);
    };
    tunable.largest = keeps_few_bits ? 1 : 4;
    tunable.reference = [=](const Target& target) {
        // No larger than the product: gated columns are computed of sums in registers, of whole tiles.
        auto warp_of = [](int64_t extent) -> int64_t { return extent <= 16 ? 16 : 32; };
        auto block_of = [&](int64_t extent) { return extent <= 32 ? warp_of(extent) : 64; };
        const schedules::TensorTiles by_warps{.block_m = block_of(shape.m),
                                              .block_n = block_of(shape.n),
                                              .block_k = 64 / bytes_of(shape.operand),
                                              .warp_m = warp_of(shape.m),
                                              .warp_n = warp_of(shape.n),
                                              .stages = 3};
        return tensor_product_schedule(product, by_warps, target);
    };
    return tunable;
}

}  // namespace tw::tuning
