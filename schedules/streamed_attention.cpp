#include "schedules/streamed_attention.h"

#include <algorithm>

#include <fmt/format.h>

#include "codegen/cost/known_nests.h"
#include "dsl/edit.h"
#include "dsl/follow_part.h"
#include "schedules/find_attention.h"
#include "schedules/replace_tensors.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

Tensor placeholder_of(const Tensor& tensor) {
    return input(tensor.name(), tensor.type(), {tensor.shape().begin(), tensor.shape().end()});
}

/// Attention of a computation, and what stands for its results while the rest is chosen.
struct Part {
    FoundAttention found;
    std::vector<Tensor> given;    ///< o, and what is made of rows
    std::vector<Tensor> instead;  ///< an input each

    explicit Part(FoundAttention attention) : found(std::move(attention)), given{found.o} {
        for (const FoundAttention::OfRow& row : found.of_rows) given.push_back(row.given);
        for (const Tensor& each : given) instead.push_back(placeholder_of(each));
    }
    std::string text() const {
        const auto& [batch, heads, rows, keys, depth, width, group, causal, type, before, heads_first] = found.shape;
        return fmt::format(
            "'{}' is attention of {} rows and {} keys, {}{} heads, in one pass over the keys; outputs() has it as it "
            "is now",
            found.o.name(), rows, keys, batch > 1 ? fmt::format("{} times ", batch) : "", heads);
    }
};

std::vector<Tensor> inputs_of(const Part& part) {
    std::vector<Tensor> found;
    for (const Tensor& operand : part.found.operands)
        found.push_back(operand.operation()->is_input() ? operand : placeholder_of(operand));
    return found;
}

Schedule schedule_over(const std::vector<Tensor>& operands, const Part& part, const Target& target) {
    const Attention declared = part.found.declare(operands);
    const AttentionShape& shape = part.found.shape;
    return made_with_trees_later(
        [&] { return attention_schedule(declared, shape, attention_tiles(declared, shape, target), target); });
}

/// What steps or passes say of the part by itself; empty if nothing.
std::string refusal_of(const Part& part, const Target& target) {
    try {
        const Schedule s = schedule_over(inputs_of(part), part, target);
        codegen::counted_kernels(s.tree(), target);
        return "";
    } catch (const Error& error) {
        return error.what();
    }
}

class Composition {
public:
    Composition(const std::vector<Tensor>& outputs, const Target& target, std::vector<Part> parts)
        : outputs_(outputs), target_(target), parts_(std::move(parts)) {
        for (const Part& part : parts_)
            for (size_t k = 0; k < part.given.size(); ++k) outside_.put(part.given[k], part.instead[k]);
    }

    Schedule scheduled(const ChooseRest& choose_rest) {
        for (const Tensor& output : outputs_) add_to_rest(outside_.of(output));
        for (const Part& part : parts_)
            for (const Tensor& operand : part.found.operands) add_to_rest(outside_.of(operand));
        std::optional<Schedule> rest;
        if (!rest_.empty()) rest = choose_rest(rest_, target_);
        const std::vector<Tensor> chosen = rest ? rest->outputs() : std::vector<Tensor>();
        std::vector<Schedule> schedules;
        std::vector<std::vector<Tensor>> results;
        for (const Part& part : parts_) {
            operands_ = inputs_of(part);
            schedules.push_back(schedule_over(operands_, part, target_));
            results.push_back(results_of(part, schedules.back(), chosen));
        }
        std::vector<Tensor> whole, whole_rest;
        for (const Tensor& output : outputs_) whole.push_back(here(outside_.of(output), chosen));
        for (const Tensor& each : chosen) whole_rest.push_back(inside_.of(each));
        Schedule s(whole, target_);
        if (rest) follow_part(s, *rest, whole_rest);
        for (size_t k = 0; k < parts_.size(); ++k) {
            follow_part(s, schedules[k], results[k]);
            Edit::note(s, parts_[k].text());
        }
        return s;
    }

private:
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
    std::vector<Tensor> results_of(const Part& part, const Schedule& schedule, const std::vector<Tensor>& chosen) {
        Replacement over_operands;
        for (size_t k = 0; k < operands_.size(); ++k) {
            const Tensor own = here(outside_.of(part.found.operands[k]), chosen);
            if (!own.same(operands_[k])) over_operands.put(operands_[k], own);
        }
        std::vector<Tensor> results;
        for (size_t k = 0; k < part.given.size(); ++k) {
            results.push_back(over_operands.of(schedule.outputs()[k]));
            inside_.put(part.instead[k], results.back());
        }
        return results;
    }

    const std::vector<Tensor>& outputs_;
    const Target& target_;
    std::vector<Part> parts_;
    Replacement outside_, inside_;
    std::vector<Tensor> rest_, operands_;
};

}  // namespace

std::optional<Schedule> with_streamed_attention(const std::vector<Tensor>& outputs, const Target& target,
                                                const ChooseRest& choose_rest) {
    if (!target.has_wgmma || !target.has_tma) return {};
    std::vector<Part> parts;
    for (const auto& operation : operations_of(outputs))
        if (auto found = find_attention(Tensor(operation, 0), outputs)) parts.emplace_back(std::move(*found));
    std::vector<std::string> refusals;
    std::erase_if(parts, [&](const Part& part) {
        const std::string refusal = refusal_of(part, target);
        if (!refusal.empty())
            refusals.push_back(fmt::format("'{}' is attention, not in one pass: {}", part.found.o.name(), refusal));
        return !refusal.empty();
    });
    if (parts.empty() && refusals.empty()) return {};
    std::optional<Schedule> streamed;
    try {
        if (!parts.empty()) {
            streamed =
                made_with_trees_later([&] { return Composition(outputs, target, parts).scheduled(choose_rest); });
            codegen::counted_kernels(streamed->tree(), target);
        }
    } catch (const Error& error) {
        streamed.reset();
        refusals.push_back(fmt::format("attention is not in one pass, with all else: {}", error.what()));
    }
    Schedule s = streamed ? std::move(*streamed) : choose_rest(outputs, target);
    for (const std::string& refusal : refusals) Edit::note(s, refusal);
    return s;
}

}  // namespace tw::schedules
