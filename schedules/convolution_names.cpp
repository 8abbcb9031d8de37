#include <algorithm>
#include <regex>

#include "schedules/convolution.h"

namespace tw::schedules {

std::optional<NamedConvolution> parse_convolution(const std::string& name) {
    static const std::string number = "([0-9]{1,6})", by = "x" + number;
    static const std::regex form("convolution(_data_gradient|_weight_gradient)?_(bf16|f16)_" + number + by + by + by +
                                 "_" + number + "_" + number + by + "(?:_stride" + number + ")?(?:_pad" + number +
                                 ")?(?:_dilation" + number + ")?(?:_tile" + number + by + by + "w([1-3])s([1-9])p" +
                                 number + "t([12])(?:b" + number + ")?(?:k" + number + ")?|_tilehalo" + number + "b" +
                                 number + "s([1-9])t([12]))?");
    std::smatch match;
    if (!std::regex_match(name, match, form)) return {};
    auto read = [&](int group, int64_t otherwise) {
        return match[group].matched ? std::stoll(match[group].str()) : otherwise;
    };
    NamedConvolution named;
    named.shape = {read(3, 0), read(4, 0), read(5, 0), read(6, 0), read(7, 0), read(8, 0), read(9, 0)};
    named.shape.type = match[2] == "f16" ? f16 : bf16;
    named.shape.stride = read(10, 1);
    named.shape.padding = read(11, 0);
    named.shape.dilation = read(12, 1);
    if (match[1].matched)
        named.pass = match[1] == "_data_gradient" ? ConvolutionPass::DataGradient : ConvolutionPass::WeightGradient;
    if (match[13].matched)
        named.tiles = ConvolutionTiles{.rows = read(13, 0),
                                       .columns = read(14, 0),
                                       .terms = read(15, 0),
                                       .warpgroups = static_cast<int>(read(16, 0)),
                                       .stages = static_cast<int>(read(17, 0)),
                                       .parts = read(18, 0),
                                       .ping_pong = static_cast<int>(read(19, 0)),
                                       .box_columns = read(20, 0),
                                       .taps = read(21, 1)};
    if (match[22].matched)
        named.halo = HaloTiles{.places = read(22, 0),
                               .leaving = read(23, 0),
                               .stages = static_cast<int>(read(24, 0)),
                               .ping_pong = static_cast<int>(read(25, 0))};
    const ConvolutionShape& s = named.shape;
    if (std::min({s.kernel_h, s.kernel_w, s.stride, s.dilation}) < 1 || !s.has_pixels()) return {};
    return named;
}

}  // namespace tw::schedules
