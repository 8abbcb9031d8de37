#include "ops/made_between.h"

#include <algorithm>
#include <functional>
#include <set>

#include "dsl/walk.h"
#include "schedules/views.h"

namespace tw {
namespace {

using OperationRef = std::shared_ptr<const Operation>;

std::vector<OperationRef> read_by(const Operation& operation) {
    std::vector<OperationRef> result;
    for (const Operation::Output& output : operation.outputs)
        if (output.body.defined())
            visit_with_extents(output.body, [&](const Expr& e) {
                if (const Read* read = e.as<Read>()) result.push_back(read->operation);
            });
    return result;
}

Tensor with_memory(Tensor tensor) {
    while (schedules::is_view(*tensor.operation()) && !tensor.operation()->own_schedule)
        tensor = Tensor(read_by(*tensor.operation())[0], 0);
    return tensor;
}

}  // namespace

MadeBetween made_between(const std::vector<Tensor>& inputs, const std::vector<Tensor>& results) {
    MadeBetween between;
    std::set<const Operation*> outside, seen;
    for (const Tensor& input : inputs) {
        outside.insert(input.operation().get());
        outside.insert(with_memory(input).operation().get());
    }
    for (const Tensor& result : results) between.results.push_back(with_memory(result));
    const std::function<void(const OperationRef&)> add = [&](const OperationRef& operation) {
        if (operation->is_input() || outside.contains(operation.get()) || !seen.insert(operation.get()).second) return;
        for (const OperationRef& read : read_by(*operation)) add(read);
        const bool is_result =
            std::ranges::any_of(between.results, [&](const Tensor& result) { return result.operation() == operation; });
        if (!is_result && (operation->own_schedule || !schedules::is_view(*operation)))
            between.inside.emplace_back(operation, 0);
    };
    for (const Tensor& result : between.results) add(result.operation());
    return between;
}

}  // namespace tw
