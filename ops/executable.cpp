#include "ops/executable.h"

#include <algorithm>
#include <iterator>

#include "codegen/print/names.h"
#include "ops/bound_arguments.h"
#include "runtime/compile/cubin_cache.h"
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

/// No compiler says it so clearly, and the emulator runs what a device of this architecture could not.
void require_features(const Program& program, const Device& device) {
    const Target* there = find_target(device.arch());
    if (!there) return;
    for (const codegen::KernelText& kernel : program.kernels())
        for (bool Target::*feature : kernel.needs)
            if (!(there->*feature))
                throw_error(Error,
                            "{}: scheduled for {}, it uses {}, which {} does not have; schedule it for "
                            "target(\"{}\"), or open another device",
                            kernel.name, program.target().arch, feature_text(feature), there->arch, there->arch);
}

/// Whether the kernel's roles have all as many registers as the compiler gives a thread.
bool shares_registers(const Tree& tree, const codegen::KernelText& kernel) {
    return std::any_of(tree.nests.begin(), tree.nests.end(), [&](const Nest& nest) {
        return kernel.name.starts_with(codegen::sanitize(nest.name).substr(0, 40)) && !nest.roles.empty() &&
               nest.roles[0].registers == 0;
    });
}

/// The role that computes could have those that the others do not need.
void warn_of_spills(const Program& program, const std::vector<Kernel>& loaded) {
    for (size_t k = 0; k < loaded.size(); ++k) {
        const CompiledKernel* compiled = loaded[k].compiled();
        int64_t bytes = compiled ? compiled->of(loaded[k].entry()).spill_store_bytes : 0;
        if (bytes > 0 && shares_registers(program.tree(), program.kernels()[k]))
            warn_once(
                fmt::format("{}: each thread spills {} bytes of registers to memory, and its roles give none; "
                            "have the role that computes take those that the others do not need: registers(...)",
                            loaded[k].entry(), bytes));
    }
}

std::shared_ptr<Device> opened(std::shared_ptr<Device> device) {
    if (!device) throw_error(Error, "Executable: the device is a null pointer; open one, e.g. open_device(\"cuda\")");
    return device;
}

}  // namespace

Executable::Executable(const Program& program, std::shared_ptr<Device> device)
    : Executable(std::move(load({program}, device)[0])) {}

std::vector<Executable> Executable::load(std::vector<Program> programs, const std::shared_ptr<Device>& device) {
    const std::shared_ptr<Device> there = opened(device);
    std::vector<KernelImage> images;
    for (const Program& program : programs) {
        require_features(program, *there);
        std::ranges::move(images_of(program, *there), std::back_inserter(images));
    }
    const std::vector<Kernel> loaded = there->load_all(images);
    std::vector<Executable> result;
    auto next = loaded.begin();
    for (Program& program : programs) {
        const auto end = next + static_cast<std::ptrdiff_t>(program.kernels().size());
        std::vector<Kernel> own(next, end);
        next = end;
        warn_of_spills(program, own);
        result.push_back(Executable(std::move(program), there, std::move(own)));
    }
    return result;
}

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
