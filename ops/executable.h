// A program on a device: kernels loaded, buffers bound, ready to launch.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dsl/interpret.h"
#include "ops/program.h"
#include "runtime/driver.h"

namespace tw {

/// A program's kernels, loaded on one device.
class Executable {
public:
    /// Compiles (CUDA: NVRTC or cache; emulated: the host compiler) and loads every kernel.
    Executable(const Program& program, std::shared_ptr<Device> device);

    /// What a run works on, by the names of the declaration. Outputs that overwrite an input need no buffer of their own.
    struct Arguments {
        std::map<std::string, Buffer> buffers;
        std::map<std::string, int64_t> sizes;
        std::map<std::string, double> scalars;
    };
    /// Prepares all launches once. Throws Error if a buffer, size or scalar is missing, too small, out of its declared
    /// bounds, or overlaps another in a way that was not declared.
    void bind(const Arguments& arguments);
    /// Launches every kernel in order on the device's default stream. Throws Error before bind().
    void run() const;

    const Program& program() const { return program_; }
    const std::vector<Kernel>& kernels() const { return loaded_; }
    const std::vector<Launch>& launches() const { return launches_; }
    const std::shared_ptr<Device>& device() const { return device_; }

private:
    Program program_;
    std::shared_ptr<Device> device_;
    std::vector<Kernel> loaded_;
    std::vector<Launch> launches_;
    std::vector<Buffer> workspaces_;
    bool bound_ = false;
};

/// Runs once on host data: inputs are copied to the device, outputs start as NaN and are returned in the order of the
/// schedule's outputs.
std::vector<HostArray> run_on(Executable& executable, const Bindings& bindings);

}  // namespace tw
