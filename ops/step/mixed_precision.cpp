#include "ops/step/mixed_precision.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include <fmt/ranges.h>

#include "dsl/stage.h"
#include "ops/step/step_graph.h"
#include "schedules/replace_tensors.h"
#include "schedules/views.h"
#include "schedules/window_terms.h"
#include "support/error.h"

namespace tw {
namespace {

using OperationRef = std::shared_ptr<const Operation>;

/// The element that is multiplied, where it counts; nullptr of anything else.
const Read* element_of(const Expr& factor) {
    std::vector<Expr> conditions;
    Expr expr = schedules::guarded(factor, conditions);
    if (const Cast* cast = expr.as<Cast>()) expr = schedules::guarded(cast->a, conditions);
    return expr.as<Read>();
}

bool mentions(const Read& read, const Expr& axis) {
    return std::ranges::any_of(read.indices, [&](const Expr& index) { return contains(index, axis); });
}

/// What a sum of products multiplies, if each factor has an axis of the result to itself.
std::vector<const Read*> factors_of(const Expr& expr, const Operation& operation) {
    const Reduce* sum = expr.as<Reduce>();
    if (!sum || sum->values.size() != 1 || atomic_operation(*sum->reducer) != BinaryOp::Add) return {};
    std::vector<Expr> conditions;
    Expr value = schedules::guarded(sum->values[0], conditions);
    const Binary* times = value.as<Binary>();
    if (!times || times->op != BinaryOp::Mul) return {};
    const Read *a = element_of(times->a), *b = element_of(times->b);
    if (!a || !b) return {};
    auto has_own = [&](const Read& one, const Read& other) {
        return std::ranges::any_of(operation.axes,
                                   [&](const Expr& axis) { return mentions(one, axis) && !mentions(other, axis); });
    };
    return has_own(*a, *b) && has_own(*b, *a) ? std::vector{a, b} : std::vector<const Read*>{};
}

bool has_type(const Operation& operation, Type type) {
    return std::ranges::all_of(operation.outputs, [&](const auto& output) { return output.type == type; });
}

bool is_in_scope(const std::string& scope, const std::string& outer) {
    return scope == outer || scope.starts_with(outer + ".");
}

std::string without_number(const std::string& name) {
    const size_t end = name.find_last_not_of("0123456789");
    return end != std::string::npos && end + 1 < name.size() && name[end] == '_' ? name.substr(0, end) : name;
}

class Mixing {
public:
    Mixing(const schedules::Declared& step, const MixedPrecision& how, std::source_location where)
        : step_(step), how_(how), parts_(step.outputs), operations_(parts_.operations()) {
        for (const std::string& name : how.keep)
            user_check(
                std::ranges::any_of(operations_, [&](const auto& operation) { return is_called(*operation, name); }),
                where, "mixed_precision: the step has no tensor '{}' to keep; there are [{}]", name,
                fmt::join(names(), ", "));
        check_scopes(where);
        for (const OperationRef& operation : operations_of(step.outputs)) look_at(*operation);
        for (auto each = operations_.rbegin(); each != operations_.rend(); ++each) {
            note_update(**each);
            note_viewed_factor(**each);
        }
        for (const OperationRef& operation : operations_)
            if (is_value(*operation)) values_.insert(operation.get());
    }

