// Reverse accumulation over the operations that an output needs.
#include "dsl/differentiate.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "dsl/adjoints.h"
#include "dsl/check_gradient_rules.h"
#include "dsl/check_sizes.h"
#include "dsl/joint_gradient.h"
#include "dsl/simplify.h"
#include "dsl/stage.h"
#include "dsl/zero_sums.h"
#include "support/error.h"

namespace tw {
namespace {

using Key = std::pair<const Operation*, int>;
Key key_of(const Tensor& tensor) { return {tensor.operation().get(), tensor.output()}; }

bool equal_shapes(const Tensor& a, const Tensor& b) {
    if (a.rank() != b.rank()) return false;
    for (int d = 0; d < a.rank(); ++d)
        if (!equal(a.shape()[d], b.shape()[d])) return false;
    return true;
}

Shape shape_of(const Tensor& tensor) { return {tensor.shape().begin(), tensor.shape().end()}; }

Expr element(const Tensor& tensor, const std::vector<Expr>& indices) {
    return tensor.read({indices.begin(), indices.end()}, tensor.operation()->where);
}
Expr element_as(Type type, const Tensor& tensor, const std::vector<Expr>& indices) {
    return cast_unchecked(type, element(tensor, indices));
}

/// One output of an operation, with the axes that its body is written in.
struct Definition {
    Tensor tensor;
    const std::vector<Expr>& axes() const { return tensor.operation()->axes; }
    const Expr& body() const { return tensor.operation()->outputs[tensor.output()].body; }
};

/// Names that are taken where a rule calls gradients(): all of its tensors may be in one schedule.
thread_local std::set<std::string>* names_of_outer = nullptr;

struct NamesOfOuter {
    explicit NamesOfOuter(std::set<std::string>& names) : before(std::exchange(names_of_outer, &names)) {}
    ~NamesOfOuter() { names_of_outer = before; }
    NamesOfOuter(const NamesOfOuter&) = delete;
    NamesOfOuter& operator=(const NamesOfOuter&) = delete;
    std::set<std::string>* before;
};

class Differentiation {
public:
    Differentiation(const Tensor& output, const Tensor& adjoint, const std::vector<Tensor>& inputs,
                    std::source_location where)
        : where_(where), names_(names_of_outer ? *names_of_outer : own_names_) {
        auto operations = operations_with_rules(output);
        for (const auto& operation : operations) named_.insert(operation), names_.insert(operation->name);
        mark_needed(operations, inputs);
        given_[key_of(output)] = adjoint;
        for (size_t n = operations.size(); n-- > 0;)
            for (size_t o = 0; o < operations[n]->outputs.size(); ++o)
                visit_tensor({operations[n], static_cast<int>(o)});
        for (const Tensor& input : inputs) visit_tensor(input);
    }

    Tensor gradient(const Tensor& input) {
        auto found = finished_.find(key_of(input));
        if (found != finished_.end()) return as_type(input.type(), found->second, "d_" + input.name());
        auto zero = [&](const std::vector<Expr>&) { return cast(input.type(), 0.0); };
        return compute(fresh_name("d_" + input.name()), shape_of(input), zero, where_);
    }

private:
    /// Only operations between an input and the output pass adjoints on; producers come first.
    void mark_needed(const std::vector<std::shared_ptr<const Operation>>& operations,
                     const std::vector<Tensor>& inputs) {
        for (const Tensor& input : inputs) needed_.insert(input.operation().get());
        for (const auto& operation : operations)
            if (passes_adjoints(*operation)) needed_.insert(operation.get());
    }

    bool passes_adjoints(const Operation& operation) const {
        bool passes = false;
        if (operation.gradient) {
            for (const Tensor& input : operation.gradient->inputs)
                passes = passes || needed_.count(input.operation().get());
            return passes;
        }
        for (const auto& output : operation.outputs)
            if (output.body.defined())
                visit(output.body, [&](const Expr& e) {
                    auto* read = e.as<Read>();
                    passes = passes || (read && needed_.count(read->operation.get()));
                });
        return passes;
    }

