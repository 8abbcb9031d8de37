#include <chrono>
#include <vector>

#include "bench/measures.h"
#include "runtime/emulator/emulator.h"
#include "tests/emulator/sgemm.h"

namespace tw::bench {
namespace {

/// Small integers, so that every order of a sum is exact.
std::vector<float> small_integers(int count, int step, int modulus) {
    std::vector<float> values(static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) values[size_t(i)] = float(int64_t{i} * step % modulus - modulus / 2);
    return values;
}

struct Product {
    int m, n, k;
    std::vector<float> a = small_integers(m * k, 7, 9), b = small_integers(k * n, 5, 11);
    std::vector<float> c = std::vector<float>(size_t(m) * size_t(n));

    emulator::Report run(const emulator::Module& module) {
        float *pa = a.data(), *pb = b.data(), *pc = c.data();
        emulator::Launch launch{.kernel = "sgemm",
                                .grid = {unsigned(n / 64), unsigned(m / 64), 1},
                                .threads = 256,
                                .shared_bytes = 16 * 68 * 4 + 16 * 64 * 4,
                                .arguments = {&pa, &pb, &pc, &m, &n, &k},
                                .regions = {{pa, a.size() * 4, "a", false, true},
                                            {pb, b.size() * 4, "b", false, true},
                                            {pc, c.size() * 4, "c", true, false}}};
        return emulator::run(module, launch);
    }

    bool is_right() const {
        for (int i = 0; i < m; ++i)
            for (int j = 0; j < n; j += 7) {
                float sum = 0;
                for (int s = 0; s < k; ++s) sum += a[size_t(i * k + s)] * b[size_t(s * n + j)];
                if (c[size_t(i * n + j)] != sum) return false;
            }
        return true;
    }
};

double seconds_since(std::chrono::steady_clock::time_point begin) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

nlohmann::json measure_emulator(int m, int n, int k) {
    if (m < 64 || n < 64 || k < 16 || m % 64 || n % 64 || k % 16 || int64_t{m} * n > 1 << 24 || k > 1 << 16)
        throw_error(Error,
                    "emulator: {}x{}x{} cannot be run; m and n are multiples of 64, k of 16, up to 4096x4096x65536", m,
                    n, k);
    auto begin = std::chrono::steady_clock::now();
    emulator::Source source{.name = "sgemm", .text = emulator::sgemm_text()};
    auto module = emulator::compile({&source, 1});
    const double compile_seconds = seconds_since(begin);

    Product product{.m = m, .n = n, .k = k};
    begin = std::chrono::steady_clock::now();
    emulator::Report report = product.run(*module);
    const double seconds = seconds_since(begin);
    return {{"seconds", seconds},
            {"accesses", report.accesses},
            {"compile_seconds", compile_seconds},
            {"correct", report.ok() && product.is_right()}};
}

}  // namespace tw::bench
