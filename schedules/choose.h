// A schedule for any computation, by rule: what runs when nobody wrote one.
#pragma once
#include "dsl/schedule.h"

namespace tw::schedules {

/// Elementwise stages are inlined, except outputs and operands of products on tensor cores; each stage that remains is
/// a kernel of its own. Sums of products over windows or over pixels (window_products: convolutions, their gradients
/// and what is read like them) take schedule_windows or schedule_sum_of_pixels, an output that alone reads the sums,
/// element by element, comes with them; sums of products of elements that tensor cores multiply (unit_product)
/// schedule_tensor_product, with what is made of their sums in registers (register_product), reductions of terms made
/// of an element of each of two matrices, or a batch of them, schedule_product: each with the first tiles that can
/// be built, or else as the next rule says. Products are declared anew before (declare_products), large ones of f32
/// over copies of what lies across. Convolutions of images (find_convolution) are declared anew before, where
/// redeclare_convolutions has a faster way, depthwise ones (find_depthwise) for windows in registers, and sums whose
/// channels come first over copies with channels last, or as they lie (move_channels): the schedule's outputs() then
/// say the same as those given, under the same names, and are the ones that its steps take. Sums over all pixels of the
/// same tensors are one operation, unless one needs another (sums_together). Those of what a convolution makes come
/// with its kernel (channel_sums), over a raster what makes its image, too (made_image); images that sums over windows
/// make element by element are tensors of their own (outline_images). Products have the tiling of their record, if
/// there is one (tuned_records.h) that can be built. explain() says so, where each tiling is from, which declarations
/// and records were tried in vain and why, and why sums of products are not on tensor cores. What is reduced and made
/// along the same rows (row_groups: softmax, norms, their gradients, any formula of a row's elements and its numbers,
/// with any number of outputs) is one kernel, by the schedules of hand-made ones (row_schedules): rows that registers
/// hold are read once and kept there, of longer ones, reductions that need each other's results in exponents go through
/// them together; declare_rows() declares what is kept. Other commutative reductions of at least 32 rows to columns
/// that lie side by side take schedule_column_reduction, of at least 2048 terms to a scalar, or of more to few results,
/// schedule_full_reduction, others with few results share each among the threads of a warp, the terms of all its axes,
/// unless several axes have fewer terms than that; results that have most of their terms in common are one thread's; scans run along their loop (schedule_scan). What reduces nothing takes schedule_elements
/// (choose_elements.h), in vectors or tiles, as explain() says; all else is one element a thread. Where rules ask
/// (choices.h), a record of exactly this declaration answers, if tune() has kept one, or of one like it, or the model
/// of time where it promises much (tuned_declarations.h): explain() says so. Sums whose terms each count for one row
/// take schedule_scattered. Throws what the other rules' steps throw.
///
/// A function, and a value that nn::Operator takes as one.
struct ChooseSchedule {
    Schedule operator()(const std::vector<Tensor>& outputs, const Target& target, TW_HERE) const;
};
inline constexpr ChooseSchedule choose_schedule;

}  // namespace tw::schedules
