#include "ops/tape/distinct_operations.h"

#include <algorithm>
#include <set>
#include <string>

#include <fmt/format.h>

#include "schedules/replace_tensors.h"

namespace tw::nn {

std::vector<tw::Tensor> with_distinct_operations(const std::vector<tw::Tensor>& outputs) {
    const auto operations = operations_of(outputs);
    const auto keeps_name = [&](const std::shared_ptr<const Operation>& operation) {
        return operation->is_input() ||
               std::ranges::any_of(outputs, [&](const tw::Tensor& each) { return each.operation() == operation; });
    };
    std::set<std::string> names;
    for (const auto& operation : operations)
        if (keeps_name(operation)) names.insert(operation->name);
    schedules::Replacement renamed;
    bool are_distinct = true;
    for (const auto& operation : operations) {
        if (keeps_name(operation) || names.insert(operation->name).second) continue;
        are_distinct = false;
        std::string name;
        for (int n = 2; !names.insert(name = fmt::format("{}_{}", operation->name, n)).second;) ++n;
        const tw::Tensor own(operation, 0);
        const Operation now = *renamed.of(own).operation();
        renamed.put(own, {schedules::declared_again(now, name, schedules::bodies_of(now)), 0});
    }
    if (are_distinct) return outputs;
    std::vector<tw::Tensor> distinct;
    for (const tw::Tensor& output : outputs) distinct.push_back(renamed.of(output));
    return distinct;
}

}  // namespace tw::nn
