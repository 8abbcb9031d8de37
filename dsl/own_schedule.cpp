#include "dsl/own_schedule.h"

#include <algorithm>
#include <functional>
#include <set>

#include "support/error.h"

namespace tw {
namespace {

/// An input that the results are made of and that is no operand.
Tensor stranger_among(const std::vector<Tensor>& results, const std::vector<Tensor>& operands) {
    std::set<const Operation*> seen;
    for (const Tensor& operand : operands) seen.insert(operand.operation().get());
    Tensor found;
    std::function<void(const std::shared_ptr<const Operation>&)> look_at = [&](const auto& operation) {
        if (!seen.insert(operation.get()).second) return;
        if (operation->is_input()) found = Tensor(operation, 0);
        for (const Operation::Output& output : operation->outputs)
            if (output.body.defined())
                visit_with_extents(output.body, [&](const Expr& e) {
                    if (const Read* read = e.as<Read>()) look_at(read->operation);
                });
    };
    for (const Tensor& result : results) look_at(result.operation());
    return found;
}

}  // namespace

std::vector<Tensor> with_schedule(const std::string& name, const std::vector<Tensor>& operands,
                                  const PartResults& declare, const PartSchedule& schedule, ScheduleOf schedules,
                                  std::source_location where) {
    user_check(!name.empty(), where, "with_schedule: no name; give one, by which equal parts are known");
    user_check(declare != nullptr && schedule != nullptr, where,
               "with_schedule of '{}': what {} is no function; give one", name, declare ? "schedules" : "declares");
    for (const Tensor& operand : operands)
        user_check(operand.defined(), where, "with_schedule of '{}': an operand is an undefined tensor", name);
    const std::vector<Tensor> results = declare(operands);
    for (size_t k = 0; k < results.size(); ++k) {
        const Tensor& result = results[k];
        user_check(result.defined() && !result.operation()->is_input() && result.operation()->outputs.size() == 1,
                   where, "with_schedule of '{}': result {} is {}; declare each by compute()", name, k,
                   !result.defined()                ? "undefined"
                   : result.operation()->is_input() ? "an input"
                                                    : "a component of a tuple");
        user_check(std::none_of(results.begin(), results.begin() + static_cast<ptrdiff_t>(k),
                                [&](const Tensor& earlier) { return earlier.same(result); }),
                   where, "with_schedule of '{}': '{}' is two of its results; name it once", name, result.name());
    }
    const Tensor stranger = stranger_among(results, operands);
    user_check(!stranger.defined(), where,
               "with_schedule of '{}': its results read '{}', which is no operand; name it as one", name,
               stranger.defined() ? stranger.name() : "");
    const auto own =
        std::make_shared<const OwnSchedule>(OwnSchedule{name, operands, declare, schedule, schedules, where, results});
    std::vector<Tensor> marked;
    for (size_t k = 0; k < results.size(); ++k) {
        auto operation = std::make_shared<Operation>(*results[k].operation());
        operation->own_schedule = own;
        operation->own_result = static_cast<int>(k);
        marked.emplace_back(std::move(operation), 0);
    }
    return marked;
}

}  // namespace tw
