// Convolutions and their gradients, found by how a sum of products reads its operands, whatever they are called.
#pragma once
#include <vector>

#include "schedules/convolution.h"

namespace tw::schedules {

/// The product that the tensor makes of its only sum, if it is no unit_product over one axis: of bf16 or f16 elements
/// (read through stages of f32 elements that reduce nothing; conditions of indices choose between an element and zero),
/// summed in f32, with constant extents, terms and columns side by side in memory in units of 16 bytes. Nothing for any
/// other.
std::optional<WindowProduct> window_product(const Tensor& sums, const std::vector<Tensor>& outputs);
/// The form that it would have if all extents were whole units; of operands, rows run along terms, rows or columns.
std::optional<ConvolutionForm> form_of_windows(const Tensor& sums, const std::vector<Tensor>& outputs);
/// Whether the tensor's only sum is such a product, or its elements are made of one's, each of that at its own place.
bool is_made_of_windows(const Tensor& tensor, const std::vector<Tensor>& outputs);
/// Those products of which there is enough of each to fill an instruction.
///
/// If only one of the `outputs` reads the tensor, element by element or as its copy with columns before pixels, both
/// are made together by the first of two products; the last is the tensor's alone.
std::vector<WindowProduct> window_products(const Tensor& sums, const std::vector<Tensor>& outputs);

/// Tiles to try one after another; none where the target lacks wgmma or its tensor memory accelerator.
std::vector<ConvolutionTiles> tilings_of(const WindowProduct& product, const Target& target);

void schedule_window_product(Schedule& s, const WindowProduct& product, const ConvolutionTiles& tiles, TW_HERE);

}  // namespace tw::schedules
