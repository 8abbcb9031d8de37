// A function of the vocabulary, applied to many floats by a kernel.
#pragma once
#include <bit>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "device/vocabulary.h"
#include "runtime/driver/driver.h"

namespace tw {

/// Every sign, exponent and seven bits of mantissa, with what may follow: nothing, ties of all narrow types and their
/// neighbours, random bits. A million floats.
inline std::vector<float> telling_floats() {
    std::vector<float> floats;
    uint64_t random = 88172645463325252u;
    for (uint32_t high = 0; high < 65536; ++high) {
        for (uint32_t low :
             {0u, 1u, 0x0fffu, 0x1000u, 0x1001u, 0x1fffu, 0x3000u, 0x7fffu, 0x8000u, 0x8001u, 0xf000u, 0xffffu})
            floats.push_back(std::bit_cast<float>(high << 16 | low));
        for (int i = 0; i < 4; ++i) {
            random ^= random << 13, random ^= random >> 7, random ^= random << 17;  // xorshift64
            floats.push_back(std::bit_cast<float>(high << 16 | uint32_t(random >> 48)));
        }
    }
    return floats;
}

/// The bits of `expression` (of unsigned type) for every x.
inline std::vector<uint32_t> apply(Device& device, const std::set<std::string>& names, const std::string& expression,
                                   const std::vector<float>& xs) {
    std::string text = device::vocabulary_text(names) + fmt::format(R"(
extern "C" __global__ void __launch_bounds__(256) apply(const float* xs, unsigned* results, int n) {{
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) {{
        const float x = xs[i];
        results[i] = {};
    }}
}}
)",
                                                                    expression);
    Kernel kernel = device.load({.name = "apply.cu", .source = text, .entry = "apply"});
    const auto n = static_cast<int64_t>(xs.size());
    Buffer input = device.allocate(n * 4, "xs"), output = device.allocate(n * 4, "results");
    input.write(xs);
    device.prepare(kernel, {.grid = {(n + 255) / 256}, .block = {256}}, {input, output, static_cast<int32_t>(n)}).run();
    device.synchronize();
    return output.read<uint32_t>();
}

/// A function of a float with a float as its result, by name.
inline std::vector<float> apply(Device& device, const std::string& name, const std::vector<float>& xs) {
    std::vector<float> results;
    for (uint32_t bits :
         apply(device, {name, "bits"}, fmt::format("tw::float_bits(tw::{}(x))", name.substr(0, name.find("_f32"))), xs))
        results.push_back(std::bit_cast<float>(bits));
    return results;
}

}  // namespace tw
