#include "dsl/host_array.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "support/error.h"

namespace tw {
namespace {

/// splitmix64 (Steele, Lea, Flood 2014): one well-mixed word a counter.
uint64_t mixed(uint64_t counter) {
    uint64_t z = counter * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

template <class MakeValue>
void fill(HostArray& array, uint64_t seed, const MakeValue& make) {
    size_t width = bytes_of(array.type);
    uint64_t counter = mixed(seed + 1);
    for (size_t at = 0; at + width <= array.bytes.size(); at += width)
        store_element(make_value(array.type, make(mixed(++counter))), &array.bytes[at]);
}

/// Bits of a float type as an integer that counts its numbers in order, -0 and 0 alike.
int64_t rank_of(const Value& value) {
    std::byte bytes[8] = {};
    store_element(value, bytes);
    uint64_t bits = 0;
    std::memcpy(&bits, bytes, sizeof bits);
    int width = 8 * bytes_of(value.type);
    uint64_t sign = uint64_t{1} << (width - 1);
    auto magnitude = static_cast<int64_t>(bits & (sign - 1));
    if (value.type == Type::TF32) magnitude >>= 13;  // the bits that tf32 lacks
    return bits & sign ? -magnitude : magnitude;
}

bool same_bits(const Value& a, const Value& b) {
    if (is_float(a.type)) return std::bit_cast<uint64_t>(a.real) == std::bit_cast<uint64_t>(b.real);
    return a.integer == b.integer;
}

bool is_nan(const Value& value) { return is_float(value.type) && std::isnan(value.real); }

double as_real(const Value& value) { return is_float(value.type) ? value.real : static_cast<double>(value.integer); }

}  // namespace

int64_t HostArray::num_elements() const {
    int64_t count = 1;
    for (int64_t extent : shape) count *= extent;
    return count;
}

int64_t HostArray::offset(const std::vector<int64_t>& indices) const {
    bool is_there = indices.size() == shape.size();
    int64_t place = 0;
    for (size_t d = 0; is_there && d < shape.size(); ++d) {
        is_there = indices[d] >= 0 && indices[d] < shape[d];
        place += indices[d] * strides[d];
    }
    if (!is_there)
        throw_error(Error, "an array of shape {} has no element {}; give an index from 0 on for each dimension",
                    indices_text(shape), indices_text(indices));
    return place;
}

Value HostArray::at(const std::vector<int64_t>& indices) const {
    return load_element(type, &bytes[offset(indices) * bytes_of(type)]);
}

void HostArray::set(const std::vector<int64_t>& indices, const Value& value) {
    store_element(convert(type, value), &bytes[offset(indices) * bytes_of(type)]);
}

std::vector<int64_t> dense_strides(const std::vector<int64_t>& shape) {
    std::vector<int64_t> strides(shape.size());
    int64_t step = 1;
    for (size_t d = shape.size(); d-- > 0; step *= shape[d]) strides[d] = step;
    return strides;
}

int64_t span_elements(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides) {
    int64_t last = 0;
    for (size_t d = 0; d < shape.size(); ++d) {
        if (shape[d] == 0) return 0;
        last += (shape[d] - 1) * strides[d];
    }
    return last + 1;
}

HostArray host_array(Type type, const std::vector<int64_t>& shape, const std::vector<int64_t>& strides) {
    HostArray array{type, shape, strides.empty() ? dense_strides(shape) : strides, {}};
    internal_check(array.strides.size() == shape.size(), "{} strides for {} dimensions", strides.size(), shape.size());
    for (size_t d = 0; d < shape.size(); ++d)
        internal_check(shape[d] >= 0 && array.strides[d] >= 0, "an array of shape {} and strides {}",
                       indices_text(shape), indices_text(array.strides));
    array.bytes.resize(span_elements(shape, array.strides) * bytes_of(type));
    return array;
}

bool advance(std::vector<int64_t>& indices, const std::vector<int64_t>& shape) {
    for (size_t d = shape.size(); d-- > 0;) {
        if (++indices[d] < shape[d]) return true;
        indices[d] = 0;
    }
    return false;
}

void fill_uniform(HostArray& array, double lo, double hi, uint64_t seed) {
    internal_check(is_float(array.type), "fill_uniform of {}", name_of(array.type));
    fill(array, seed, [&](uint64_t word) { return lo + (hi - lo) * (static_cast<double>(word >> 11) * 0x1p-53); });
}

void fill_integers(HostArray& array, int64_t lo, int64_t hi, uint64_t seed) {
    internal_check(lo <= hi, "fill_integers from {} to {}", lo, hi);
    fill(array, seed,
         [&](uint64_t word) { return lo + static_cast<int64_t>(word % static_cast<uint64_t>(hi - lo + 1)); });
}

void fill_poison(HostArray& array) {
    size_t width = bytes_of(array.type);
    constexpr int64_t kUnlikely = -0x2152411021524111;  // 0xdeadbeefdeadbeef
    Value poison = is_float(array.type) ? make_value(array.type, std::numeric_limits<double>::quiet_NaN())
                                        : make_value(array.type, kUnlikely);
    for (size_t at = 0; at + width <= array.bytes.size(); at += width) store_element(poison, &array.bytes[at]);
}

int64_t ulps_between(const Value& a, const Value& b) {
    if (is_nan(a) || is_nan(b)) return is_nan(a) && is_nan(b) ? 0 : std::numeric_limits<int64_t>::max();
    int64_t from = is_float(a.type) ? rank_of(a) : a.integer, to = is_float(b.type) ? rank_of(b) : b.integer;
    int64_t distance;
    if (__builtin_sub_overflow(std::max(from, to), std::min(from, to), &distance))
        return std::numeric_limits<int64_t>::max();
    return distance;
}

bool matches(const Value& got, const Value& expected, const Match& match) {
    if (is_nan(got) || is_nan(expected)) return is_nan(got) && is_nan(expected);
    if (match.kind == Match::Kind::Bitwise) return same_bits(got, expected);
    if (as_real(got) == as_real(expected) && got.integer == expected.integer) return true;
    if (match.kind == Match::Kind::Equal) return false;
    return std::fabs(as_real(got) - as_real(expected)) <= match.absolute || ulps_between(got, expected) <= match.ulps;
}

std::optional<std::string> difference(const std::string& name, const HostArray& got, const HostArray& expected,
                                      const Match& match) {
    if (got.shape != expected.shape)
        return fmt::format("{} has shape {}, expected {}", name, indices_text(got.shape), indices_text(expected.shape));
    if (got.num_elements() == 0) return {};
    std::string first;
    int64_t count = 0, worst_ulps = 0;
    double worst = 0;
    std::vector<int64_t> indices(got.shape.size()), worst_at;
    do {
        Value g = got.at(indices), e = convert(got.type, expected.at(indices));
        if (matches(g, e, match)) continue;
        if (count++ == 0)
            first = fmt::format("{}{} is {}, expected {}", name, indices_text(indices), to_string(g), to_string(e));
        worst_ulps = std::max(worst_ulps, ulps_between(g, e));
        if (double apart = std::fabs(as_real(g) - as_real(e)); worst_at.empty() || !(apart <= worst)) {
            worst = apart;
            worst_at = indices;
        }
    } while (advance(indices, got.shape));
    if (count == 0) return {};
    return fmt::format("{} ({} of {} elements differ, most at {}: by {:.6g}, {})", first, count, got.num_elements(),
                       indices_text(worst_at), worst,
                       worst_ulps == std::numeric_limits<int64_t>::max() ? "NaN against a number"
                                                                         : fmt::format("at most {} ulp", worst_ulps));
}

std::string indices_text(const std::vector<int64_t>& indices) { return fmt::format("[{}]", fmt::join(indices, ", ")); }

std::string to_string(const Value& value) {
    if (value.type == Type::Bool) return value.integer ? "true" : "false";
    if (!is_float(value.type)) return std::to_string(value.integer);
    if (value.type == Type::F64) return fmt::format("{}", value.real);
    return fmt::format("{}", static_cast<float>(value.real));
}

}  // namespace tw
