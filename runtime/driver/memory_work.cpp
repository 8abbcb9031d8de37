#include "runtime/driver/memory_work.h"

#include <cstring>

#include "runtime/driver/check_launch.h"

namespace tw {
namespace {

template <class T>
T value_of(const Argument& argument) {
    T value;
    std::memcpy(&value, argument.value().data(), sizeof value);
    return value;
}

std::shared_ptr<MemoryOperation> operation_of(const std::shared_ptr<Device>& device, bool is_copy) {
    auto operation = std::make_shared<MemoryOperation>(is_copy);
    operation->device = device;
    operation->image.name = operation->image.entry = is_copy ? "copy" : "fill";
    operation->parameter_bytes = is_copy ? std::vector<size_t>{8, 8} : std::vector<size_t>{8, 4, 4};
    return operation;
}

}  // namespace

MemoryWork memory_work_of(const Launch& launch) {
    const ArgumentBlock& arguments = launch.arguments();
    const auto& operation = static_cast<const MemoryOperation&>(*launch.kernel().state());
    MemoryWork work{.to = arguments[0].buffer().pointer(), .bytes = arguments[0].buffer().bytes(), .from = {}};
    if (operation.is_copy) {
        work.from = arguments[1].buffer().pointer();
    } else {
        work.pattern = value_of<uint32_t>(arguments[1]);
        work.element_bytes = value_of<int32_t>(arguments[2]);
    }
    return work;
}

Launch Device::prepare_copy(const Buffer& to, const Buffer& from) {
    const auto operation = operation_of(shared_from_this(), true);
    check_arguments(*operation, std::vector<Argument>{to, from});
    if (to.bytes() != from.bytes())
        throw_error(LaunchError, "copy: {} bytes of '{}' into the {} bytes of '{}'; give parts of equal sizes, view()",
                    from.bytes(), from.name(), to.bytes(), to.name());
    const uint64_t bytes = static_cast<uint64_t>(to.bytes());
    if (to.pointer() < from.pointer() + bytes && from.pointer() < to.pointer() + bytes)
        throw_error(LaunchError, "copy: '{}' and '{}' overlap; copy to memory of its own first", from.name(),
                    to.name());
    return memory_launch(operation, {to, Argument::read_only(from)}, to.bytes() == 0);
}

Launch Device::prepare_fill(const Buffer& to, std::span<const std::byte> pattern) {
    const auto operation = operation_of(shared_from_this(), false);
    const auto size = static_cast<int64_t>(pattern.size());
    if (size != 1 && size != 2 && size != 4)
        throw_error(LaunchError, "fill: a pattern of {} bytes; give 1, 2 or 4", size);
    uint32_t element = 0;
    std::memcpy(&element, pattern.data(), pattern.size());
    const std::vector<Argument> arguments{to, element, static_cast<int32_t>(size)};
    check_arguments(*operation, arguments);
    if (to.bytes() % size != 0)
        throw_error(LaunchError, "fill: '{}' has {} bytes, no multiple of the pattern's {}", to.name(), to.bytes(),
                    size);
    return memory_launch(operation, arguments, to.bytes() == 0);
}

Launch Device::memory_launch(const std::shared_ptr<Kernel::State>& operation, std::vector<Argument> arguments,
                             bool is_empty) {
    Launch launch;
    launch.kernel_ = Kernel(operation);
    launch.shape_ = {.grid = {is_empty ? 0 : 1, 1, 1}, .block = {1, 1, 1}};
    launch.arguments_ = ArgumentBlock(std::move(arguments));
    return launch;
}

void Device::submit(const Launch& launch, void* stream) {
    if (!launch.kernel().state()->is_memory_work) return this->launch(launch, stream);
    const MemoryWork work = memory_work_of(launch);
    if (work.from)
        copy_across(work.to, *work.from, work.bytes, stream);
    else
        fill_later(work.to, work.pattern, work.element_bytes, work.bytes, stream);
}

}  // namespace tw
