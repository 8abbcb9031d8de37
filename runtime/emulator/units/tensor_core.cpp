#include "runtime/emulator/units/tensor_core.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "support/error.h"

namespace tw::emulator {
namespace {

struct Format {
    int exponent_bits, mantissa_bits, bias;
    bool has_infinity;
};

Format format_of(MatrixType type) {
    switch (type) {
        case MatrixType::f16: return {5, 10, 15, true};
        case MatrixType::bf16: return {8, 7, 127, true};
        case MatrixType::tf32: return {8, 10, 127, true};
        case MatrixType::e4m3: return {4, 3, 7, false};
        case MatrixType::e5m2: return {5, 2, 15, true};
        case MatrixType::s8: break;
    }
    internal_check(false, "integers have no format");
    return {};
}

struct Factor {
    double value = 0;
    int exponent = NoExponent;
};

constexpr double Nan = std::numeric_limits<double>::quiet_NaN(), Infinity = std::numeric_limits<double>::infinity();

Factor decode(const Format& format, uint32_t bits) {
    const uint32_t mantissa = bits & ((1u << format.mantissa_bits) - 1);
    const uint32_t exponent = bits >> format.mantissa_bits & ((1u << format.exponent_bits) - 1);
    const bool is_negative = bits >> (format.mantissa_bits + format.exponent_bits) & 1;
    const uint32_t last_exponent = (1u << format.exponent_bits) - 1;
    Factor factor;
    if (exponent == last_exponent && format.has_infinity) {
        factor.value = mantissa ? Nan : Infinity;
    } else if (exponent == last_exponent && mantissa == (1u << format.mantissa_bits) - 1) {
        factor.value = Nan;
    } else if (exponent != 0 || mantissa != 0) {
        factor.exponent = int(std::max(exponent, 1u)) - format.bias;
        const uint32_t significand = mantissa | uint32_t(exponent != 0) << format.mantissa_bits;
        factor.value = std::ldexp(double(significand), factor.exponent - format.mantissa_bits);
    }
    if (is_negative) factor.value = -factor.value;
    return factor;
}

/// All numbers of a type of at most 16 bits.
const std::vector<Factor>& decoded(MatrixType type) {
    static std::vector<Factor> tables[5];
    std::vector<Factor>& table = tables[size_t(type)];
    if (table.empty()) {
        table.resize(size_t(1) << (8 * bytes_of(type)));
        for (uint32_t bits = 0; bits < table.size(); ++bits) table[bits] = decode(format_of(type), bits);
    }
    return table;
}

int exponent_of(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value) & 0x7fffffff;
    return bits == 0 ? NoExponent : int(std::max(bits >> 23, 1u)) - 127;
}

double power_of_two(int exponent) { return std::bit_cast<double>(uint64_t(exponent + 1023) << 52); }

/// What is too large becomes an infinity.
float rounded_toward_zero(double value) {
    float nearest = float(value);
    if (std::abs(value) >= 0x1p128) return nearest;
    if (std::abs(double(nearest)) <= std::abs(value)) return nearest;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(nearest) - 1);
}

/// Where a term is infinite or no number, or the sum may be.
float special_sum(float start, const double* a, const double* b, int k, float finite_sum) {
    double sum = start;
    bool is_special = !std::isfinite(start);
    for (int i = 0; i < k; ++i) {
        const double product = a[i] * b[i];
        if (std::isfinite(product)) continue;
        sum = is_special ? sum + product : product;
        is_special = true;
    }
    if (!is_special) return finite_sum;
    return std::isnan(sum) ? std::bit_cast<float>(0x7fffffff) : float(sum);
}

/// The terms of one sum differ from those of the next in b: for all columns at once, which the compiler can vectorise.
class RowOfSums {
public:
    RowOfSums(const Factors& b, int fraction_bits)
        : n_(size_t(b.rows)), k_(size_t(b.k)), fraction_bits_(fraction_bits) {
        values_.resize(n_ * k_);
        exponents_.resize(n_ * k_);
        for (size_t j = 0; j < n_; ++j)
            for (size_t i = 0; i < k_; ++i) {
                values_[i * n_ + j] = b.values[j * k_ + i];
                exponents_[i * n_ + j] = b.exponents[j * k_ + i];
            }
        largest_.resize(n_);
        scales_.resize(n_);
        sums_.resize(n_);
    }

