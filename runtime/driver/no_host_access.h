// Steps that are written down: nothing has run yet, so that there is nothing for the host to read.
#pragma once
#include <cstdint>
#include <set>
#include <string>

namespace tw {

class Device;

/// While it lives, this thread's Buffer::read(), copy_to_host() and write() of the device's memory throw LaunchError,
/// which says that a step is `how`, "recorded", say. write() stays for what is allocated meanwhile, until it is used,
/// and copy_from_host() for all: constants of the step begin by these.
class [[nodiscard]] NoHostAccess {
public:
    NoHostAccess(const Device& device, std::string how);
    ~NoHostAccess();
    NoHostAccess(const NoHostAccess&) = delete;
    NoHostAccess& operator=(const NoHostAccess&) = delete;

    /// Throws LaunchError if one of this thread's is of the device: `buffer` is "read" or "written".
    static void check(const Device& device, const char* what, const std::string& buffer);
    /// That memory of the device has been allocated here.
    static void note_allocated(const Device& device, uint64_t pointer);
    /// That what is written down reads or writes it from here on.
    static void note_used(const Device& device, uint64_t pointer);
    /// Whether it has been allocated since one of this thread's is there, and is not used yet.
    static bool is_new(const Device& device, uint64_t pointer);

private:
    static NoHostAccess* innermost_of(const Device& device);

    const Device& device_;
    const std::string how_;
    NoHostAccess* const around_;
    std::set<uint64_t> allocated_;
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
