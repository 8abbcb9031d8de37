// Convolution as a product of matrices that are never made (implicit GEMM): the rows are pixels, the columns filters,
// the terms taps and channels, and each tile of an operand is copied from the image as the loops run.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "schedules/windows.h"

namespace tw::schedules {

/// y[n, p, q, f] = sum_{r, s, c} x[n, p stride - padding + r dilation, q stride - padding + s dilation, g C + c] w[f,
/// r, s, c], zeros around x; summed in f32. x is [images, height, width, channels] and w [filters, kernel_h, kernel_w,
/// C], with channels first x [images, channels, height, width], w [filters, C, kernel_h, kernel_w] and y [n, f, p, q].
/// Each of the groups has C = channels / groups channels and filters / groups filters; filter f is of group g.
struct ConvolutionShape {
    int64_t images, height, width, channels, filters, kernel_h, kernel_w;
    int64_t stride = 1, padding = 0, dilation = 1, groups = 1;
    Type type = bf16;  ///< or f16
    Layout layout = Layout::ChannelsLast;

    bool operator==(const ConvolutionShape&) const = default;
    /// Of y: P and Q.
    int64_t rows() const;
    int64_t columns() const;
    /// Whether there are groups that divide channels and filters.
    bool has_groups() const;
    /// Whether the kernel fits into the padded image.
    bool has_pixels() const;
    /// The taps along a side that read the image somewhere, and not only zeros around it.
    std::vector<int64_t> taps_of_rows() const;
    std::vector<int64_t> taps_of_columns() const;
    /// Whether a tap falls on the image itself, and not all of them on zeros around it.
    bool reads_image() const;
    /// Products and sums, of each pass; those with zeros around x are counted.
    double flops() const;
    /// Each operand and result once.
    double bytes() const;
};
enum class ConvolutionPass { Forward, DataGradient, WeightGradient };
/// As networks declare it, with a bias if that is defined, and gradients derive it: of inputs x, w and dy, two of them.
Tensor plain_convolution(const ConvolutionShape& shape, ConvolutionPass pass, const Tensor& bias = {});

/// What the unit multiplies: a product of matrices for each of `products`, that is summed over `taps` as well.
struct ConvolutionExtents {
    int64_t rows, columns, terms;
    int64_t products = 1;
    double taps = 1;  ///< on average

    bool operator==(const ConvolutionExtents&) const = default;
};

/// Channels and filters along which operands lie are padded by copies to multiples of 8, few of them to 16; or, where
/// there are fewer than 8 channels, the taps of a row and channels become the channels of a copy. Groups of few
/// channels are multiplied several together, by a copy of their filters that has zeros for each other's channels: an
/// infinity or NaN of one makes NaN of all their results that read the pixel. The data gradient is what gradients()
/// derives from y, or, where that has no taps to sum over, and of few channels with a stride, the sum over taps of the
/// windows of dy, with a stride over those of a pixel's phase. Filters are copied only where rows of channels are no
/// whole pieces, or the copy pays: else they are read as `padded`, which boxes do. With channels first, the product is
/// one of copies with channels last, of which the result is a copy.
struct Convolution {
    Tensor x, w;
    Tensor dy;              ///< of gradients: dL/dy, of y's shape
    Tensor result;          ///< y, dL/dx or dL/dw
    Tensor product;         ///< that of matrices: the result, or what it is cut out of
    Tensor windows, other;  ///< what the product reads: operands, or copies of them
    std::vector<Tensor> copies = {};
};
/// Throws Error if the kernel is larger than the padded image, a number is not positive, or the groups divide channels
/// or filters not.
Convolution declare_convolution(const ConvolutionShape& shape, ConvolutionPass pass, TW_HERE);

/// Sizes of the tiles of a product of rows, columns and terms: pixels, filters and channels of a tap; of the data
/// gradient pixels, channels and filters, of the weight gradient filters, channels and pixels.
struct ConvolutionTiles {
    int64_t rows = 128, columns = 128, terms = 64;
    int warpgroups = 2;       ///< share the rows; where these are 64, the rows of taps
    int stages = 4;           ///< of the pipeline over terms
    int64_t parts = 1;        ///< of the terms, not with groups or boxes: each by blocks of its own, added up
                              ///< in order
    int ping_pong = 1;        ///< so many times the warpgroups, which take tiles in turn
    int64_t box_columns = 0;  ///< that leave together through shared memory, as a box of rows, of results that have at
                              ///< least a tile and no groups; 0: from registers
    int box_stages = 1;       ///< buffers that boxes leave in turn
    int64_t taps = 1;         ///< of a weight gradient, that a block sums together: 1, those of a row, or all

