#include "schedules/convolution_space.h"
#include "support/error.h"
#include "tuning/tunable.h"

namespace tw::tuning {
namespace {

using schedules::ConvolutionPass;
using schedules::ConvolutionShape;
using schedules::ConvolutionTiling;

std::vector<std::string> tilings_of(const ConvolutionShape& shape, ConvolutionPass pass, const Target& target) {
    const auto today = choose_convolution(shape, pass, target);
    if (!today) return {};
    std::vector<std::string> texts{tiling_text(today->tiling)};
    for (const ConvolutionTiling& tiling : convolution_space(shape, pass, target))
        if (tiling != today->tiling) texts.push_back(tiling_text(tiling));
    return texts;
}

Schedule scheduled(const ConvolutionShape& shape, ConvolutionPass pass, const std::string& text, const Target& target) {
    const auto tiling = schedules::parse_convolution_tiling(text);
    if (!tiling) throw_error(Error, "'{}' is no tiling of a convolution, as 128x256x64w2s4p1t1 is", text);
    return convolution_schedule(shape, pass, *tiling, target);
}

}  // namespace

std::optional<Tunable> tunable_convolution(const std::string& name) {
    const auto named = schedules::parse_convolution(name);
    if (!named) return {};
    if (named->tiles || named->halo)
        throw_error(Error, "'{}' tells its tiling already; leave out {}", name, name.substr(name.find("_tile")));
    if (named->shape.layout == schedules::Layout::ChannelsFirst)
        throw_error(Error,
                    "'{}' has channels first and no tilings of its own: its schedule multiplies images as they lie, or "
                    "copies of "
                    "them with channels last, by the record of the layer without _nchw if results leave as boxes by "
                    "that; tune the layer without _nchw",
                    name);
    Tunable tunable;
    tunable.name = name;
    tunable.outputs = {plain_convolution(named->shape, named->pass)};
    tunable.tilings = [shape = named->shape, pass = named->pass](const Target& target) {
        return tilings_of(shape, pass, target);
    };
    tunable.schedule = [shape = named->shape, pass = named->pass](const std::string& tiling, const Target& target) {
        return scheduled(shape, pass, tiling, target);
    };
    tunable.flops = named->shape.flops();
    return tunable;
}

}  // namespace tw::tuning
