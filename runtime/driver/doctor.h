// What this machine has of what we use, where we looked, and what is missing.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/compile/library.h"

namespace tw {

struct LibraryHealth {
    std::string name;  // "CUDA driver", "NVRTC"
    bool found = false;
    std::string path, version;
    std::string problem;  // why it is of no use; empty when it works
    std::vector<SearchAttempt> attempts;
};

struct DeviceHealth {
    int ordinal = 0;
    std::string name, arch;
    int64_t memory_bytes = 0;
};

/// A C++ compiler for the emulator.
struct HostCompilerHealth {
    std::string command, version, problem;
};

struct CacheHealth {
    std::string directory, problem;
    int64_t num_entries = 0, bytes = 0;
    int64_t num_damaged = 0;
};

struct DoctorReport {
    LibraryHealth driver, nvrtc;
    std::vector<DeviceHealth> devices;
    HostCompilerHealth host_compiler;
    CacheHealth cache;

    bool can_compile() const { return nvrtc.problem.empty(); }
    bool can_run_cuda() const { return can_compile() && driver.problem.empty() && !devices.empty(); }
    bool can_emulate() const { return host_compiler.problem.empty(); }
};

/// Looks; compiles a three-line kernel to see that NVRTC works. Throws nothing.
DoctorReport examine();

std::string to_text(const DoctorReport& report);
std::string to_json(const DoctorReport& report);

}  // namespace tw
