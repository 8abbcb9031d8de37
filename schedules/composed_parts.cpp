#include "schedules/composed_parts.h"

#include <algorithm>
#include <optional>

#include "codegen/cost/known_nests.h"
#include "dsl/edit.h"
#include "dsl/follow_part.h"
#include "schedules/replace_tensors.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

Tensor placeholder_of(const Tensor& tensor) {
    return input(tensor.name(), tensor.type(), {tensor.shape().begin(), tensor.shape().end()});
}

Schedule schedule_over(const std::vector<Tensor>& operands, const ScheduledPart& part) {
    return made_with_trees_later([&] { return part.schedule(operands); });
}

class Composition {
public:
    Composition(const std::vector<ScheduledPart>& parts, const std::vector<Tensor>& outputs, const Target& target)
        : parts_(parts), outputs_(outputs), target_(target) {
        for (const ScheduledPart& part : parts_)
            for (const Tensor& given : part.given) {
                instead_.push_back(placeholder_of(given));
                if (given.operation()->outputs.size() == 1) outside_.put(given, instead_.back());
            }
    }

    Schedule scheduled(const ChooseRest& choose_rest) {
        for (const Tensor& output : outputs_)
            if (!place_among_given(output)) add_to_rest(outside_.of(output));
        for (const ScheduledPart& part : parts_)
            for (const Tensor& operand : part.operands) add_to_rest(outside_.of(operand));
        std::optional<Schedule> rest;
        if (!rest_.empty()) rest = choose_rest(rest_, target_);
        const std::vector<Tensor> chosen = rest ? rest->outputs() : std::vector<Tensor>();
        std::vector<Schedule> schedules;
        std::vector<std::vector<Tensor>> results;
        size_t first = 0;
        for (const ScheduledPart& part : parts_) {
            operands_ = as_inputs(part.operands);
            schedules.push_back(schedule_over(operands_, part));
            results.push_back(results_of(part, first, schedules.back(), chosen));
            first += part.given.size();
        }
        std::vector<Tensor> whole, whole_rest;
        for (const Tensor& output : outputs_) {
            const auto place = place_among_given(output);
            whole.push_back(place ? made_[*place] : here(outside_.of(output), chosen));
        }
        for (const Tensor& each : chosen) whole_rest.push_back(inside_.of(each));
        Schedule s(whole, target_);
        if (rest) follow_part(s, *rest, whole_rest);
        for (size_t k = 0; k < parts_.size(); ++k) {
            follow_part(s, schedules[k], results[k]);
            Edit::note(s, parts_[k].text);
        }
        return s;
    }

private:
    std::optional<size_t> place_among_given(const Tensor& output) const {
        size_t place = 0;
        for (const ScheduledPart& part : parts_)
            for (const Tensor& given : part.given)
                if (given.same(output))
                    return place;
                else
                    ++place;
        return {};
    }

    void add_to_rest(const Tensor& tensor) {
        const bool is_known = std::ranges::any_of(rest_, [&](const Tensor& each) { return each.same(tensor); });
        if (!tensor.operation()->is_input() && !is_known) rest_.push_back(tensor);
    }

    /// A tensor of the rest, as the rest was chosen and over results of parts.
    Tensor here(const Tensor& tensor, const std::vector<Tensor>& chosen) {
        const auto found = std::ranges::find_if(rest_, [&](const Tensor& each) { return each.same(tensor); });
        return inside_.of(found == rest_.end() ? tensor : chosen[static_cast<size_t>(found - rest_.begin())]);
    }

    /// What the part's schedule computes, over what computes its operands; later parts read it.
    std::vector<Tensor> results_of(const ScheduledPart& part, size_t first, const Schedule& schedule,
                                   const std::vector<Tensor>& chosen) {
        Replacement over_operands;
        for (size_t k = 0; k < operands_.size(); ++k) {
            const Tensor own = here(outside_.of(part.operands[k]), chosen);
            if (!own.same(operands_[k])) over_operands.put(operands_[k], own);
        }
        std::vector<Tensor> results;
        for (size_t k = 0; k < part.given.size(); ++k) {
            results.push_back(over_operands.of(schedule.outputs()[k]));
            inside_.put(instead_[first + k], results.back());
            made_.push_back(results.back());
        }
        return results;
    }

    const std::vector<ScheduledPart>& parts_;
    const std::vector<Tensor>& outputs_;
    const Target& target_;
    std::vector<Tensor> instead_;  // an input for each result of a part,
    std::vector<Tensor> made_;     // and what computes it
    Replacement outside_, inside_;
    std::vector<Tensor> rest_, operands_;
};

}  // namespace

std::vector<Tensor> as_inputs(const std::vector<Tensor>& operands) {
    std::vector<Tensor> found;
    for (const Tensor& operand : operands)
        found.push_back(operand.operation()->is_input() ? operand : placeholder_of(operand));
    return found;
}

std::string refusal_of(const ScheduledPart& part, const Target& target) {
    try {
        const Schedule s = schedule_over(as_inputs(part.operands), part);
        codegen::counted_kernels(s.tree(), target);
        return "";
    } catch (const Error& error) {
        return error.what();
    }
}

namespace {

/// Whether the part is all there is, so that its schedule is the whole's.
bool is_whole(const std::vector<ScheduledPart>& parts, const std::vector<Tensor>& outputs) {
    return parts.size() == 1 &&
           std::ranges::equal(parts[0].given, outputs, [](const Tensor& a, const Tensor& b) { return a.same(b); }) &&
           std::ranges::all_of(parts[0].operands, [](const Tensor& each) { return each.operation()->is_input(); });
}

}  // namespace

Schedule composed_of(const std::vector<ScheduledPart>& parts, const std::vector<Tensor>& outputs, const Target& target,
                     const ChooseRest& choose_rest) {
    if (is_whole(parts, outputs)) {
        Schedule s = schedule_over(parts[0].operands, parts[0]);
        Edit::note(s, parts[0].text);
        return s;
    }
    return made_with_trees_later([&] { return Composition(parts, outputs, target).scheduled(choose_rest); });
}

}  // namespace tw::schedules
