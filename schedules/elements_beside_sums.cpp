#include "schedules/elements_beside_sums.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include <fmt/ranges.h>

#include "dsl/simplify.h"
#include "schedules/channel_sums.h"
#include "schedules/declared_as.h"
#include "schedules/free_names.h"
#include "schedules/long_reductions.h"
#include "schedules/replace_tensors.h"
#include "schedules/unit_product.h"
#include "schedules/window_terms.h"

namespace tw::schedules {
namespace {

using OperationRef = std::shared_ptr<const Operation>;

constexpr int64_t least_columns = 8, most_columns = 1 << 16;

Tensor tensor_of(const Read& read) { return {read.operation, read.output}; }

bool is_output(const OperationRef& operation, const std::vector<Tensor>& outputs) {
    return std::ranges::any_of(outputs, [&](const Tensor& output) { return output.operation() == operation; });
}

bool has_reduction(const Operation& operation) {
    return std::ranges::any_of(operation.outputs, [](const auto& output) {
        return output.body.defined() && tw::schedules::reduces(output.body);
    });
}

/// Whether nothing that it is made of reduces, nor does it.
bool is_of_elements(const OperationRef& operation) {
    return std::ranges::none_of(operations_of({Tensor(operation, 0)}),
                                [](const OperationRef& each) { return has_reduction(*each); });
}
/// Whether nothing that it reads does.
bool reads_elements(const Operation& operation) {
    bool found = true;
    for (const Expr& body : bodies_of(operation))
        visit(body, [&](const Expr& e) {
            if (const Read* read = e.as<Read>()) found = found && is_of_elements(read->operation);
        });
    return found;
}

bool is_large(const Operation& operation, const SharingLimits& limits) {
    int64_t elements = operation.outputs.size() == 1 && operation.shape.size() >= 2 ? 1 : 0;
    for (const Expr& extent : operation.shape) elements *= as_constant(extent).value_or(0);
    return elements >= limits.elements;
}

/// Sums of terms, each of one place in tensors over the sums' axes and the one that is left.
struct SumOfElements {
    OperationRef operation;
    std::vector<Expr> terms;  ///< components of the reduction
    std::vector<Expr> place;  ///< axes, the column's last

