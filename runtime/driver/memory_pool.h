// Freed device memory, kept for the next allocation of the same size: cuMemAlloc takes tens to hundreds of microseconds
// and cuMemFree waits for the device.
#pragma once
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

namespace tw {

class MemoryPool {
public:
    struct Block {
        uint64_t pointer = 0;
        uint64_t freed_at = 0;  // how much work had been submitted by then: it may still use the block
    };

    /// Sizes are rounded up to this, so that near sizes share blocks.
    static int64_t round_up(int64_t bytes) { return bytes <= 512 ? 512 : (bytes + 511) / 512 * 512; }

    std::optional<Block> take(int64_t rounded_bytes) {
        std::lock_guard lock(mutex_);
        auto blocks = blocks_.find(rounded_bytes);
        if (blocks == blocks_.end() || blocks->second.empty()) return std::nullopt;
        Block block = blocks->second.back();
        blocks->second.pop_back();
        return block;
    }

    void put(int64_t rounded_bytes, Block block) {
        std::lock_guard lock(mutex_);
        blocks_[rounded_bytes].push_back(block);
    }

    /// Empties the pool.
    std::vector<uint64_t> drain() {
        std::lock_guard lock(mutex_);
        std::vector<uint64_t> pointers;
        for (auto& [bytes, blocks] : blocks_)
            for (const Block& block : blocks) pointers.push_back(block.pointer);
        blocks_.clear();
        return pointers;
    }

private:
    std::mutex mutex_;
    std::map<int64_t, std::vector<Block>> blocks_;
};

}  // namespace tw
