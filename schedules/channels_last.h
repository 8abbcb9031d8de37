// Sums over windows of images whose channels come first, over copies of them whose channels come last.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "schedules/convolution.h"
#include "schedules/lying_pixels.h"

namespace tw::schedules {

/// What computes the same, some sums of products declared as pixels lie, or over copies of their operands: of those
/// with dimensions in another order, and, where the result has another one, too, by a tensor that it is copied from.
struct MovedChannels {
    std::vector<Tensor> outputs;      ///< each says what the one given in its place does, and has its name
    std::vector<Tensor> given, sums;  ///< tensors that were declared anew, and what is summed for each of them
    std::vector<LyingPixels> lying;   ///< some of these sums
    std::vector<Tensor> results;      ///< copies of sums, under the names of those given
    std::vector<std::string> notes;   ///< of each of those given, and of what copies would not pay for
};
/// Tensors that are not to be summed as they lie, and those that are to be left as they were given.
struct UnmovedChannels {
    std::vector<Tensor> lying = {}, given = {};

    /// Of those `moved`, some that nothing came of; what was to be summed as it lies may be moved by copies yet.
    void add(const std::vector<Tensor>& in_vain, const MovedChannels& moved);
};

/// Sums that lying_pixels() takes, and others that window_product(), find_convolution() or find_depthwise() may take
/// once dimension 1 of operands or result, where channels are in NCHW, is their last, where the copies cost less than
/// tensor cores, or windows in registers, gain. None where the target lacks wgmma or its tensor memory accelerator.
MovedChannels move_channels(const std::vector<Tensor>& outputs, const UnmovedChannels& without, const Target& target);
/// Tensors that a sum of products had better have with dimension 1 last, whatever copies cost.
struct MovableChannels {
    std::vector<Tensor> operands;  ///< those of the two whose elements it multiplies
    bool result = false;           ///< the sum itself
};
/// As move_channels() has them on tensor cores, or in registers; nothing where the sum is best as it is.
std::optional<MovableChannels> movable_channels(const Tensor& sums);
/// What move_channels() would sum, whatever it costs; the tensor itself if that is best as it is.
Tensor with_channels_moved(const Tensor& sums);
/// Over operands whose channels come first: copies of them are what was given, of which the result is a copy again.
Convolution with_channels_first(const Convolution& last);

}  // namespace tw::schedules
