#include "ops/optimizers/check_parameters.h"

#include <algorithm>

#include "support/error.h"

namespace tw::nn {

void check_parameters(const std::string& who, const std::vector<Tensor>& parameters) {
    if (parameters.empty()) throw_error(Error, "{}: no parameters; give those of the layers", who);
    for (size_t p = 0; p < parameters.size(); ++p) {
        const Tensor& parameter = parameters[p];
        if (!parameter.defined()) throw_error(Error, "{}: parameter {} is an undefined tensor; make it first", who, p);
        if (parameter.shape().empty())
            throw_error(Error, "{}: parameter '{}' is a scalar; give it the shape [1]", who, parameter.name());
        if (parameter.type() != f32)
            throw_error(Error, "{}: parameter '{}' is {}; keep f32 ones, and cast them where they are used", who,
                        parameter.name(), name_of(parameter.type()));
        if (parameter.backend() != parameters[0].backend())
            throw_error(Error, "{}: parameters '{}' and '{}' are of different backends; make all with one", who,
                        parameters[0].name(), parameter.name());
        const auto before = parameters.begin() + static_cast<ptrdiff_t>(p);
        if (std::any_of(parameters.begin(), before, [&](const Tensor& other) { return other.same(parameter); }))
            throw_error(Error, "{}: parameter '{}' {} is given twice; name it once, in one group", who,
                        parameter.name(), shape_text(parameter.shape()));
    }
}

}  // namespace tw::nn
