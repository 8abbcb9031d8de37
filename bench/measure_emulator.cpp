#include <chrono>

#include "bench/measures.h"
#include "bench/sgemm.h"

namespace tw::bench {
namespace {

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
    auto module = emulator::compile_sgemm();
    const double compile_seconds = seconds_since(begin);

    emulator::Product product(m, n, k);
    begin = std::chrono::steady_clock::now();
    emulator::Report report = product.run(*module);
    const double seconds = seconds_since(begin);
    return {{"seconds", seconds},
            {"accesses", report.accesses},
            {"compile_seconds", compile_seconds},
            {"correct", report.ok() && product.is_right()}};
}

}  // namespace tw::bench
