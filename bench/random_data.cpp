#include "bench/random_data.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <thread>
#include <vector>

namespace tw::bench {
namespace {

/// A number that depends on the seed and the index alone, so that threads need nothing of each other (splitmix64).
uint64_t random_word(uint64_t seed, uint64_t index) {
    uint64_t z = (seed << 40) + index * 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

uint16_t to_bf16(float value) {  // to nearest, ties to even; of finite values
    uint32_t bits = std::bit_cast<uint32_t>(value);
    return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

template <class Work>
void on_all_processors(int64_t count, const Work& work) {
    int64_t parts = std::max<int64_t>(1, std::min<int64_t>(std::thread::hardware_concurrency(), count >> 16));
    std::vector<std::thread> threads;
    for (int64_t part = 0; part < parts; ++part)
        threads.emplace_back([&, part] { work(count * part / parts, count * (part + 1) / parts); });
    for (std::thread& thread : threads) thread.join();
}

template <class Stored, class Convert>
void fill_with(HostArray& array, const Range& range, uint64_t seed, const Convert& convert) {
    int64_t count = static_cast<int64_t>(array.bytes.size() / sizeof(Stored));
    const float low = static_cast<float>(range.low), width = static_cast<float>(range.high - range.low);
    on_all_processors(count, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            float unit = static_cast<float>(random_word(seed, static_cast<uint64_t>(i)) >> 40) * 0x1p-24f;
            Stored stored = convert(low + width * unit);
            std::memcpy(&array.bytes[static_cast<size_t>(i) * sizeof(Stored)], &stored, sizeof(Stored));
        }
    });
}

}  // namespace

void fill_random(HostArray& array, const Range& range, uint64_t seed) {
    if (array.type == Type::F32)
        fill_with<float>(array, range, seed, [](float value) { return value; });
    else if (array.type == Type::BF16)
        fill_with<uint16_t>(array, range, seed, to_bf16);
    else if (is_float(array.type))
        fill_uniform(array, range.low, range.high, seed);
    else
        fill_integers(array, 0, array.type == Type::Bool ? 1 : 7, seed);
}

}  // namespace tw::bench
