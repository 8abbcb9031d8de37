// Measurements that need no operands: compiling, launching, emulating. Each returns the facts as JSON.
#pragma once
#include <memory>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/driver/driver.h"
#include "schedules/catalog.h"

namespace tw::bench {

/// Milliseconds from schedule to cubin: by NVRTC with no cache ("cold_ms", of which "lower_ms" to the text), from the
/// disk cache ("disk_ms", of which "disk_read_ms" from the text on) and from this process' memory ("memo_ms",
/// "memo_read_ms"). The caches can serve only what is lowered to the same text again: "same_text". Needs no GPU. Throws
/// NvrtcMissing.
nlohmann::json measure_compile(const schedules::CatalogEntry& entry, const std::string& arch);

struct AheadOptions {
    bool compile = true;      ///< by NVRTC, to cubins; else only to text
    double most_seconds = 0;  ///< for each kernel, behind which it is left; 0: no limit
    int threads = 0;          ///< at once; 0: one for each processor
};
/// Schedules, lowers and compiles all entries for the target, so that later runs find the cubins in the caches:
/// "seconds", and "refused", an object of the names of those that cannot be had and the first line of why. Throws
/// NvrtcMissing.
nlohmann::json compile_ahead(const std::vector<const schedules::CatalogEntry*>& entries, const Target& target,
                             const AheadOptions& options);
/// Whether a thread is still at a kernel that took too long: then the process must not destroy what it uses.
bool compiles_still();

/// Host microseconds of a prepared launch and of the driver's own call, and what one of `graph_kernels` small kernels
/// costs in a graph. On a cuda device only: throws Error elsewhere.
nlohmann::json measure_launch(const std::shared_ptr<Device>& device, int graph_kernels);

/// Host microseconds of a call of each of some operators that are built already, on small tensors ("operators", by
/// name), and of a replay of a training step's graph ("step_us") of "step_kernels" kernels; "correct".
/// On a cuda device only: throws Error elsewhere.
nlohmann::json measure_calls(const std::shared_ptr<Device>& device);

/// A register-tiled product, written by hand, on the emulator: seconds, checked accesses, whether it is right. m and n
/// are multiples of 64, k of 16; throws Error otherwise.
nlohmann::json measure_emulator(int m, int n, int k);

}  // namespace tw::bench
