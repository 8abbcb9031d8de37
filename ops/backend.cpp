#include "ops/backend.h"

#include "ops/operator.h"
#include "runtime/driver/arch.h"
#include "runtime/driver/no_host_access.h"
#include "support/error.h"

namespace tw::nn {

namespace {

std::shared_ptr<Device> opened(std::shared_ptr<Device> device) {
    if (!device) throw_error(Error, "Backend: the device is a null pointer; open one, e.g. open_device(\"cuda\")");
    return device;
}

}  // namespace

Backend::Backend(std::shared_ptr<Device> device) : device_(opened(std::move(device))), target_(target_of(*device_)) {}

const Executable& Backend::built(const std::string& key, const std::function<Schedule(const Target&)>& make) {
    return built(key, [&](const Target& target) { return build(make(target)); });
}

const Executable& Backend::built(const std::string& key, const std::function<Program(const Target&)>& make) {
    auto found = built_.find(key);
    if (found != built_.end()) return found->second;
    const HostAccessAgain of_tuning;
    return built_.emplace(key, Executable(make(target_), device_)).first->second;
}

void Backend::run(const Executable& executable, const Arguments& arguments) {
    if (capture_)
        throw_error(Error,
                    "kernels are run while a step is captured; only operators, backward() and updates of "
                    "optimizers and norms can be written down, run others outside of the step");
    if (recording_)
        for (const auto& [name, buffer] : arguments.buffers)
            NoHostAccess::note_used(*device_, buffer.pointer(), buffer.bytes());
    for (Launch& launch : executable.prepare(arguments)) {
        if (recording_)
            recording_->push_back(std::move(launch));
        else
            launch.run();
    }
}

void Backend::run(BuiltCall& call, std::span<const Buffer> buffers) {
    struct Forgetting {
        BuiltCall& call;
        ~Forgetting() { call.forget(); }
    } scope{call};
    if (recording_)
        for (const Buffer& buffer : buffers) NoHostAccess::note_used(*device_, buffer.pointer(), buffer.bytes());
    for (const Launch& launch : call.launches(buffers)) {
        if (recording_)
            recording_->push_back(launch);
        else
            launch.run();
    }
}

void Backend::write_down(Capture& capture, const std::function<void()>& step) {
    if (capture_ || recording_)
        throw_error(Error, "compile: a step is recorded or captured around this one; compile the whole of it");
    struct Writing {
        Capture*& target;
        ~Writing() { target = nullptr; }
    } scope{capture_ = &capture};
    const NoHostAccess refused(*device_, "captured");
    step();
}

Graph Backend::record(const std::function<void()>& step) {
    if (capture_ || recording_)
        throw_error(Error, "record: a step is recorded or captured around this one; record the whole of it");
    std::vector<Launch> launches;
    struct Recording {
        std::vector<Launch>*& target;
        ~Recording() { target = nullptr; }
    } scope{recording_ = &launches};
    {
        const NoHostAccess refused(*device_, "recorded");
        step();
    }
    return device_->record(launches);
}

Tensor Backend::op_call(const Operator& op, const std::vector<Tensor>& inputs, std::source_location where) {
    return op_call(op, inputs, {}, where);
}

Tensor Backend::op_call(const Operator& op, const std::vector<Tensor>& inputs, const Attributes& attributes,
                        std::source_location where) {
    for (const Tensor& input : inputs)
        user_check(input.backend().get() == this, where,
                   "op_call: '{}' is of another backend; call its own, or make the tensor with this one", input.name());
    return op(inputs, attributes, where);
}

void Backend::refuse_in_step(const std::string& what, const char* instead, std::source_location where) const {
    user_check(!capture_ && !recording_, where,
               "{} while a step is {}: that happens once, now, and in no run of the step; {}", what,
               capture_ ? "captured" : "recorded", instead);
}

const Buffer& Backend::one() {
    if (!one_) {
        one_ = device_->allocate(sizeof(float), "one");
        const float number = 1;
        one_.copy_from_host(&number);
    }
    return one_;
}

}  // namespace tw::nn
