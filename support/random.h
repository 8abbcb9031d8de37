// Random choices that are the same on every machine for the same seed.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace tw {

/// splitmix64 (Steele, Lea, Flood 2014).
class Random {
public:
    explicit Random(uint64_t seed) : state_(seed) {}
    /// A stream of its own for each number.
    Random(uint64_t seed, uint64_t number) : state_(Random(seed ^ (number * 0xd1342543de82ef95u)).next()) {}

    uint64_t next() {
        uint64_t z = state_ += 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }
    /// 0 .. count-1
    int64_t below(int64_t count) { return static_cast<int64_t>(next() % static_cast<uint64_t>(count)); }
    /// lo .. hi, inclusive
    int64_t between(int64_t lo, int64_t hi) { return lo + below(hi - lo + 1); }
    bool chance(double probability) { return static_cast<double>(next() >> 11) * 0x1p-53 < probability; }
    template <class T>
    const T& pick(const std::vector<T>& choices) {
        return choices[static_cast<size_t>(below(static_cast<int64_t>(choices.size())))];
    }
    template <class T>
    void shuffle(std::vector<T>& items) {
        for (size_t k = items.size(); k > 1; --k)
            std::swap(items[k - 1], items[static_cast<size_t>(below(static_cast<int64_t>(k)))]);
    }

private:
    uint64_t state_;
};

}  // namespace tw