    std::string fresh_name(const std::string& wish) {
        std::string name = wish;
        int& next = next_number_.try_emplace(wish, 2).first->second;  // lower ones are taken
        while (!names_.insert(name).second) name = fmt::format("{}_{}", wish, next++);
        return name;
    }

    /// All readers are done: adds up what they contributed, and passes it on.
    void visit_tensor(const Tensor& tensor) {
        Key key = key_of(tensor);
        if (finished_.count(key) || !needed_.count(key.first)) return;
        Tensor adjoint = total(tensor);
        if (!adjoint.defined()) return;
        const DeclaredIn scope(scope_ = tensor.operation()->scope);
        finished_[key] = adjoint;
        const Operation& operation = *tensor.operation();
        if (operation.gradient) return follow_rule(*operation.gradient, tensor, adjoint);
        if (!operation.is_input()) differentiate({tensor}, adjoint);
    }

    Tensor total(const Tensor& tensor) {
        Key key = key_of(tensor);
        auto parts = parts_.find(key);
        auto given = given_.find(key);
        if (given != given_.end() && parts == parts_.end()) return given->second;
        if (parts == parts_.end()) return {};
        const DeclaredIn scope(innermost_scope(parts->second));
        Type type = adjoint_type(tensor.type());
        Type stored = tensor.operation()->is_input() ? tensor.type() : type;  // an input's only reader casts at once
        Tensor same = given == given_.end() ? forwarded(parts->second, stored, "d_" + tensor.name()) : Tensor();
        if (same.defined()) return same;
        return compute(
            fresh_name("d_" + tensor.name()), shape_of(tensor),
            [&](const std::vector<Expr>& axes) {
                Expr sum;
                if (given != given_.end()) sum = element_as(type, given->second, axes);
                for (const Part& part : parts->second) {
                    Substitution rename;
                    for (size_t d = 0; d < axes.size(); ++d) rename.emplace_back(part.axes[d], axes[d]);
                    sum = add_adjoints(sum, substitute(part.value, rename));
                }
                return cast_unchecked(stored, sum);
            },
            where_);
    }

    struct Part {
        std::vector<Expr> axes;  // variables of the tensor's shape
        Expr value;
        std::string scope;  // of the operation that it is passed on by
    };

    /// What several operations pass on belongs to the scope with most names, as that of a layer in a block.
    static const std::string& innermost_scope(const std::vector<Part>& parts) {
        const auto depth = [](const Part& part) {
            return part.scope.empty() ? 0 : std::ranges::count(part.scope, '.') + 1;
        };
        return std::ranges::max_element(parts, {}, depth)->scope;
    }

    /// The tensor that the only part just repeats; it may hold a storage type instead of the type asked for. So may
    /// what a rule has made of an input of such a type, under the name that its gradient would have.
    static Tensor forwarded(const std::vector<Part>& parts, Type type, const std::string& name) {
        if (parts.size() != 1) return {};
        Expr value = parts[0].value;
        const auto* cast = value.as<Cast>();  // readers of an adjoint convert it anyway
        const auto* stored = cast && cast->a.type() == type ? cast->a.as<Read>() : nullptr;
        const bool is_made = stored && !stored->operation->is_input() && stored->operation->name == name;
        if (value.type() != type && !is_made) return {};
        if (is_made || (cast && adjoint_type(cast->a.type()) == type)) value = cast->a;
        const auto* read = value.as<Read>();
        if (!read || read->indices.size() != parts[0].axes.size()) return {};
        for (size_t d = 0; d < read->indices.size(); ++d) {
            auto* axis = parts[0].axes[d].as<Variable>();
            if (!read->indices[d].same(parts[0].axes[d]) || !equal(axis->extent, read->operation->shape[d])) return {};
        }
        return {read->operation, read->output};
    }

    Tensor as_type(Type type, const Tensor& tensor, const std::string& name) {
        if (tensor.type() == type) return tensor;
        return compute(
            fresh_name(name), shape_of(tensor),
            [&](const std::vector<Expr>& axes) { return element_as(type, tensor, axes); }, where_);
    }

