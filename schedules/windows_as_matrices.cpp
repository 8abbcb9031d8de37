#include "schedules/windows_as_matrices.h"

#include <fmt/format.h>

#include "codegen/cost/predict_time.h"
#include "dsl/edit.h"
#include "schedules/choices.h"
#include "schedules/declare_products.h"

namespace tw::schedules {

Schedule with_windows_as_matrices(const std::vector<Tensor>& outputs, const Target& target,
                                  const std::function<FoundSchedule(const Redeclared& products)>& choose) {
    const Redeclared products = declare_products(outputs, target);
    FoundSchedule found = choose(products);
    if (found.off_units.empty()) return std::move(found.schedule);
    const Redeclared matrices = declare_products(outputs, target, found.off_units);
    if (matrices.notes.size() == products.notes.size()) return std::move(found.schedule);
    const KeptOutcomes before;
    FoundSchedule copied = choose(matrices);
    auto seconds = [&](const Schedule& s) { return codegen::predict_time(s.tree(), target).seconds; };
    if (seconds(copied.schedule) >= seconds(found.schedule)) {
        before.take_back();
        return std::move(found.schedule);
    }
    for (const std::string& why : found.reasons)
        Edit::note(copied.schedule, fmt::format("without copies of operands: {}", why));
    return std::move(copied.schedule);
}

}  // namespace tw::schedules
