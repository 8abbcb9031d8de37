#include "schedules/pick_tilings.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>

#include "schedules/choices.h"
#include "schedules/convolution_tilings.h"
#include "schedules/product_tiles.h"
#include "schedules/tensor_product_names.h"
#include "schedules/tensor_product_space.h"
#include "schedules/unit_product.h"

namespace tw::schedules {
namespace {

constexpr const char* no_tiling = "none";
constexpr std::string_view with_reader = "+reader";  // which takes the sums from registers

std::string option_of(const TiledProduct& tiled) {
    if (std::holds_alternative<LyingPixels>(tiled.tiles)) return "as_they_lie";
    if (const TiledWindows* windows = std::get_if<TiledWindows>(&tiled.tiles))
        return tiling_text(ConvolutionTiling(windows->tiles)) + (windows->totals.defined() ? "+totals" : "") +
               (windows->beside.empty() ? "" : "+beside") + (windows->beside_behind.empty() ? "" : "+behind");
    if (const RedeclaredHalo* halo = std::get_if<RedeclaredHalo>(&tiled.tiles))
        return tiling_text(ConvolutionTiling(halo->tiles));
    if (std::holds_alternative<RedeclaredDepthwise>(tiled.tiles)) return "windows";
    if (const TiledRegisters* registers = std::get_if<TiledRegisters>(&tiled.tiles))
        return tiling_text(registers->tiling) + std::string(with_reader);
    if (std::holds_alternative<ProductTiles>(tiled.tiles)) return "threads";
    if (const ColumnReduction* columns = std::get_if<ColumnReduction>(&tiled.tiles))
        return columns->beside.kept.empty() ? "columns" : "columns+beside";
    return tiling_text(std::get<ProductTiling>(tiled.tiles)) + (tiled.elements.empty() ? "" : "+elements");
}

/// What was declared anew for its tiles has no other way.
bool has_another_way(const TiledProduct& tiled) {
    return !std::holds_alternative<RedeclaredHalo>(tiled.tiles) &&
           !std::holds_alternative<RedeclaredDepthwise>(tiled.tiles) &&
           !std::holds_alternative<LyingPixels>(tiled.tiles);
}

std::vector<std::string> all_options(const std::vector<TiledProduct>& tilings, const std::optional<UnitProduct>& unit,
                                     const Target& target) {
    std::vector<std::string> options;
    auto add = [&](const std::string& option) {
        if (std::ranges::find(options, option) == options.end()) options.push_back(option);
    };
    for (const TiledProduct& tiled : tilings) add(option_of(tiled));
    if (unit)
        for (const ProductTiling& tiling : tensor_product_space(unit->shape, target)) add(tiling_text(tiling));
    if (const TiledRegisters* registers = std::get_if<TiledRegisters>(&tilings[0].tiles))
        for (const ProductTiling& tiling : tensor_product_space(registers->with.shape, target))
            if (suits(tiling, registers->with)) add(tiling_text(tiling) + std::string(with_reader));
    if (std::ranges::all_of(tilings, has_another_way)) add(no_tiling);
    return options;
}

void pick_threads(const Tensor& c, ProductTiles& tiles) {
    const ProductTiles rule = tiles;
    std::vector<std::string> options{tiling_text(rule)};
    for (const auto& [m, n, of_thread] : {std::tuple(32, 32, 4),
                                          {64, 32, 4},
                                          {32, 64, 4},
                                          {64, 64, 4},
                                          {64, 64, 8},
                                          {128, 64, 8},
                                          {64, 128, 8},
                                          {128, 128, 8}}) {
        ProductTiles other = rule;
        other.block_m = m, other.block_n = n, other.thread_m = other.thread_n = of_thread, other.blocks = 1;
        for (const int64_t parts : std::set<int64_t>{1, rule.split_k}) {
            other.split_k = parts;
            options.push_back(tiling_text(other));
        }
    }
    if (auto taken = parse_product_tiles(pick(c.name(), "tiles", options, options[0]))) tiles = *taken;
}

void pick_columns(const Tensor& c, ColumnReduction& columns) {
    ColumnThreads& threads = columns.threads;
    threads.lanes = pick(c.name(), "lanes", {8, 16, 32, 64}, threads.lanes);
    threads.rows = pick(c.name(), "rows", {1, 2, 4, 8, 16, 32}, threads.rows);
    threads.steps = pick(c.name(), "steps", {1, 2, 4}, threads.steps);
    threads.chunk = pick(c.name(), "chunk", {64, 128, 256, 512, 1024, columns.rows}, threads.chunk);
}

std::vector<std::pair<std::string, int64_t>> numbers_of(const ColumnThreads& threads) {
    return {{"lanes", threads.lanes}, {"rows", threads.rows}, {"steps", threads.steps}, {"chunk", threads.chunk}};
}

/// Of the option's name, if it is one that takes sums from registers.
std::optional<TiledProduct> with_reader_in(const std::string& option, const TiledProduct& rule) {
    const TiledRegisters* registers = std::get_if<TiledRegisters>(&rule.tiles);
    if (!registers || !option.ends_with(with_reader)) return {};
    const auto tiling = parse_tiling(option.substr(0, option.size() - with_reader.size()));
    if (!tiling || !suits(*tiling, registers->with)) return {};
    return TiledProduct{rule.c, rule.a, rule.b, TiledRegisters{registers->with, *tiling}};
}

}  // namespace

std::vector<TiledProduct> pick_tilings(const Tensor& c, std::vector<TiledProduct> tilings, const Target& target) {
    if (!Choices::current() || tilings.empty()) return tilings;
    const std::string rule = option_of(tilings[0]);
    const bool is_unit = std::holds_alternative<ProductTiling>(tilings[0].tiles);
    auto unit = is_unit ? unit_product(c) : std::nullopt;
    if (unit && !unit->more.empty()) unit.reset();  // the space is one of single products
    const std::string taken = pick(
        c.name(), "tiling", [&] { return all_options(tilings, unit, target); }, rule);
    if (taken == no_tiling) return {};
    const auto found = std::ranges::find(tilings, taken, option_of);
    if (found != tilings.end())
        std::rotate(tilings.begin(), found, found + 1);
    else if (const auto with = with_reader_in(taken, tilings[0]))
        tilings.insert(tilings.begin(), *with);
    else if (const auto tiling = parse_tiling(taken); unit && tiling)
        tilings.insert(tilings.begin(), TiledProduct{unit->c, unit->a, unit->b, *tiling});
    for (TiledProduct& tiled : tilings) {
        if (ProductTiles* threads = std::get_if<ProductTiles>(&tiled.tiles)) pick_threads(c, *threads);
        if (ColumnReduction* columns = std::get_if<ColumnReduction>(&tiled.tiles)) pick_columns(c, *columns);
    }
    return tilings;
}

void tell_tiling(const Tensor& c, const TiledProduct* tiled) {
    took(c.name(), "tiling", tiled ? option_of(*tiled) : no_tiling);
    const ProductTiles* tiles = tiled ? std::get_if<ProductTiles>(&tiled->tiles) : nullptr;
    took(c.name(), "tiles", tiles ? tiling_text(*tiles) : no_tiling);
    const ColumnReduction* columns = tiled ? std::get_if<ColumnReduction>(&tiled->tiles) : nullptr;
    for (const auto& [what, taken] : numbers_of(columns ? columns->threads : ColumnThreads{}))
        took(c.name(), what, columns ? std::to_string(taken) : no_tiling);
}

}  // namespace tw::schedules
