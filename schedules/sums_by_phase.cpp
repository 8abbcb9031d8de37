#include "schedules/sums_by_phase.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "codegen/cost/predict_time.h"
#include "dsl/edit.h"
#include "dsl/simplify.h"
#include "schedules/choices.h"
#include "schedules/declared_as.h"
#include "schedules/free_names.h"
#include "schedules/joined_axes.h"
#include "schedules/replace_tensors.h"
#include "schedules/strided_terms.h"
#include "schedules/unit_product.h"
#include "schedules/window_terms.h"

namespace tw::schedules {
namespace {

constexpr int64_t most_phases = 8;         // each is a product with copies of its own
constexpr int64_t least_side_by_side = 8;  // elements of a phase along the last axis

/// An axis of the result, and how many elements further on terms are the same ones.
struct Period {
    size_t axis;
    int64_t length;
};

/// The length after which terms repeat along the axis; 1 if they are the same for all, 0 if that is not known.
int64_t period_along(const Reduce& sum, const Expr& axis) {
    int64_t found = 1;
    bool is_known = true;
    auto see = [&](const Expr& e) {
        const Binary* rest = e.as<Binary>();
        if (!rest || rest->op != BinaryOp::Mod || !contains(rest->a, axis)) return;
        const int64_t length = as_constant(rest->b).value_or(0);
        const auto step = coefficient(affine_of(rest->a), axis);
        is_known = is_known && length > 1 && (step == 1 || step == -1) && (found == 1 || found == length);
        found = length;
    };
    for (const Expr& value : sum.values) visit(value, see);
    for (const Expr& term : sum.axes) visit(term.as<Variable>()->extent, see);
    return is_known ? found : 0;
}

std::vector<Period> periods_of(const Reduce& sum, const std::vector<Expr>& axes) {
    std::vector<Period> found;
    int64_t phases = 1;
    for (size_t d = 0; d < axes.size(); ++d) {
        const int64_t length = period_along(sum, axes[d]), extent = extent_of(axes[d]);
        if (length == 0 || extent == 0 || extent % length != 0) return {};
        if (length == 1) continue;
        if (d + 1 == axes.size() && extent / length < least_side_by_side) return {};
        found.push_back({d, length});
        phases *= length;
    }
    return phases > most_phases ? std::vector<Period>() : found;
}

/// The sum with what stands for axes, zero if no term counts; undefined if one of its axes has no constant extent then.
/// Axes of one term are none.
Expr sum_at(const Reduce& sum, const Substitution& at) {
    Substitution terms = at;
    std::vector<Expr> axes;
    for (const Expr& given : sum.axes) {
        const Variable& variable = *given.as<Variable>();
        const auto extent = as_constant(simplify(substitute(variable.extent, at)));
        if (!extent || *extent < 1) return {};
        if (*extent == 1 && (axes.size() > 0 || !given.same(sum.axes.back()))) {
            terms.emplace_back(given, integer(0));
            continue;
        }
        axes.push_back(Expr(reduce_axis(variable.name, *extent)));
        terms.emplace_back(given, axes.back());
    }
    if (axes.empty()) return {};
    Reduce found = sum;
    found.axes = axes;
    for (Expr& value : found.values) value = simplify(substitute(value, terms));
    if (is_zero(found.values[0])) return found.values[0];
    return make_expr(found.values[0].type(), found);
}

/// Other types have rules of their own, for tensor cores.
bool reads_floats_alone(const Expr& value) {
    bool found = true;
    visit(value, [&](const Expr& e) { found = found && !(e.as<Read>() && e.type() != f32); });
    return found;
}

/// Of all elements; an axis whose extent elements say counts as one term.
double terms_of_all(const Reduce& sum, const std::vector<Expr>& axes) {
    double terms = 1;
    for (const Expr& axis : axes) terms *= double(extent_of(axis));
    for (const Expr& axis : sum.axes) terms *= double(std::max<int64_t>(extent_of(axis), 1));
    return terms;
}

/// Of an operation's sum, one place of each period after another, the last one fastest.
class ByPhase {
public:
    ByPhase(const Tensor& tensor, const Reduce& sum, std::vector<Period> periods)
        : tensor_(tensor), sum_(sum), periods_(std::move(periods)), axes_(tensor.operation()->axes) {}

    int64_t phases() const {
        int64_t count = 1;
        for (const Period& period : periods_) count *= period.length;
        return count;
    }

