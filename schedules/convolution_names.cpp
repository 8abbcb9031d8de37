#include <algorithm>
#include <regex>

#include "schedules/convolution_tilings.h"

namespace tw::schedules {

std::optional<NamedConvolution> parse_convolution(const std::string& name) {
    static const std::string number = "([0-9]{1,6})", by = "x" + number;
    static const std::regex form("convolution(_data_gradient|_weight_gradient)?_(bf16|f16)_" + number + by + by + by +
                                 "_" + number + "_" + number + by + "(?:_stride" + number + ")?(?:_pad" + number +
                                 ")?(?:_dilation" + number + ")?(?:_groups" + number +
                                 ")?(_nchw)?(?:_tile([0-9a-z]+))?");
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
    if (match[15].matched) {
        const auto tiling = parse_convolution_tiling(match[15]);
        if (!tiling) return {};
        if (const HaloTiles* halo = std::get_if<HaloTiles>(&*tiling))
            named.halo = *halo;
        else
            named.tiles = std::get<ConvolutionTiles>(*tiling);
    }
    const bool sums_places = named.halo && named.halo->leaving == 0;
    if (named.halo && (sums_places != (named.pass == ConvolutionPass::WeightGradient) || match[14].matched)) return {};
    const ConvolutionShape& s = named.shape;
    if (std::min({s.kernel_h, s.kernel_w, s.stride, s.dilation}) < 1 || !s.has_pixels() || !s.has_groups()) return {};
    return named;
}

}  // namespace tw::schedules
