// What lies between some tensors and what is made of them: what nn::checkpoint() does not keep.
#pragma once
#include <vector>

#include "dsl/tensor.h"

namespace tw {

struct MadeBetween {
    std::vector<Tensor> inside;   ///< producers first, the first output of each operation; no views
    std::vector<Tensor> results;  ///< in place of views, what these are views of
};

/// Of all operations that the results need, those that are no views and that the inputs, and what is given to the
/// whole, do not need. Neither results nor inputs are inside.
MadeBetween made_between(const std::vector<Tensor>& inputs, const std::vector<Tensor>& results);

}  // namespace tw
