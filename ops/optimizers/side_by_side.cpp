#include "ops/optimizers/side_by_side.h"

#include "ops/tape/tape.h"
#include "ops/views.h"

namespace tw::nn {
namespace {

Expr element_among(const Expr& place, const Placed* begin, const Placed* end) {
    if (end - begin == 1) return padded(begin->elements, constant(f32, 0.0)).read({place - begin->begin});
    const Placed* middle = begin + (end - begin) / 2;
    return select(place < middle->begin, element_among(place, begin, middle), element_among(place, middle, end));
}

}  // namespace

int64_t num_elements(const Tensor& tensor) {
    int64_t elements = 1;
    for (const int64_t extent : tensor.shape()) elements *= extent;
    return elements;
}

SideBySide side_by_side(const std::vector<Tensor>& tensors) {
    SideBySide result;
    for (size_t k = 0; k < tensors.size(); ++k) {
        if (num_elements(tensors[k]) > most_side_by_side) {
            result.apart.push_back(k);
            continue;
        }
        if (result.together.empty() || result.together.back().size() == most_tensors_side_by_side)
            result.together.emplace_back();
        result.together.back().push_back(k);
    }
    return result;
}

std::vector<int64_t> begins_of(const std::vector<Tensor>& tensors, int64_t alignment) {
    std::vector<int64_t> begins{0};
    for (const Tensor& tensor : tensors)
        begins.push_back((begins.back() + num_elements(tensor) + alignment - 1) / alignment * alignment);
    return begins;
}

Tensor whole_for(const std::shared_ptr<Backend>& backend, const std::vector<int64_t>& begins, const std::string& name) {
    const Tensor whole(backend, f32, {begins.back()}, name);
    whole.data().fill(0);
    return whole;
}

Tensor flattened(const Tensor& tensor) {
    if (tensor.shape().size() == 1) return tensor;
    const std::vector<int64_t> shape{num_elements(tensor)};
    if (tensor.backend()->capture()) return reshape(tensor, shape);
    return Tape::in_memory_of(tensor, tensor.data(), shape, tensor.name());
}

Expr element_at(const Expr& place, const std::vector<Placed>& tensors) {
    return element_among(place, tensors.data(), tensors.data() + tensors.size());
}

}  // namespace tw::nn
