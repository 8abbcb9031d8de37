// The memo in front of the host compiler.
#include <list>
#include <map>
#include <mutex>

#include "runtime/emulator/host/build_module.h"
#include "runtime/emulator/host/module.h"

namespace tw::emulator {
namespace {

using ModulePointer = std::shared_ptr<const Module>;

/// Modules by their sources, while they live; the last few are kept alive.
class Memo {
public:
    std::mutex mutex;

    ModulePointer find(std::span<const Source> sources) {
        auto known = modules_.find(key_of(sources));
        return known == modules_.end() ? nullptr : known->second.lock();
    }

    void add(std::span<const Source> sources, const ModulePointer& module) {
        std::erase_if(modules_, [](const auto& entry) { return entry.second.expired(); });
        modules_[key_of(sources)] = module;
        last_.push_front(module);
        if (last_.size() > MaxKept) last_.pop_back();
    }

private:
    static constexpr size_t MaxKept = 64;

    static std::string key_of(std::span<const Source> sources) {
        std::string key;
        auto add = [&](const std::string& text) { key += fmt::format("{}:{}", text.size(), text); };
        add(flags_of_environment());
        for (const Source& source : sources) {
            add(source.name);
            add(source.text);
            for (const std::string& note : source.line_notes) add(note);
            key += ';';
        }
        return key;
    }

    std::map<std::string, std::weak_ptr<const Module>> modules_;
    std::list<ModulePointer> last_;
};

Memo& memo() {
    static Memo* memo = new Memo;  // never freed: modules may be in use until the process ends
    return *memo;
}

std::shared_ptr<const LoadedObject> load(std::span<const Source> sources) {
    return std::make_shared<const LoadedObject>(build_module(translation_unit(sources), sources));
}

}  // namespace

ModulePointer compile(std::span<const Source> sources) {
    std::lock_guard lock(memo().mutex);
    if (auto known = memo().find(sources)) return known;
    auto module = std::make_shared<const Module>(load(sources), std::vector(sources.begin(), sources.end()), 0);
    memo().add(sources, module);
    return module;
}

std::vector<ModulePointer> compile_together(std::span<const Source> sources) {
    std::lock_guard lock(memo().mutex);
    std::vector<ModulePointer> modules;
    std::vector<Source> unknown;
    for (size_t i = 0; i < sources.size(); ++i) {
        modules.push_back(memo().find(sources.subspan(i, 1)));
        if (!modules[i]) unknown.push_back(sources[i]);
    }
    if (unknown.empty()) return modules;
    auto object = load(unknown);
    for (size_t i = 0, next = 0; i < sources.size(); ++i) {
        if (modules[i]) continue;
        modules[i] = std::make_shared<const Module>(object, std::vector<Source>{sources[i]}, next++);
        memo().add(sources.subspan(i, 1), modules[i]);
    }
    return modules;
}

void ask_host_compiler() {
    std::lock_guard lock(memo().mutex);
    try {
        ask_for_flags();
    } catch (const HostCompilerMissing&) {  // who compiles will be told
    }
}

}  // namespace tw::emulator
