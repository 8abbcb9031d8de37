#include "runtime/driver/arch.h"

#include <fmt/format.h>

namespace tw {

std::string arch_of(int compute_major, int compute_minor) {
    // From Hopper on, wgmma and its successors exist only in the architecture's own ("a") feature set.
    return fmt::format("sm_{}{}{}", compute_major, compute_minor, compute_major >= 9 ? "a" : "");
}

DeviceProperties properties_of(std::string_view arch) {
    const Target* target = find_target(arch);
    if (!target) throw_error(NoDevice, "no architecture '{}'; known are {}", arch, known_targets());
    DeviceProperties p;
    p.arch = arch;
    p.compute_major = target->compute_major;
    p.compute_minor = target->compute_minor;
    p.multiprocessors = target->multiprocessors;
    p.max_threads_per_multiprocessor = target->threads_per_multiprocessor;
    p.max_blocks_per_multiprocessor = target->blocks_per_multiprocessor;
    p.registers_per_multiprocessor = target->registers;
    p.shared_bytes_per_block_optin = target->shared_bytes;
    p.shared_bytes_per_multiprocessor = target->shared_bytes_per_multiprocessor;
    p.reserved_shared_bytes_per_block = 1024;
    p.l2_bytes = target->l2_bytes;
    return p;
}

Target target_of(const Device& device) {
    Target result = target(device.arch());
    result.multiprocessors = static_cast<int>(device.properties().multiprocessors);
    result.l2_bytes = device.properties().l2_bytes;
    return result;
}

}  // namespace tw
