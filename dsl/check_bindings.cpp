#include "dsl/check_bindings.h"

#include "dsl/simplify.h"
#include "support/error.h"

namespace tw {
namespace {

void check_value(const Variable& size, int64_t value) {
    auto refuse = [&](const std::string& fact) {
        throw_error(Error, "launch: size '{}' is {}, {}; see its declaration", size.name, value, fact);
    };
    if (size.min && value < *size.min) refuse(fmt::format("but is at least {}", *size.min));
    if (size.max && value > *size.max) refuse(fmt::format("but is at most {}", *size.max));
    if (value % size.multiple_of != 0) refuse(fmt::format("but is a multiple of {}", size.multiple_of));
}

}  // namespace

int64_t bound_size(const Expr& size, const Bindings& bindings) {
    const Variable& variable = *size.as<Variable>();
    auto found = bindings.sizes.find(variable.name);
    if (found == bindings.sizes.end())
        throw_error(Error, "launch: size '{0}' has no value; set(\"{0}\", value) gives a Runner one", variable.name);
    check_value(variable, found->second);
    return found->second;
}

Value bound_scalar(const Expr& scalar, const Bindings& bindings) {
    const Variable& variable = *scalar.as<Variable>();
    auto found = bindings.scalars.find(variable.name);
    if (found == bindings.scalars.end())
        throw_error(Error, "launch: scalar '{0}' has no value; set(\"{0}\", value) gives a Runner one", variable.name);
    if (found->second.type != scalar.type())
        throw_error(Error, "launch: scalar '{}' is {}, but is declared as {}", variable.name,
                    name_of(found->second.type), name_of(scalar.type()));
    return found->second;
}

int64_t extent_of(const Expr& extent, const Bindings& bindings) {
    if (auto known = as_constant(extent)) return *known;
    Substitution sizes;
    visit(extent, [&](const Expr& e) {
        const Variable* variable = e.as<Variable>();
        if (variable && variable->kind == VariableKind::Size)
            sizes.emplace_back(e, constant(e.type(), bound_size(e, bindings)));
    });
    return require_constant(simplify(substitute(extent, sizes)));
}

std::vector<int64_t> extents_of(const std::vector<Expr>& extents, const Bindings& bindings) {
    std::vector<int64_t> values;
    for (const Expr& extent : extents) values.push_back(extent_of(extent, bindings));
    return values;
}

const HostArray& bound_input(const std::string& name, Type type, const std::vector<Expr>& shape,
                             const std::vector<Expr>& strides, const Bindings& bindings) {
    auto found = bindings.inputs.find(name);
    if (found == bindings.inputs.end()) throw_error(Error, "launch: input '{}' has no array; bind it", name);
    const HostArray& array = found->second;
    if (array.type != type)
        throw_error(Error, "launch: input '{}' is {}, but is declared as {}", name, name_of(array.type), name_of(type));
    std::vector<int64_t> wanted = extents_of(shape, bindings);
    if (array.shape != wanted)
        throw_error(Error, "launch: input '{}' has shape {}, but is declared as {}", name, indices_text(array.shape),
                    indices_text(wanted));
    std::vector<int64_t> steps = strides.empty() ? dense_strides(wanted) : extents_of(strides, bindings);
    if (array.strides != steps)
        throw_error(Error, "launch: input '{}' has strides {}, but is declared with {}", name,
                    indices_text(array.strides), indices_text(steps));
    return array;
}

}  // namespace tw
