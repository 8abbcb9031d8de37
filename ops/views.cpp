#include "ops/views.h"

#include <fmt/ranges.h>

#include "schedules/views.h"

namespace tw::nn {

Tensor reshape(const Tensor& x, const std::vector<int64_t>& shape, std::source_location where) {
    return operator_with("reshape", fmt::format("{}", shape), [shape](const std::vector<tw::Tensor>& in) {
        return schedules::reshape("reshaped", in[0], shape);
    })({x}, where);
}

Tensor slice(const Tensor& x, int dim, int64_t begin, int64_t end, std::source_location where) {
    return operator_with("slice", fmt::format("{} {} {}", dim, begin, end), [=](const std::vector<tw::Tensor>& in) {
        return schedules::slice("slice", in[0], dim, begin, end);
    })({x}, where);
}

Tensor permute(const Tensor& x, const std::vector<int>& order, std::source_location where) {
    return operator_with("permute", fmt::format("{}", order), [order](const std::vector<tw::Tensor>& in) {
        return schedules::permute("permuted", in[0], order);
    })({x}, where);
}

}  // namespace tw::nn
