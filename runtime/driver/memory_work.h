// Launches without a kernel: bytes that are copied, or set (Device::prepare_copy(), prepare_fill()).
#pragma once
#include <cstdint>
#include <optional>

#include "runtime/driver/driver.h"

namespace tw {

/// What such a launch does.
struct MemoryWork {
    uint64_t to = 0;
    int64_t bytes = 0;
    std::optional<uint64_t> from;  ///< of a copy
    uint32_t pattern = 0;          ///< of a fill: the element that is repeated
    int64_t element_bytes = 1;     ///< 1, 2 or 4
};

/// What stands in a kernel's place. Arguments of a copy are the buffers, to and from; of a fill, the buffer, the
/// pattern, and its bytes.
struct MemoryOperation final : Kernel::State {
    explicit MemoryOperation(bool is_copy) : is_copy(is_copy) { is_memory_work = true; }
    const bool is_copy;
};

/// Of a launch that has no kernel.
MemoryWork memory_work_of(const Launch& launch);

}  // namespace tw
