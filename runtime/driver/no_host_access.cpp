#include "runtime/driver/no_host_access.h"

#include <iterator>
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

void NoHostAccess::check(const Device& device, const char* what, const std::string& buffer,
                         std::source_location where) {
    if (const NoHostAccess* own = innermost_of(device))
        throw_error(
            LaunchError,
            "{}buffer '{}' is {} while a step is {}, which computes nothing yet; do it outside of the step: write "
            "before it runs, and read behind that",
            where_prefix(where), buffer, what, own->how_);
}

void NoHostAccess::check_work(const Device& device, std::string_view who, const std::string& name, const char* what,
                              std::source_location where) {
    if (const NoHostAccess* own = innermost_of(device))
        throw_error(LaunchError,
                    "{}{} '{}' is {} while a step is {}: that happens once, now, and in no run of the step; do it "
                    "outside, or call an operator, which belongs to the step",
                    where_prefix(where), who, name, what, own->how_);
}

void NoHostAccess::note_allocated(const Device& device, uint64_t pointer, int64_t bytes) {
    NoHostAccess* own = innermost_of(device);
    if (!own || bytes <= 0) return;
    note_used(device, pointer, bytes);  // of what had the memory before
    own->new_.emplace(pointer, pointer + static_cast<uint64_t>(bytes));
}

void NoHostAccess::note_used(const Device& device, uint64_t pointer, int64_t bytes) {
    NoHostAccess* own = innermost_of(device);
    if (!own || bytes <= 0) return;
    const uint64_t end = pointer + static_cast<uint64_t>(bytes);
    auto& ranges = own->new_;
    auto next = ranges.upper_bound(pointer);
    if (next != ranges.begin() && std::prev(next)->second > pointer) --next;
    while (next != ranges.end() && next->first < end) {
        const auto [first, last] = *next;
        next = ranges.erase(next);
        if (first < pointer) ranges.emplace(first, pointer);
        if (last > end) ranges.emplace(end, last);
    }
}

bool NoHostAccess::is_new(const Device& device, uint64_t pointer, int64_t bytes) {
    const NoHostAccess* own = innermost_of(device);
    if (!own) return false;
    if (bytes <= 0) return true;
    const auto next = own->new_.upper_bound(pointer);
    return next != own->new_.begin() && std::prev(next)->second >= pointer + static_cast<uint64_t>(bytes);
}

HostAccessAgain::HostAccessAgain() : refused_(std::exchange(innermost_refusal, nullptr)) {}
HostAccessAgain::~HostAccessAgain() { innermost_refusal = refused_; }

}  // namespace tw
