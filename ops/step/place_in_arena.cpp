#include "ops/step/place_in_arena.h"

#include <algorithm>
#include <numeric>

namespace tw {
namespace {

int64_t rounded(int64_t bytes, int64_t alignment) { return (bytes + alignment - 1) / alignment * alignment; }

bool meet(const ArenaRequest& one, const ArenaRequest& other) { return one.from <= other.to && other.from <= one.to; }

/// The first place that no earlier one has who lives at the same time.
class Placing {
public:
    Placing(const std::vector<ArenaRequest>& requests, int64_t alignment)
        : requests_(requests), alignment_(alignment) {}

    ArenaPlacement in(const std::vector<size_t>& order, const std::string& method) const {
        ArenaPlacement result{.offsets = std::vector<int64_t>(requests_.size()), .method = method};
        std::vector<size_t> placed;  // by offset
        for (size_t k : order) {
            if (requests_[k].bytes == 0) continue;
            result.offsets[k] = first_fit(k, placed, result.offsets);
            result.bytes = std::max(result.bytes, end_of(k, result.offsets));
            const auto before = [&](size_t a, size_t b) { return result.offsets[a] < result.offsets[b]; };
            placed.insert(std::ranges::upper_bound(placed, k, before), k);
        }
        return result;
    }

private:
    int64_t end_of(size_t k, const std::vector<int64_t>& offsets) const {
        return offsets[k] + rounded(requests_[k].bytes, alignment_);
    }
    int64_t first_fit(size_t k, const std::vector<size_t>& placed, const std::vector<int64_t>& offsets) const {
        int64_t offset = 0;
        for (size_t other : placed) {
            if (!meet(requests_[k], requests_[other])) continue;
            if (offset + requests_[k].bytes <= offsets[other]) break;
            offset = std::max(offset, end_of(other, offsets));
        }
        return offset;
    }

    const std::vector<ArenaRequest>& requests_;
    const int64_t alignment_;
};

int64_t most_alive(const std::vector<ArenaRequest>& requests, int64_t alignment) {
    int64_t most = 0;
    for (const ArenaRequest& at : requests) {
        int64_t alive = 0;
        for (const ArenaRequest& other : requests)
            if (other.from <= at.from && at.from <= other.to) alive += rounded(other.bytes, alignment);
        most = std::max(most, alive);
    }
    return most;
}

}  // namespace

ArenaPlacement place_in_arena(const std::vector<ArenaRequest>& requests, int64_t alignment) {
    const Placing placing(requests, alignment);
    std::vector<size_t> by_size(requests.size());
    std::iota(by_size.begin(), by_size.end(), size_t{0});
    std::vector<size_t> by_start = by_size;
    std::ranges::stable_sort(by_size, std::ranges::greater(), [&](size_t k) { return requests[k].bytes; });
    std::ranges::stable_sort(by_start, {}, [&](size_t k) { return requests[k].from; });
    ArenaPlacement result = placing.in(by_size, "by size"), other = placing.in(by_start, "in order");
    if (other.bytes < result.bytes) result = std::move(other);
    result.most_alive = most_alive(requests, alignment);
    return result;
}

}  // namespace tw
