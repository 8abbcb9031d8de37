#include "schedules/calibrated_speeds.h"

#include <filesystem>
#include <map>
#include <mutex>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/compile/cubin_cache.h"
#include "support/error.h"
#include "support/version.h"

namespace tw::schedules {
namespace {

using codegen::DeviceSpeeds;

std::filesystem::path folder_of_speeds() {
    const std::filesystem::path cache = default_cache_directory();
    return cache.empty() ? cache : cache / "speeds";
}

std::string key_of(const Target& target) { return fmt::format("speeds of {} by {}", target.arch, TILEWRIGHT_VERSION); }

std::string text_of(const DeviceSpeeds& speeds) {
    nlohmann::json json;
    for (const codegen::DeviceSpeed& each : codegen::device_speeds()) json[each.name] = speeds.*each.value;
    return json.dump();
}

/// What the text leaves out, or has as no positive number, is an H200's.
DeviceSpeeds parsed(const std::string& text) {
    DeviceSpeeds speeds;
    const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
    for (const codegen::DeviceSpeed& each : codegen::device_speeds())
        if (json.is_object() && json.contains(each.name) && json[each.name].is_number() && json[each.name] > 0)
            speeds.*each.value = json[each.name];
    return speeds;
}

DeviceSpeeds read_speeds(const Target& target) {
    const std::filesystem::path folder = folder_of_speeds();
    std::error_code ignored;
    if (folder.empty() || !std::filesystem::is_directory(folder, ignored)) return {};
    const auto text = CubinCache(folder).load(key_of(target));
    return text ? parsed(*text) : DeviceSpeeds{};
}

/// By folder and architecture. Never freed: references stay.
std::map<std::string, DeviceSpeeds>& known_speeds() {
    static auto* known = new std::map<std::string, DeviceSpeeds>;
    return *known;
}
std::mutex known_mutex;

std::string name_of_known(const Target& target) { return folder_of_speeds().string() + "\n" + target.arch; }

}  // namespace

const DeviceSpeeds& calibrated_speeds(const Target& target) {
    std::lock_guard lock(known_mutex);
    auto [known, is_new] = known_speeds().try_emplace(name_of_known(target));
    if (is_new) known->second = read_speeds(target);
    return known->second;
}

void keep_speeds(const Target& target, const DeviceSpeeds& speeds) {
    CubinCache kept(folder_of_speeds());
    if (!kept.store(key_of(target), text_of(speeds)))
        throw_error(Error, "cannot keep the speeds of {} in {}; give a folder of yours by TW_CACHE_DIR", target.arch,
                    folder_of_speeds().string());
    std::lock_guard lock(known_mutex);
    known_speeds()[name_of_known(target)] = speeds;
}

}  // namespace tw::schedules
