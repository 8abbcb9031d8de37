#include "ops/optimizers/check_parameters.h"

#include <algorithm>

#include "support/error.h"

namespace tw::nn {

void check_parameters(const std::string& who, const std::vector<Tensor>& parameters, std::source_location where) {
    user_check(!parameters.empty(), where, "{}: no parameters; give those of the layers", who);
    for (size_t p = 0; p < parameters.size(); ++p) {
        const Tensor& parameter = parameters[p];
        user_check(parameter.defined(), where, "{}: parameter {} is an undefined tensor; make it first", who, p);
        user_check(!parameter.shape().empty(), where, "{}: parameter '{}' is a scalar; give it the shape [1]", who,
                   parameter.name());
        user_check(parameter.type() == f32, where,
                   "{}: parameter '{}' is {}; keep f32 ones, and cast them where they are used", who, parameter.name(),
                   name_of(parameter.type()));
        user_check(parameter.backend() == parameters[0].backend(), where,
                   "{}: parameters '{}' and '{}' are of different backends; make all with one", who,
                   parameters[0].name(), parameter.name());
        const auto before = parameters.begin() + static_cast<ptrdiff_t>(p);
        user_check(std::none_of(parameters.begin(), before, [&](const Tensor& other) { return other.same(parameter); }),
                   where, "{}: parameter '{}' {} is given twice; name it once, in one group", who, parameter.name(),
                   shape_text(parameter.shape()));
    }
}

}  // namespace tw::nn
