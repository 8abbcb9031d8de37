// What a warp has read before: of the first cache, and of registers.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "dsl/tree.h"

namespace tw::codegen {

inline constexpr int64_t sector = 32;  ///< bytes that pass a cache together

/// The sectors of the first cache that are a warp's, the one that came first going first.
class FirstCache {
public:
    explicit FirstCache(double resident_warps);

    /// Whether the sector was not there, where it is now.
    bool keep(const BufferNode* array, int64_t sector);

private:
    using Sector = std::pair<const BufferNode*, int64_t>;
    size_t most_;
    std::set<Sector> known_;
    std::deque<Sector> order_;
};

/// Of shared memory, what loops that are written out have read, and a compiler keeps in registers where they read it
/// again: whole pieces of 16 bytes, as it knows how elements lie.
class HeldReads {
public:
    static constexpr int64_t piece = 16;  ///< bytes

    enum class Found { New, Beside, Held };
    /// Elements that the lanes read, which begin at these bytes of the buffer. Beside: with others of their pieces.
    Found see(const BufferNode* buffer, const std::vector<int64_t>& starts);
    void forget(const BufferNode* buffer) { held_.erase(buffer); }
    void clear() { held_.clear(); }

private:
    /// Of each buffer, by all lanes' places, where the first lane began.
    std::map<const BufferNode*, std::map<uint64_t, int64_t>> held_;
};

}  // namespace tw::codegen
