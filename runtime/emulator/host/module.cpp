#include "runtime/emulator/host/module.h"

#include <algorithm>

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include "runtime/emulator/host/build_module.h"
#include "runtime/emulator/host/run_command.h"

namespace tw::emulator {
namespace {

struct Span {
    uintptr_t begin, end;
};

/// The addresses of the loaded object that holds this one.
Span object_around(uintptr_t address) {
    struct Search {
        uintptr_t address;
        Span found;
    } search{address, {0, 0}};
    auto visit = [](dl_phdr_info* info, size_t, void* data) {
        Search& search = *static_cast<Search*>(data);
        Span span{UINTPTR_MAX, 0};
        for (int i = 0; i < info->dlpi_phnum; ++i) {
            const auto& header = info->dlpi_phdr[i];
            if (header.p_type != PT_LOAD) continue;
            span.begin = std::min(span.begin, uintptr_t(info->dlpi_addr + header.p_vaddr));
            span.end = std::max(span.end, uintptr_t(info->dlpi_addr + header.p_vaddr + header.p_memsz));
        }
        if (search.address < span.begin || search.address >= span.end) return 0;
        search.found = span;
        return 1;
    };
    dl_iterate_phdr(visit, &search);
    return search.found;
}

}  // namespace

std::string Location::text() const {
    if (line == 0) return "an unknown line";
    return fmt::format("{}.cu:{}{}{}", source, line, note.empty() ? "" : " ", note);
}

LoadedObject::LoadedObject(int file) : file_(file), handle_(dlopen(path().c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_) return;
    std::string reason = dlerror();
    close(file_);
    throw_error(CompileFailed, "the compiled kernels cannot be loaded: {}", reason);
}

LoadedObject::~LoadedObject() {
    dlclose(handle_);
    close(file_);
}

void* LoadedObject::symbol(const std::string& name) const { return dlsym(handle_, name.c_str()); }

std::string LoadedObject::path() const { return fmt::format("/proc/{}/fd/{}", getpid(), file_); }

Module::Module(std::shared_ptr<const LoadedObject> object, std::vector<Source> sources, size_t first)
    : object_(std::move(object)),
      sources_(std::move(sources)),
      first_(first),
      hooks_(static_cast<emulated::Hooks*>(object_->symbol("tw_hooks"))),
      current_(static_cast<emulated::ThreadState**>(object_->symbol("tw_current"))),
      unwritten_(static_cast<emulated::Unwritten*>(object_->symbol("tw_unwritten"))) {
    internal_check(hooks_ && current_ && unwritten_, "a module without tw_hooks, tw_current and tw_unwritten");
    Span span = object_around(reinterpret_cast<uintptr_t>(hooks_));
    begin_ = span.begin;
    end_ = span.end;
}

Module::Entry Module::entry(const std::string& kernel) const {
    const Source* source = find(kernel);
    return source ? reinterpret_cast<Entry>(object_->symbol(symbol_of(*source) + "_call")) : nullptr;
}

std::vector<emulated::Pointee> Module::pointees(const std::string& kernel, size_t num_parameters) const {
    std::vector<emulated::Pointee> result(num_parameters);
    auto fill = reinterpret_cast<void (*)(emulated::Pointee*)>(object_->symbol(symbol_of(*find(kernel)) + "_pointees"));
    fill(result.data());
    return result;
}

LaunchAttributes Module::attributes(const std::string& kernel) const {
    return attributes_in(find(kernel)->text, kernel);
}

const Source* Module::find(const std::string& kernel) const {
    auto found = std::find_if(sources_.begin(), sources_.end(), [&](auto& source) { return source.name == kernel; });
    return found == sources_.end() ? nullptr : &*found;
}

std::string Module::symbol_of(const Source& source) const {
    return entry_symbol(first_ + size_t(&source - sources_.data()));
}

const Location& Module::locate(uint32_t site) const {
    auto known = located_.find(site);
    if (known == located_.end()) known = located_.emplace(site, look_up(site)).first;
    return known->second;
}

namespace {

/// Line `number` of the text, counted from 1, without blanks around.
std::string line_of(const std::string& text, int number) {
    size_t begin = 0;
    for (; number > 1 && begin != std::string::npos; --number) {
        begin = text.find('\n', begin);
        if (begin != std::string::npos) ++begin;
    }
    if (begin == std::string::npos || (begin = text.find_first_not_of(' ', begin)) == std::string::npos) return "";
    return text.substr(begin, text.find('\n', begin) - begin);
}

}  // namespace

/// Among the functions inlined into each other around the place, the outermost in a kernel's own text counts.
Location Module::look_up(uint32_t site) const {
    Location result;
    if (site == 0) return result;
    CommandResult lines = run_command({"addr2line", "-i", "-e", object_->path(), fmt::format("{:#x}", site - 1)});
    size_t begin = 0;
    for (size_t end; (end = lines.output.find('\n', begin)) != std::string::npos; begin = end + 1) {
        std::string row = lines.output.substr(begin, end - begin);  // "/tmp/sgemm.cu:41 (discriminator 2)"
        size_t slash = row.rfind('/'), colon = row.rfind(':');
        if (colon == std::string::npos) continue;
        size_t name = slash == std::string::npos ? 0 : slash + 1;
        std::string file = row.substr(name, colon - name);
        int line = std::atoi(row.c_str() + colon + 1);
        auto source = std::find_if(sources_.begin(), sources_.end(), [&](auto& s) { return s.name + ".cu" == file; });
        if (source == sources_.end() || line <= 0) continue;
        result = {source->name, line,
                  size_t(line) <= source->line_notes.size() ? source->line_notes[size_t(line) - 1] : "",
                  line_of(source->text, line)};
    }
    return result;
}

}  // namespace tw::emulator
