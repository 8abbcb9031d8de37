#include "dsl/own_schedule.h"

#include <algorithm>

#include "support/error.h"

namespace tw {

std::vector<Tensor> with_schedule(const std::string& name, const std::vector<Tensor>& operands,
                                  const PartResults& declare, const PartSchedule& schedule,
                                  std::source_location where) {
    user_check(!name.empty(), where, "with_schedule: no name; give one, by which equal parts are known");
    user_check(declare != nullptr && schedule != nullptr, where,
               "with_schedule of '{}': what {} is no function; give one", name, declare ? "schedules" : "declares");
    for (const Tensor& operand : operands)
        user_check(operand.defined(), where, "with_schedule of '{}': an operand is an undefined tensor", name);
    const auto own = std::make_shared<const OwnSchedule>(OwnSchedule{name, operands, declare, schedule, where});
    std::vector<Tensor> results = declare(operands), marked;
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
        auto operation = std::make_shared<Operation>(*result.operation());
        operation->own_schedule = own;
        operation->own_result = static_cast<int>(k);
        marked.emplace_back(std::move(operation), 0);
    }
    return marked;
}

}  // namespace tw
