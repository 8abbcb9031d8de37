// Copies of windows of images at random, as schedules of convolutions make them, and the elements that their
// declarations say.
#pragma once
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "dsl/schedule.h"

namespace tw {

/// Of one dimension of the images: output p and tap r read at p * stride + r * reach - padding, where `reach` is the
/// dilation, or less than 0, as in gradients.
struct WindowDimension {
    int64_t extent, results, taps, stride, reach, padding;
};

enum class PixelLoops {
    Images,  ///< pixels of all images are one loop
    Image,   ///< those of one image
    Row,     ///< those of one row
    Patch,   ///< those of a rectangle
};
enum class TapLoops {
    Step,    ///< taps and channels are one loop
    Around,  ///< loops of their own, around that over channels
    Last,    ///< likewise, but for those of the last dimension, which the copy has
    All,     ///< the copy has them
};

/// y[n, p..., f] = sum over r..., c of x[n, places..., group * channels + c] * w[r..., c, f]
struct WindowCopy {
    int64_t images, channels, groups, filters;
    std::vector<WindowDimension> dimensions;
    Type type;
    PixelLoops pixels;
    TapLoops taps;
    bool channels_first;                  ///< of the loop over steps
    bool lines;                           ///< the tile lies in lines of 128 bytes, as tensor cores want it
    bool one_block_loop;                  ///< over tiles and all that is around them
    std::vector<int64_t> pixels_of_tile;  ///< of a rectangle: rows and columns
    int64_t terms;                        ///< channels that a copy has

    /// What y's loops are called.
    static constexpr const char* axis_of_image = "i";
    static std::string axis(size_t dimension) { return std::string(1, "jpq"[dimension]); }

    std::string text() const;
    /// The steps up to the copy `x_shared`, which TMA is to make.
    Schedule schedule() const;

    struct Digit {
        std::string name;
        int64_t extent;
    };
    /// The loops around the copy, outermost first.
    std::vector<Digit> around() const;

    /// Of loops, by their names; those that are not named are at 0.
    using Values = std::map<std::string, int64_t>;
    struct Element {
        bool is_read;                  ///< by an element of the result
        std::vector<int64_t> indices;  ///< in x, where it may lie outside
    };
    /// What the declaration reads there.
    Element element(const Values& values) const;

private:
    struct Declaration {
        Tensor x, y;
    };
    using Loops = std::map<std::string, Loop>;

    Declaration declaration() const;
    Loops split_loops(Schedule& s, const Tensor& y) const;
    std::vector<Digit> blocks() const, steps() const;
    bool fuses_pixels() const { return pixels == PixelLoops::Images || pixels == PixelLoops::Image; }
    bool copies_tap(size_t d) const {
        return taps == TapLoops::All || (taps == TapLoops::Last && d + 1 == dimensions.size());
    }
    std::vector<int64_t> results() const;
    int64_t tiles(size_t d) const;
};

WindowCopy random_window_copy(std::mt19937& random);

}  // namespace tw
