// What executes a network: one device, the kernels built for it so far, and either running or recording.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include "dsl/schedule.h"
#include "ops/built_call.h"
#include "ops/executable.h"
#include "ops/registry.h"

namespace tw::nn {

class Attributes;  // attributes.h
class Capture;     // capture.h
class Operator;    // operator.h
class Tensor;      // tensor.h

/// A pure executor: it knows no gradients. For one thread at a time.
class Backend {
public:
    explicit Backend(std::shared_ptr<Device> device);

    const std::shared_ptr<Device>& device() const { return device_; }
    const Target& target() const { return target_; }

    /// The executable of this key; `make` schedules it on first use. Throws what building and loading throw.
    const Executable& built(const std::string& key, const std::function<Schedule(const Target&)>& make);
    const Executable& built(const std::string& key, const std::function<Program(const Target&)>& make);
    size_t num_built() const { return built_.size(); }

    /// What the operator of this number has run so far; places stay.
    KnownCalls& calls_of(uint64_t serial) { return calls_[serial]; }
    /// Launches it as run() does; its buffers are forgotten then, also where that throws.
    void run(BuiltCall& call, std::span<const Buffer> buffers);

    /// Asked for the kernels of operators that have no schedule of their own, on the first use of each.
    Registry& registry() { return registry_; }

    /// op(inputs, attributes): all calls go this way, which runs the kernels, adds them to a recording or writes the
    /// call down. Throws Error if the inputs are of another backend, and as operators do (operator.h).
    Tensor op_call(const Operator& op, const std::vector<Tensor>& inputs, TW_HERE);
    Tensor op_call(const Operator& op, const std::vector<Tensor>& inputs, const Attributes& attributes, TW_HERE);

    /// Launches on the default stream without waiting or, while record() runs, adds to the recording.
    void run(const Executable& executable, const Arguments& arguments);
    /// Calls `step`; its launches become a graph instead of running. Buffers that it made live as long as the graph.
    /// Throws Error if a step is recorded or captured already, and if `step` reads or writes tensors from the host.
    Graph record(const std::function<void()>& step);
    bool recording() const { return recording_ != nullptr; }

    /// Calls `step`, whose calls of operators, gradients and updates are written down there, and computes nothing.
    void write_down(Capture& capture, const std::function<void()>& step);
    /// Where calls are written down now; nullptr if they run.
    Capture* capture() const { return capture_; }
    /// Throws Error, with the line, while a step is recorded or captured: "`what` while a step is ..., `instead`". What
    /// the host does then happens once, where each call of the step's function would do it.
    void refuse_in_step(const std::string& what, const char* instead, std::source_location where) const;

    /// The number 1 as f32 on the device: the adjoint of a loss.
    const Buffer& one();

private:
    std::shared_ptr<Device> device_;
    Target target_;
    Registry registry_;
    std::map<std::string, Executable> built_;
    std::map<uint64_t, KnownCalls> calls_;  // by operator
    std::vector<Launch>* recording_ = nullptr;
    Capture* capture_ = nullptr;
    Buffer one_;
};

}  // namespace tw::nn
