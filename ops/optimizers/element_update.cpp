#include "ops/optimizers/element_update.h"

#include <algorithm>
#include <cctype>

#include "ops/optimizers/gradient_norm.h"
#include "ops/optimizers/loss_scale.h"
#include "support/error.h"

namespace tw::nn {

std::string ElementUpdate::name() const {
    std::string name = rule.name;
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return name;
}

std::vector<std::string> ElementUpdate::outputs() const {
    std::vector<std::string> names;
    for (const std::string& state : rule.states) names.push_back(state + "_next");
    names.emplace_back("parameter_next");
    return names;
}

std::vector<Expr> ElementUpdate::next(const std::vector<Expr>& old, Expr gradient,
                                      const std::vector<tw::Tensor>& scalars) const {
    UpdateElements now{.parameter = old.back(),
                       .gradient = std::move(gradient),
                       .rate = scalars[0](),
                       .states = {old.begin(), old.end() - 1},
                       .numbers = {},
                       .weight_decay = weight_decay};
    if (rate_factor != 1) now.rate = now.rate * rate_factor;
    if (is_scaled) now.gradient = now.gradient * (1.0 / scalars[2]());
    if (max_norm > 0) now.gradient = now.gradient * clipping_factor(scalars[1](), max_norm);
    for (size_t k = is_scaled ? 3 : max_norm > 0 ? 2 : 1; k < scalars.size(); ++k) now.numbers.push_back(scalars[k]());
    std::vector<Expr> next = rule.next(now);
    user_check(next.size() == old.size(), std::source_location::current(),
               "{}: the rule makes {} values of {} states; return what each becomes, and the parameter", rule.name,
               next.size(), rule.states.size());
    for (size_t k = 0; k < old.size(); ++k)
        user_check(next[k].defined() && next[k].type() == old[k].type(), std::source_location::current(),
                   "{}: the rule makes {} of '{}', which is {}; return what it becomes as cast({}, ...)", rule.name,
                   next[k].defined() ? name_of(next[k].type()) : "nothing", outputs()[k], name_of(old[k].type()),
                   name_of(old[k].type()));
    if (is_scaled)
        for (size_t k = 0; k < old.size(); ++k) next[k] = select(is_a_step(scalars[1]()), next[k], old[k]);
    return next;
}

}  // namespace tw::nn
