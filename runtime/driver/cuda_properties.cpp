// What the driver tells of a device without a context.
#include "runtime/driver/cuda_device.h"

namespace tw {

DeviceProperties cuda_properties(const Driver& driver, int ordinal) {
    const DriverTable& call = driver.call;
    auto check = [&](cuda::Result result, const char* what) {
        if (result != cuda::Success)
            throw_error(DriverError, "{} of device {}: {}", what, ordinal, describe(call, result));
    };
    int count = 0;
    check(call.device_get_count(&count), "cuDeviceGetCount");
    if (ordinal < 0 || ordinal >= count)
        throw_error(NoDevice, "there is no CUDA device {}; the driver ({}) sees {}", ordinal, driver.library.path,
                    count);
    cuda::DeviceHandle device = 0;
    check(call.device_get(&device, ordinal), "cuDeviceGet");

    DeviceProperties p;
    char name[256] = "";
    check(call.device_get_name(name, sizeof name, device), "cuDeviceGetName");
    p.name = name;
    size_t memory_bytes = 0;
    check(call.device_total_mem(&memory_bytes, device), "cuDeviceTotalMem");
    p.memory_bytes = int64_t(memory_bytes);

    auto read = [&](cuda::Attribute attribute) {
        int value = 0;
        check(call.device_get_attribute(&value, attribute, device), "cuDeviceGetAttribute");
        return value;
    };
    using cuda::Attribute;
    p.compute_major = read(Attribute::ComputeMajor);
    p.compute_minor = read(Attribute::ComputeMinor);
    p.arch = arch_of(p.compute_major, p.compute_minor);
    p.multiprocessors = read(Attribute::Multiprocessors);
    p.warp_size = read(Attribute::WarpSize);
    p.max_threads_per_block = read(Attribute::MaxThreadsPerBlock);
    p.max_threads_per_multiprocessor = read(Attribute::MaxThreadsPerMultiprocessor);
    p.max_blocks_per_multiprocessor = read(Attribute::MaxBlocksPerMultiprocessor);
    p.registers_per_multiprocessor = read(Attribute::RegistersPerMultiprocessor);
    p.max_block = {read(Attribute::MaxBlockX), read(Attribute::MaxBlockY), read(Attribute::MaxBlockZ)};
    p.max_grid = {read(Attribute::MaxGridX), read(Attribute::MaxGridY), read(Attribute::MaxGridZ)};
    p.shared_bytes_per_block = read(Attribute::SharedBytesPerBlock);
    p.shared_bytes_per_block_optin = read(Attribute::SharedBytesPerBlockOptin);
    p.shared_bytes_per_multiprocessor = read(Attribute::SharedBytesPerMultiprocessor);
    p.reserved_shared_bytes_per_block = read(Attribute::ReservedSharedBytesPerBlock);
    p.l2_bytes = read(Attribute::L2Bytes);
    p.clock_kilohertz = read(Attribute::ClockKilohertz);
    p.memory_clock_kilohertz = read(Attribute::MemoryClockKilohertz);
    p.memory_bus_bits = read(Attribute::MemoryBusBits);
    return p;
}

}  // namespace tw
