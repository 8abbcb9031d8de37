// Handwritten digits of 8 x 8 pixels, which two tutorials learn to read.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "ops/autograd.h"

namespace tw {

struct Digits {
    std::vector<float> pixels;  ///< [images, 64], 0 to 1
    std::vector<int32_t> labels;
    int64_t size() const { return static_cast<int64_t>(labels.size()); }
};
/// Every fifth image is kept for the test.
struct DigitsSplit {
    Digits training, test;
};
DigitsSplit read_digits();

template <class T>
nn::Tensor on_device(const std::shared_ptr<nn::Backend>& backend, Type type, const std::vector<int64_t>& shape,
                     const std::vector<T>& values, const std::string& name) {
    nn::Tensor tensor(backend, type, shape, name);
    tensor.data().write(values);
    return tensor;
}

}  // namespace tw
