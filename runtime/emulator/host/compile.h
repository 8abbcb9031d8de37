// From texts of kernels to loaded code, and whether a launch of it can be.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/emulator/host/launch.h"
#include "runtime/emulator/host/source.h"

namespace tw::emulator {

/// Kernels compiled for the host and loaded.
class Module;

/// All sources as one translation unit, with device::emulator_prelude() in front: one call for many kernels costs less
/// than many calls. The compiler is $TW_HOST_CXX, else $CXX, c++, g++ or clang++, with the flags of $TW_HOST_CXXFLAGS
/// behind the emulator's: with -O0, kernels are compiled sooner and run slower. The same sources and flags give the
/// same module again while it lives or is among the last ones. Throws CompileFailed, HostCompilerMissing.
std::shared_ptr<const Module> compile(std::span<const Source> sources);

/// The same compilation, with each kernel as a module of its own. Names may repeat. compile() of such a kernel alone,
/// and compile_together() of it and others, find its module; only kernels without one are compiled.
std::vector<std::shared_ptr<const Module>> compile_together(std::span<const Source> sources);

/// Finds out now what compilations need to know of the compiler: processes forked later do not ask again. Without a
/// compiler, nothing.
void ask_host_compiler();

/// Throws Error for a launch that cannot be: an unknown kernel, too many threads.
void check_launch(const Module& module, const Launch& launch);

}  // namespace tw::emulator
