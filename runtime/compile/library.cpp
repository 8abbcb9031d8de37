#include "runtime/compile/library.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <mutex>

#include <dlfcn.h>
#include <link.h>

#include <fmt/ranges.h>

#include "runtime/compile/errors.h"

namespace tw {
namespace {

namespace fs = std::filesystem;

// One search; each rule is a method that tries its places until one gives a usable library.
class Search {
public:
    Search(const LibrarySpec& spec, const Surroundings& surroundings) : spec_(spec), surroundings_(surroundings) {
        result_.name = spec.name;
    }

    Library run() {
        if (auto own = surroundings_.variable(spec_.variable); own && !own->empty()) {
            try_own(*own);  // decisive: somebody who sets it wants that library or an explanation
            return result_;
        }
        try_already_loaded() || try_sonames() || (spec_.comes_with_driver ? try_driver_folders() : try_toolkits());
        return result_;
    }

private:
    bool try_own(const std::string& path) {
        return fs::is_directory(path) ? try_folder(spec_.variable, path) : try_file(spec_.variable, path);
    }

    bool try_already_loaded() {
        for (const auto& name : spec_.file_names)
            if (void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_NOLOAD))
                return accept("already loaded", name, handle);
        result_.attempts.push_back({"already loaded", fmt::format("{}", fmt::join(spec_.file_names, ", ")), "no"});
        return false;
    }

    bool try_sonames() {
        return std::any_of(spec_.file_names.begin(), spec_.file_names.end(),
                           [&](const std::string& name) { return open("soname", name); });
    }

    // Places that containers and WSL use, where the linker's configuration does not know them.
    bool try_driver_folders() {
        for (const char* folder : {"/usr/local/nvidia/lib64", "/usr/lib/wsl/lib", "/usr/local/cuda/compat"})
            if (try_folder("driver folder", surroundings_.root + folder)) return true;
        return false;
    }

    bool try_toolkits() {
        for (const char* variable : {"CUDA_HOME", "CUDA_PATH"})
            if (auto home = surroundings_.variable(variable); home && try_toolkit(variable, *home)) return true;
        if (auto nvcc = on_path("nvcc"))
            if (try_toolkit("nvcc on PATH", fs::weakly_canonical(*nvcc).parent_path().parent_path())) return true;
        for (const fs::path& home : installed_toolkits())
            if (try_toolkit("/usr/local/cuda*", home)) return true;
        return try_wheels();
    }

    bool try_toolkit(const std::string& rule, const fs::path& home) {
        if (try_folder(rule, home / "lib64")) return true;
        for (const fs::path& target : folders_in(home / "targets"))
            if (try_folder(rule, target / "lib")) return true;
        return false;
    }

