#include "ops/backend.h"

#include "runtime/driver/arch.h"
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
    if (found == built_.end()) found = built_.emplace(key, Executable(make(target_), device_)).first;
    return found->second;
}

void Backend::run(const Executable& executable, const Arguments& arguments) {
    if (capture_)
        throw_error(Error,
                    "kernels are run while a step is captured; only operators, backward() and updates of "
                    "optimizers and norms can be written down, run others outside of the step");
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
    step();
}

Graph Backend::record(const std::function<void()>& step) {
    std::vector<Launch> launches;
    struct Recording {
        std::vector<Launch>*& target;
        ~Recording() { target = nullptr; }
    } scope{recording_ = &launches};
    step();
    return device_->record(launches);
}

const Buffer& Backend::one() {
    if (!one_) {
        one_ = device_->allocate(sizeof(float), "one");
        one_.write(std::vector<float>{1});
    }
    return one_;
}

}  // namespace tw::nn
