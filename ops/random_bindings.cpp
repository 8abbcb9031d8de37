#include "dsl/check_bindings.h"
#include "ops/check.h"
#include "ops/integer_ranges.h"

namespace tw {
namespace {

/// Every expression that may name a size or a scalar: extents, strides and formulas.
template <class See>
void visit_variables(const Operation& operation, const See& see) {
    auto visit_all = [&](const std::vector<Expr>& roots) {
        for (const Expr& root : roots)
            visit(root, [&](const Expr& e) {
                if (const Variable* variable = e.as<Variable>()) see(e.type(), *variable);
            });
    };
    visit_all(operation.shape);
    visit_all(operation.strides);
    for (const auto& output : operation.outputs)
        if (output.body.defined()) visit_all({output.body});
}

Value some_scalar(Type type) { return is_float(type) ? make_value(type, 0.75) : make_value(type, int64_t{3}); }

HostArray random_array(const Operation& input, const Bindings& sizes, const IntegerRange& range,
                       const std::function<void(HostArray&, uint64_t seed)>& fill_floats, uint64_t seed) {
    HostArray array =
        host_array(input.outputs[0].type, extents_of(input.shape, sizes), extents_of(input.strides, sizes));
    if (is_float(array.type) && fill_floats)
        fill_floats(array, seed);
    else if (is_float(array.type))
        fill_uniform(array, -1, 1, seed);
    else
        fill_integers(array, range, seed);
    return array;
}

}  // namespace

Bindings random_bindings(const std::vector<Tensor>& outputs, uint64_t seed,
                         const std::function<void(HostArray&, uint64_t seed)>& fill_floats) {
    Bindings bindings;
    auto operations = operations_of(outputs);
    for (const auto& operation : operations)
        visit_variables(*operation, [&](Type type, const Variable& variable) {
            if (variable.kind == VariableKind::Size) bindings.sizes[variable.name] = variable.max.value_or(1);
            if (variable.kind == VariableKind::Scalar) bindings.scalars[variable.name] = some_scalar(type);
        });
    auto ranges = integer_ranges(outputs, bindings);
    for (const auto& operation : operations)
        if (operation->is_input())
            bindings.inputs[operation->name] = random_array(*operation, bindings, ranges[operation->name], fill_floats,
                                                            seed * 1000003 + bindings.inputs.size());
    return bindings;
}

}  // namespace tw