    bool reads(const Tensor& tensor) const {
        bool found = false;
        for (const Expr& term : terms)
            visit(term, [&](const Expr& e) {
                const Read* read = e.as<Read>();
                found =
                    found || (read && tensor_of(*read).same(tensor) && std::ranges::equal(read->indices, place, equal));
            });
        return found;
    }
    /// Whether it reads the tensor at this place alone.
    bool reads_own(const Tensor& tensor) const {
        bool found = false, other = false;
        for (const Expr& body : bodies_of(*operation))
            visit(body, [&](const Expr& e) {
                const Read* read = e.as<Read>();
                if (!read || !tensor_of(*read).same(tensor)) return;
                (std::ranges::equal(read->indices, place, equal) ? found : other) = true;
            });
        return found && !other;
    }
    bool has_shape(const Operation& elements) const {
        if (elements.shape.size() != place.size()) return false;
        for (size_t d = 0; d < place.size(); ++d) {
            const Expr& extent = place[d].as<Variable>()->extent;
            if (!extent.defined() || as_constant(extent) != as_constant(elements.shape[d])) return false;
        }
        return true;
    }
};

/// The axes in the order in which the terms read tensors that have all of them.
std::vector<Expr> place_of(const std::vector<Expr>& terms, const std::vector<Expr>& axes, const Expr* column) {
    std::vector<Expr> place;
    for (const Expr& term : terms)
        visit(term, [&](const Expr& e) {
            const Read* read = e.as<Read>();
            if (!read || !place.empty() || read->indices.size() != axes.size() + (column ? 1 : 0)) return;
            const auto is_there = [&](const Expr& axis) {
                return std::ranges::count_if(read->indices, [&](const Expr& index) { return index.same(axis); }) == 1;
            };
            if (std::ranges::all_of(axes, is_there) && (!column || read->indices.back().same(*column)))
                place = read->indices;
        });
    return place;
}

std::optional<SumOfElements> sum_of(const OperationRef& operation) {
    if (operation->is_input() || operation->axes.size() > 1 || !reads_elements(*operation)) return {};
    SumOfElements sum{operation, {}, {}};
    std::vector<Expr> axes;
    for (const Operation::Output& output : operation->outputs) {
        const Reduce* reduction = only_reduction(output.body);
        if (!reduction || !adds_f32(*reduction->reducer)) return {};
        if (axes.empty()) axes = reduction->axes;
        sum.terms = reduction->values;
    }
    sum.place = place_of(sum.terms, axes, operation->axes.empty() ? nullptr : &operation->axes[0]);
    if (sum.place.size() != 2) return {};  // rows of several axes are fused: elements cannot be told from those
    const int64_t columns = as_constant(sum.place.back().as<Variable>()->extent).value_or(0);
    return columns >= least_columns && columns <= most_columns ? std::optional(sum) : std::nullopt;
}

/// Inputs that both read, the elements at their own axes.
std::vector<Tensor> shared_inputs(const Operation& elements, const SumOfElements& sum) {
    std::vector<Tensor> shared;
    visit(elements.outputs[0].body, [&](const Expr& e) {
        const Read* read = e.as<Read>();
        if (!read || !read->operation->is_input() || !std::ranges::equal(read->indices, elements.axes, equal)) return;
        const Tensor tensor = tensor_of(*read);
        const bool is_known = std::ranges::any_of(shared, [&](const Tensor& each) { return each.same(tensor); });
        if (!is_known && sum.reads(tensor)) shared.push_back(tensor);
    });
    return shared;
}

Expr reading_others(const Expr& body, const std::vector<Expr>& at, const std::map<OperationRef, Tensor>& others) {
    return transform_with_extents(body, [&](const Expr& e) -> Expr {
        const Read* read = e.as<Read>();
        if (!read || !std::ranges::equal(read->indices, at, equal)) return {};
        const auto other = others.find(read->operation);
        if (other == others.end()) return {};
        Read changed = *read;
        changed.operation = other->second.operation();
        return make_expr(e.type(), std::move(changed));
    });
}

Tensor copy_of(const Tensor& tensor, const std::string& name) {
    return compute(
        name, {tensor.shape().begin(), tensor.shape().end()},
        [&](const std::vector<Expr>& at) {
            return tensor.read({at.begin(), at.end()});
        },
        tensor.operation()->where);
}

/// With sums over all rows that read copies of rows where there are such: what a kernel of rows keeps.
std::vector<Tensor> sums_of_copies(const std::vector<Tensor>& outputs) {
    std::map<OperationRef, Tensor> copies;  // by what they are of
    const std::vector<OperationRef> operations = operations_of(outputs);
    for (const OperationRef& operation : operations) {
        if (operation->is_input() || operation->outputs.size() != 1 || is_output(operation, outputs)) continue;
        const Read* read = operation->outputs[0].body.as<Read>();
        if (read && read->operation->is_input() && std::ranges::equal(read->indices, operation->axes, equal))
            copies.emplace(read->operation, Tensor(operation, 0));
    }
    if (copies.empty()) return outputs;
    Replacement now;
    for (const OperationRef& operation : operations) {
        const auto sum = sum_of(operation);
        if (!sum || operation->axes.size() != 1) continue;
        const OperationRef present = now.of(Tensor(operation, 0)).operation();
        std::vector<Expr> bodies;
        for (const Expr& body : bodies_of(*present))
            bodies.push_back(reading_others(body, sum_of(present)->place, copies));
        now.put(Tensor(operation, 0), Tensor(declared_again(*present, present->name, bodies), 0));
    }
    std::vector<Tensor> result;
    for (const Tensor& output : outputs) result.push_back(now.of(output));
    return result;
}

class Sharing {
public:
    Sharing(const std::vector<Tensor>& outputs, const SharingLimits& limits)
        : outputs_(outputs), limits_(limits), operations_(operations_of(outputs)), names_(outputs) {}

