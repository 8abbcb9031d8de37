// The driver's context of a device, and what calls of the driver come to.
#pragma once
#include <atomic>
#include <mutex>
#include <set>
#include <string>
#include <string_view>

#include "runtime/compile/library.h"

namespace tw {

/// Every driver call goes through check(): a code becomes a typed error, and one that kills the context is remembered,
/// so that all later calls tell the first cause instead of the driver's repetition of it.
class CudaContext {
protected:
    explicit CudaContext(const DriverTable& call) : call_(call) {}

    /// Before each call: refuses on a lost device, and makes the context this thread's. Throws StickyError.
    void enter();
    /// Throws StickyError, OutOfMemory, LaunchError or DriverError.
    void check(cuda::Result result, const char* what, std::string_view subject = {}) {
        if (result != cuda::Success) [[unlikely]]
            fail(result, what, subject);
    }
    /// A name that stays as long as the device, so that a launch notes it with one store.
    const std::string* intern(const std::string& name);

    const DriverTable call_;
    cuda::Context context_ = nullptr;
    std::string name_;  ///< of the device, for messages
    std::atomic<const std::string*> last_entry_ = nullptr;

private:
    [[noreturn]] void fail(cuda::Result result, const char* what, std::string_view subject);
    void lose(const std::string& cause);
    const std::string& lost_text();

    std::atomic<bool> lost_ = false;
    std::mutex mutex_;  // of the next two; no driver call is made under it
    std::string cause_;
    std::set<std::string> names_;
};

}  // namespace tw