    bool operator==(const ConvolutionTiles&) const = default;
};
/// Throws Error if a size is less than makes sense.
void require_convolution_tiles(const ConvolutionTiles& tiles, std::source_location where);
/// What the schedule of a sum of products over windows depends on. The result of windows is [pixels.., columns], that
/// of a sum of pixels has rows among its dimensions, columns last, and taps: the others.
struct ConvolutionForm {
    bool sums_pixels = false;         ///< as a weight gradient does
    ConvolutionExtents extents = {};  ///< columns, of a sum of pixels rows, are those of a group
    Type result = bf16;
    int terms_axis = 0;                ///< of windows: the number of the reduce axis of terms
    std::vector<int64_t> phases = {};  ///< of windows, for each dimension of pixels: so far apart taps are the same;
                                       ///< empty: everywhere
    int rows_axis = 0;                 ///< of a sum of pixels
    std::vector<int64_t> taps = {};    ///< of a sum of pixels, that its other operand reads: the dimensions before
                                       ///< columns, whose sums a block may make together
    int64_t group = 0;  ///< so many columns, or rows, read terms, or columns, of their own; 0: all the same
    bool terms_are_neighbours = false;  ///< of windows: in filters, which then have tiles of any number of columns
    bool pads_filters = false;          ///< of windows: filters, too, are read as `padded(.., 0)`
    bool turns_result = false;  ///< of windows: `result` has columns as its dimension 1, and is a copy of `sums`
    bool takes_parts = true;    ///< whether a kernel of its own may add up parts of the terms

