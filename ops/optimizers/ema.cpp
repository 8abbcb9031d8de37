#include "ops/optimizers/ema.h"

#include <fmt/format.h>

#include "ops/optimizers/check_parameters.h"
#include "ops/optimizers/side_by_side.h"
#include "ops/tape/tape.h"
#include "support/error.h"

namespace tw::nn {
namespace {

/// Of averages, and of what stands in these places now.
std::vector<tw::Tensor> declare_average(const tw::Tensor& average, double decay, const auto& parameter) {
    return compute_tuple("ema", {"average_next"}, {average.shape().begin(), average.shape().end()},
                         [&](const std::vector<Expr>& indices) {
                             const std::vector<Operand> at(indices.begin(), indices.end());
                             return std::vector{decay * average.read(at) + (1 - decay) * parameter(indices)};
                         });
}

Overwriting averaging(const Tensor& average, double decay) {
    return {{{"average", average}}, [=](const std::vector<tw::Tensor>& old, const std::vector<tw::Tensor>& read) {
                return declare_average(old[0], decay, [&](const std::vector<Expr>& at) {
                    return read[0].read({at.begin(), at.end()});
                });
            }};
}

/// Of averages that are parts of one tensor.
Overwriting averaging_together(const Tensor& all, double decay, const std::vector<int64_t>& begins) {
    return {{{"average", all}}, [=](const std::vector<tw::Tensor>& old, const std::vector<tw::Tensor>& read) {
                std::vector<Placed> placed;
                for (const tw::Tensor& parameter : read) placed.push_back({parameter, begins[placed.size()]});
                return declare_average(old[0], decay,
                                       [&](const std::vector<Expr>& at) { return element_at(at[0], placed); });
            }};
}

}  // namespace

Ema::Ema(std::vector<Tensor> parameters, double decay, std::source_location where)
    : parameters_(std::move(parameters)) {
    check_parameters("Ema", parameters_, where);
    user_check(decay >= 0 && decay < 1, where,
               "Ema: the decay is {}, outside of [0, 1); give the share of the average that a step keeps", decay);
    averages_.resize(parameters_.size());
    const SideBySide places = side_by_side(parameters_);
    for (const size_t p : places.apart) {
        averages_[p] = Tensor(parameters_[p].backend(), parameters_[p].to_host(where), "average");
        updates_.push_back({{p}, averaging(averages_[p], decay)});
    }
    for (const std::vector<size_t>& together : places.together) average_together(together, decay, where);
}

void Ema::average_together(const std::vector<size_t>& together, double decay, std::source_location where) {
    std::vector<Tensor> tensors;
    for (const size_t p : together) tensors.push_back(parameters_[p]);
    const std::vector<int64_t> begins = begins_of(tensors, memory_alignment);
    const Tensor all = whole_for(tensors[0].backend(), begins, "averages");
    for (size_t k = 0; k < together.size(); ++k) {
        averages_[together[k]] = Tape::part_of(all, begins[k], tensors[k].shape(), "average");
        averages_[together[k]].copy_from_host(tensors[k].to_host(where));
    }
    updates_.push_back({together, averaging_together(all, decay, begins)});
}

void Ema::step() {
    const NoGrad guard;
    for (Update& each : updates_) {
        std::vector<NamedTensor> read;
        const bool is_alone = each.averages.size() == 1 && !Tape::whole_of(averages_[each.averages[0]]).defined();
        for (const size_t p : each.averages)
            read.push_back(
                {fmt::format("parameter{}", read.size()), is_alone ? parameters_[p] : flattened(parameters_[p])});
        each.operation.run(read);
    }
}

}  // namespace tw::nn
