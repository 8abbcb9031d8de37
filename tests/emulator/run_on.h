// A kernel on a device, from bytes to bytes; and the comparison of a GPU with the emulator.
#pragma once
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "device/vocabulary.h"
#include "runtime/driver/driver.h"

namespace tw {

using Bytes = std::vector<uint8_t>;

inline Bytes random_bytes(size_t count, uint64_t seed) {
    std::mt19937_64 random(seed);
    Bytes bytes(count);
    for (uint8_t& byte : bytes) byte = uint8_t(random());
    return bytes;
}

template <class T>
Bytes bytes_of(const std::vector<T>& values) {
    Bytes bytes(values.size() * sizeof(T));
    if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
}

template <class T>
std::vector<T> values_of(const Bytes& bytes) {
    std::vector<T> values(bytes.size() / sizeof(T));
    if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
    return values;
}

/// By NVRTC, where it is, also on machines without a GPU: the text of a kernel `k` is CUDA.
inline void expect_compiles_for_hopper(const std::string& text) {
    try {
        open_device("null:sm_90a")->load({.name = "k.cu", .source = text, .entry = "k"});
    } catch (const NvrtcMissing&) {
    }
}

/// `k(In* in, Out* out)`, whose body sees `t`, the thread, and `shared`, bytes.
struct SmallKernel {
    std::set<std::string> names;  // of primitives
    std::string in_type = "unsigned char", out_type = "unsigned char";
    std::string body;
    int64_t blocks = 1, threads = 32, shared_bytes = 4096;

    std::string text() const {
        std::set<std::string> all = names;
        all.insert("shared_memory");
        return device::vocabulary_text(all) +
               fmt::format(
                   "extern \"C\" __global__ void __launch_bounds__({}) k(const {}* in, {}* out) {{\n"
                   "    unsigned char* shared = &tw::shared_memory<unsigned char>();\n"
                   "    const int t = threadIdx.x;\n{}\n}}\n",
                   threads, in_type, out_type, body);
    }

    Bytes run(Device& device, const Bytes& in, size_t out_bytes) const {
        Kernel kernel = device.load({.name = "k.cu", .source = text(), .entry = "k"});
        Buffer input = device.allocate(int64_t(in.size()), "in"), output = device.allocate(int64_t(out_bytes), "out");
        input.write(in);
        output.fill(0xff);
        device
            .prepare(kernel, {.grid = {blocks}, .block = {threads}, .dynamic_shared_bytes = shared_bytes},
                     {input, output})
            .run();
        device.synchronize();
        return output.read<uint8_t>();
    }

    /// The emulator's result, compared with the GPU's where there is one. `describe` tells what the kernel was given
    /// for a byte of the output.
    Bytes run_everywhere(const Bytes& in, size_t out_bytes,
                         const std::function<std::string(size_t)>& describe = {}) const {
        static const std::shared_ptr<Device> emulator = open_device("emulated");
        static const bool has_gpu = best_device().device->kind() == DeviceKind::Cuda;
        static const std::shared_ptr<Device> gpu = has_gpu ? open_device("cuda") : nullptr;
        Bytes emulated = run(*emulator, in, out_bytes);
        if (!gpu) return emulated;
        Bytes cuda = run(*gpu, in, out_bytes);
        size_t differences = 0;
        std::string told;
        for (size_t i = 0; i < out_bytes; ++i) {
            if (cuda[i] == emulated[i]) continue;
            if (++differences > 12 || !describe) continue;
            uint32_t words[2] = {};
            std::memcpy(&words[0], &emulated[i / 4 * 4], 4);
            std::memcpy(&words[1], &cuda[i / 4 * 4], 4);
            told += fmt::format("{:08x} emulated, {:08x} on the GPU: {}\n", words[0], words[1], describe(i));
        }
        EXPECT_EQ(differences, 0u) << "bytes of " << out_bytes << " differ between GPU and emulator:\n"
                                   << told << text();
        return emulated;
    }
};

}  // namespace tw