    /// Whether pixels of several phases lie side by side.
    bool has_phases() const;
    /// Whether they read the same windows, with taps of their own: there is more than one.
    bool phases_share_pixels() const;
    bool operator==(const ConvolutionForm&) const = default;
};
/// Whether wgmma and boxes take it: sm_90a, no dimension without elements, and images that are read.
bool takes_warpgroups(const ConvolutionShape& shape, const Target& target);
/// Tiles that suit the extents, by a model of the time of an H200 with as many multiprocessors as the target has.
/// None divide what groups have if that is no multiple of 16 columns and terms, or of 64 rows.
std::optional<ConvolutionTiles> convolution_tiles(const ConvolutionForm& form, const Target& target);
/// Told of tiles and a multiprocessor's cycles.
using VisitTiles = std::function<void(const ConvolutionTiles&, double)>;
/// All that convolution_tiles() chooses among.
void visit_convolution_tiles(const ConvolutionForm& form, const Target& target, const VisitTiles& visit);
/// As many stages as shared memory holds, eight at most.
int convolution_stages(const ConvolutionTiles& tiles, const Target& target);
/// Whether tiles of the result, if it has a whole one, may have `box_columns`.
bool may_leave_as_boxes(const ConvolutionForm& form);
/// Of a multiprocessor, by that model.
double convolution_cycles(const ConvolutionForm& form, const ConvolutionTiles& tiles, const Target& target);

/// A sum of products over windows of images, or over the pixels of two of them.
struct WindowProduct {
    Tensor result;     ///< is made of the sums
    Tensor a, b;       ///< windows and filters; of a sum of pixels what gives rows and columns
    Tensor sums = {};  ///< of windows: a tensor of its own that only `result` reads, element by element, or as its copy
                       ///< with columns before pixels; undefined: they are the result's only reduction
    ConvolutionForm form = {};
};
/// The product of matrices of a declared convolution.
WindowProduct product_of(const Convolution& convolution);
/// What stands around a sum of products in its kernel.
struct WindowNeighbours {
    Tensor image = {};  ///< of whose elements those of the windows are made, in registers; undefined: they are copied
    std::vector<Tensor> beside = {};    ///< that elements of the result read at their own place: loaded as boxes, where
                                        ///< the result leaves as boxes
    std::vector<StageRef> behind = {};  ///< that read a tile, or a piece of one, where it is
    std::vector<Tensor> beside_behind = {};  ///< that these read at each element's place, loaded as those beside
};
/// Schedules a sum of products over windows of images: the result is [..., columns], its other dimensions are the
/// pixels that windows are read at. The terms of a tap run along form.terms_axis. Elements between are inlined before.
/// With `sums`, it has no phases. Returns the loop of which each iteration makes a tile, or a piece of one that leaves
/// as a box.
Loop schedule_windows(Schedule& s, const WindowProduct& product, const ConvolutionTiles& tiles,
                      const WindowNeighbours& neighbours = {}, TW_HERE);
/// Schedules a sum over all pixels: the result is [rows, ..., columns] with the rows at form.rows_axis, of products of
/// `a`, read at [..., row], and `b`, at [..., column], for each of the other dimensions. Elements between are inlined
/// before.
void schedule_sum_of_pixels(Schedule& s, const WindowProduct& product, const ConvolutionTiles& tiles, TW_HERE);

/// A pass, scheduled; where takes_warpgroups is false, by choose_schedule.
Schedule convolution_schedule(const Convolution& convolution, const ConvolutionShape& shape,
                              const std::optional<ConvolutionTiles>& tiles, const Target& target, TW_HERE);

/// Of a raster that comes with its halo, see halo_convolution.h; places are columns of the unit, filters rows. Of a
/// weight gradient places are terms, and warpgroups share the rows of taps.
struct HaloTiles {
    int64_t places = 256;   ///< up to 256, a multiple of 16
    int64_t leaving = 32;   ///< that leave together through shared memory, a divisor of places, a multiple of 16; not
                            ///< of a weight gradient
    int stages = 2;         ///< of tiles on their way, or of pieces of 64 channels of them
    int ping_pong = 2;      ///< so many times the warpgroups, which take tiles in turn
    int warpgroups = 1;     ///< each of which has 64 filters of a tile
    int weight_stages = 0;  ///< of taps' weights on their way; 0: weights, of at most 64 filters, stay in shared memory
    int64_t parts = 1;      ///< of a weight gradient's places, each by blocks of its own, added up in order

    /// What the raster's places are to be a multiple of.
    int64_t whole_places() const { return places * parts; }
    bool operator==(const HaloTiles&) const = default;
};

struct NamedConvolution {
    ConvolutionShape shape;
    ConvolutionPass pass = ConvolutionPass::Forward;
    std::optional<ConvolutionTiles> tiles = {};
    std::optional<HaloTiles> halo = {};  ///< instead of tiles
};
/// With those tiles, or else what choose_convolution() chooses; where that is nothing, by choose_schedule.
Schedule convolution_schedule(const NamedConvolution& named, const Target& target, TW_HERE);
/// Reads "convolution_bf16_IMAGESxHEIGHTxWIDTHxCHANNELS_FILTERS_RxS" (or f16), and behind it "_stride2", "_pad1",
/// "_dilation2", "_groups32", "_nchw" for channels first (without a raster), and "_tile" with the text of a tiling
/// (convolution_tilings.h), where none is to be chosen; "convolution_data_gradient_..." and
/// "convolution_weight_gradient_..." are the gradients. Nothing if it is no such name, the kernel is larger than the
/// padded image, or the tiling is of another pass.
std::optional<NamedConvolution> parse_convolution(const std::string& name);

}  // namespace tw::schedules
