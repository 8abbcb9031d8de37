#include "dsl/check_bindings.h"
#include "ops/bound_arguments.h"
#include "ops/executable.h"

namespace tw {
namespace {

Buffer input_buffer(Device& device, const BufferNode& input, const Bindings& bindings) {
    const HostArray& array = bound_input(input, bindings);
    Buffer buffer = device.allocate(static_cast<int64_t>(array.bytes.size()), input.name);
    buffer.copy_from_host(array.bytes.data());
    return buffer;
}

/// NaN in every float type. On the emulated device new memory is that already, and known as never written.
Buffer poisoned_buffer(Device& device, const BufferNode& output, const Bindings& bindings) {
    Buffer buffer = device.allocate(bytes_spanned(output, bindings), output.name);
    if (device.kind() == DeviceKind::Cuda) buffer.fill(0xff);
    return buffer;
}

Arguments arguments_from(const Tree& tree, Device& device, const Bindings& bindings) {
    Arguments arguments{.buffers = {}, .sizes = bindings.sizes, .scalars = bindings.scalars};
    for (const BufferRef& input : tree.inputs) arguments.buffers[input->name] = input_buffer(device, *input, bindings);
    for (const BufferRef& output : tree.outputs)
        if (name_of_memory(tree, output) == output->name)
            arguments.buffers[output->name] = poisoned_buffer(device, *output, bindings);
    return arguments;
}

HostArray result_of(const BufferNode& output, const Buffer& buffer, const Bindings& bindings) {
    HostArray result =
        host_array(output.type, extents_of(declared_shape(output), bindings), extents_of(output.strides, bindings));
    buffer.copy_to_host(result.bytes.data(), 0, static_cast<int64_t>(result.bytes.size()));
    return result;
}

}  // namespace

std::vector<HostArray> run_on(Executable& executable, const Bindings& bindings) {
    const Tree& tree = executable.program().tree();
    Device& device = *executable.device();
    Arguments arguments = arguments_from(tree, device, bindings);
    executable.bind(arguments);
    executable.run();
    device.synchronize();
    std::vector<HostArray> results;
    for (const BufferRef& output : tree.outputs)
        results.push_back(result_of(*output, arguments.buffers.at(name_of_memory(tree, output)), bindings));
    return results;
}

}  // namespace tw