    void follow_rule(const GradientRule& rule, const Tensor& tensor, const Tensor& given) {
        Tensor adjoint = as_type(adjoint_type(tensor.type()), given, "d_" + tensor.name());
        NamesOfOuter shared(names_);
        std::vector<Tensor> results = rule.inputs.empty() ? std::vector<Tensor>() : rule.function(tensor, adjoint);
        user_check(
            results.size() == rule.inputs.size(), rule.where,
            "with_gradient of '{}': the function returns {} tensors for {} inputs; return one each, undefined for zero",
            tensor.name(), results.size(), rule.inputs.size());
        take_names(results);
        for (size_t i = 0; i < results.size(); ++i) {
            const Tensor &input = rule.inputs[i], &result = results[i];
            if (!result.defined()) continue;
            user_check(equal_shapes(input, result) && is_float(result.type()), rule.where,
                       "with_gradient of '{}': the adjoint of '{}' is {} {}; it must be a float tensor of shape {}",
                       tensor.name(), input.name(), name_of(result.type()), shape_text(result.shape()),
                       shape_text(input.shape()));
            std::vector<Expr> axes = axes_of(input);
            add_part(input, axes, element_as(adjoint_type(input.type()), result, axes));
        }
    }

    /// Of what a rule has made, which is to stand in one schedule with the rest.
    void take_names(const std::vector<Tensor>& made) {
        for (const Tensor& tensor : made)
            if (tensor.defined()) take_names(tensor.operation());
    }
    /// Down to what has been looked at before: rules are as many as operations.
    void take_names(const std::shared_ptr<const Operation>& operation) {
        if (!named_.insert(operation).second) return;
        names_.insert(operation->name);
        for (const Operation::Output& output : operation->outputs)
            if (output.body.defined())
                visit_with_extents(output.body, [&](const Expr& e) {
                    if (const Read* read = e.as<Read>()) take_names(read->operation);
                });
    }

    static std::vector<Expr> axes_of(const Tensor& tensor) {
        std::vector<Expr> axes;
        for (const Expr& extent : tensor.shape()) axes.push_back(reduce_axis("t", extent).variable);
        return axes;
    }

    void add_part(const Tensor& tensor, const std::vector<Expr>& axes, const Expr& value) {
        parts_[key_of(tensor)].push_back({axes, value, scope_});
    }

    void differentiate(const Definition& of, const Tensor& adjoint) {
        auto* reduce = of.body().as<Reduce>();
        if (reduce && !holds_reduction(reduce->values)) return through_reduction(of, *reduce, adjoint);
        // every reduction inside becomes a tensor of its own
        std::vector<Tensor> inner;
        Expr body =
            transform(of.body(), [&](const Expr& e) { return e.as<Reduce>() ? extract(of, e, inner) : Expr(); });
        Expr incoming = element_as(adjoint_type(of.tensor.type()), adjoint, of.axes());
        Expr result = adjoint_type(of.tensor.type()) == of.tensor.type() ? element(of.tensor, of.axes()) : body;
        pass_on(adjoints_of_reads(body, incoming, result), of.axes());
        for (size_t n = inner.size(); n-- > 0;) visit_tensor(inner[n]);
    }

    static bool holds_reduction(const std::vector<Expr>& exprs) {
        bool found = false;
        for (const Expr& expr : exprs) visit(expr, [&](const Expr& e) { found = found || e.as<Reduce>(); });
        return found;
    }

