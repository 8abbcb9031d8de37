// From a name to a device; never another than the one that was asked for.
#include <charconv>
#include <cstdlib>
#include <map>
#include <mutex>

#include "runtime/driver/cuda_device.h"
#include "runtime/driver/driver.h"
#include "runtime/driver/emulated_device.h"
#include "runtime/driver/null_device.h"

namespace tw {
namespace {

// One object for a GPU, so that its pool is one, and a lost context is lost for all who hold it.
std::shared_ptr<Device> open_cuda(int ordinal) {
    static std::mutex mutex;
    static std::map<int, std::weak_ptr<Device>> opened;
    std::lock_guard lock(mutex);
    if (auto device = opened[ordinal].lock()) return device;
    auto device = make_cuda_device(load_driver(), ordinal);
    opened[ordinal] = device;
    return device;
}

// One object for a name as long as somebody holds it, so that what is made by two calls goes together.
std::shared_ptr<Device> open_once(const std::string& which) {
    static std::mutex mutex;
    static std::map<std::string, std::weak_ptr<Device>> opened;
    std::lock_guard lock(mutex);
    if (auto device = opened[which].lock()) return device;
    auto device = open_device(which);
    opened[which] = device;
    return device;
}

// The number of "cuda:1"; -1 when it is none.
int parse_ordinal(std::string_view text) {
    int ordinal = -1;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), ordinal);
    return error == std::errc() && end == text.data() + text.size() ? ordinal : -1;
}

}  // namespace

std::shared_ptr<Device> open_device(std::string_view which) {
    size_t colon = which.find(':');
    std::string_view kind = which.substr(0, colon);
    std::string_view detail = colon == std::string_view::npos ? std::string_view() : which.substr(colon + 1);
    bool plain = colon == std::string_view::npos;

    int ordinal = plain ? 0 : parse_ordinal(detail);
    if (kind == "cuda" && ordinal >= 0) return open_cuda(ordinal);
    if (kind == "emulated") return make_emulated_device(plain ? "sm_90a" : detail);
    if (kind == "null") return make_null_device(plain ? "sm_90a" : detail);
    throw_error(NoDevice, "open_device(\"{}\"): write cuda, cuda:N, emulated, emulated:ARCH, null or null:ARCH", which);
}

ChosenDevice best_device() {
    if (const char* wish = std::getenv("TW_DEVICE"); wish && *wish)
        return {open_once(wish), fmt::format("{}: TW_DEVICE asks for it", wish)};
    std::string reason;
    try {
        load_nvrtc();
        auto device = open_device("cuda");
        return {device, fmt::format("cuda: {}", device->name())};
    } catch (const RuntimeError& error) {
        reason = error.what();
    }
    return {open_once("emulated"), fmt::format("emulated, because {}", reason)};
}

}  // namespace tw
