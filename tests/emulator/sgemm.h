// A register-tiled matrix product, c[m, n] = a[m, k] * b[k, n], written by hand: 64x64 tiles of a block of 256 threads,
// 4x4 of a thread. "@first" and "@second" stand where its barriers belong.
#pragma once
#include <string>

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

}  // namespace tw::emulator
