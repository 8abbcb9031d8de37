// Kernels compiled for the host and loaded.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "device/cpu/hooks.h"
#include "runtime/emulator/host/launch_attributes.h"
#include "runtime/emulator/host/source.h"

namespace tw::emulator {

/// A place in a kernel's text.
struct Location {
    std::string source;  // empty: unknown
    int line = 0;
    std::string note = {};
    std::string statement = {};  // what stands in that line, without blanks around

    bool is_same_line(const Location& other) const { return line != 0 && line == other.line && source == other.source; }
    std::string text() const;  // "sgemm.cu:41 [load a]", "an unknown line"
};

/// A loaded shared object: one translation unit.
class LoadedObject {
public:
    /// Takes the open file, which need not have a name any more.
    explicit LoadedObject(int file);
    ~LoadedObject();
    LoadedObject(const LoadedObject&) = delete;

    void* symbol(const std::string& name) const;  // nullptr if there is none
    std::string path() const;                     // of the file, as long as this object lives

private:
    int file_;
    void* handle_;
};

class Module {
public:
    /// The kernels of `sources`, which are those from number `first` on in the object.
    Module(std::shared_ptr<const LoadedObject> object, std::vector<Source> sources, size_t first);
    Module(const Module&) = delete;

    using Entry = void (*)(void** arguments);
    Entry entry(const std::string& kernel) const;  // nullptr if there is none

    /// What each parameter points to.
    std::vector<emulated::Pointee> pointees(const std::string& kernel, size_t num_parameters) const;
    LaunchAttributes attributes(const std::string& kernel) const;
    emulated::Unwritten* unwritten() const { return unwritten_; }
    emulated::Hooks* hooks() const { return hooks_; }
    emulated::ThreadState** current() const { return current_; }

    uintptr_t begin() const { return begin_; }
    bool contains(uintptr_t address) const { return address - begin_ < end_ - begin_; }

    /// The line of a call that returns to begin() + site.
    const Location& locate(uint32_t site) const;

private:
    Location look_up(uint32_t site) const;
    const Source* find(const std::string& kernel) const;
    std::string symbol_of(const Source& source) const;

    std::shared_ptr<const LoadedObject> object_;
    std::vector<Source> sources_;
    size_t first_;
    emulated::Hooks* hooks_;
    emulated::ThreadState** current_;
    emulated::Unwritten* unwritten_;
    uintptr_t begin_ = 0, end_ = 0;
    mutable std::map<uint32_t, Location> located_;  // used by launches, of which there is one at a time
};

}  // namespace tw::emulator
