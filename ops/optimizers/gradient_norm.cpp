#include "ops/optimizers/gradient_norm.h"

#include <algorithm>

#include "dsl/check_sizes.h"
#include "ops/autograd.h"
#include "ops/operator.h"
#include "ops/optimizers/side_by_side.h"

namespace tw::nn {
namespace {

/// Of all elements of tensors of one dimension, together.
const Operator& squares() {
    static const Operator op("sum_of_squares", [](const std::vector<tw::Tensor>& in) {
        std::vector<Placed> placed;
        int64_t end = 0;
        for (const tw::Tensor& tensor : in) {
            placed.push_back({tensor, end});
            end += require_constant(tensor.shape()[0]);
        }
        const Axis place = reduce_axis("place", end);
        return compute("sum_of_squares", {}, [&] {
            const Expr element = in.size() == 1 ? in[0](place) : element_at(place, placed);
            return sum(element * element, place);
        });
    });
    return op;
}

Expr added(const std::vector<tw::Tensor>& in) {
    Expr total = in[0]();
    for (size_t k = 1; k < in.size(); ++k) total = total + in[k]();
    return total;
}
const Operator& total_of() {
    static const Operator op("sum_of_sums", [](const std::vector<tw::Tensor>& in) {
        return compute("sum_of_sums", {}, [&] { return added(in); });
    });
    return op;
}
const Operator& root_of() {
    static const Operator op("gradient_norm", [](const std::vector<tw::Tensor>& in) {
        return compute("gradient_norm", {}, [&] { return sqrt(added(in)); });
    });
    return op;
}

const Operator& unscaled() {
    static const Operator op("gradient_norm", [](const std::vector<tw::Tensor>& in) {
        return compute("gradient_norm", {}, [&] { return in[0]() / in[1](); });
    });
    return op;
}

}  // namespace

Tensor global_norm(const std::vector<Tensor>& gradients, const Tensor& scale) {
    return unscaled()({global_norm(gradients), scale});
}

Tensor global_norm(const std::vector<Tensor>& gradients) {
    const NoGrad guard;
    std::vector<Tensor> sums;
    const SideBySide places = side_by_side(gradients);
    for (const size_t k : places.apart) sums.push_back(squares()({flattened(gradients[k])}));
    for (const std::vector<size_t>& together : places.together) {
        std::vector<Tensor> read;
        for (const size_t k : together) read.push_back(flattened(gradients[k]));
        sums.push_back(squares()(read));
    }
    while (sums.size() > most_tensors_side_by_side) {
        std::vector<Tensor> totals;
        for (size_t first = 0; first < sums.size(); first += most_tensors_side_by_side)
            totals.push_back(total_of()(
                {sums.begin() + static_cast<ptrdiff_t>(first),
                 sums.begin() + static_cast<ptrdiff_t>(std::min(first + most_tensors_side_by_side, sums.size()))}));
        sums = std::move(totals);
    }
    return root_of()(sums);
}

Expr clipping_factor(const Expr& norm, double max_norm) {
    const Expr padded = norm + 1e-6;
    return select(padded <= max_norm, 1.0, max_norm / padded);
}

}  // namespace tw::nn