    SharedElements run() {
        for (const OperationRef& operation : operations_)
            if (const auto sum = sum_of(operation)) sums_.push_back(*sum);
        for (const OperationRef& operation : operations_)
            if (!operation->is_input() && is_output(operation, outputs_) && is_large(*operation, limits_) &&
                is_of_elements(operation))
                share(operation);
        SharedElements result{outputs_, std::move(notes_)};
        if (result.notes.empty()) return result;
        for (const OperationRef& operation : operations_)
            if (const auto sum = of_sum(operation); sum && readers_.contains(operation)) declare(*sum);
        for (Tensor& output : result.outputs) output = now_.of(output);
        return result;
    }

private:
    std::optional<SumOfElements> of_sum(const OperationRef& operation) const {
        const auto found =
            std::ranges::find_if(sums_, [&](const SumOfElements& sum) { return sum.operation == operation; });
        return found == sums_.end() ? std::nullopt : std::optional(*found);
    }
    static int64_t rows_of(const SumOfElements& sum) {
        return as_constant(sum.place[0].as<Variable>()->extent).value_or(0);
    }

    /// The sums over the elements, or over what they are made of; those over columns if there are such.
    void share(const OperationRef& elements) {
        const Tensor own(elements, 0);
        bool is_summed = false;
        std::vector<Tensor> inputs;
        std::vector<std::string> names;
        for (const SumOfElements& sum : sums_) {
            if (!sum.has_shape(*elements) || rows_of(sum) < limits_.rows) continue;
            const std::vector<Tensor> shared = shared_inputs(*elements, sum);
            if (!sum.reads(own) && shared.empty()) continue;
            is_summed = is_summed || sum.reads(own);
            inputs.insert(inputs.end(), shared.begin(), shared.end());
            readers_.insert(sum.operation);
            names.push_back("'" + sum.operation->name + "'");
        }
        if (names.empty()) return;
        for (const Tensor& input : inputs)
            if (!read_.contains(input.operation()))
                read_[input.operation()] = copy_of(input, names_.take(input.name() + "_read"));
        const Operation& present = *now_.of(own).operation();
        const std::vector<Expr> bodies{reading_others(present.outputs[0].body, present.axes, read_)};
        if (is_summed) {
            const Tensor made(declared_again(present, names_.take(present.name + "_made"), bodies), 0);
            const Tensor kept = copy_of(made, present.name);
            now_.put(own, kept);
            read_[kept.operation()] = made;
        } else {
            now_.put(own, Tensor(declared_again(present, present.name, bodies), 0));
        }
        notes_.push_back(fmt::format("'{}': what it is made of is summed by {}", own.name(), fmt::join(names, ", ")));
    }

    /// Over what is shared; of a sum over all dimensions, as one over columns first.
    void declare(const SumOfElements& sum) {
        const Tensor present = now_.of(Tensor(sum.operation, 0));
        const SumOfElements now = *sum_of(present.operation());
        std::vector<Expr> bodies;
        for (const Expr& body : bodies_of(*now.operation)) bodies.push_back(reading_others(body, now.place, read_));
        if (!sum.operation->axes.empty())
            return now_.put(Tensor(sum.operation, 0),
                            Tensor(declared_again(*now.operation, present.name(), bodies), 0));
        const Reduce& whole = *only_reduction(bodies[0]);
        const Expr& column = now.place.back();
        const Axis last = reduce_axis("column", column.as<Variable>()->extent);
        const Axis row = reduce_axis("row", now.place[0].as<Variable>()->extent);
        const Tensor columns = compute(
            names_.take(present.name() + "_columns"), {column.as<Variable>()->extent},
            [&](const std::vector<Expr>& at) {
                return sums_of({substitute(whole.values[0], {{now.place[0], row}, {column, at[0]}})}, {row})[0];
            },
            present.operation()->where);
        const Expr total = sums_of({columns.read({last})}, {last})[0];
        const Tensor made(declared_again(*now.operation, present.name(), {with_reduction(bodies[0], total)}), 0);
        now_.put(Tensor(sum.operation, 0), made);
    }

