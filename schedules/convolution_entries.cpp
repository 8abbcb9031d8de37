#include "schedules/convolution_entries.h"

#include "schedules/convolution.h"
#include "schedules/depthwise.h"
#include "schedules/fused_convolution.h"

namespace tw::schedules {

std::optional<CatalogEntry> convolution_entry(const std::string& name) {
    auto named = parse_convolution(name);
    if (!named) return {};
    const bool is_last = named->shape.layout == Layout::ChannelsLast;
    return CatalogEntry{name,
                        is_last ? "convolution of images with channels last, or a gradient of it"
                                : "convolution of images with channels first, or a gradient of it",
                        named->shape.flops(),
                        [named = *named](const Target& target) { return convolution_schedule(named, target); },
                        named->shape.bytes()};
}

std::optional<CatalogEntry> fused_convolution_entry(const std::string& name) {
    auto named = parse_fused_convolution(name);
    if (!named) return {};
    return CatalogEntry{name, "convolution of images with channels last, and what stands around it",
                        named->shape.convolution.flops(),
                        [named = *named](const Target& target) { return fused_convolution_schedule(named, target); },
                        named->shape.bytes()};
}

std::optional<CatalogEntry> depthwise_entry(const std::string& name) {
    auto named = parse_depthwise(name);
    if (!named) return {};
    return CatalogEntry{name, "depthwise convolution of images, or a gradient of it", named->shape.flops(),
                        [named = *named](const Target& target) {
                            return depthwise_schedule(named.shape, named.pass, named.tiles, target);
                        },
                        named->shape.bytes()};
}

}  // namespace tw::schedules
