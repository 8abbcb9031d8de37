#include "ops/step/canonicalise.h"

#include <algorithm>
#include <bit>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "dsl/simplify.h"
#include "ops/step/mixed_precision.h"
#include "ops/step/operation_key.h"
#include "ops/step/step_graph.h"
#include "ops/step/visit_reads.h"
#include "schedules/replace_tensors.h"
#include "schedules/views.h"

namespace tw {
namespace {

using OperationRef = std::shared_ptr<const Operation>;

bool is_literal(const Expr& expr) { return expr.as<IntConstant>() || expr.as<FloatConstant>(); }
bool is_float_literal(const Expr& expr, double value) {
    const FloatConstant* number = expr.as<FloatConstant>();
    return number && std::bit_cast<uint64_t>(number->value) == std::bit_cast<uint64_t>(value);
}

/// What a node is whose operands may have become numbers; undefined: itself. Exact for floats, NaN and -0 included.
Expr with_numbers(const Expr& e) {
    if (const Binary* two = e.as<Binary>(); two && is_float(e.type())) {
        if (two->op == BinaryOp::Mul && is_float_literal(two->a, 1.0)) return two->b;
        if (two->op == BinaryOp::Mul && is_float_literal(two->b, 1.0)) return two->a;
        if (two->op == BinaryOp::Div && is_float_literal(two->b, 1.0)) return two->a;
        if (two->op == BinaryOp::Add && is_float_literal(two->a, -0.0)) return two->b;
        if (two->op == BinaryOp::Add && is_float_literal(two->b, -0.0)) return two->a;
        if (two->op == BinaryOp::Sub && is_float_literal(two->b, 0.0)) return two->a;
    }
    if (const Select* choice = e.as<Select>(); choice && as_constant(choice->condition))
        return *as_constant(choice->condition) ? choice->yes : choice->no;
    if (e.as<Reduce>() || e.as<Read>() || is_literal(e)) return {};
    const std::vector<Expr> kids = children(e);
    if (kids.empty() || !std::ranges::all_of(kids, is_literal)) return {};
    const Expr value = simplify(e);
    return is_literal(value) ? value : Expr();
}

std::set<const Operation*> inputs_of(const StepParts& parts) {
    std::set<const Operation*> inputs;
    for (const OperationRef& operation : parts.operations())
        if (operation->is_input()) inputs.insert(operation.get());
    return inputs;
}

class Canonicalising {
public:
    Canonicalising(const schedules::Declared& step, const std::vector<MadeBetween>& regions,
                   const std::vector<std::string>& keep)
        : step_(step), regions_(regions), keep_(keep), parts_(step.outputs) {
        for (const Tensor& output : step.outputs) results_.insert(output.operation().get());
        for (const auto& [out, in] : step.in_place) overwriting_.insert(out.operation().get());
        for (size_t k = 0; k < regions.size(); ++k) {
            for (const Tensor& tensor : regions[k].inside) inside_[tensor.operation().get()].insert(k);
            for (const Tensor& tensor : regions[k].results) results_of_regions_.insert(tensor.operation().get());
        }
        note_needed();
    }

    CanonicalStep canonical() && {
        for (const OperationRef& operation : parts_.operations()) add(operation);
        CanonicalStep found;
        for (const Tensor& output : step_.outputs) found.step.outputs.push_back(now(output));
        for (const auto& [out, in] : step_.in_place) found.step.in_place.emplace_back(now(out), in);
        if (inputs_of(StepParts(found.step.outputs)) != inputs_of(parts_)) return {step_, regions_, {}};
        for (const MadeBetween& region : regions_) found.regions.push_back(present(region));
        found.simplified = std::move(simplified_);
        return found;
    }

private:
    // ---- what may change ------------------------------------------------------------------------------------------

    bool is_result(const OperationRef& operation) const { return results_.contains(operation.get()); }
    bool is_kept(const OperationRef& operation) const {
        return is_result(operation) ||
               std::ranges::any_of(keep_, [&](const std::string& name) { return is_called(*operation, name); });
    }
    /// Whether it has no memory.
    bool is_seen_through(const OperationRef& operation) const {
        return !operation->own_schedule && !parts_.result_of(*operation) && schedules::is_view(*operation) &&
               !kept_.contains(operation.get());
    }

    void note_needed() {
        for (const Tensor& output : step_.outputs) needed_.insert(key_of(output));
        for (const OperationRef& operation : parts_.operations())
            if (const auto* result = parts_.result_of(*operation))
                for (const Tensor& operand : result->part->operands) needed_.insert(key_of(operand));
            else
                visit_reads(*operation, [&](const Read& read) { needed_.insert({read.operation.get(), read.output}); });
    }

    // ---- an operation ---------------------------------------------------------------------------------------------

