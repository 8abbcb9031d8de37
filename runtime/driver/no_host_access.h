// Steps that are written down: nothing has run yet, so that there is nothing for the host to read.
#pragma once
#include <cstdint>
#include <map>
#include <source_location>
#include <string>
#include <string_view>

namespace tw {

class Device;

/// While it lives, what this thread would have the device do at once throws LaunchError, with the caller's line, which
/// says that a step is `how`, "recorded", say: reads and writes from the host, copies, fills, launches, graphs, and
/// events of streams. Bytes that are allocated meanwhile may be written and filled from the host until they are used:
/// constants of the step begin so.
class [[nodiscard]] NoHostAccess {
public:
    NoHostAccess(const Device& device, std::string how);
    ~NoHostAccess();
    NoHostAccess(const NoHostAccess&) = delete;
    NoHostAccess& operator=(const NoHostAccess&) = delete;

    /// These throw LaunchError if one of this thread's is of the device. `buffer` is "read" or "written":
    static void check(const Device& device, const char* what, const std::string& buffer, std::source_location where);
    /// `who` ("kernel 'saxpy'") is "launched", say, at once, and in no run of the step.
    static void check_work(const Device& device, std::string_view who, const std::string& name, const char* what,
                           std::source_location where);
    /// That bytes of the device have been allocated here.
    static void note_allocated(const Device& device, uint64_t pointer, int64_t bytes);
    /// That what is written down reads or writes them from here on.
    static void note_used(const Device& device, uint64_t pointer, int64_t bytes);
    /// Whether all of them have been allocated since one of this thread's is there, and none is used yet; so of none.
    static bool is_new(const Device& device, uint64_t pointer, int64_t bytes);

private:
    static NoHostAccess* innermost_of(const Device& device);

    const Device& device_;
    const std::string how_;
    NoHostAccess* const around_;
    std::map<uint64_t, uint64_t> new_;  // addresses: where bytes begin that are allocated and not used, and their end
};

/// While it lives, none of this thread's NoHostAccess refuses anything: for what runs by itself, as the measuring of
/// kernels that a step needs for the first time.
class [[nodiscard]] HostAccessAgain {
public:
    HostAccessAgain();
    ~HostAccessAgain();
    HostAccessAgain(const HostAccessAgain&) = delete;
    HostAccessAgain& operator=(const HostAccessAgain&) = delete;

private:
    NoHostAccess* const refused_;
};

}  // namespace tw
