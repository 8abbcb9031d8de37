// Convolutions and their gradients, found by how a sum of products reads its operands, whatever they are called.
#pragma once
#include <optional>
#include <vector>

#include "schedules/convolution.h"

namespace tw::schedules {

/// A sum of products over windows, or over the pixels of two images, that tensor cores can make: see ConvolutionForm.
struct WindowProduct {
    Tensor result;  ///< is made of the sums
    Tensor a, b;    ///< windows and filters, or what gives rows and columns; of elements that are computed, the tensor
                    ///< they are stored as
    ConvolutionForm form;
};

/// The product that the tensor makes of its only sum, over several axes: of bf16 or f16 elements (read through stages
/// of f32 elements that reduce nothing; conditions of indices choose between an element and zero), summed in f32, with
/// constant extents, terms and columns side by side in memory in units of 16 bytes, and enough of each to fill an
/// instruction. Nothing for any other. `outputs` are elements that are stored in any case.
std::optional<WindowProduct> window_product(const Tensor& result, const std::vector<Tensor>& outputs);

/// Tiles to try one after another; none where the target lacks wgmma or its tensor memory accelerator.
std::vector<ConvolutionTiles> tilings_of(const WindowProduct& product, const Target& target);

void schedule_window_product(Schedule& s, const WindowProduct& product, const ConvolutionTiles& tiles, TW_HERE);

}  // namespace tw::schedules
