// Tensors in host memory: what interpreters, tests and launches are given and compare.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dsl/type.h"

namespace tw {

/// Elements of one type; element (i, j, ...) stands at bytes[(i * strides[0] + j * strides[1] + ...) * bytes_of(type)].
struct HostArray {
    Type type = Type::F32;
    std::vector<int64_t> shape;
    std::vector<int64_t> strides;  ///< in elements, not negative; 0 repeats an element
    std::vector<std::byte> bytes;

    int64_t num_elements() const;
    /// The element's place in memory, in elements. An internal error if the indices leave the shape.
    int64_t offset(const std::vector<int64_t>& indices) const;
    Value at(const std::vector<int64_t>& indices) const;
    /// Stores the value, converted to the type.
    void set(const std::vector<int64_t>& indices, const Value& value);
};

/// Zeros. Dense rows if `strides` is empty.
HostArray host_array(Type type, const std::vector<int64_t>& shape, const std::vector<int64_t>& strides = {});
/// Strides of dense rows, in elements.
std::vector<int64_t> dense_strides(const std::vector<int64_t>& shape);
/// Elements of memory that an array of this shape spans: 0 if it has none.
int64_t span_elements(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides);
/// The indices of the element after `indices` in row-major order; false at the end.
bool advance(std::vector<int64_t>& indices, const std::vector<int64_t>& shape);

// Fills. The same seed gives the same values on every machine.
/// Uniform in [lo, hi), rounded to the type. Of floats only.
void fill_uniform(HostArray& array, double lo, double hi, uint64_t seed);
/// Uniform integers lo..hi inclusive, of any type: while they are small, every order of a sum is exact.
void fill_integers(HostArray& array, int64_t lo, int64_t hi, uint64_t seed);
/// NaN in floats, an unlikely pattern in integers, gaps between strided elements included.
void fill_poison(HostArray& array);

/// When two elements match. NaN matches NaN, whatever its bits.
struct Match {
    enum class Kind {
        Bitwise,  ///< the same bits
        Equal,    ///< ==: -0 matches 0
        Near,     ///< at most `ulps` numbers of the type apart, or at most `absolute`
    } kind = Kind::Bitwise;
    int64_t ulps = 0;
    double absolute = 0;
};
inline constexpr Match bitwise{Match::Kind::Bitwise}, equal_values{Match::Kind::Equal};
inline Match near(int64_t ulps, double absolute = 0) { return {Match::Kind::Near, ulps, absolute}; }

bool matches(const Value& got, const Value& expected, const Match& match);
/// How many representable numbers lie from a to b, of one type; 0 for equal values, the largest int64_t for a NaN.
int64_t ulps_between(const Value& a, const Value& b);

/// Nothing if all elements match, else a report: "c[3, 5] is 1.5, expected 2 (12 of 400 elements differ, ...)". The
/// arrays' types may differ: then values are compared after conversion to `got`'s type.
std::optional<std::string> difference(const std::string& name, const HostArray& got, const HostArray& expected,
                                      const Match& match = bitwise);

/// "[3, 5]"
std::string indices_text(const std::vector<int64_t>& indices);
/// The value with as many digits as tell it from its neighbours: "0.1", "17", "true".
std::string to_string(const Value& value);

}  // namespace tw
