#include "runtime/driver/no_host_access.h"

#include <utility>

#include "runtime/driver/driver.h"

namespace tw {
namespace {

thread_local NoHostAccess* innermost_refusal = nullptr;

}  // namespace

NoHostAccess::NoHostAccess(const Device& device, std::string how)
    : device_(device), how_(std::move(how)), around_(std::exchange(innermost_refusal, this)) {}

NoHostAccess::~NoHostAccess() { innermost_refusal = around_; }

NoHostAccess* NoHostAccess::innermost_of(const Device& device) {
    NoHostAccess* each = innermost_refusal;
    while (each && &each->device_ != &device) each = each->around_;
    return each;
}

void NoHostAccess::check(const Device& device, const char* what, const std::string& buffer) {
    if (const NoHostAccess* own = innermost_of(device))
        throw_error(
            LaunchError,
            "buffer '{}' is {} while a step is {}, which computes nothing yet; do it outside of the step: write "
            "before it runs, and read behind that",
            buffer, what, own->how_);
}

void NoHostAccess::note_allocated(const Device& device, uint64_t pointer) {
    if (NoHostAccess* own = innermost_of(device)) own->allocated_.insert(pointer);
}

void NoHostAccess::note_used(const Device& device, uint64_t pointer) {
    if (NoHostAccess* own = innermost_of(device)) own->allocated_.erase(pointer);
}

bool NoHostAccess::is_new(const Device& device, uint64_t pointer) {
    const NoHostAccess* own = innermost_of(device);
    return own && own->allocated_.contains(pointer);
}

HostAccessAgain::HostAccessAgain() : refused_(std::exchange(innermost_refusal, nullptr)) {}
HostAccessAgain::~HostAccessAgain() { innermost_refusal = refused_; }

}  // namespace tw