    const std::vector<Tensor> outputs_;
    const SharingLimits limits_;
    const std::vector<OperationRef> operations_;  // producers first
    FreeNames names_;
    std::vector<SumOfElements> sums_;
    std::set<OperationRef> readers_;       // sums over what is shared
    std::map<OperationRef, Tensor> read_;  // by what the sums read instead
    Replacement now_;
    std::vector<std::string> notes_;
};

/// Whether all who read the tensor are among these.
bool is_read_by(const Tensor& tensor, const std::vector<Tensor>& readers, const std::vector<Tensor>& outputs) {
    for (const OperationRef& operation : operations_of(outputs)) {
        if (operation->is_input()) continue;
        const bool is_reader =
            std::ranges::any_of(readers, [&](const Tensor& each) { return each.operation() == operation; });
        for (const Expr& body : bodies_of(*operation)) {
            bool reads = false;
            visit(body, [&](const Expr& e) {
                const Read* read = e.as<Read>();
                reads = reads || (read && tensor_of(*read).same(tensor));
            });
            if (reads && !is_reader) return false;
        }
    }
    return true;
}

bool reads_at_own_axes(const Operation& operation, const Tensor& tensor) {
    const ReadsOf found = reads_of(tensor, operation, operation.outputs[0].body);
    return found.any && found.own;
}

}  // namespace

SharedElements share_elements(const std::vector<Tensor>& outputs, const SharingLimits& limits) {
    return Sharing(limits.sums_of_copies ? sums_of_copies(outputs) : outputs, limits).run();
}

ElementsBeside elements_beside_sums(const Tensor& sums, const std::vector<Tensor>& outputs,
                                    const SharingLimits& limits) {
    const auto sum = sum_of(sums.operation());
    if (!sum || sum->operation->axes.size() != 1) return {};
    ElementsBeside found;
    const std::vector<OperationRef> operations = operations_of(outputs);
    for (auto each = operations.rbegin(); each != operations.rend(); ++each) {  // readers first
        const Tensor tensor(*each, 0);
        if ((*each)->is_input() || !is_large(**each, limits) || !is_of_elements(*each) || !sum->has_shape(**each))
            continue;
        if (!is_output(*each, outputs) && sum->reads_own(tensor)) found.made.push_back(tensor);
    }
    const auto reads_made = [&](const Operation& operation) {
        return std::ranges::any_of(found.made, [&](const Tensor& made) { return reads_at_own_axes(operation, made); });
    };
    for (const OperationRef& operation : operations)
        if (!operation->is_input() && is_output(operation, outputs) && is_large(*operation, limits) &&
            is_of_elements(operation) && sum->has_shape(*operation) && reads_made(*operation))
            found.kept.emplace_back(operation, 0);
    std::vector<Tensor> readers{sums};
    readers.insert(readers.end(), found.kept.begin(), found.kept.end());
    readers.insert(readers.end(), found.made.begin(), found.made.end());
    const bool is_private =
        std::ranges::all_of(found.made, [&](const Tensor& made) { return is_read_by(made, readers, outputs); });
    return is_private && !found.kept.empty() ? found : ElementsBeside{};
}

bool sums_all_rows(const Tensor& sums, const Tensor& of) {
    const auto sum = sum_of(sums.operation());
    return sum && sum->operation->axes.size() == 1 && sum->has_shape(*of.operation()) && sum->reads_own(of);
}

void keep_beside(Schedule& s, const ElementsBeside& elements, Loop terms, int64_t vector) {
    for (const auto* tensors : {&elements.kept, &elements.made})
        for (const Tensor& tensor : *tensors) s.at(tensor, terms);
    if (vector == 1) return;
    for (const auto* tensors : {&elements.kept, &elements.made})
        for (const Tensor& tensor : *tensors) s.bind(s.data_loops(s[tensor]).back(), tw::vector);
}

}  // namespace tw::schedules
