#include "codegen/cost/known_reads.h"

#include <algorithm>

namespace tw::codegen {
namespace {

constexpr double first_cache = 128 * 1024;  // bytes beside shared memory, about
constexpr size_t most_held = 256;           // of a buffer's pieces

/// Of the lanes' pieces, in their order.
uint64_t number_of_pieces(const std::vector<int64_t>& starts) {
    uint64_t number = 0;
    for (int64_t start : starts)
        number = number * 0x9e3779b97f4a7c15 + static_cast<uint64_t>(start / HeldReads::piece) + 1;
    return number;
}

}  // namespace

FirstCache::FirstCache(double resident_warps)
    : most_(static_cast<size_t>(std::max(first_cache / sector / std::max(resident_warps, 1.0), 64.0))) {}

bool FirstCache::keep(const BufferNode* array, int64_t sector) {
    if (!known_.insert({array, sector}).second) return false;
    order_.emplace_back(array, sector);
    if (order_.size() > most_) {
        known_.erase(order_.front());
        order_.pop_front();
    }
    return true;
}

HeldReads::Found HeldReads::see(const BufferNode* buffer, const std::vector<int64_t>& starts) {
    auto& held = held_[buffer];
    if (held.size() > most_held) held.clear();
    const auto [known, is_new] = held.try_emplace(number_of_pieces(starts), starts.front());
    if (is_new) return Found::New;
    return known->second == starts.front() ? Found::Held : Found::Beside;
}

}  // namespace tw::codegen