    /// The reduction as a tensor over the axes that it depends on, read there.
    Expr extract(const Definition& of, const Expr& expr, std::vector<Tensor>& inner) {
        const Reduce& reduce = *expr.as<Reduce>();
        std::vector<Expr> axes;
        std::vector<Expr> inside = reduce.values;
        for (const Axis& axis : axes_from(reduce)) inside.push_back(axis.extent);
        for (const Expr& value : inside)
            visit(value, [&](const Expr& e) {
                auto* variable = e.as<Variable>();
                if (!variable || variable->kind != VariableKind::Index) return;
                for (const std::vector<Expr>* known : {&reduce.axes, static_cast<const std::vector<Expr>*>(&axes)})
                    for (const Expr& axis : *known)
                        if (axis.same(e)) return;
                axes.push_back(e);
            });
        // In the order of the tensor's own, so that the gradients' loops run as its elements lie.
        const std::vector<Expr>& order = of.axes();
        auto place = [&](const Expr& axis) {
            return std::ranges::find_if(order, [&](const Expr& own) { return own.same(axis); }) - order.begin();
        };
        std::ranges::stable_sort(axes, {}, place);
        Shape shape;
        for (const Expr& axis : axes) shape.push_back(axis.as<Variable>()->extent);
        std::string name = fresh_name(of.tensor.name() + "_" + reduce.reducer->name);
        inner.push_back(compute(
            name, shape,
            [&](const std::vector<Expr>& own) {
                Substitution rename;
                for (size_t d = 0; d < axes.size(); ++d) rename.emplace_back(axes[d], own[d]);
                return substitute(expr, rename);
            },
            of.tensor.operation()->where));
        needed_.insert(inner.back().operation().get());
        extracted_.push_back(inner.back());
        return element(inner.back(), axes);
    }

    void through_reduction(const Definition& of, const Reduce& reduce, const Tensor& adjoint) {
        for (const Axis& axis : axes_from(reduce))
            visit(axis.extent, [&](const Expr& e) {
                user_check(
                    !e.as<Read>(), reduce.where,
                    "gradients: data decide how long the reduction of '{}' over '{}' is; with_gradient(tensor, ...) "
                    "gives its derivative",
                    of.tensor.name(), to_string(axis.variable));
            });
        Expr incoming = element_as(of.tensor.type(), adjoint, of.axes());
        std::vector<Expr> loops = of.axes();
        auto op = combining_operation(*reduce.reducer);
        Substitution whole;
        for (const Axis& axis : axes_from(reduce)) {
            if (mentions_index(axis.extent)) {
                user_check(
                    op == BinaryOp::Add, reduce.where,
                    "gradients: '{}' reduces by '{}' over '{}', whose length depends on the element; only sums of "
                    "such lengths have a derivative, with_gradient(tensor, ...) gives another",
                    of.tensor.name(), reduce.reducer->name, to_string(axis.variable));
                whole.emplace_back(axis.variable, reduce_axis(to_string(axis.variable), longest(axis.extent)).variable);
                incoming = where_true(whole.back().second < axis.extent, incoming);
            }
            loops.push_back(substitute(axis.variable, whole));
        }
        Expr value = substitute(reduce.values[0], whole);
        if (op == BinaryOp::Mul)
            incoming = incoming * element(product_of_others(of, reduce), loops);
        else if (op == BinaryOp::Max || op == BinaryOp::Min)
            incoming = share_of_extreme(of, reduce, incoming);
        else
            user_check(op == BinaryOp::Add, reduce.where,
                       "gradients: '{}' reduces by '{}', which has no derivative; sum, prod, reduce_max and reduce_min "
                       "have one, with_gradient(tensor, ...) gives another",
                       of.tensor.name(), reduce.reducer->name);
        pass_on(adjoints_of_reads(value, incoming, value), loops);
    }

    /// The largest number that an extent over indices can be: of sums of indices by named sizes, else a number.
    static Expr longest(const Expr& extent) {
        Affine affine = affine_of(extent);
        Expr most = constant(Type::I64, affine.offset);
        for (const auto& [atom, factor] : affine.terms) {
            const Variable* variable = atom.as<Variable>();
            bool grows = variable && variable->kind == VariableKind::Index && variable->extent.defined() && factor > 0;
            if (mentions_index(atom) && !grows) return constant(Type::I64, bounds_of(extent).max.value());
            most = most + (grows ? variable->extent - 1 : atom) * factor;
        }
        return simplify(most);
    }

    /// The elements that equal the extreme share its adjoint evenly.
    Expr share_of_extreme(const Definition& of, const Reduce& reduce, const Expr& incoming) {
        Type type = of.tensor.type();
        Expr value = reduce.values[0];
        Tensor ties = compute(
            fresh_name(of.tensor.name() + "_ties"), shape_of(of.tensor),
            [&](const std::vector<Expr>& own) {
                Substitution rename;
                for (size_t d = 0; d < own.size(); ++d) rename.emplace_back(of.axes()[d], own[d]);
                Expr one =
                    select_unchecked(value == element(of.tensor, of.axes()), constant(type, 1.0), constant(type, 0.0));
                return substitute(sum(one, axes_from(reduce)), rename);
            },
            reduce.where);
        return where_true(value == element(of.tensor, of.axes()), incoming / element(ties, of.axes()));
    }

