#include "schedules/choose_in_place.h"

#include "schedules/choose.h"

namespace tw::schedules {

Schedule choose_in_place(const Declared& declared, const Target& target) {
    Schedule s = choose_schedule(declared.outputs, target);
    const std::vector<Tensor> outputs = s.outputs();  // that a rule may have declared anew
    for (const auto& [out, in] : declared.in_place)
        for (size_t k = 0; k < outputs.size(); ++k)
            if (declared.outputs[k].same(out)) s.in_place(outputs[k], in);
    return s;
}

}  // namespace tw::schedules
