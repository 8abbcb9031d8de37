#include "ops/rounded_declaration.h"

#include <algorithm>

#include "dsl/expr.h"
#include "schedules/replace_tensors.h"

namespace tw {
namespace {

/// The operation, over what stands for what it reads, each result rounded.
Tensor rounded_again(const Operation& operation, Type type) {
    std::vector<Expr> bodies = schedules::bodies_of(operation);
    for (Expr& body : bodies)
        if (is_float(body.type())) body = round_to(type, body);
    return {schedules::declared_again(operation, operation.name, bodies), 0};
}

}  // namespace

Tensor with_roundings(const Tensor& output, const std::vector<std::pair<Tensor, Type>>& rounded) {
    if (rounded.empty()) return output;
    schedules::Replacement replacement;
    for (const auto& operation : operations_of({output})) {  // what is read before what reads it
        const auto found =
            std::ranges::find_if(rounded, [&](const auto& each) { return each.first.operation() == operation; });
        if (found == rounded.end()) continue;
        const Tensor as_declared(operation, 0);
        replacement.put(as_declared, rounded_again(*replacement.of(as_declared).operation(), found->second));
    }
    return replacement.of(output);
}

}  // namespace tw