    static std::vector<Axis> axes_from(const Reduce& reduce) {
        std::vector<Axis> axes;
        for (const Expr& variable : reduce.axes) {
            Axis& axis = axes.emplace_back();
            axis.variable = variable;
            axis.extent = variable.as<Variable>()->extent;
        }
        return axes;
    }

    /// Without a division, which zeros would spoil: work grows with the square of the number of factors.
    Tensor product_of_others(const Definition& of, const Reduce& reduce) {
        Shape shape = shape_of(of.tensor);
        for (const Axis& axis : axes_from(reduce)) shape.push_back(axis.extent);
        size_t rank = of.axes().size();
        return compute(
            fresh_name(of.tensor.name() + "_others"), shape,
            [&](const std::vector<Expr>& own) {
                Substitution rename;
                for (size_t d = 0; d < rank; ++d) rename.emplace_back(of.axes()[d], own[d]);
                std::vector<Expr> same;
                for (size_t r = 0; r < reduce.axes.size(); ++r) same.push_back(reduce.axes[r] == own[rank + r]);
                Expr one = constant(of.tensor.type(), 1.0);
                return prod(select_unchecked(all_of(same), one, substitute(reduce.values[0], rename)),
                            axes_from(reduce));
            },
            reduce.where);
    }

    void pass_on(const std::vector<ReadAdjoint>& reads, const std::vector<Expr>& loops) {
        for (const ReadAdjoint& part : reads) {
            const Read& read = *part.read.as<Read>();
            if (!needed_.count(read.operation.get())) continue;
            Tensor tensor(read.operation, read.output);
            std::vector<Expr> axes = axes_of(tensor);
            const Expr value = without_zero_sums(transpose_read(part, loops, axes));
            if (value.defined()) add_part(tensor, axes, value);
        }
    }

    std::source_location where_;
    std::string scope_;              // of what is differentiated
    std::vector<Tensor> extracted_;  // keeps them, for keys are addresses
    std::set<const Operation*> needed_;
    std::set<std::string> own_names_;
    std::set<std::string>& names_;
    std::set<std::shared_ptr<const Operation>> named_;  // whose names are among these, with all that they read
    std::map<std::string, int> next_number_;            // of a name that is wished for again
    std::map<Key, Tensor> given_, finished_;
    std::map<Key, std::vector<Part>> parts_;
};

void check_given(const Tensor& output, const Tensor& adjoint, const std::vector<Tensor>& inputs,
                 std::source_location where) {
    user_check(output.defined() && adjoint.defined(), where,
               "gradients: the output or its adjoint is undefined; declare both with input() or compute() first");
    user_check(equal_shapes(output, adjoint), where,
               "gradients: '{}' is {}, its adjoint '{}' is {}; give one of the same shape", output.name(),
               shape_text(output.shape()), adjoint.name(), shape_text(adjoint.shape()));
    for (const Tensor* tensor : {&output, &adjoint})
        user_check(is_float(tensor->type()), where, "gradients: '{}' is {}; only floats have gradients", tensor->name(),
                   name_of(tensor->type()));
    for (const Tensor& input : inputs)
        user_check(input.defined() && is_float(input.type()), where,
                   "gradients: the input '{}' is {}; only tensors of floats have gradients",
                   input.defined() ? input.name() : "?", input.defined() ? name_of(input.type()) : "undefined");
}

}  // namespace

std::vector<Tensor> gradients(const Tensor& output, const Tensor& adjoint, const std::vector<Tensor>& inputs,
                              std::source_location where) {
    check_given(output, adjoint, inputs, where);
    check_gradient_rules(output, inputs, where);
    Differentiation differentiation(output, adjoint, inputs, where);
    std::vector<Tensor> results;
    for (const Tensor& input : inputs) results.push_back(differentiation.gradient(input));
    return results;
}

}  // namespace tw
