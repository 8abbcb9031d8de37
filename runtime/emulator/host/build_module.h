// From kernel texts to a shared object.
#pragma once
#include <span>
#include <string>

#include "runtime/emulator/host/source.h"

namespace tw::emulator {

/// What the host compiler gets for these sources.
std::string translation_unit(std::span<const Source> sources);

/// The symbol of the i-th source's kernel; functions add "_call" and "_pointees".
std::string entry_symbol(size_t i);

/// Of $TW_HOST_CXXFLAGS: behind those of the emulator.
std::string flags_of_environment();

/// Throws HostCompilerMissing. Under the memo's lock, as build_module().
void ask_for_flags();

/// Compiles and links; an open file without a name. Throws CompileFailed, HostCompilerMissing.
int build_module(const std::string& translation_unit, std::span<const Source> sources);

}  // namespace tw::emulator
