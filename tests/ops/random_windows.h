// Windows in images at random, and where they read, told once more by loops over plain numbers.
#pragma once
#include <cmath>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dsl/host_array.h"
#include "dsl/interpret.h"
#include "dsl/simplify.h"
#include "schedules/windows.h"

namespace tw {

using schedules::PaddingMode;
using schedules::Sides;

class Draw {
public:
    explicit Draw(unsigned seed) : random_(seed) {}
    int64_t between(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }
    template <class T>
    T one_of(const std::vector<T>& values) {
        return values[static_cast<size_t>(between(0, static_cast<int64_t>(values.size()) - 1))];
    }

private:
    std::mt19937 random_;
};

/// A list for each of the dimensions of images.
struct RandomWindows {
    std::vector<int64_t> extents, taps, stride, dilation;
    std::vector<Sides> padding;

    size_t dimensions() const { return extents.size(); }
    int64_t windows(size_t d) const {
        int64_t count = 0;
        const int64_t end = extents[d] + padding[d].after;
        for (int64_t at = -padding[d].before; at + (taps[d] - 1) * dilation[d] < end; at += stride[d]) ++count;
        return count;
    }
    bool fit() const {
        for (size_t d = 0; d < dimensions(); ++d)
            if (windows(d) == 0) return false;
        return true;
    }
    std::string text() const {
        std::string all;
        for (size_t d = 0; d < dimensions(); ++d)
            all += fmt::format("[extent {} taps {} stride {} dilation {} padding {}+{}] ", extents[d], taps[d],
                               stride[d], dilation[d], padding[d].before, padding[d].after);
        return all;
    }
};

/// Of which at least one window fits; `most` elements along a dimension and on a side.
inline RandomWindows random_windows(Draw& draw, int64_t dimensions, int64_t most_extent, int64_t most_padding) {
    RandomWindows w;
    do {
        w = {};
        for (int64_t d = 0; d < dimensions; ++d) {
            w.extents.push_back(draw.between(1, most_extent));
            w.taps.push_back(draw.between(1, 3));
            w.stride.push_back(draw.between(1, 3));
            w.dilation.push_back(draw.between(1, 2));
            w.padding.emplace_back(draw.between(0, most_padding), draw.between(0, most_padding));
        }
    } while (!w.fit());
    return w;
}

/// The place in an image of one that may lie beside it; nothing where a zero stands.
inline std::optional<int64_t> place_in_image(int64_t at, int64_t extent, PaddingMode mode) {
    if (mode == PaddingMode::Zeros) return at >= 0 && at < extent ? std::optional(at) : std::nullopt;
    while (at < 0 || at >= extent) {
        if (mode == PaddingMode::Replicate) at += at < 0 ? 1 : -1;
        if (mode == PaddingMode::Circular) at += at < 0 ? extent : -extent;
        if (mode == PaddingMode::Reflect) at = at < 0 ? -at : 2 * (extent - 1) - at;
    }
    return at;
}

/// Calls `see` with each tap of a window and the place that it reads, nothing for a zero of the padding.
using SeeTap = std::function<void(const std::vector<int64_t>& tap, const std::optional<std::vector<int64_t>>& place)>;
inline void each_tap(const RandomWindows& w, const std::vector<int64_t>& window, PaddingMode mode, const SeeTap& see) {
    std::vector<int64_t> tap(w.dimensions(), 0);
    do {
        std::optional<std::vector<int64_t>> place = std::vector<int64_t>();
        for (size_t d = 0; d < w.dimensions(); ++d) {
            const int64_t at = window[d] * w.stride[d] + tap[d] * w.dilation[d] - w.padding[d].before;
            const auto found = place_in_image(at, w.extents[d], mode);
            if (found && place)
                place->push_back(*found);
            else
                place.reset();
        }
        see(tap, place);
    } while (advance(tap, w.taps));
}

/// first, the inner ones, last
inline std::vector<int64_t> indices(int64_t first, const std::vector<int64_t>& inner, int64_t last) {
    std::vector<int64_t> all = {first};
    all.insert(all.end(), inner.begin(), inner.end());
    all.push_back(last);
    return all;
}
inline std::vector<int64_t> inner_of(const std::vector<int64_t>& all) { return {all.begin() + 1, all.end() - 1}; }

inline Shape shape_of_extents(const std::vector<int64_t>& extents) { return {extents.begin(), extents.end()}; }
inline std::vector<int64_t> extents_of(const Tensor& tensor) {
    std::vector<int64_t> extents;
    for (const Expr& extent : tensor.shape()) extents.push_back(require_constant(extent));
    return extents;
}

/// Of every input, uniform in [-1, 1).
inline Bindings random_inputs(const std::vector<Tensor>& inputs, uint64_t seed) {
    Bindings bindings;
    for (const Tensor& each : inputs) {
        HostArray array = host_array(each.type(), extents_of(each));
        fill_uniform(array, -1, 1, ++seed);
        bindings.inputs[each.name()] = array;
    }
    return bindings;
}

/// Every element of `got` against what the function says, whatever their types.
inline void expect_elements(const HostArray& got, double tolerance,
                            const std::function<double(const std::vector<int64_t>&)>& expected) {
    std::vector<int64_t> at(got.shape.size(), 0);
    for (bool more = got.num_elements() > 0; more; more = advance(at, got.shape)) {
        const double value = is_float(got.type) ? got.at(at).real : static_cast<double>(got.at(at).integer);
        const double wanted = expected(at);
        if (std::isnan(wanted) || std::isinf(wanted))
            ASSERT_TRUE(std::isnan(wanted) ? std::isnan(value) : value == wanted)
                << indices_text(at) << " is " << value << ", expected " << wanted;
        else
            ASSERT_NEAR(value, wanted, tolerance * (1 + std::fabs(wanted))) << indices_text(at);
    }
}

}  // namespace tw
