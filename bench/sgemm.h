// A register-tiled matrix product, c[m, n] = a[m, k] * b[k, n], written by hand: 64x64 tiles of a block of 256 threads,
// 4x4 of a thread. "@first" and "@second" stand where its barriers belong. With operands, for a test and a measurement.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "runtime/emulator/emulator.h"

namespace tw::emulator {

inline constexpr const char* SgemmText = R"(
struct Shared {
    float a[16][68];
    float b[16][64];
};
extern "C" __global__ void __launch_bounds__(256) sgemm(const float* __restrict__ a, const float* __restrict__ b,
                                                        float* __restrict__ c, int m, int n, int k) {
    Shared& shared = tw::shared_memory<Shared>();
    const int column = threadIdx.x % 16, row = threadIdx.x / 16;
    float sum[4][4];
    for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j) sum[i][j] = 0.0f;
    for (int begin = 0; begin < k; begin += 16) {
        for (int i = 0; i < 4; ++i) {
            const int e = threadIdx.x + i * 256;
            shared.a[e % 16][e / 16] = a[(blockIdx.y * 64 + e / 16) * k + begin + e % 16];
            shared.b[e / 64][e % 64] = b[(begin + e / 64) * n + blockIdx.x * 64 + e % 64];
        }
        @first
        for (int s = 0; s < 16; ++s)
            for (int i = 0; i < 4; ++i)
                for (int j = 0; j < 4; ++j) sum[i][j] += shared.a[s][row * 4 + i] * shared.b[s][column * 4 + j];
        @second
    }
    for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j) c[(blockIdx.y * 64 + row * 4 + i) * n + blockIdx.x * 64 + column * 4 + j] = sum[i][j];
}
)";

/// The text with these statements in place of its barriers.
inline std::string sgemm_text(const std::string& first = "__syncthreads();",
                              const std::string& second = "__syncthreads();") {
    std::string text = SgemmText;
    text.replace(text.find("@first"), 6, first);
    text.replace(text.find("@second"), 7, second);
    return text;
}

inline std::shared_ptr<const Module> compile_sgemm(const std::string& text = sgemm_text()) {
    Source source{.name = "sgemm", .text = text, .line_notes = {}};
    return compile({&source, 1});
}

/// Operands of small integers, so that every order of a sum is exact. m and n are multiples of 64, k of 16.
class Product {
public:
    Product(int m, int n, int k)
        : m_(m), n_(n), k_(k), a_(size_t(m) * size_t(k)), b_(size_t(k) * size_t(n)), c_(size_t(m) * size_t(n)) {
        for (size_t i = 0; i < a_.size(); ++i) a_[i] = float(int(i * 7 % 9) - 4);
        for (size_t i = 0; i < b_.size(); ++i) b_[i] = float(int(i * 5 % 11) - 5);
    }

    Report run(const Module& module, const Options& options = {}) {
        float *a = a_.data(), *b = b_.data(), *c = c_.data();
        Launch launch{.kernel = "sgemm",
                      .grid = {unsigned(n_ / 64), unsigned(m_ / 64), 1},
                      .threads = 256,
                      .shared_bytes = 16 * 68 * 4 + 16 * 64 * 4,
                      .arguments = {&a, &b, &c, &m_, &n_, &k_},
                      .regions = {{a, a_.size() * 4, "a", false, true},
                                  {b, b_.size() * 4, "b", false, true},
                                  {c, c_.size() * 4, "c", true, false}}};
        return emulator::run(module, launch, options);
    }

    /// Whether the last run's results are right; looks at every 7th column of each row, from another one on in each.
    bool is_right() const {
        for (int i = 0; i < m_; ++i)
            for (int j = i % 7; j < n_; j += 7)
                if (c_[size_t(i) * size_t(n_) + size_t(j)] != expected(i, j)) return false;
        return true;
    }

private:
    float expected(int i, int j) const {
        float sum = 0;
        for (int s = 0; s < k_; ++s)
            sum += a_[size_t(i) * size_t(k_) + size_t(s)] * b_[size_t(s) * size_t(n_) + size_t(j)];
        return sum;
    }

    int m_, n_, k_;
    std::vector<float> a_, b_, c_;
};

}  // namespace tw::emulator
