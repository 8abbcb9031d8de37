// What a launch is given, looked up by name and checked.
#pragma once
#include <vector>

#include "dsl/interpret.h"

namespace tw {

/// The size's value. Throws Error if it is missing, out of its bounds, or no multiple of what was declared.
int64_t bound_size(const Expr& size, const Bindings& bindings);
/// The scalar's value, of its declared type. Throws Error if it is missing or has another type.
Value bound_scalar(const Expr& scalar, const Bindings& bindings);
/// An expression of sizes and constants.
int64_t extent_of(const Expr& extent, const Bindings& bindings);
std::vector<int64_t> extents_of(const std::vector<Expr>& extents, const Bindings& bindings);

/// The array of an input. Throws Error if it is missing, or its type, shape or strides are not the declared ones.
const HostArray& bound_input(const std::string& name, Type type, const std::vector<Expr>& shape,
                             const std::vector<Expr>& strides, const Bindings& bindings);
inline const HostArray& bound_input(const Operation& input, const Bindings& bindings) {
    return bound_input(input.name, input.outputs[0].type, input.shape, input.strides, bindings);
}
inline const HostArray& bound_input(const BufferNode& input, const Bindings& bindings) {
    return bound_input(input.name, input.type, declared_shape(input), input.strides, bindings);
}

}  // namespace tw
