// A program on a device: kernels loaded, buffers bound, ready to launch.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dsl/interpret.h"
#include "ops/program.h"
#include "runtime/driver/driver.h"

namespace tw {

/// What a run works on, by the names of the declaration.
struct Arguments {
    /// One for each input and output, of at least the bytes that its shape and strides span. An output that overwrites
    /// an input (in_place) needs none of its own: it goes by the input's name.
    std::map<std::string, Buffer> buffers;
    std::map<std::string, int64_t> sizes;
    std::map<std::string, Value> scalars;  ///< in the declared types: make_value(f32, 0.5)
    /// For each of Tree::workspaces, of at least its bytes; where it is undefined or missing, memory is allocated.
    std::vector<Buffer> workspaces = {};
};

/// A program's kernels, loaded on one device.
class Executable {
public:
    /// Compiles (CUDA: NVRTC or cache, several kernels at once; emulated: the host compiler) and loads every kernel.
    /// Throws Error if the device lacks what the kernels use; CompileError, NvrtcMissing, DriverError.
    Executable(const Program& program, std::shared_ptr<Device> device);
    /// The same of many programs, whose kernels are all compiled at once.
    static std::vector<Executable> load(std::vector<Program> programs, const std::shared_ptr<Device>& device);

    /// The launches of one run, in order, with workspaces of their own: for callers that keep several bindings at once.
    /// Throws as bind() does.
    std::vector<Launch> prepare(const Arguments& arguments) const;
    /// Prepares all launches once. Throws Error, and leaves what was bound before, if a buffer, size or scalar is
    /// missing, a buffer is too small, a size is out of its declared bounds, a scalar has another type, or a buffer
    /// that a kernel writes overlaps another of its buffers in a way that was not declared.
    void bind(const Arguments& arguments);
    /// Launches every kernel in order on the device's default stream. Throws Error before bind().
    void run() const;

    const Program& program() const { return program_; }
    /// One for each kernel of the program.
    const std::vector<Kernel>& kernels() const { return loaded_; }
    /// One for each kernel, after bind(): to be timed, recorded or run on another stream.
    const std::vector<Launch>& launches() const { return launches_; }
    const std::shared_ptr<Device>& device() const { return device_; }

private:
    Executable(Program program, std::shared_ptr<Device> device, std::vector<Kernel> loaded)
        : program_(std::move(program)), device_(std::move(device)), loaded_(std::move(loaded)) {}

    Program program_;
    std::shared_ptr<Device> device_;
    std::vector<Kernel> loaded_;
    std::vector<Launch> launches_;
    bool is_bound_ = false;
};

/// Runs once on host data and waits: inputs are copied to new buffers, outputs start as NaN and are returned in the
/// order of the schedule's outputs. The launches stay bound. Throws what bind() and the device throw, and Error if an
/// input is missing or has another type, shape or strides than declared.
std::vector<HostArray> run_on(Executable& executable, const Bindings& bindings);

}  // namespace tw
