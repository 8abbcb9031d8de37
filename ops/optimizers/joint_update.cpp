#include "ops/optimizers/joint_update.h"

#include <algorithm>

#include <fmt/format.h>

#include "ops/optimizers/side_by_side.h"
#include "ops/tape/tape.h"

namespace tw::nn {
namespace {

/// Elements of a parameter among those of all; whether it is updated.
struct Part {
    int64_t begin, end;
    bool is_moved;
};
/// Of the gradients of parts that are updated, and scalars.
std::vector<Expr> next_of(const ElementUpdate& update, const std::vector<Part>& parts, const std::vector<Expr>& old,
                          const Expr& place, const std::vector<tw::Tensor>& read) {
    std::vector<Placed> gradients;
    for (const Part& part : parts)
        if (part.is_moved) gradients.push_back({read[gradients.size()], part.begin});
    const Expr gradient = element_at(place, gradients);
    std::vector<Expr> next =
        update.next(old, gradient, {read.begin() + static_cast<ptrdiff_t>(gradients.size()), read.end()});
    for (const Part& part : parts) {
        if (part.is_moved) continue;
        const Expr is_frozen = place >= part.begin && place < part.end;
        for (size_t k = 0; k < old.size(); ++k) next[k] = select(is_frozen, old[k], next[k]);
    }
    return next;
}

/// Whether an optimizer before has put just these together.
bool are_parts_already(const std::vector<Tensor>& tensors) {
    const Tensor& whole = Tape::whole_of(tensors[0]);
    const std::vector<int64_t> begins = begins_of(tensors, memory_alignment);
    if (!whole.defined() || whole.shape()[0] != begins.back()) return false;
    for (size_t k = 0; k < tensors.size(); ++k)
        if (!Tape::whole_of(tensors[k]).defined() || !Tape::whole_of(tensors[k]).same(whole) ||
            Tape::first_in_whole(tensors[k]) != begins[k])
            return false;
    return true;
}

std::vector<Tensor> at_places(const std::vector<Tensor>& tensors, const std::vector<size_t>& places) {
    std::vector<Tensor> result;
    for (const size_t place : places) result.push_back(tensors[place]);
    return result;
}

}  // namespace

std::vector<std::vector<size_t>> updated_together(const std::vector<Tensor>& parameters) {
    if (parameters.empty() || parameters[0].backend()->capture() || parameters[0].backend()->recording()) return {};
    std::vector<std::vector<size_t>> together = side_by_side(parameters).together;
    const auto has_others = [&](size_t p) {
        const Buffer& memory = parameters[p].data();
        return memory.shared() || !memory.owning();
    };
    for (std::vector<size_t>& each : together)
        if (!are_parts_already(at_places(parameters, each))) std::erase_if(each, has_others);
    std::erase_if(together, [](const std::vector<size_t>& each) { return each.size() < 2; });
    return together;
}

JointUpdate::JointUpdate(const std::vector<Tensor>& parameters, const ElementUpdate& update)
    : update_(update), each_(parameters), first_(begins_of(parameters, memory_alignment)) {
    const auto zeros = [&](const std::string& name) {
        const Tensor all(each_[0].backend(), f32, {first_.back()}, name);
        all.data().fill(0);  // between parts as well
        return all;
    };
    const bool are_parts = are_parts_already(each_);
    parameters_ = are_parts ? Tape::whole_of(each_[0]) : zeros("parameters");
    for (size_t p = 0; !are_parts && p < each_.size(); ++p) Tape::move_into(each_[p], parameters_, first_[p]);
    for (const std::string& state : update_.rule.states) states_.push_back(zeros(state));
}

std::vector<Tensor> JointUpdate::states_of(size_t parameter) const {
    std::vector<Tensor> states;
    for (const Tensor& all : states_)
        states.push_back(Tape::part_of(all, first_.at(parameter), each_[parameter].shape(), all.name()));
    return states;
}

void JointUpdate::run(const std::vector<NamedTensor>& scalars, bool is_scaled) {
    const NoGrad guard;
    Moved moved;
    std::vector<NamedTensor> read;
    for (const Tensor& parameter : each_) {
        moved.push_back(parameter.requires_grad());
        if (moved.back()) read.push_back({fmt::format("gradient{}", read.size()), flattened(parameter.grad())});
    }
    if (read.empty()) return;
    read.insert(read.end(), scalars.begin(), scalars.end());
    auto known = overwritings_.find({moved, is_scaled});
    if (known == overwritings_.end())
        known = overwritings_.emplace(std::pair(moved, is_scaled), overwriting(moved, is_scaled)).first;
    known->second.run(read);
}

Overwriting JointUpdate::overwriting(const Moved& moved, bool is_scaled) const {
    std::vector<NamedTensor> overwritten;
    for (const Tensor& state : states_) overwritten.push_back({state.name(), state});
    overwritten.push_back({"parameter", parameters_});
    ElementUpdate update = update_;
    update.is_scaled = is_scaled;
    std::vector<Part> parts;
    for (size_t p = 0; p < each_.size(); ++p)
        parts.push_back({first_[p], first_[p] + num_elements(each_[p]), moved[p]});
    return {overwritten, [=](const std::vector<tw::Tensor>& old, const std::vector<tw::Tensor>& read) {
                return compute_tuple(update.name(), update.outputs(), {old.back().shape()[0]},
                                     [&](const std::vector<Expr>& at) {
                                         std::vector<Expr> elements;
                                         for (const tw::Tensor& tensor : old) elements.push_back(tensor.read({at[0]}));
                                         return next_of(update, parts, elements, at[0], read);
                                     });
            }};
}

}  // namespace tw::nn
