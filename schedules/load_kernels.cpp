#include "schedules/load_kernels.h"

#include <filesystem>
#include <set>

#include <dlfcn.h>

#include "schedules/register_kernel.h"
#include "support/error.h"

namespace tw {
namespace {

std::string advice_for(const std::string& problem) {
    if (problem.find("undefined symbol") != std::string::npos)
        return fmt::format("; it may have been built against another version than {}: build it anew",
                           TILEWRIGHT_VERSION);
    if (problem.find("executable") != std::string::npos) return "; link it with -shared";
    return "";
}

}  // namespace

void load_kernels(const std::string& path) {
    static std::set<void*> loaded;
    std::error_code ignored;
    const std::filesystem::path file = std::filesystem::absolute(path, ignored);  // a bare name is no library's
    if (!std::filesystem::is_regular_file(file, ignored))
        throw_error(Error, "--load: there is no file '{}'; name a shared object, as ./libmine.so", path);
    const size_t before = schedules::registered_kernels().size();
    void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const std::string problem = dlerror();
        throw_error(Error, "--load: cannot load '{}': {}{}", path, problem, advice_for(problem));
    }
    if (!loaded.insert(library).second) return;
    try {
        if (schedules::registered_kernels().size() == before)
            throw_error(Error, "--load: '{}' has no kernels; name some with TW_KERNEL of <tilewright/kernel.h>", path);
    } catch (const Error&) {
        loaded.erase(library);
        dlclose(library);  // with what it registered
        throw;
    }
}

}  // namespace tw
