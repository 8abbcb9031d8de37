// A buffer of an emulated launch: memory that belongs to nobody lies on both sides, and it starts as NaN.
#pragma once
#include <cstdlib>
#include <cstring>
#include <memory>

#include "support/error.h"

namespace tw::fuzz {

class GuardedMemory {
public:
    explicit GuardedMemory(size_t bytes) : bytes_(bytes) {
        size_t rounded = (bytes + Alignment - 1) / Alignment * Alignment + 2 * GuardBytes;
        memory_.reset(static_cast<std::byte*>(std::aligned_alloc(Alignment, rounded)));
        internal_check(memory_ != nullptr, "no {} bytes", rounded);
        std::memset(memory_.get(), 0xff, rounded);
    }
    std::byte* data() const { return memory_.get() + GuardBytes; }
    size_t bytes() const { return bytes_; }

    /// A kernel has written here, or it was filled.
    bool written = false;

private:
    static constexpr size_t Alignment = 512, GuardBytes = 64 << 10;
    struct Free {
        void operator()(std::byte* memory) const { std::free(memory); }
    };
    size_t bytes_;
    std::unique_ptr<std::byte, Free> memory_;
};

}  // namespace tw::fuzz
