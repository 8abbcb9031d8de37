#include "bench/random_data.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numbers>
#include <thread>
#include <vector>

#include "support/error.h"

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

/// In [0, 1), from the word's upper 24 bits.
float unit_of(uint64_t word) { return static_cast<float>(word >> 40) * 0x1p-24f; }

/// After so many elements they come again: gigabytes would take seconds. A prime, so that no two rows are alike.
constexpr int64_t period = 4194301;

/// Copies the first `period` elements behind themselves, as often as there is room.
void repeat(HostArray& array, int64_t size) {
    const auto count = static_cast<int64_t>(array.bytes.size()) / size;
    std::byte* all = array.bytes.data();
    on_all_processors(count - period, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end;) {
            const int64_t from = i % period, copied = std::min(end - i, period - from);
            std::memcpy(all + (period + i) * size, all + from * size, static_cast<size_t>(copied * size));
            i += copied;
        }
    });
}

/// Stores store(number(word), place) for each element.
template <class Number, class Store>
void fill_each(HostArray& array, uint64_t seed, const Number& number, const Store& store) {
    const int64_t size = bytes_of(array.type), count = static_cast<int64_t>(array.bytes.size()) / size;
    on_all_processors(std::min(count, period), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i)
            store(number(random_word(seed, static_cast<uint64_t>(i))), &array.bytes[static_cast<size_t>(i * size)]);
    });
    if (count > period) repeat(array, size);
}

template <class Number>
void fill_floats(HostArray& array, uint64_t seed, const Number& number) {
    if (array.type == Type::F32)
        return fill_each(array, seed, number, [](float x, std::byte* to) { std::memcpy(to, &x, sizeof x); });
    if (array.type != Type::BF16)
        return fill_each(array, seed, number,
                         [&](float x, std::byte* to) { store_element(make_value(array.type, double{x}), to); });
    fill_each(array, seed, number, [](float x, std::byte* to) {
        uint16_t bits = to_bf16(x);
        std::memcpy(to, &bits, sizeof bits);
    });
}

/// By Box and Muller; the word's lower 24 bits choose the radius.
float normal_of(uint64_t word) {
    const float radius = std::sqrt(-2 * std::log(1 - unit_of(word << 40)));
    return radius * std::cos(2 * std::numbers::pi_v<float> * unit_of(word));
}

}  // namespace

void fill_random(HostArray& array, const Range& range, const IntegerRange& integers, uint64_t seed) {
    const float low = static_cast<float>(range.low), width = static_cast<float>(range.high - range.low);
    if (is_float(array.type))
        fill_floats(array, seed, [=](uint64_t word) { return low + width * unit_of(word); });
    else
        fill_integers(array, integers, seed);
}

void fill_normal(HostArray& array, uint64_t seed) {
    if (is_float(array.type)) return fill_floats(array, seed, normal_of);
    constexpr float deviation = 32;
    fill_each(array, seed, normal_of, [&](float x, std::byte* to) {
        store_element(make_value(array.type, static_cast<int64_t>(std::clamp(deviation * x, -127.0f, 127.0f))), to);
    });
}

void fill_whole(HostArray& array, int64_t most, uint64_t seed) {
    auto number = [most](uint64_t word) {
        return static_cast<int64_t>((word >> 32) % static_cast<uint64_t>(2 * most + 1)) - most;
    };
    if (is_float(array.type))
        return fill_floats(array, seed, [&](uint64_t word) { return static_cast<float>(number(word)); });
    fill_each(array, seed, number, [&](int64_t x, std::byte* to) { store_element(make_value(array.type, x), to); });
}

void scale_outliers(HostArray& array, const Outliers& outliers, const std::string& name) {
    const auto& [dimension, every, factor] = outliers;
    const auto rank = static_cast<int64_t>(array.shape.size());
    if (!is_float(array.type) || dimension < 0 || dimension >= rank || every < 1)
        throw_error(Error,
                    "prepare: \"outliers\" of '{}' are one in {} along dimension {}, but it is {} of {} dimensions; "
                    "give [dimension, every, factor] of an input of floats, every at least 1",
                    name, every, dimension, name_of(array.type), rank);
    const auto d = static_cast<size_t>(dimension);
    std::vector<int64_t> shape = array.shape, at(shape.size());
    shape[d] = (shape[d] + every - 1) / every;
    if (std::ranges::find(shape, 0) != shape.end()) return;
    do {
        std::vector<int64_t> element = at;
        element[d] *= every;
        array.set(element, make_value(array.type, array.at(element).real * factor));
    } while (advance(at, shape));
}

void fill_ascending(HostArray& array, const Range& range, uint64_t seed) {
    auto size = static_cast<size_t>(bytes_of(array.type));
    std::vector<int64_t> numbers(array.bytes.size() / size);
    for (size_t i = 0; i < numbers.size(); ++i)
        numbers[i] = static_cast<int64_t>(
            std::floor(range.low + (range.high - range.low) * double{unit_of(random_word(seed, i))}));
    std::sort(numbers.begin(), numbers.end());
    for (size_t i = 0; i < numbers.size(); ++i)
        store_element(make_value(array.type, numbers[i]), &array.bytes[i * size]);
}

}  // namespace tw::bench