    MixedStep mixed() && {
        for (const OperationRef& operation : operations_) declare(operation);
        MixedStep result;
        for (const Tensor& output : step_.outputs) result.step.outputs.push_back(now(output));
        for (const auto& [out, in] : step_.in_place) result.step.in_place.emplace_back(now(out), now(in));
        result.stored = std::move(stored_);
        result.rounded = std::move(rounded_);
        return result;
    }

private:
    std::vector<std::string> names() const {
        std::vector<std::string> names;
        for (const OperationRef& operation : operations_) names.push_back(without_number(operation->name));
        std::ranges::sort(names);
        names.erase(std::unique(names.begin(), names.end()), names.end());
        return names;
    }
    void check_scopes(std::source_location where) const {
        std::set<std::string> known;
        for (const OperationRef& operation : operations_)
            if (!operation->is_input() && !operation->scope.empty()) known.insert(operation->scope);
        for (const auto& [scope, type] : how_.scopes) {
            user_check(type == f32 || type == how_.values, where,
                       "mixed_precision: scope '{}' is to be {} in a step of {}; write f32 or {}", scope, name_of(type),
                       name_of(how_.values), name_of(how_.values));
            user_check(std::ranges::any_of(known, [&](const std::string& each) { return is_in_scope(each, scope); }),
                       where, "mixed_precision: nothing of the step is called in scope '{}'; there are [{}]", scope,
                       fmt::join(known, ", "));
        }
    }
    /// By the innermost scope that the options name; none, of what is in no such one, and of inputs, which all read.
    std::optional<Type> type_by_scope(const Operation& operation) const {
        const std::pair<std::string, Type>* innermost = nullptr;
        for (const auto& each : how_.scopes)
            if (!operation.is_input() && is_in_scope(operation.scope, each.first))
                if (!innermost || each.first.size() >= innermost->first.size()) innermost = &each;
        return innermost ? std::optional(innermost->second) : std::nullopt;
    }
    bool is_f32_by_scope(const Operation& operation) const { return type_by_scope(operation) == f32; }
    bool is_kept(const Operation& operation) const {
        if (const std::optional<Type> type = type_by_scope(operation)) return type == f32;
        return std::ranges::any_of(how_.keep, [&](const std::string& name) { return is_called(operation, name); });
    }
    bool is_result(const Operation& operation) const {
        return std::ranges::any_of(step_.outputs,
                                   [&](const Tensor& output) { return output.operation().get() == &operation; });
    }

    template <class See>
    static void visit_bodies(const Operation& operation, const See& see) {
        for (const Operation::Output& output : operation.outputs)
            if (output.body.defined()) visit_with_extents(output.body, see);
    }

    /// Whether it multiplies, reduces, and which factors it has.
    void look_at(const Operation& operation) {
        visit_bodies(operation, [&](const Expr& e) {
            if (e.as<Reduce>()) reducing_.insert(&operation);
            if (is_f32_by_scope(operation)) return;
            for (const Read* factor : factors_of(e, operation)) {
                products_.insert(&operation);
                factors_.insert(factor->operation.get());
            }
        });
    }

    /// What is made for an overwritten tensor alone, element by element, belongs to its update.
    void note_update(const Operation& operation) {
        const bool overwrites = std::ranges::any_of(
            step_.in_place, [&](const auto& pair) { return pair.first.operation().get() == &operation; });
        if (!overwrites && !updates_.contains(&operation)) return;
        updates_.insert(&operation);
        if (is_view(operation) && schedules::reshaped_from(operation))
            updates_.insert(viewed(operation).operation.get());
        visit_bodies(operation, [&](const Expr& e) {
            const Read* read = e.as<Read>();
            if (!read) return;
            const bool is_own = !read->guarded && std::ranges::equal(read->indices, operation.axes, equal);
            if (is_own || (overwrites && is_of_part(*read, operation))) updates_.insert(read->operation.get());
        });
    }
    /// Whether the operation, one-dimensional, puts together what it reads so: element i - constant.
    static bool is_of_part(const Read& read, const Operation& operation) {
        if (operation.axes.size() != 1 || read.indices.size() != 1) return false;
        const Binary* place = read.indices[0].as<Binary>();
        return place && place->op == BinaryOp::Sub && equal(place->a, operation.axes[0]) && as_constant(place->b);
    }

    bool is_view(const Operation& operation) const {
        return schedules::is_view(operation) && !is_result(operation) && !parts_.result_of(operation);
    }
    /// The tensor that a view reads.
    static const Read& viewed(const Operation& view) {
        const Read* found = nullptr;
        visit_bodies(view, [&](const Expr& e) {
            if (const Read* read = e.as<Read>()) found = read;
        });
        return *found;
    }
    /// What a view has is a factor where the view is one.
    void note_viewed_factor(const Operation& operation) {
        if (factors_.contains(&operation) && is_view(operation)) factors_.insert(viewed(operation).operation.get());
    }

