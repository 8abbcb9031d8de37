#include "schedules/tensor_product_names.h"

#include <map>
#include <regex>

namespace tw::schedules {

std::optional<NamedTensorProduct> parse_tensor_product(const std::string& name) {
    static const std::string number_text = "([0-9]{1,6})", by = "x" + number_text;
    static const std::regex form("gemm_(bf16|f16|i8|e4m3)_(?:" + number_text + "x)?" + number_text + by + by +
                                 "(_ta)?(_tb)?(_bias)?(_gelu)?(_f32)?(_pad)?(?:_tile" + number_text + by + by +
                                 "(?:w" + number_text + by + "|g([1-4])(?:c([2-8]))?(?:u([2-3]))?)s" + number_text + "(?:p" + number_text +
                                 ")?(r)?(t)?)?");
    std::smatch match;
    if (!std::regex_match(name, match, form)) return {};
    static const std::map<std::string, std::pair<Type, Type>> types = {
        {"bf16", {bf16, bf16}}, {"f16", {f16, f16}}, {"i8", {i8, i32}}, {"e4m3", {e4m3, bf16}}};
    auto [operand, result] = types.at(match[1]);
    auto number = [&](size_t group) { return match[group].matched ? std::stoll(match[group]) : 0; };
    TensorProductShape shape{.m = number(3),
                             .n = number(4),
                             .k = number(5),
                             .batch = number(2),
                             .operand = operand,
                             .result = match[10].matched ? f32 : result,
                             .transpose_a = match[6].matched,
                             .transpose_b = match[7].matched,
                             .add_bias = match[8].matched,
                             .apply_gelu = match[9].matched};
    if (!is_float(shape.result) && (shape.add_bias || shape.apply_gelu)) return {};
    shape.pad_rows = match[11].matched || wants_padded_rows(shape);
    if (!match[12].matched) return NamedTensorProduct{shape, {}};
    int stages = static_cast<int>(number(20));
    int64_t split_k = match[21].matched ? number(21) : 1;
    bool stage_result = match[22].matched, swap = match[23].matched;
    if (match[17].matched)
        return NamedTensorProduct{shape, WarpgroupTiles{.block_m = number(12),
                                                        .block_n = number(13),
                                                        .block_k = number(14),
                                                        .warpgroups = static_cast<int>(number(17)),
                                                        .cluster = match[18].matched ? static_cast<int>(number(18)) : 1,
                                                        .turns = match[19].matched ? static_cast<int>(number(19)) : 1,
                                                        .stages = stages,
                                                        .split_k = split_k,
                                                        .stage_result = stage_result,
                                                        .swap = swap}};
    if (swap) return {};
    return NamedTensorProduct{shape, TensorTiles{.block_m = number(12),
                                                 .block_n = number(13),
                                                 .block_k = number(14),
                                                 .warp_m = number(15),
                                                 .warp_n = number(16),
                                                 .stages = stages,
                                                 .split_k = split_k,
                                                 .stage_result = stage_result}};
}

}  // namespace tw::schedules