    void add(const OperationRef& operation) {
        if (operation->is_input()) return;
        if (const auto* result = parts_.result_of(*operation)) return add_part(operation, *result);
        const OperationRef present = over_present(operation, needed_outputs(operation));
        if (is_kept(operation)) kept_.insert(present.get());
        const bool is_number = present->outputs.size() == 1 && is_literal(present->outputs[0].body);
        if (is_number && (is_result(operation) || !is_kept(operation)))
            constants_.emplace(present.get(), present->outputs[0].body);
        if (is_kept(operation)) return note_first(present);
        if (is_number) return tell("{} is {} everywhere", operation->name, to_string(present->outputs[0].body));
        if (const std::optional<Tensor> same = shown_by(present)) return stand_for(operation, *same);
        const auto [first, is_new] = firsts_.try_emplace(key_of_present(present), present);
        if (!is_new && !results_of_regions_.contains(operation.get())) {
            for (int k = 0; k < static_cast<int>(operation->outputs.size()); ++k)
                if (const auto mine = now_.find({operation.get(), k}); mine != now_.end())
                    mine->second = {first->second, mine->second.output()};
                else
                    now_[{operation.get(), k}] = {first->second, k};
            tell("{} is {}", operation->name, first->second->name);
        }
    }
    template <class... Args>
    void tell(fmt::format_string<Args...> text, Args&&... args) {
        simplified_.push_back(fmt::format(text, std::forward<Args>(args)...));
    }
    void note_first(const OperationRef& present) {
        if (!overwriting_.contains(origin_of(present))) firsts_.try_emplace(key_of_present(present), present);
    }
    const Operation* origin_of(const OperationRef& present) const {
        const auto found = origins_.find(present.get());
        return found == origins_.end() ? present.get() : found->second.get();
    }
    void stand_for(const OperationRef& operation, const Tensor& same) {
        now_[{operation.get(), 0}] = same;
        tell("{} is {}", operation->name, same.name());
    }

    /// What is made again does not stand for what is kept, nor the other way around.
    std::string key_of_present(const OperationRef& present) {
        std::string key = keys_.of(*present);
        if (const auto inside = inside_.find(origin_of(present)); inside != inside_.end())
            for (size_t region : inside->second) key += fmt::format(" in region {}", region);
        return key;
    }

    std::vector<int> needed_outputs(const OperationRef& operation) const {
        std::vector<int> all, needed;
        bool is_tuple = false;
        for (int k = 0; k < static_cast<int>(operation->outputs.size()); ++k) {
            all.push_back(k);
            if (needed_.contains({operation.get(), k})) needed.push_back(k);
            visit_with_extents(operation->outputs[static_cast<size_t>(k)].body, [&](const Expr& e) {
                const Reduce* reduce = e.as<Reduce>();
                is_tuple = is_tuple || (reduce && reduce->values.size() > 1);
            });
        }
        return is_tuple || needed.empty() ? all : needed;  // components of a reduction are made together
    }

    /// Of these outputs, over what its tensors are now; itself if that is the same.
    OperationRef over_present(const OperationRef& operation, const std::vector<int>& outputs) {
        std::vector<Expr> bodies;
        for (int k : outputs) bodies.push_back(operation->outputs[static_cast<size_t>(k)].body);
        const std::vector<Expr> before = bodies;
        const bool is_view = schedules::is_view(*operation) && !is_kept(operation);
        bool has_numbers = false;
        bodies = schedules::changed_together(bodies, [&](const Expr& all) {
            return transform_with_extents(all, [&](const Expr& e) { return read_now(e, is_view, has_numbers); });
        });
        if (has_numbers)
            bodies = schedules::changed_together(
                bodies, [&](const Expr& all) { return transform_with_extents(all, with_numbers); });
        const bool same = std::ranges::equal(before, bodies, [](const Expr& a, const Expr& b) { return a.same(b); });
        if (same && outputs.size() == operation->outputs.size()) return operation;
        auto present = std::make_shared<Operation>(*operation);
        present->gradient = nullptr;
        present->outputs.clear();
        for (size_t k = 0; k < outputs.size(); ++k) {
            Operation::Output output = operation->outputs[static_cast<size_t>(outputs[k])];
            output.body = bodies[k];
            present->outputs.push_back(std::move(output));
            now_[{operation.get(), outputs[k]}] = {present, static_cast<int>(k)};
        }
        for (int k = 0; k < static_cast<int>(operation->outputs.size()); ++k)
            if (std::ranges::find(outputs, k) == outputs.end()) tell("nobody reads {}", Tensor(operation, k).name());
        origins_[present.get()] = operation;
        made_.push_back(present);
        return present;
    }

