#include "verify/telling_data.h"

#include <cmath>
#include <limits>

#include "ops/check.h"
#include "ops/integer_ranges.h"
#include "verify/random.h"

namespace tw::fuzz {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Which elements of a row stand out: often one alone, the first or the last; or several, up to 32.
std::vector<bool> standing_out(Random& random, int64_t length) {
    std::vector<bool> stands_out(static_cast<size_t>(length), false);
    int64_t choice = random.below(3), several = random.chance(0.5) ? 2 << random.below(5) : 0;
    auto alone = choice == 0 ? 0 : choice == 1 ? length - 1 : random.below(length);
    if (several == 0) stands_out[static_cast<size_t>(alone)] = true;
    for (int64_t k = 0; k < several; ++k) stands_out[static_cast<size_t>(random.below(length))] = true;
    return stands_out;
}

double real_between(Random& random, double lo, double hi) {
    constexpr int64_t steps = 1 << 20;
    return lo + (hi - lo) * static_cast<double>(random.below(steps)) / steps;
}

void fill_sizes(HostArray& array, uint64_t seed) {
    if (array.num_elements() == 0) return;
    Random random(seed);
    std::vector<int64_t> indices(array.shape.size(), 0);
    do {
        double value = std::ldexp(real_between(random, -1, 1), static_cast<int>(random.between(-6, 6)));
        array.set(indices, make_value(array.type, value));
    } while (advance(indices, array.shape));
}

void fill_rows(HostArray& array, uint64_t seed) {
    if (array.num_elements() == 0 || array.shape.empty()) return;
    Random random(seed);
    std::vector<bool> stands_out;
    double highest = 0, everywhere = 0;
    bool empty = false;
    std::vector<int64_t> indices(array.shape.size(), 0);
    do {
        if (indices.back() == 0) {
            stands_out = standing_out(random, array.shape.back());
            highest = (random.chance(0.5) ? -100 : 1000) + real_between(random, -100, 0);
            empty = random.chance(0.2);
            everywhere = random.chance(0.5) ? -kInfinity : 0;
        }
        bool special = stands_out[static_cast<size_t>(indices.back())];
        double value = special ? highest : real_between(random, -400, -300);
        array.set(indices, make_value(array.type, empty ? everywhere : value));
    } while (advance(indices, array.shape));
}

/// Half of what chooses elements chooses one of the first or the last few: vectors end there in other statements.
void draw_to_ends(HostArray& array, const IntegerRange& range, uint64_t seed) {
    constexpr int64_t few = 4;
    if (array.num_elements() == 0 || range.ascending || range.high - range.low < 4 * few) return;
    Random random(seed);
    std::vector<int64_t> indices(array.shape.size(), 0);
    do {
        if (random.chance(0.5)) continue;
        const int64_t from_end = random.below(few);
        array.set(indices, make_value(array.type, random.chance(0.5) ? range.low + from_end : range.high - from_end));
    } while (advance(indices, array.shape));
}

}  // namespace

Bindings telling_bindings(const std::vector<Tensor>& outputs, uint64_t seed) {
    Bindings bindings = random_bindings(outputs, seed);
    uint64_t array_seed = seed * 1000;
    const auto ranges = integer_ranges(outputs, bindings);
    for (auto& [name, array] : bindings.inputs) {
        ++array_seed;
        if (const auto range = ranges.find(name); range != ranges.end()) draw_to_ends(array, range->second, array_seed);
        if (!is_float(array.type)) continue;
        if (seed % kKindsOfData == kWholeNumbers) fill_integers(array, -3, 3, array_seed);
        if (seed % kKindsOfData == 2) fill_rows(array, array_seed);
        if (seed % kKindsOfData == 3) fill_sizes(array, array_seed);
    }
    return bindings;
}

}  // namespace tw::fuzz
