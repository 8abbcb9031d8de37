#include "ops/executable.h"

#include "ops/bound_arguments.h"
#include "support/error.h"

namespace tw {
namespace {

std::vector<KernelImage> images_of(const Program& program, const Device& device) {
    std::vector<KernelImage> images;
    for (size_t k = 0; k < program.kernels().size(); ++k) {
        const codegen::KernelText& kernel = program.kernels()[k];
        images.push_back({.name = kernel.name + ".cu",
                          .source = kernel.cuda,
                          .entry = kernel.name,
                          .arch = device.kind() == DeviceKind::Cuda ? "" : program.target().arch,
                          .line_notes = program.line_notes(k)});
    }
    return images;
}

}  // namespace

Executable::Executable(const Program& program, std::shared_ptr<Device> device)
    : program_(program), device_(std::move(device)), loaded_(device_->load_all(images_of(program_, *device_))) {}

std::vector<Launch> Executable::prepare(const Arguments& arguments) const {
    BoundArguments bound(program_, arguments, *device_);
    std::vector<Launch> launches;
    for (size_t k = 0; k < loaded_.size(); ++k) {
        const codegen::KernelText& kernel = program_.kernels()[k];
        launches.push_back(device_->prepare(loaded_[k], bound.shape_of(kernel), bound.parameters_of(kernel)));
    }
    return launches;
}

void Executable::bind(const Arguments& arguments) {
    launches_ = prepare(arguments);
    is_bound_ = true;
}

void Executable::run() const {
    if (!is_bound_) throw_error(Error, "run: nothing is bound; call bind() with buffers first");
    for (const Launch& launch : launches_) launch.run();
}

}  // namespace tw