    void add(float* d, const double* a, const int* a_exponents) {
        for (size_t j = 0; j < n_; ++j) largest_[j] = exponent_of(d[j]);
        for (size_t i = 0; i < k_; ++i) {
            const int* exponents = &exponents_[i * n_];
            for (size_t j = 0; j < n_; ++j) largest_[j] = std::max(largest_[j], a_exponents[i] + exponents[j]);
        }
        for (size_t j = 0; j < n_; ++j) {
            largest_[j] = largest_[j] < -1000 ? 0 : largest_[j];
            scales_[j] = power_of_two(fraction_bits_ - largest_[j]);
            sums_[j] = truncated(double(d[j]) * scales_[j]);
        }
        for (size_t i = 0; i < k_; ++i) {
            const double* values = &values_[i * n_];
            for (size_t j = 0; j < n_; ++j) sums_[j] += truncated(a[i] * values[j] * scales_[j]);
        }
        for (size_t j = 0; j < n_; ++j)
            d[j] = rounded_toward_zero(sums_[j] * power_of_two(largest_[j] - fraction_bits_));
    }

private:
    static double truncated(double x) { return double(int32_t(x)); }  // terms are less than 2^27

    size_t n_, k_;
    int fraction_bits_;
    std::vector<double> values_, scales_, sums_;  // values of b as [k, n]
    std::vector<int> exponents_, largest_;
};

}  // namespace

size_t bytes_of(MatrixType type) {
    switch (type) {
        case MatrixType::f16:
        case MatrixType::bf16: return 2;
        case MatrixType::tf32: return 4;
        case MatrixType::e4m3:
        case MatrixType::e5m2:
        case MatrixType::s8: break;
    }
    return 1;
}

void Factors::set(int row, int column, MatrixType type, uint32_t bits) {
    const size_t at = size_t(row * k + column);
    if (type == MatrixType::s8) {
        values[at] = int8_t(bits);
        return;
    }
    const Factor factor = type == MatrixType::tf32 ? decode(format_of(type), bits >> 13) : decoded(type)[bits];
    values[at] = factor.value;
    exponents[at] = factor.exponent;
    has_special |= !std::isfinite(factor.value);
}

void Factors::negate() {
    for (double& value : values) value = -value;
}

void multiply_add(float* d, const Factors& a, const Factors& b, int fraction_bits, int mantissa_bits) {
    const uint32_t kept_bits = ~uint32_t(0) << (MantissaBits - mantissa_bits);
    RowOfSums row(b, fraction_bits);
    std::vector<float> start;
    for (int i = 0; i < a.rows; ++i) {
        float* sums = d + size_t(i) * size_t(b.rows);
        const double* values = &a.values[size_t(i * a.k)];
        const bool is_special = a.has_special || b.has_special ||
                                !std::all_of(sums, sums + b.rows, [](float x) { return std::isfinite(x); });
        if (is_special) start.assign(sums, sums + b.rows);
        row.add(sums, values, &a.exponents[size_t(i * a.k)]);
        for (int j = 0; j < b.rows; ++j) sums[j] = std::bit_cast<float>(std::bit_cast<uint32_t>(sums[j]) & kept_bits);
        for (int j = 0; is_special && j < b.rows; ++j)
            sums[j] = special_sum(start[size_t(j)], values, &b.values[size_t(j * b.k)], b.k, sums[j]);
    }
}

namespace {

/// What is subnormal in fp8 may be normal in f16.
int exponent_in_f16(double value) { return std::max(std::ilogb(value), 1 - format_of(MatrixType::f16).bias); }

/// The two of every four columns that begin at `first`, as f16.
Factors every_other_pair(const Factors& all, int first) {
    Factors pairs(all.rows, all.k / 2);
    pairs.has_special = all.has_special;
    for (int row = 0; row < all.rows; ++row)
        for (int k = 0; k < pairs.k; ++k) {
            const auto from = size_t(row * all.k + k / 2 * 4 + k % 2 + first), to = size_t(row * pairs.k + k);
            pairs.values[to] = all.values[from];
            const bool has_exponent = all.exponents[from] != NoExponent;
            pairs.exponents[to] = has_exponent ? exponent_in_f16(all.values[from]) : NoExponent;
        }
    return pairs;
}

}  // namespace

void multiply_add_fp8(float* d, const Factors& a, const Factors& b) {
    std::vector<float> products(size_t(a.rows * b.rows));
    for (int first : {0, 2})
        multiply_add(products.data(), every_other_pair(a, first), every_other_pair(b, first), FractionBits);
    for (size_t i = 0; i < products.size(); ++i) {
        d[i] += products[i];
        if (std::isnan(d[i])) d[i] = std::bit_cast<float>(0x7fffffff);
    }
}

void multiply_add(int32_t* d, const Factors& a, const Factors& b) {
    for (int i = 0; i < a.rows; ++i)
        for (int j = 0; j < b.rows; ++j) {
            double sum = 0;
            for (int k = 0; k < a.k; ++k) sum += a.values[size_t(i * a.k + k)] * b.values[size_t(j * b.k + k)];
            int32_t& result = d[size_t(i) * size_t(b.rows) + size_t(j)];
            result = int32_t(uint32_t(result) + uint32_t(int32_t(sum)));
        }
}

}  // namespace tw::emulator
