#include <algorithm>
#include <regex>

#include "schedules/convolution.h"

namespace tw::schedules {

std::optional<NamedConvolution> parse_convolution(const std::string& name) {
    static const std::string number = "([0-9]{1,6})", by = "x" + number;
    static const std::regex form(
        "convolution(_data_gradient|_weight_gradient)?_(bf16|f16)_" + number + by + by + by + "_" + number + "_" +
        number + by + "(?:_stride" + number + ")?(?:_pad" + number + ")?(?:_dilation" + number + ")?(?:_groups" +
        number + ")?(_nchw)?(?:_tile" + number + by + by + "w([1-3])s([1-9])p" + number + "t([12])(?:b" + number +
        "(?:x" + number + ")?)?(?:k" + number + ")?|_tilehalo" + number + "b" + number +
        "s([1-9])t([12])(?:w([1-3])r([2-9]))?|_tilehalo" + number + "s([1-9])p" + number + ")?");
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
    named.shape.groups = read(13, 1);
    if (match[14].matched) named.shape.layout = Layout::ChannelsFirst;
    if (match[1].matched)
        named.pass = match[1] == "_data_gradient" ? ConvolutionPass::DataGradient : ConvolutionPass::WeightGradient;
    if (match[15].matched)
        named.tiles = ConvolutionTiles{.rows = read(15, 0),
                                       .columns = read(16, 0),
                                       .terms = read(17, 0),
                                       .warpgroups = static_cast<int>(read(18, 0)),
                                       .stages = static_cast<int>(read(19, 0)),
                                       .parts = read(20, 0),
                                       .ping_pong = static_cast<int>(read(21, 0)),
                                       .box_columns = read(22, 0),
                                       .box_stages = static_cast<int>(read(23, 1)),
                                       .taps = read(24, 1)};
    if (match[25].matched)
        named.halo = HaloTiles{.places = read(25, 0),
                               .leaving = read(26, 0),
                               .stages = static_cast<int>(read(27, 0)),
                               .ping_pong = static_cast<int>(read(28, 0)),
                               .warpgroups = static_cast<int>(read(29, 1)),
                               .weight_stages = static_cast<int>(read(30, 0))};
    const bool sums_places = match[31].matched;
    if (sums_places)
        named.halo = HaloTiles{.places = read(31, 0),
                               .leaving = 0,
                               .stages = static_cast<int>(read(32, 0)),
                               .ping_pong = 1,
                               .parts = read(33, 0)};
    if (named.halo && sums_places != (named.pass == ConvolutionPass::WeightGradient)) return {};
    if (named.halo && (named.halo->whole_places() < 1 || match[14].matched)) return {};
    const ConvolutionShape& s = named.shape;
    if (std::min({s.kernel_h, s.kernel_w, s.stride, s.dilation}) < 1 || !s.has_pixels() || !s.has_groups()) return {};
    return named;
}

}  // namespace tw::schedules
