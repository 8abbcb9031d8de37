#include "dsl/named_tensor.h"

#include <fmt/ranges.h>

#include "support/error.h"

namespace tw {

Tensor named_tensor(const std::vector<Tensor>& outputs, const std::string& name, std::source_location where) {
    std::vector<std::string> names;
    for (const auto& operation : operations_of(outputs)) {
        if (operation->name == name) return Tensor(operation, 0);
        names.push_back(operation->name);
    }
    user_error(where, "named_tensor({}): no tensor is called so; take one of {}", name, fmt::join(names, ", "));
}

}  // namespace tw