    bool is_value(const Operation& operation) const {
        if (is_view(operation)) return values_.contains(viewed(operation).operation.get());
        if (operation.is_input() || is_result(operation) || updates_.contains(&operation) || is_kept(operation))
            return false;
        if (operation.shape.empty() || !has_type(operation, f32)) return false;
        return products_.contains(&operation) || (!reducing_.contains(&operation) && is_made_of_values(operation));
    }
    bool is_made_of_values(const Operation& operation) const {
        bool found = false;
        visit_bodies(operation, [&](const Expr& e) {
            const Read* read = e.as<Read>();
            found = found || (read && values_.contains(read->operation.get()) &&
                              num_elements(*read->operation) <= num_elements(operation));
        });
        return found;
    }

    static int64_t num_elements(const Operation& operation) {
        int64_t count = 1;
        for (const Expr& extent : operation.shape) count *= as_constant(extent).value_or(1);
        return count;
    }

    /// The operation over what its tensors are now.
    void declare(const OperationRef& operation) {
        if (operation->is_input()) return note_copy(operation);
        if (const auto* result = parts_.result_of(*operation)) return declare_part(*operation, *result);
        if (is_view(*operation)) return declare_view(operation);
        const bool rounds = values_.contains(operation.get()) && factors_.contains(operation.get());
        std::vector<Expr> bodies = schedules::changed_together(schedules::bodies_of(*operation), [&](const Expr& all) {
            return transform_with_extents(all, [&](const Expr& e) { return over_present(e, *operation); });
        });
        if (rounds)
            for (Expr& body : bodies) body = cast(how_.values, body);
        const OperationRef declared = schedules::declared_again(*operation, operation->name, bodies);
        now_[operation.get()] = declared;
        if (rounds)
            rounded_.push_back(operation->name);
        else if (values_.contains(operation.get()))
            for (int k = 0; k < static_cast<int>(operation->outputs.size()); ++k)
                stored_.emplace_back(Tensor(declared, k), how_.values);
        note_copy(operation);
    }

    /// Of what it reads, of that one's type; and of its copy.
    void declare_view(const OperationRef& view) {
        const Tensor read = now({viewed(*view).operation, viewed(*view).output});
        const OperationRef declared = view_of(*view, read);
        now_[view.get()] = declared;
        if (const auto copy = copies_.find(read.operation().get()); copy != copies_.end())
            copies_[declared.get()] = view_of(*view, Tensor(copy->second, 0));
    }
    static OperationRef view_of(const Operation& view, const Tensor& read) {
        const Expr body = transform_with_extents(view.outputs[0].body, [&](const Expr& e) -> Expr {
            if (e.as<FloatConstant>()) return constant(read.type(), e.as<FloatConstant>()->value);
            if (const Select* select = e.as<Select>(); select && is_float(e.type()))
                return tw::select(select->condition, select->yes, select->no);
            const Read* element = e.as<Read>();
            if (!element) return {};
            Read other = *element;
            other.operation = read.operation();
            other.output = read.output();
            return make_expr(read.type(), std::move(other));
        });
        return schedules::declared_again(view, view.name, {body});
    }

