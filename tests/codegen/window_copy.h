// Copies of windows of images at random, as schedules of convolutions make them, and the elements that their
// declarations say.
#pragma once
#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "dsl/schedule.h"

namespace tw {

/// Of one dimension of the images: output p and tap r read at p * stride + r * reach - padding, where `reach` is the
/// dilation, or less than 0, as in gradients.
struct WindowDimension {
    int64_t extent, results, taps, stride, reach, padding;
};

/// Of loops, by their names; those that are not named are at 0. A few, which are copied often.
class LoopValues {
public:
    int64_t& operator[](const std::string& name) {
        const auto found = std::ranges::find(values_, name, &Value::first);
        return found == values_.end() ? values_.emplace_back(name, 0).second : found->second;
    }
    int64_t at(const std::string& name) const {
        const auto found = std::ranges::find(values_, name, &Value::first);
        return found == values_.end() ? 0 : found->second;
    }
    auto begin() const { return values_.begin(); }
    auto end() const { return values_.end(); }

private:
    using Value = std::pair<std::string, int64_t>;
    std::vector<Value> values_;
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

    /// With those of the loops that the ones around the copy are made of.
    LoopValues taken_apart(LoopValues around) const;
    struct Element {
        bool is_read;                  ///< by an element of the result
        std::vector<int64_t> indices;  ///< in x, where it may lie outside
    };
    /// What the declaration reads there; loops around the copy are taken apart.
    Element element(const LoopValues& at) const;

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