    Expr read_now(const Expr& e, bool is_view, bool& has_numbers) const {
        const Read* read = e.as<Read>();
        if (!read) return {};
        const Tensor tensor = now({read->operation, read->output});
        if (const auto number = constants_.find(tensor.operation().get()); number != constants_.end()) {
            has_numbers = true;
            return number->second;
        }
        if (is_view && is_seen_through(tensor.operation()) && !schedules::reshaped_from(*tensor.operation()))
            return seen_through(*read, *tensor.operation());
        if (tensor.operation() == read->operation && tensor.output() == read->output) return {};
        Read other = *read;
        other.operation = tensor.operation();
        other.output = tensor.output();
        return make_expr(e.type(), std::move(other));
    }
    /// The element of what the view shows.
    static Expr seen_through(const Read& read, const Operation& view) {
        Substitution at;
        for (size_t d = 0; d < read.indices.size(); ++d) at.emplace_back(view.axes[d], read.indices[d]);
        return transform(substitute(view.outputs[0].body, at), [&](const Expr& e) -> Expr {
            const Read* inner = e.as<Read>();
            if (!inner) return {};
            Read other = *inner;
            other.guarded = inner->guarded || read.guarded;
            for (Expr& index : other.indices) index = simplify(index);
            return make_expr(e.type(), std::move(other));
        });
    }

    /// The tensor that a view shows as it is: element by element, or put back into its shape.
    std::optional<Tensor> shown_by(const OperationRef& view) const {
        if (!schedules::is_view(*view)) return {};
        const auto has_shape = [&](const Tensor& tensor) {
            return std::ranges::equal(tensor.shape(), view->shape, equal) && tensor.type() == view->outputs[0].type;
        };
        const Read* read = view->outputs[0].body.as<Read>();
        if (!read || read->guarded) return {};
        const Tensor direct(read->operation, read->output);
        if (has_shape(direct) && std::ranges::equal(read->indices, view->axes, equal)) return direct;
        std::optional<Tensor> from = schedules::reshaped_from(*view);
        while (from && !has_shape(*from) && is_seen_through(from->operation()))
            from = schedules::reshaped_from(*from->operation());
        return from && has_shape(*from) ? from : std::nullopt;
    }

    // ---- parts, regions -------------------------------------------------------------------------------------------

    /// Declared once for all of its results, if an operand is another one.
    void add_part(const OperationRef& result, const StepParts::Result& of) {
        const OwnSchedule& own = *of.part;
        const auto [entry, is_new] = declared_parts_.try_emplace(&own);
        if (is_new) {
            std::vector<Tensor> operands;
            for (const Tensor& operand : own.operands) operands.push_back(now(operand));
            const bool same =
                std::ranges::equal(operands, own.operands, [](const Tensor& a, const Tensor& b) { return a.same(b); });
            const DeclaredIn scope(own.results.at(0).operation()->scope);
            if (!same)
                entry->second = with_schedule(own.name, operands, own.declare, own.schedule, own.schedules, own.where);
        }
        if (entry->second.empty()) return;
        Tensor& present = entry->second[static_cast<size_t>(of.index)];
        if (is_result(result) && present.name() != result->name) {  // a result has the name that it was given
            auto named = std::make_shared<Operation>(*present.operation());
            named->name = result->name;
            present = Tensor(std::move(named), 0);
        }
        now_[{result.get(), 0}] = present;
    }

    MadeBetween present(const MadeBetween& region) const {
        MadeBetween found;
        std::set<TensorKey> known;
        for (const Tensor& result : region.results) {
            Tensor tensor = now(result);
            while (is_seen_through(tensor.operation()))
                visit_reads(*tensor.operation(), [&](const Read& read) { tensor = {read.operation, read.output}; });
            if (known.insert(key_of(tensor)).second) found.results.push_back(tensor);
        }
        for (const Tensor& inside : region.inside)
            if (const Tensor tensor = now(inside);
                !is_seen_through(tensor.operation()) && known.insert(key_of(tensor)).second)
                found.inside.push_back(tensor);
        return found;
    }

    Tensor now(const Tensor& tensor) const {
        const auto found = now_.find(key_of(tensor));
        return found == now_.end() ? tensor : found->second;
    }

    const schedules::Declared& step_;
    const std::vector<MadeBetween>& regions_;
    const std::vector<std::string>& keep_;
    const StepParts parts_;
    std::set<const Operation*> results_, overwriting_, results_of_regions_, kept_;
    std::map<const Operation*, std::set<size_t>> inside_;  // regions
    std::set<TensorKey> needed_;
    std::map<TensorKey, Tensor> now_;                   // by what was declared
    std::vector<OperationRef> made_;                    // all, so that none has the address of another one
    std::map<const Operation*, OperationRef> origins_;  // by what is declared now
    std::map<const Operation*, Expr> constants_;
    std::map<const OwnSchedule*, std::vector<Tensor>> declared_parts_;
    OperationKeys keys_;
    std::map<std::string, OperationRef> firsts_;
    std::vector<std::string> simplified_;
};

}  // namespace

CanonicalStep canonicalise(const schedules::Declared& step, const std::vector<MadeBetween>& regions,
                           const std::vector<std::string>& keep) {
    const bool is_whole = !step.outputs.empty() && std::ranges::all_of(step.outputs, &Tensor::defined) &&
                          std::ranges::all_of(step.in_place, [](const auto& pair) {
                              return pair.first.defined() && pair.second.defined();
                          });
    if (!is_whole) return {step, regions, {}};
    return Canonicalising(step, regions, keep).canonical();
}

}  // namespace tw
