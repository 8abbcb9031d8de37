#include "runtime/driver/check_launch.h"

namespace tw {
namespace {

std::string text(const Dim3& size) { return fmt::format("({}, {}, {})", size.x, size.y, size.z); }

bool within(const Dim3& size, const Dim3& limit, int64_t least) {
    return size.x >= least && size.y >= least && size.z >= least && size.x <= limit.x && size.y <= limit.y &&
           size.z <= limit.z;
}

}  // namespace

void check_shape(const DeviceProperties& properties, const Kernel::State& kernel, const LaunchShape& shape) {
    const std::string& entry = kernel.image.entry;
    if (!within(shape.grid, properties.max_grid, 0))
        throw_error(LaunchError,
                    "{}: grid {} is outside of 0 to {}; what is bound to grid.y or grid.z fits grid.x, or is split",
                    entry, text(shape.grid), text(properties.max_grid));
    if (!within(shape.block, properties.max_block, 1))
        throw_error(LaunchError, "{}: block {} is outside of 1 to {}", entry, text(shape.block),
                    text(properties.max_block));
    int64_t threads = shape.block.x * shape.block.y * shape.block.z;  // small: each factor was just checked
    if (threads > properties.max_threads_per_block)
        throw_error(LaunchError, "{}: block {} has {} threads, the limit is {}", entry, text(shape.block), threads,
                    properties.max_threads_per_block);
    if (shape.dynamic_shared_bytes < 0 ||
        shape.dynamic_shared_bytes > properties.shared_bytes_per_block_optin - kernel.static_shared_bytes)
        throw_error(LaunchError, "{}: {} bytes of dynamic and {} of static shared memory; the limit of a block is {}",
                    entry, shape.dynamic_shared_bytes, kernel.static_shared_bytes,
                    properties.shared_bytes_per_block_optin);
}

void check_arguments(const Kernel::State& kernel, std::span<const Argument> arguments) {
    if (kernel.parameter_bytes && arguments.size() != kernel.parameter_bytes->size())
        throw_error(LaunchError, "{}: {} arguments for {} parameters", kernel.image.entry, arguments.size(),
                    kernel.parameter_bytes->size());
    for (size_t i = 0; i < arguments.size(); ++i) check_argument(kernel, i, arguments[i]);
}

void check_argument(const Kernel::State& kernel, size_t index, const Argument& argument) {
    const std::string& entry = kernel.image.entry;
    size_t bytes = kernel.parameter_bytes ? (*kernel.parameter_bytes)[index] : 0;
    if (bytes != 0 && argument.value().size() != bytes)
        throw_error(LaunchError, "{}: argument {} is a {}, the parameter has {} bytes", entry, index,
                    argument.type_text(), bytes);
    if (argument.kind() != Argument::Kind::Buffer) return;
    if (!argument.buffer()) throw_error(LaunchError, "{}: argument {} is a buffer without memory", entry, index);
    if (argument.buffer().device() != kernel.device)
        throw_error(LaunchError, "{}: argument {} ('{}') lies on another device ({})", entry, index,
                    argument.buffer().name(), argument.buffer().device()->name());
}

}  // namespace tw
