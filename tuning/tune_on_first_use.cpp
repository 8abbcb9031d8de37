#include "tuning/tune_on_first_use.h"

#include <cstdlib>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "runtime/compile/cubin_cache.h"
#include "support/error.h"

namespace tw {
namespace {

/// Of $TW_TUNE; nothing if it is off.
std::optional<double> seconds_wanted() {
    const char* wanted = std::getenv("TW_TUNE");
    const std::string text = wanted ? wanted : "";
    if (text.empty() || text == "off") return {};
    char* end = nullptr;
    const double seconds = std::strtod(text.c_str(), &end);
    if (*end != 0 || !(seconds > 0) || seconds > 1e6)
        throw_error(Error, "TW_TUNE is '{}'; give seconds for each declaration, as TW_TUNE=8, or off", text);
    return seconds;
}

}  // namespace

void tune_on_first_use(Registry& registry, const std::shared_ptr<Device>& device, const TuneRequest& request) {
    if (!device) throw_error(Error, "tune_on_first_use: no device; give the one that the kernels run on");
    if (device->kind() != DeviceKind::Cuda && !request.clock)
        throw_error(Error,
                    "tune_on_first_use: {} has no times to choose by; give a GPU, as open_device(\"cuda\"), or a "
                    "clock of your own, TuneRequest::clock",
                    device->name());
    if (!request.keep)
        throw_error(Error, "tune_on_first_use: keep = false; what is measured is found again as a record, keep it");
    registry.tune_by([device, request](const std::vector<Tensor>& outputs, const Target&) {
        const TunedDeclaration tuned = tune(outputs, device, request);
        fmt::print(stderr, "tuned {}\n", tuned.text.substr(0, tuned.text.find('\n')));
    });
}

void tune_on_first_use(Registry& registry, const std::shared_ptr<Device>& device) {
    constexpr size_t best_few = 12;
    constexpr double share_of_finals = 0.25;
    const std::optional<double> seconds = seconds_wanted();
    if (!seconds) return;
    if (device && device->kind() != DeviceKind::Cuda) {
        warn_once(fmt::format("TW_TUNE={} tunes nothing: {} has no times to choose by", std::getenv("TW_TUNE"),
                              device->name()));
        registry.tune_by([](const std::vector<Tensor>&, const Target&) {});  // said once
        return;
    }
    tune_on_first_use(registry, device, {.limit = best_few, .seconds = share_of_finals * *seconds, .within = *seconds});
}

}  // namespace tw