    /// Once for all of its results: over operands of 16 bits where they are factors.
    void declare_part(const Operation& result, const StepParts::Result& of) {
        const auto [entry, is_new] = made_.try_emplace(of.part.get());
        if (is_new) entry->second = part_over(*of.part);
        const Tensor made = entry->second.at(static_cast<size_t>(of.index));
        const Type type = result.outputs[0].type;
        const bool is_wide = is_result(result) && made.type() != type;
        now_[&result] = is_wide ? as_type(type, made, result.name).operation() : made.operation();
        if (made.type() != type && !is_wide) rounded_.push_back(result.name);
    }
    std::vector<Tensor> part_over(const OwnSchedule& own) {
        const DeclaredIn scope(own.results.at(0).operation()->scope);
        const bool is_f32 = is_f32_by_scope(*own.results[0].operation());
        std::vector<Tensor> operands, as_declared;
        for (const Tensor& operand : own.operands) {
            const Tensor present = now(operand);
            const auto copy = copies_.find(present.operation().get());
            const bool is_factor = !is_f32 && factors_.contains(operand.operation().get());
            operands.push_back(is_factor && copy != copies_.end() ? Tensor(copy->second, 0) : present);
            as_declared.push_back(as_type(operand.type(), present, operand.name()));
        }
        try {
            return with_schedule(own.name, is_f32 ? as_declared : operands, own.declare, own.schedule, own.schedules,
                                 own.where);
        } catch (const Error&) {  // it is declared for some types alone
            return with_schedule(own.name, as_declared, own.declare, own.schedule, own.schedules, own.where);
        }
    }
    static Tensor as_type(Type type, const Tensor& tensor, const std::string& name) {
        if (tensor.type() == type) return tensor;
        const DeclaredIn scope(tensor.operation()->scope);
        return compute(
            name, {tensor.shape().begin(), tensor.shape().end()},
            [&](const std::vector<Expr>& at) {
                return cast(type, tensor.read({at.begin(), at.end()}));
            },
            tensor.operation()->where);
    }

    /// Products read another tensor instead of one that stays f32.
    void note_copy(const OperationRef& operation) {
        if (!factors_.contains(operation.get()) || values_.contains(operation.get())) return;
        if (is_kept(*operation) && !is_f32_by_scope(*operation)) return;
        const Tensor whole = now(Tensor(operation, 0));
        if (operation->outputs.size() != 1 || whole.type() != f32) return;
        const std::string name = operation->name + "_" + std::string(name_of(how_.values));
        copies_[whole.operation().get()] = as_type(how_.values, whole, name).operation();
        rounded_.push_back(name);
    }

    Tensor now(const Tensor& tensor) const {
        const auto found = now_.find(tensor.operation().get());
        return found == now_.end() ? tensor : Tensor(found->second, tensor.output());
    }

    Expr over_present(const Expr& e, const Operation& operation) const {
        if (const Read* read = e.as<Read>()) return read_now(*read, e.type());
        if (is_f32_by_scope(operation)) return {};
        const std::vector<const Read*> factors = factors_of(e, operation);
        if (factors.empty()) return {};
        return transform(e, [&](const Expr& part) -> Expr {
            const Read* read = part.as<Read>();
            if (!read || std::ranges::find(factors, read) == factors.end()) return {};
            const auto copy = copies_.find(read->operation.get());
            return copy == copies_.end() ? Expr() : read_as(*read, copy->second, part.type());
        });
    }
    Expr read_now(const Read& read, Type type) const {
        const auto found = now_.find(read.operation.get());
        return found == now_.end() ? Expr() : read_as(read, found->second, type);
    }
    static Expr read_as(const Read& read, const OperationRef& operation, Type type) {
        Read other = read;
        other.operation = operation;
        const Type own = operation->outputs[static_cast<size_t>(read.output)].type;
        const Expr element = make_expr(own, std::move(other));
        return own == type ? element : cast(type, element);
    }

    const schedules::Declared& step_;
    const MixedPrecision& how_;
    const StepParts parts_;
    const std::vector<OperationRef>& operations_;  // producers first
    std::set<const Operation*> reducing_, products_, factors_, updates_, values_;
    std::map<const OwnSchedule*, std::vector<Tensor>> made_;  // what results of parts are now
    std::map<const Operation*, OperationRef> now_;            // by what was declared
    std::map<const Operation*, OperationRef> copies_;         // by what is declared now
    std::vector<std::pair<Tensor, Type>> stored_;
    std::vector<std::string> rounded_;
};

}  // namespace

bool is_called(const Operation& operation, const std::string& name) {
    return operation.name == name || without_number(operation.name) == name;
}

MixedStep mixed_precision(const schedules::Declared& step, const MixedPrecision& how, std::source_location where) {
    user_check(how.values == f32 || how.values == bf16 || how.values == f16, where,
               "mixed_precision: values of {}; write bf16, f16 or, to leave all as it is, f32", name_of(how.values));
    if (how.values == f32) return {.step = step};
    return Mixing(step, how, where).mixed();
}

}  // namespace tw
