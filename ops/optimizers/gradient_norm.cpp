#include "ops/optimizers/gradient_norm.h"

#include <algorithm>

#include <fmt/format.h>

#include "ops/operator.h"

namespace tw::nn {
namespace {

constexpr size_t most_terms = 32;  // pointers that one kernel is given

const Operator& squares() {
    static const Operator op("sum_of_squares", [](const std::vector<tw::Tensor>& in) {
        std::vector<Axis> axes;
        std::vector<Operand> at;
        for (const Expr& extent : in[0].shape()) {
            axes.push_back(reduce_axis(fmt::format("d{}", axes.size()), extent));
            at.emplace_back(axes.back());
        }
        return compute("sum_of_squares", {}, [&] { return sum(in[0].read(at) * in[0].read(at), axes); });
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
    std::vector<Tensor> sums;
    for (const Tensor& gradient : gradients) sums.push_back(squares()({gradient}));
    while (sums.size() > most_terms) {
        std::vector<Tensor> totals;
        for (size_t first = 0; first < sums.size(); first += most_terms)
            totals.push_back(
                total_of()({sums.begin() + static_cast<ptrdiff_t>(first),
                            sums.begin() + static_cast<ptrdiff_t>(std::min(first + most_terms, sums.size()))}));
        sums = std::move(totals);
    }
    return root_of()(sums);
}

Expr clipping_factor(const Expr& norm, double max_norm) {
    const Expr padded = norm + 1e-6;
    return select(padded <= max_norm, 1.0, max_norm / padded);
}

}  // namespace tw::nn
