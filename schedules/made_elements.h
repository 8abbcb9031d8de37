// What stands around the sums of a convolution over a raster, found in declarations: what makes its image's elements,
// and what is made of its sums.
#pragma once
#include <optional>
#include <vector>

#include "schedules/channel_sums.h"
#include "schedules/halo_convolution.h"

namespace tw::schedules {

/// An image made element by element: of one of `x`, of its type and shape, and of what belongs to its channel.
struct MadeImage {
    Tensor x;
    std::vector<Tensor> by_channel;  ///< [channels]
    HaloNeighbours::Made made;       ///< f32, of the element and its channel
};
/// Nothing of a tensor that is an output, reads other elements, or is no cast of f32.
std::optional<MadeImage> made_image(const Tensor& image, const std::vector<Tensor>& outputs);

/// A result made of a sum: what belongs to its column, and at most one element beside it.
struct MadeResult {
    Tensor beside;                    ///< of the result's shape and type, or undefined
    HaloNeighbours::MadeBeside made;  ///< f32, of the sum, its column and the element
    bool has_more = false;            ///< or the sum as it is
};
/// Nothing of one that is no cast of f32, or that depends on where else it is.
std::optional<MadeResult> made_result(const Tensor& result, const std::vector<Tensor>& outputs);

/// What stands around a convolution, and can be made with it.
struct ConvolutionNeighbours {
    std::optional<MadeImage> image = {};
    std::optional<MadeResult> result = {};
    std::vector<ChannelSum> sums = {};

    bool has_beside() const { return result && result->beside.defined(); }
    bool any() const { return image || has_beside() || !sums.empty(); }
    HaloExtras extras() const { return {.image = image.has_value(), .beside = has_beside(), .sums = !sums.empty()}; }
    /// Of all multiprocessors, that a kernel before would take for the image.
    double cycles_before() const;
    HaloNeighbours of_halo() const;
};

}  // namespace tw::schedules
