#include "ops/optimizers/ema.h"

#include "ops/optimizers/check_parameters.h"
#include "support/error.h"

namespace tw::nn {
namespace {

std::vector<tw::Tensor> declare_average(const tw::Tensor& average, const tw::Tensor& parameter, double decay) {
    return compute_tuple("ema", {"average_next"}, {average.shape().begin(), average.shape().end()},
                         [&](const std::vector<Expr>& indices) {
                             const std::vector<Operand> at(indices.begin(), indices.end());
                             return std::vector{decay * average.read(at) + (1 - decay) * parameter.read(at)};
                         });
}

}  // namespace

Ema::Ema(std::vector<Tensor> parameters, double decay, std::source_location where)
    : parameters_(std::move(parameters)) {
    check_parameters("Ema", parameters_, where);
    user_check(decay >= 0 && decay < 1, where,
               "Ema: the decay is {}, outside of [0, 1); give the share of the average that a step keeps", decay);
    for (const Tensor& parameter : parameters_) {
        averages_.emplace_back(parameter.backend(), parameter.to_host(where), "average");
        updates_.emplace_back(std::vector<NamedTensor>{{"average", averages_.back()}},
                              [=](const std::vector<tw::Tensor>& old, const std::vector<tw::Tensor>& read) {
                                  return declare_average(old[0], read[0], decay);
                              });
    }
}

void Ema::step() {
    for (size_t p = 0; p < parameters_.size(); ++p) updates_[p].run({{"parameter", parameters_[p]}});
}

}  // namespace tw::nn
