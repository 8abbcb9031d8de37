// Depthwise convolution: each channel of an image has a filter of its own, so that there is no product of matrices.
// A thread sums for a few pixels of two channels, from windows that it keeps in registers.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "dsl/schedule.h"
#include "schedules/convolution.h"

namespace tw::schedules {

/// Windows along a dimension of images: tap r of window p reads element p stride - before + r dilation, zero outside.
struct DepthwiseSide {
    int64_t extent, windows, taps;
    int64_t stride = 1, before = 0, dilation = 1;

    bool operator==(const DepthwiseSide&) const = default;
    /// Whether any tap falls on the image itself.
    bool reads_image() const;
};

/// y[n, p, q, c] = sum_{r, s} x[n, h, w, c] w[c, r, s], zeros around x; summed in f32. h and w are where tap r of
/// window p and tap s of window q read. x is [images, height, width, channels] and w [channels, taps, taps, 1]; of
/// signals, x is [images, width, channels], y alike, and their rows have one element, one window and one tap.
struct DepthwiseWindows {
    int64_t images, channels;
    DepthwiseSide rows, columns;
    Type type = bf16;  ///< or f16, f32
    bool is_signal = false;

    bool operator==(const DepthwiseWindows&) const = default;
    bool reads_image() const { return images > 0 && channels > 0 && rows.reads_image() && columns.reads_image(); }
};

/// The same along both sides: y[n, p, q, c] = sum_{r, s} x[n, p stride - padding + r dilation, q stride - padding + s
/// dilation, c] w[c, r, s], zeros around x; summed in f32. x is [images, height, width, channels] and w [channels,
/// kernel_h, kernel_w, 1].
struct DepthwiseShape {
    int64_t images, height, width, channels, kernel_h, kernel_w;
    int64_t stride = 1, padding = 0, dilation = 1;
    Type type = bf16;  ///< or f16, f32

    bool operator==(const DepthwiseShape&) const = default;
    /// Of y: P and Q.
    int64_t rows() const;
    int64_t columns() const;
    DepthwiseWindows windows() const;
    /// Products and sums, of each pass; those with zeros around x are counted.
    double flops() const;
    /// Each operand and result once.
    double bytes() const;
};

/// A thread has `thread_rows` x `thread_columns` pixels of a pair of channels; rows x columns x lanes threads make a
/// tile of an image, and a block one tile after another. Of a data gradient with a stride, pixels are squares of
/// stride x stride.
struct DepthwiseTiles {
    int64_t thread_rows = 4, thread_columns = 7;
    int64_t rows = 2, columns = 2;  ///< of threads
    int64_t lanes = 16;             ///< pairs of channels
    int64_t steps = 4;              ///< tiles of a block, the next one's operands on their way
    int64_t taps = 7;               ///< rows of them that a thread sums, of a weight gradient

    bool operator==(const DepthwiseTiles&) const = default;
    int64_t threads() const { return rows * columns * lanes; }
};
/// "4x7t2x2x16s4r7", as names have them.
std::string tiling_text(const DepthwiseTiles& tiles);
/// The pixels of an operand that so many neighbours of a tile see, along a dimension with so many of its taps.
int64_t depthwise_window(const DepthwiseSide& side, ConvolutionPass pass, int64_t pixels, int64_t taps);
/// Tiles that suit the extents, by a model of the instructions of an H200.
DepthwiseTiles depthwise_tiles(const DepthwiseWindows& windows, ConvolutionPass pass, const Target& target);

/// Pixels between those whose sums are the same.
struct PixelStride {
    int64_t rows = 1, columns = 1;
};

/// A pass, declared for these tiles: sums are made for whole tiles, of images with as many zeros around them. Images
/// whose channels are no multiple of 8 are copied first.
struct Depthwise {
    ConvolutionPass pass;
    DepthwiseTiles tiles;
    Tensor x = {}, w = {};
    Tensor dy = {};                  ///< of gradients: dL/dy, of y's shape
    Tensor result = {};              ///< y, dL/dx or dL/dw
    std::vector<Tensor> sums = {};   ///< in f32: [n, p, q, c], of a data gradient for each phase that has taps,
                                     ///< row-major: the pixels that are a stride apart; of a weight gradient [r, s, c]
    std::vector<Tensor> tiled = {};  ///< the images that sums read, with zeros around
    Tensor taps = {};                ///< w as [r, s, c] in f32, not of a weight gradient
    std::vector<Tensor> copies = {};
    PixelStride phases = {};   ///< of a data gradient
    int channels_of_taps = 0;  ///< the dimension of a weight gradient that has channels
};
Depthwise declare_depthwise(const DepthwiseWindows& windows, ConvolutionPass pass, const DepthwiseTiles& tiles,
                            TW_HERE);
/// Throws Error if the kernel is larger than the padded image, or a number is not positive.
Depthwise declare_depthwise(const DepthwiseShape& shape, ConvolutionPass pass, const DepthwiseTiles& tiles, TW_HERE);

/// Schedules sums over windows of images: `result`, [n, p, q, c], or [n, q, c] of windows of one row, made of `sums`
/// [n, p, q, c] of windows of `tiled`.
void schedule_windows_in_registers(Schedule& s, const Tensor& result, const std::vector<Tensor>& sums,
                                   const Tensor& tiled, const PixelStride& stride, const DepthwiseTiles& tiles,
                                   TW_HERE);
/// Schedules a sum over the pixels of images: `result`, with channels along that dimension, is made of `sums`, [.., c],
/// of products of all that `tiled` are.
void schedule_taps_in_registers(Schedule& s, const Tensor& result, const Tensor& sums, const std::vector<Tensor>& tiled,
                                const DepthwiseTiles& tiles, int channels = 0, TW_HERE);
/// All of them; `result`: of those sums, in place of the declared one.
void schedule_depthwise(Schedule& s, const Depthwise& d, const Tensor& result, TW_HERE);

/// A pass, scheduled; where the target has no tensor memory accelerator, by choose_schedule.
Schedule depthwise_schedule(const DepthwiseShape& shape, ConvolutionPass pass,
                            const std::optional<DepthwiseTiles>& tiles, const Target& target, TW_HERE);

struct NamedDepthwise {
    DepthwiseShape shape;
    ConvolutionPass pass = ConvolutionPass::Forward;
    std::optional<DepthwiseTiles> tiles;
};
/// Reads "depthwise_bf16_IMAGESxHEIGHTxWIDTHxCHANNELS_RxS" (or f16, f32), and behind it "_stride2", "_pad1",
/// "_dilation2", and "_tile4x7t2x2x16s4r7" for pixels of a thread, threads, steps and rows of taps;
/// "depthwise_data_gradient_..." and "depthwise_weight_gradient_..." are the gradients. Nothing if it is no such name,
/// or the kernel is larger than the padded image.
std::optional<NamedDepthwise> parse_depthwise(const std::string& name);

}  // namespace tw::schedules
