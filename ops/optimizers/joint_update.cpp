#include "ops/optimizers/joint_update.h"

#include <algorithm>

#include <fmt/format.h>

#include "ops/capture.h"
#include "ops/optimizers/side_by_side.h"
#include "ops/tape/tape.h"

namespace tw::nn {
namespace {

/// Elements of a parameter among those of all; whether it is updated.
struct Part {
    int64_t begin, end;
    bool is_moved;
};

/// Behind the last element that is updated of the part at the place, or of the gap behind it.
Expr end_at(const Expr& place, const Part* begin, const Part* end) {
    if (end - begin == 1) return integer(begin->is_moved ? begin->end : begin->begin);
    const Part* middle = begin + (end - begin) / 2;
    return select(place < middle->begin, end_at(place, begin, middle), end_at(place, middle, end));
}

/// Whether all that is between the first element and the last one is updated.
bool are_moved_whole(const std::vector<Part>& parts, int64_t end) {
    for (size_t p = 0; p < parts.size(); ++p)
        if (!parts[p].is_moved || parts[p].end != (p + 1 < parts.size() ? parts[p + 1].begin : end)) return false;
    return true;
}

/// Of the gradients of parts that are updated, and scalars. What is frozen, and what is between parts, stays.
std::vector<Expr> next_of(const ElementUpdate& update, const std::vector<Part>& parts, int64_t end,
                          const std::vector<Expr>& old, const Expr& place, const std::vector<tw::Tensor>& read) {
    std::vector<Placed> gradients;
    for (const Part& part : parts)
        if (part.is_moved) gradients.push_back({read[gradients.size()], part.begin});
    const Expr gradient = element_at(place, gradients);
    std::vector<Expr> next =
        update.next(old, gradient, {read.begin() + static_cast<ptrdiff_t>(gradients.size()), read.end()});
    if (are_moved_whole(parts, end)) return next;
    const Expr is_moved = place < end_at(place, parts.data(), parts.data() + parts.size());
    for (size_t k = 0; k < old.size(); ++k) next[k] = select(is_moved, next[k], old[k]);
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
    std::vector<std::vector<size_t>> together;
    std::vector<size_t> free;
    for (size_t p = 0; p < parameters.size(); ++p) {
        const Tensor& whole = Tape::whole_of(parameters[p]);
        const Buffer& memory = parameters[p].data();
        if (!whole.defined()) {
            if (!memory.shared() && memory.owning()) free.push_back(p);
            continue;
        }
        const auto in_whole = [&](const std::vector<size_t>& each) {
            return Tape::whole_of(parameters[each[0]]).same(whole);
        };
        const auto found = std::ranges::find_if(together, in_whole);
        if (found == together.end())
            together.push_back({p});
        else
            found->push_back(p);
    }
    std::erase_if(together, [&](const auto& each) { return !are_parts_already(at_places(parameters, each)); });
    for (const std::vector<size_t>& each : side_by_side(at_places(parameters, free)).together) {
        together.emplace_back();
        for (const size_t place : each) together.back().push_back(free[place]);
    }
    std::erase_if(together, [](const std::vector<size_t>& each) { return each.size() < 2; });
    return together;
}

JointUpdate::JointUpdate(const std::vector<Tensor>& parameters, const ElementUpdate& update)
    : update_(update), each_(parameters), first_(begins_of(parameters, memory_alignment)) {
    const std::shared_ptr<Backend>& backend = each_[0].backend();
    const bool are_parts = are_parts_already(each_);
    parameters_ = are_parts ? Tape::whole_of(each_[0]) : whole_for(backend, first_, "parameters");
    for (size_t p = 0; !are_parts && p < each_.size(); ++p) Tape::move_into(each_[p], parameters_, first_[p]);
    for (const std::string& state : update_.rule.states) states_.push_back(whole_for(backend, first_, state));
}

std::vector<Tensor> JointUpdate::states_of(size_t parameter) const {
    std::vector<Tensor> states;
    for (const Tensor& all : states_)
        states.push_back(Tape::part_of(all, first_.at(parameter), each_[parameter].shape(), all.name()));
    return states;
}

bool JointUpdate::is_one_by_one() const {
    const Capture* capture = parameters_.backend()->capture();
    if (!capture || capture->has_overwritten(parameters_)) return false;
    return update_.rule.states.empty() || capture->has_overwritten_part_of(parameters_);
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
    const int64_t end = first_.back();
    return {overwritten, [=](const std::vector<tw::Tensor>& old, const std::vector<tw::Tensor>& read) {
                return compute_tuple(update.name(), update.outputs(), {end}, [&](const std::vector<Expr>& at) {
                    std::vector<Expr> elements;
                    for (const tw::Tensor& tensor : old) elements.push_back(tensor.read({at[0]}));
                    return next_of(update, parts, end, elements, at[0], read);
                });
            }};
}

}  // namespace tw::nn
