#include "schedules/free_names.h"

#include <fmt/format.h>

namespace tw::schedules {

FreeNames::FreeNames(const std::vector<Tensor>& outputs) {
    for (const auto& operation : operations_of(outputs)) {
        taken_.insert(operation->name);
        for (size_t k = 0; k < operation->outputs.size(); ++k)
            taken_.insert(Tensor(operation, static_cast<int>(k)).name());
    }
}

std::string FreeNames::take(const std::string& wanted) {
    std::string name = wanted;
    for (int number = 2; !taken_.insert(name).second; ++number) name = fmt::format("{}_{}", wanted, number);
    return name;
}

}  // namespace tw::schedules
