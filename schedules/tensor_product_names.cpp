#include "schedules/tensor_product_names.h"

#include <map>
#include <regex>

#include <fmt/format.h>

namespace tw::schedules {
namespace {

/// What both kinds of tiles have at the end: "p2h4r".
template <class Tiles>
std::string ending_of(const Tiles& tiles) {
    std::string text;
    if (tiles.split_k != 1) text += fmt::format("p{}", tiles.split_k);
    if (tiles.raster_group != Tiles{}.raster_group) text += fmt::format("h{}", tiles.raster_group);
    return text + (tiles.stage_result ? "r" : "");
}

std::string text_of(const TensorTiles& t) {
    return fmt::format("{}x{}x{}w{}x{}s{}{}", t.block_m, t.block_n, t.block_k, t.warp_m, t.warp_n, t.stages,
                       ending_of(t));
}

std::string text_of(const WarpgroupTiles& t) {
    std::string terms = t.promotion_interval ? fmt::format("k{}", t.promotion_interval) : "";
    std::string cluster = t.cluster > 1 || t.cluster_columns > 1 ? fmt::format("c{}", t.cluster) : "";
    if (t.cluster_columns > 1) cluster += fmt::format("x{}", t.cluster_columns);
    std::string turns = t.ping_pong > 1 ? fmt::format("u{}", t.ping_pong) : "";
    std::string columns = t.epilogue_columns ? fmt::format("{}", t.epilogue_columns) : "";
    return fmt::format("{}x{}x{}g{}{}{}{}s{}{}{}{}{}", t.block_m, t.block_n, t.block_k, t.warpgroups, cluster, turns,
                       terms, t.stages, ending_of(t), columns, t.store_boxes ? "b" : "", t.swap ? "t" : "");
}

}  // namespace

std::string tiling_text(const ProductTiling& tiling) {
    return std::visit([](const auto& tiles) { return text_of(tiles); }, tiling);
}

std::optional<ProductTiling> parse_tiling(const std::string& text) {
    static const std::string number_text = "([1-9][0-9]{0,5})", by = "x" + number_text;
    static const std::regex form(
        number_text + by + by + "(?:w" + number_text + by +
        "|g([1-4])(?:c([2-8](?!x)|[1-8](?=x))(?:x([2-8]))?)?(?:u([2-4]))?(?:k([1-9][0-9]{1,5}))?)s" + number_text +
        "(?:p" + number_text + ")?(?:h" + number_text + ")?(?:(r)([1-9][0-9]{1,2})?(b)?)?(t)?");
    std::smatch match;
    if (!std::regex_match(text, match, form)) return {};
    auto number = [&](size_t group, int64_t otherwise = 0) {
        return match[group].matched ? std::stoll(match[group]) : otherwise;
    };
    bool stage_result = match[14].matched, store_boxes = match[16].matched, swap = match[17].matched;
    if (match[6].matched)
        return WarpgroupTiles{.block_m = number(1),
                              .block_n = number(2),
                              .block_k = number(3),
                              .warpgroups = static_cast<int>(number(6)),
                              .cluster = static_cast<int>(number(7, 1)),
                              .cluster_columns = static_cast<int>(number(8, 1)),
                              .ping_pong = static_cast<int>(number(9, 1)),
                              .stages = static_cast<int>(number(11)),
                              .promotion_interval = number(10),
                              .split_k = number(12, 1),
                              .stage_result = stage_result,
                              .epilogue_columns = number(15),
                              .store_boxes = store_boxes,
                              .swap = swap,
                              .raster_group = number(13, WarpgroupTiles{}.raster_group)};
    if (swap || store_boxes || match[15].matched) return {};
    return TensorTiles{.block_m = number(1),
                       .block_n = number(2),
                       .block_k = number(3),
                       .warp_m = number(4),
                       .warp_n = number(5),
                       .stages = static_cast<int>(number(11)),
                       .split_k = number(12, 1),
                       .stage_result = stage_result,
                       .raster_group = number(13, TensorTiles{}.raster_group)};
}

std::optional<NamedTensorProduct> parse_tensor_product(const std::string& name) {
    static const std::string number_text = "([0-9]{1,6})", by = "x" + number_text;
    static const std::regex form("gemm_(bf16|f16|tf32|i8|e4m3)_(?:" + number_text + "x)?" + number_text + by + by +
                                 "(_ta)?(_tb)?(_bias)?(_gelu_tanh|_gelu|_swiglu)?(?:_experts" + number_text +
                                 ")?(_masked|_lower)?(_scaled)?(_f32)?(_pad)?(?:_tile([0-9a-z]+))?");
    std::smatch match;
    if (!std::regex_match(name, match, form)) return {};
    static const std::map<std::string, Activation> activations = {{"", Activation::None},
                                                                  {"_gelu", Activation::Gelu},
                                                                  {"_gelu_tanh", Activation::GeluTanh},
                                                                  {"_swiglu", Activation::SwiGlu}};
    static const std::map<std::string, RowTerms> row_terms = {
        {"", RowTerms::All}, {"_masked", RowTerms::Masked}, {"_lower", RowTerms::Lower}};
    static const std::map<std::string, std::pair<Type, Type>> types = {
        {"bf16", {bf16, bf16}}, {"f16", {f16, f16}}, {"tf32", {tf32, f32}}, {"i8", {i8, i32}}, {"e4m3", {e4m3, bf16}}};
    auto [operand, result] = types.at(match[1]);
    auto number = [&](size_t group) { return match[group].matched ? std::stoll(match[group]) : 0; };
    TensorProductShape shape{.m = number(3),
                             .n = number(4),
                             .k = number(5),
                             .batch = number(2),
                             .operand = operand,
                             .result = match[13].matched ? f32 : result,
                             .transpose_a = match[6].matched,
                             .transpose_b = match[7].matched,
                             .add_bias = match[8].matched,
                             .activation = activations.at(match[9]),
                             .experts = number(10),
                             .row_terms = row_terms.at(match[11]),
                             .block_scales = match[12].matched};
    if (!is_float(shape.result) && (shape.add_bias || shape.activation != Activation::None)) return {};
    if (shape.activation == Activation::SwiGlu && (shape.n % 16 != 0 || bytes_of(shape.operand) == 1)) return {};
    if (shape.experts && (shape.batch || shape.transpose_a || shape.m % rows_of_block != 0)) return {};
    bool all_terms = shape.row_terms == RowTerms::All;
    if (!all_terms && (shape.k % rows_of_block != 0 || shape.experts)) return {};
    if (shape.row_terms == RowTerms::Masked && (!shape.batch || shape.transpose_a)) return {};
    shape.pad_rows = match[14].matched || (!shape.experts && wants_padded_rows(shape));
    if (shape.pad_rows && (shape.experts || !all_terms)) return {};
    if (shape.block_scales && (shape.k % block_of_scale != 0 || bytes_of(shape.operand) != 1 || shape.batch ||
                               shape.experts || !all_terms || shape.activation != Activation::None ||
                               shape.transpose_a || !shape.transpose_b || shape.add_bias || !is_float(shape.operand)))
        return {};
    if (!match[15].matched) return NamedTensorProduct{shape, {}};
    auto tiling = parse_tiling(match[15]);
    if (!tiling) return {};
    return NamedTensorProduct{shape, tiling};
}

}  // namespace tw::schedules
