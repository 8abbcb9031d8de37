// Kernels with one mistake each, that the emulator or the result must tell on every seed; and their operands.
#pragma once
#include <bit>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/emulator/emulator.h"

namespace tw::emulator {

/// The first `from` in a kernel's text becomes `to`.
struct Mutation {
    std::string name, from, to;
};

inline std::string mutated(std::string text, const Mutation& mutation) {
    const size_t at = text.find(mutation.from);
    EXPECT_NE(at, std::string::npos) << mutation.name;
    return at == std::string::npos ? text : text.replace(at, mutation.from.size(), mutation.to);
}

/// `is_caught(module, mutation, seed)` runs a kernel and tells whether it was found to be wrong.
template <class IsCaught>
void expect_all_caught(const std::string& kernel, std::span<const Mutation> mutations, uint64_t num_seeds,
                       IsCaught is_caught) {
    std::vector<Source> sources;
    for (const Mutation& mutation : mutations)
        sources.push_back({.name = "gemm", .text = mutated(kernel, mutation), .line_notes = {}});
    auto modules = compile_together(sources);
    for (size_t i = 0; i < modules.size(); ++i)
        for (uint64_t seed = 0; seed < num_seeds; ++seed)
            EXPECT_TRUE(is_caught(*modules[i], mutations[i], seed)) << mutations[i].name << ", seed " << seed;
}

inline float value_of_bf16(uint16_t bits) { return std::bit_cast<float>(uint32_t(bits) << 16); }

/// -4 to 4 in bf16, whose products are summed exactly in any order.
inline void fill_small(std::span<uint16_t> operand, std::mt19937& random) {
    for (uint16_t& bits : operand) bits = uint16_t(std::bit_cast<uint32_t>(float(int(random() % 9) - 4)) >> 16);
}

/// Element (m, n) of x w', rows of `terms` elements.
inline float sum_of_products(const uint16_t* x, const uint16_t* w, size_t m, size_t n, size_t terms) {
    float sum = 0;
    for (size_t k = 0; k < terms; ++k) sum += value_of_bf16(x[m * terms + k]) * value_of_bf16(w[n * terms + k]);
    return sum;
}

}  // namespace tw::emulator
