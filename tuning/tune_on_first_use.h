// Tuning while a program runs: each declaration when its kernels are first asked for.
#pragma once
#include <memory>

#include "ops/registry.h"
#include "tuning/tune_declaration.h"

namespace tw {

/// Has the registry tune a declaration of which there is no record when it is first asked for its kernels: `request`
/// says for how long. What was kept is taken from then on, by every program of this user; a line on the standard error
/// says what won. A record of the declaration's bucket does not count. Throws Error without a device, with one that has
/// no times where the request has no clock, or if the request keeps nothing.
void tune_on_first_use(Registry& registry, const std::shared_ptr<Device>& device, const TuneRequest& request);

/// The same as the environment says. TW_TUNE=8: eight seconds for each declaration, in which its dozen best candidates
/// by the model of time are compiled and measured; the check behind them takes some seconds more. "off", or nothing:
/// nothing is tuned. Without a GPU nothing is, and a warning says so. Throws Error for any other text.
void tune_on_first_use(Registry& registry, const std::shared_ptr<Device>& device);

}  // namespace tw
