#include "schedules/register_kernel.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <filesystem>
#include <list>

#include "support/error.h"

namespace tw::schedules {
namespace {

struct Registration {
    const RegisteredKernel* owner;
    UserKernel kernel;
    std::string built_against;  ///< empty: against this library
    bool is_checked = false;
};

std::list<Registration>& registrations() {
    static std::list<Registration> all;
    return all;
}

bool is_ours(const KernelInterface& theirs) {
    const KernelInterface& ours = kernel_interface;
    return std::strcmp(theirs.version, ours.version) == 0 && theirs.compiler == ours.compiler &&
           theirs.strings == ours.strings && theirs.schedule_bytes == ours.schedule_bytes &&
           theirs.target_bytes == ours.target_bytes && theirs.facts_bytes == ours.facts_bytes;
}

std::string to_string(const KernelInterface& interface) {
    return fmt::format("{} (compiler interface {}, strings {}, sizes {} {} {})", interface.version, interface.compiler,
                       interface.strings, interface.schedule_bytes, interface.target_bytes, interface.facts_bytes);
}

bool is_name(const std::string& name) {
    return !name.empty() &&
           std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) || c == '_'; });
}

void check(const Registration& added, const std::vector<const UserKernel*>& others) {
    const std::string &place = added.kernel.place, &name = added.kernel.entry.name;
    if (!added.built_against.empty())
        throw_error(Error, "{}: this kernel was built against Tilewright {}, but is used by {}; build it anew", place,
                    added.built_against, to_string(kernel_interface));
    if (!is_name(name))
        throw_error(Error, "{}: TW_KERNEL(\"{}\"): a name has letters, digits and _, and no others", place, name);
    if (!added.kernel.entry.make)
        throw_error(Error, "{}: TW_KERNEL(\"{}\"): there is no function that makes the schedule", place, name);
    for (const UserKernel* other : others)
        if (other->entry.name == name)
            throw_error(Error, "{}: TW_KERNEL(\"{}\"): {} has a kernel of this name; choose another", place, name,
                        other->place);
    if (find_library_kernel(name))
        throw_error(Error, "{}: TW_KERNEL(\"{}\"): the library has a kernel of this name; choose another", place, name);
}

}  // namespace

RegisteredKernel::RegisteredKernel(const KernelInterface& interface, const char* file, int line, const char* name,
                                   const MakeSchedule& make, const KernelFacts& facts) {
    Registration& added = registrations().emplace_back();
    added.owner = this;
    added.kernel.place = fmt::format("{}:{}", std::filesystem::path(file).filename().string(), line);
    if (is_ours(interface))
        added.kernel.entry = {name, facts.description, facts.flops, make, facts.bytes};
    else
        added.built_against = to_string(interface);
}

RegisteredKernel::~RegisteredKernel() {
    registrations().remove_if([this](const Registration& one) { return one.owner == this; });
}

std::vector<const UserKernel*> registered_kernels() {
    std::vector<const UserKernel*> kernels;
    for (Registration& one : registrations()) {
        if (!one.is_checked) check(one, kernels);
        one.is_checked = true;
        kernels.push_back(&one.kernel);
    }
    return kernels;
}

const CatalogEntry* find_kernel(const std::string& name) {
    for (const UserKernel* kernel : registered_kernels())
        if (kernel->entry.name == name) return &kernel->entry;
    return find_library_kernel(name);
}

}  // namespace tw::schedules
