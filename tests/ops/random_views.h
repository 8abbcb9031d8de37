// Random views of tensors, and which elements these have, counted by loops over their places.
#pragma once
#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

#include "ops/joining.h"
#include "ops/views.h"

namespace tw::nn {

using Dims = std::vector<int64_t>;

inline int64_t num_places(const Dims& shape) {
    return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

/// For each place of the shape, in rows, where `source` of it stands in rows of shape `from`.
inline Dims sources(const Dims& shape, const Dims& from, const std::function<Dims(const Dims& at)>& source) {
    Dims result, at(shape.size());
    for (int64_t e = 0; e < num_places(shape); ++e) {
        int64_t rest = e, place = 0;
        for (size_t d = shape.size(); d-- > 0; rest /= shape[d]) at[d] = rest % shape[d];
        const Dims read = source(at);
        for (size_t d = 0; d < from.size(); ++d) place = place * from[d] + read.at(d);
        result.push_back(place);
    }
    return result;
}

/// A view, and which element of what it is of each of its elements is.
struct Made {
    Tensor view;
    Dims elements;
};

class RandomViews {
public:
    explicit RandomViews(uint64_t seed) : random_(seed) {}

    Dims shape() {
        Dims shape(static_cast<size_t>(draw(1, 3)));
        for (int64_t& extent : shape) extent = draw(1, 5);
        shape.push_back(draw(1, 9));
        return shape;
    }

    Made next(const Tensor& x) {
        const Dims& from = x.shape();
        const auto rank = static_cast<int64_t>(from.size());
        const size_t d = static_cast<size_t>(draw(0, rank - 1));
        switch (draw(0, 8)) {
            case 0: return reshaped(x);
            case 1: return sliced(x, draw(0, 2) > 0 ? 0 : d, 1);
            case 2: return sliced(x, d, draw(2, 4));
            case 3: return permuted(x);
            case 4: return {unsqueeze(x, static_cast<int>(draw(-rank - 1, rank))), all_of(x)};
            case 5: return broadcast(x);
            case 6: return flipped(x);
            case 7: return selected(x, draw(0, 2) > 0 ? 0 : d);
            default: return parted(x, draw(0, 2) > 0 ? 0 : d);
        }
    }

private:
    int64_t draw(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }
    static Dims all_of(const Tensor& x) {
        Dims all(static_cast<size_t>(num_places(x.shape())));
        std::iota(all.begin(), all.end(), 0);
        return all;
    }
    Made reshaped(const Tensor& x) {
        Dims factors, shape;
        int64_t rest = num_places(x.shape());
        for (int64_t factor = 2; rest > 1; rest % factor == 0 ? rest /= factor : ++factor)
            if (rest % factor == 0) factors.push_back(factor);
        std::ranges::shuffle(factors, random_);
        shape.push_back(1);
        for (const int64_t factor : factors) draw(0, 1) > 0 ? shape.push_back(factor) : void(shape.back() *= factor);
        if (draw(0, 1) > 0) shape[static_cast<size_t>(draw(0, static_cast<int64_t>(shape.size()) - 1))] = -1;
        return {reshape(x, shape), all_of(x)};
    }
    Made sliced(const Tensor& x, size_t d, int64_t step) {
        const Dims& from = x.shape();
        const int64_t begin = draw(0, from[d] - 1), end = draw(begin + 1, from[d]);
        const int64_t given = draw(0, 1) > 0 ? begin : begin - from[d];
        Dims shape = from;
        shape[d] = (end - begin + step - 1) / step;
        const auto dim = static_cast<int>(d);
        return {step == 1 ? slice(x, dim, given, end) : slice(x, dim, given, end, step),
                sources(shape, from, [&](Dims at) {
                    at[d] = begin + at[d] * step;
                    return at;
                })};
    }
    Made permuted(const Tensor& x) {
        const Dims& from = x.shape();
        std::vector<int> order(from.size());
        std::iota(order.begin(), order.end(), 0);
        std::ranges::shuffle(order, random_);
        Dims shape;
        for (const int d : order) shape.push_back(from[static_cast<size_t>(d)]);
        return {permute(x, order), sources(shape, from, [&](const Dims& at) {
                    Dims read(at.size());
                    for (size_t d = 0; d < at.size(); ++d) read[static_cast<size_t>(order[d])] = at[d];
                    return read;
                })};
    }
    Made broadcast(const Tensor& x) {
        const Dims& from = x.shape();
        Dims shape = from;
        for (int64_t& extent : shape)
            if (extent == 1) extent = draw(1, 2);
        if (draw(0, 1) > 0) shape.insert(shape.begin(), draw(1, 2));
        const size_t missing = shape.size() - from.size();
        Dims asked = shape;
        for (size_t d = 0; d < from.size(); ++d)
            if (shape[missing + d] == from[d] && draw(0, 2) == 0) asked[missing + d] = -1;
        return {broadcast_to(x, asked), sources(shape, from, [&](const Dims& at) {
                    Dims read(at.begin() + static_cast<ptrdiff_t>(missing), at.end());
                    for (size_t d = 0; d < read.size(); ++d) read[d] %= from[d];
                    return read;
                })};
    }
    Made flipped(const Tensor& x) {
        const Dims& from = x.shape();
        std::vector<int> dims;
        for (int d = 0; d < static_cast<int>(from.size()); ++d)
            if (draw(0, 1) > 0) dims.push_back(draw(0, 1) > 0 ? d : d - static_cast<int>(from.size()));
        std::ranges::shuffle(dims, random_);
        return {flip(x, dims), sources(from, from, [&](Dims at) {
                    for (const int dim : dims) {
                        const size_t d = static_cast<size_t>(dim) + (dim < 0 ? from.size() : 0);
                        at[d] = from[d] - 1 - at[d];
                    }
                    return at;
                })};
    }
    Made selected(const Tensor& x, size_t d) {
        const Dims& from = x.shape();
        if (from.size() == 1) return flipped(x);
        const int64_t place = draw(0, from[d] - 1);
        Dims shape = from;
        shape.erase(shape.begin() + static_cast<ptrdiff_t>(d));
        return {select(x, static_cast<int>(d), draw(0, 1) > 0 ? place : place - from[d]),
                sources(shape, from, [&](Dims at) {
                    at.insert(at.begin() + static_cast<ptrdiff_t>(d), place);
                    return at;
                })};
    }
    Made parted(const Tensor& x, size_t d) {
        const Dims& from = x.shape();
        const int64_t first = draw(1, from[d]);
        Dims sizes{first}, shape = from;
        if (first < from[d]) sizes.push_back(from[d] - first);
        const size_t part = static_cast<size_t>(draw(0, static_cast<int64_t>(sizes.size()) - 1));
        shape[d] = sizes[part];
        return {split(x, sizes, static_cast<int>(d))[part], sources(shape, from, [&](Dims at) {
                    if (part == 1) at[d] += first;
                    return at;
                })};
    }

    std::mt19937_64 random_;
};

}  // namespace tw::nn