    /// The tensor over those of its phases; undefined if one of these has no constant number of terms.
    Tensor declared(FreeNames& names) const {
        std::vector<Tensor> made;
        for (int64_t phase = 0; phase < phases(); ++phase) {
            made.push_back(of_phase(phase, names));
            if (!made.back().defined()) return {};
        }
        Expr chosen;
        for (int64_t phase = phases() - 1; phase >= 0; --phase) {
            std::vector<Operand> at(axes_.begin(), axes_.end());
            Expr is_here;
            each_place(phase, [&](const Period& period, int64_t place) {
                const Expr here = axes_[period.axis] % period.length == integer(place);
                is_here = is_here.defined() ? is_here && here : here;
                at[period.axis] = axes_[period.axis] / period.length;
            });
            const Tensor& own = made[static_cast<size_t>(phase)];
            const Expr element = is_zero(body_of(own)) ? body_of(own) : own.read(at);
            chosen = chosen.defined() ? select(is_here, element, chosen) : element;
        }
        return declared_as(tensor_, with_reduction(body_of(tensor_), chosen));
    }

private:
    template <class F>
    void each_place(int64_t phase, const F& f) const {
        for (size_t p = periods_.size(); p-- > 0; phase /= periods_[p].length)
            f(periods_[p], phase % periods_[p].length);
    }

    Tensor of_phase(int64_t phase, FreeNames& names) const {
        Shape shape;
        for (const Expr& axis : axes_) shape.emplace_back(extent_of(axis));
        each_place(phase, [&](const Period& period, int64_t) {
            shape[period.axis] = extent_of(axes_[period.axis]) / period.length;
        });
        bool is_known = true;
        const Tensor found = compute(
            names.take(tensor_.name() + "_phase"), shape,
            [&](const std::vector<Expr>& own) {
                Substitution at;
                for (size_t d = 0; d < own.size(); ++d) at.emplace_back(axes_[d], own[d]);
                each_place(phase, [&](const Period& period, int64_t place) {
                    at[period.axis].second = own[period.axis] * period.length + place;
                });
                const Expr sum = sum_at(sum_, at);
                is_known = sum.defined();
                return is_known ? sum : constant(f32, 0.0);
            },
            tensor_.operation()->where);
        return is_known ? found : Tensor();
    }

    const Tensor tensor_;
    const Reduce sum_;
    const std::vector<Period> periods_;
    const std::vector<Expr> axes_;
};

}  // namespace

Redeclared sums_by_phase(const std::vector<Tensor>& outputs, double least_terms) {
    Redeclared result;
    Replacement whole;
    FreeNames names(outputs);
    for (const auto& operation : operations_of(outputs)) {
        if (operation->is_input() || operation->outputs.size() != 1) continue;
        const Tensor given(operation, 0), now = whole.of(given);
        const Reduce* sum = only_reduction(body_of(now));
        if (!sum || sum->values.size() != 1 || sum->values[0].type() != f32 ||
            atomic_operation(*sum->reducer) != BinaryOp::Add || !reads_floats_alone(sum->values[0]) ||
            terms_of_all(*sum, now.operation()->axes) < least_terms)
            continue;
        const std::vector<Period> periods = periods_of(*sum, now.operation()->axes);
        if (periods.empty()) continue;
        const ByPhase by(now, *sum, periods);
        const Tensor found = by.declared(names);
        if (!found.defined()) continue;
        whole.put(given, found);
        result.notes.push_back(fmt::format("'{}' is made of {} sums, of which each has the same terms for all elements",
                                           given.name(), by.phases()));
    }
    for (const Tensor& output : outputs) result.outputs.push_back(whole.of(output));
    return result;
}

Schedule with_sums_by_phase(const std::vector<Tensor>& outputs, const Target& target,
                            const std::function<Schedule(const std::vector<Tensor>&)>& choose) {
    const Redeclared strided = strided_terms(outputs);
    const Redeclared phased = sums_by_phase(strided.outputs);
    Schedule found = choose(outputs);
    if (phased.notes.empty()) return found;
    const KeptOutcomes before;
    Schedule apart = choose(phased.outputs);
    auto seconds = [&](const Schedule& s) { return codegen::predict_time(s.tree(), target).seconds; };
    if (seconds(apart) >= seconds(found)) {
        before.take_back();
        return found;
    }
    for (const auto* notes : {&strided.notes, &phased.notes})
        for (const std::string& note : *notes) Edit::note(apart, note);
    return apart;
}

}  // namespace tw::schedules
