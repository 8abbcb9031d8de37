#include "runtime/driver/cuda_context.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "runtime/driver/driver.h"
#include "support/error.h"

namespace tw {
namespace {

using cuda::Result;

// After these the context serves no call any more (cuda.h: "must be terminated and relaunched").
bool is_sticky(Result result) {
    constexpr std::array codes{cuda::ErrorEccUncorrectable,
                               cuda::ErrorIllegalAddress,
                               cuda::ErrorLaunchTimeout,
                               cuda::ErrorContextIsDestroyed,
                               cuda::ErrorAssert,
                               cuda::ErrorHardwareStack,
                               cuda::ErrorIllegalInstruction,
                               cuda::ErrorMisalignedAddress,
                               cuda::ErrorInvalidAddressSpace,
                               cuda::ErrorInvalidPc,
                               cuda::ErrorLaunchFailed};
    return std::find(codes.begin(), codes.end(), result) != codes.end();
}

}  // namespace

void CudaContext::enter() {
    if (lost_.load(std::memory_order_acquire)) throw_error(StickyError, "{}", lost_text());
    check(call_.ctx_set_current(context_), "cuCtxSetCurrent");
}

void CudaContext::fail(Result result, const char* what, std::string_view subject) {
    std::string where =
        fmt::format("{}{}: {}", what, subject.empty() ? "" : fmt::format(" of '{}'", subject), describe(call_, result));
    if (is_sticky(result)) {
        lose(where);
        throw_error(StickyError, "{}", lost_text());
    }
    if (result == cuda::ErrorOutOfMemory) throw_error(OutOfMemory, "{} on {}", where, name_);
    if (result == cuda::ErrorLaunchOutOfResources)
        throw_error(LaunchError, "{}; the kernel needs more registers or shared memory than a block may have", where);
    throw_error(DriverError, "{} on {}", where, name_);
}

void CudaContext::lose(const std::string& cause) {
    std::lock_guard lock(mutex_);
    if (lost_) return;
    const std::string* entry = last_entry_;
    cause_ = fmt::format("{} is lost to this process: {}; last launched: {}. Only a new process helps.", name_, cause,
                         entry ? *entry : "nothing");
    lost_.store(true, std::memory_order_release);
}

const std::string& CudaContext::lost_text() {
    std::lock_guard lock(mutex_);
    return cause_;  // never changes again
}

const std::string* CudaContext::intern(const std::string& name) {
    std::lock_guard lock(mutex_);
    return &*names_.insert(name).first;
}

}  // namespace tw