    // site-packages/nvidia/<package>/lib, of each Python that this process could mean.
    bool try_wheels() {
        std::vector<fs::path> prefixes;
        for (const char* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"})
            if (auto prefix = surroundings_.variable(variable)) prefixes.push_back(*prefix);
        if (auto python = on_path("python3")) prefixes.push_back(python->parent_path().parent_path());
        if (auto home = surroundings_.variable("HOME")) prefixes.push_back(fs::path(*home) / ".local");
        prefixes.push_back(surroundings_.root + "/usr/local");

        size_t num_before = result_.attempts.size();
        for (const fs::path& prefix : prefixes) {
            if (try_folder_if_there("Python environment", prefix / "lib")) return true;  // conda's own packages
            for (const fs::path& python : folders_in(prefix / "lib"))
                for (const char* packages : {"site-packages", "dist-packages"})
                    for (const fs::path& wheel : folders_in(python / packages / "nvidia"))
                        if (try_folder("Python wheel", wheel / "lib")) return true;
        }
        if (result_.attempts.size() == num_before)
            result_.attempts.push_back({"Python wheel", "site-packages/nvidia/*/lib", "none is installed"});
        return false;
    }

    bool try_folder_if_there(const std::string& rule, const fs::path& folder) {
        auto has = [&](const std::string& name) { return fs::exists(folder / name); };
        return std::any_of(spec_.file_names.begin(), spec_.file_names.end(), has) && try_folder(rule, folder);
    }

    bool try_folder(const std::string& rule, const fs::path& folder) {
        std::error_code ignored;
        if (!fs::is_directory(folder, ignored)) {
            result_.attempts.push_back({rule, folder, "no such folder"});
            return false;
        }
        bool any = false;
        for (const auto& name : spec_.file_names) {
            if (!fs::exists(folder / name, ignored)) continue;
            any = true;
            if (open(rule, folder / name)) return true;
        }
        if (!any)
            result_.attempts.push_back({rule, folder, fmt::format("has no {}", fmt::join(spec_.file_names, ", "))});
        return false;
    }

    bool try_file(const std::string& rule, const fs::path& file) {
        if (!file.has_parent_path() || fs::exists(file)) return open(rule, file);
        result_.attempts.push_back({rule, file, "no such file"});
        return false;
    }

    bool open(const std::string& rule, const std::string& path) {
        void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (handle) return accept(rule, path, handle);
        result_.attempts.push_back({rule, path, dlerror()});
        return false;
    }

    bool accept(const std::string& rule, const std::string& tried, void* handle) {
        for (const auto& symbol : spec_.required_symbols) {
            if (dlsym(handle, symbol.c_str())) continue;
            result_.attempts.push_back({rule, tried, fmt::format("passed over: it lacks {} (too old?)", symbol)});
            dlclose(handle);
            return false;
        }
        link_map* map = nullptr;
        result_.path = dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 ? map->l_name : tried;
        result_.handle = handle;
        result_.attempts.push_back({rule, tried, "loaded"});
        return true;
    }

    std::optional<fs::path> on_path(const std::string& program) {
        std::string path = surroundings_.variable("PATH").value_or("");
        std::error_code ignored;
        for (size_t begin = 0; begin < path.size();) {
            size_t end = std::min(path.find(':', begin), path.size());
            fs::path file = fs::path(path.substr(begin, end - begin)) / program;
            if (fs::exists(file, ignored)) return file;
            begin = end + 1;
        }
        return std::nullopt;
    }

    // /usr/local/cuda, then /usr/local/cuda-13.0, /usr/local/cuda-12.8, ...
    std::vector<fs::path> installed_toolkits() {
        fs::path local = surroundings_.root + "/usr/local";
        std::vector<fs::path> versions;
        for (const fs::path& folder : folders_in(local))
            if (folder.filename().string().starts_with("cuda-")) versions.push_back(folder);
        auto version = [](const fs::path& folder) { return std::atof(folder.filename().c_str() + 5); };
        std::sort(versions.begin(), versions.end(), [&](auto& a, auto& b) { return version(a) > version(b); });
        versions.insert(versions.begin(), local / "cuda");
        return versions;
    }

    static std::vector<fs::path> folders_in(const fs::path& parent) {
        std::vector<fs::path> folders;
        std::error_code error;
        for (fs::directory_iterator entry(parent, error), end; !error && entry != end; entry.increment(error))
            if (entry->is_directory(error)) folders.push_back(entry->path());
        std::sort(folders.begin(), folders.end());
        return folders;
    }

    const LibrarySpec& spec_;
    const Surroundings& surroundings_;
    Library result_;
};

}  // namespace

Surroundings process_surroundings() {
    auto variable = [](const std::string& name) -> std::optional<std::string> {
        const char* value = std::getenv(name.c_str());
        return value ? std::optional<std::string>(value) : std::nullopt;
    };
    return {.variable = variable, .root = ""};
}

void* Library::symbol(const std::string& symbol_name) const { return dlsym(handle, symbol_name.c_str()); }

std::string Library::search_text() const {
    std::string text;
    for (const auto& [rule, tried, outcome] : attempts) text += fmt::format("  {}: {}: {}\n", rule, tried, outcome);
    return text;
}

Library find_library(const LibrarySpec& spec, const Surroundings& surroundings) {
    return Search(spec, surroundings).run();
}

}  // namespace tw
