#include "runtime/emulator/machine.h"

namespace tw::emulator {
namespace {

constexpr unsigned MaxThreads = 1024, MaxCluster = 16;

uint64_t num_blocks(const Launch& launch) { return uint64_t{launch.grid[0]} * launch.grid[1] * launch.grid[2]; }

}  // namespace

void check_launch(const Module& module, const Launch& launch) {
    if (!module.entry(launch.kernel)) throw_error(Error, "emulator: the module has no kernel '{}'", launch.kernel);
    const LaunchAttributes said = module.attributes(launch.kernel);
    if (said.threads && launch.threads > said.threads)
        throw_error(Error, "{}: {} threads a block; the kernel's __launch_bounds__ allow {}", launch.kernel,
                    launch.threads, said.threads);
    if (said.cluster[0] && (said.cluster[0] != launch.cluster || said.cluster[1] != 1 || said.cluster[2] != 1))
        throw_error(Error, "{}: clusters of {} blocks; the kernel's __cluster_dims__ are ({}, {}, {})", launch.kernel,
                    launch.cluster, said.cluster[0], said.cluster[1], said.cluster[2]);
    if (!said.copied_maps.empty())
        throw_error(Error,
                    "{}: the tensor map '{}' is a parameter without __grid_constant__: copies would look for it in a "
                    "thread's own memory; declare it const __grid_constant__",
                    launch.kernel, said.copied_maps[0]);
    if (launch.threads < 1 || launch.threads > MaxThreads)
        throw_error(Error, "{}: {} threads a block; a block has 1 to {}", launch.kernel, launch.threads, MaxThreads);
    if (launch.shared_bytes > SharedWindow / 2)
        throw_error(Error, "{}: {} bytes of shared memory; a block has at most {}", launch.kernel, launch.shared_bytes,
                    SharedWindow / 2);
    if (launch.cluster < 1 || launch.cluster > MaxCluster || launch.grid[0] % launch.cluster != 0)
        throw_error(Error,
                    "{}: a grid of {} blocks in x and clusters of {}; a cluster has 1 to {}, and divides the grid",
                    launch.kernel, launch.grid[0], launch.cluster, MaxCluster);
    if (launch.cluster > 1 && (launch.threads % 32 != 0 || launch.threads * launch.cluster > FirstAgent))
        throw_error(Error,
                    "{}: clusters of {} blocks of {} threads; clusters are emulated of whole warps, with at most {} "
                    "threads in all",
                    launch.kernel, launch.cluster, launch.threads, FirstAgent);
    if (num_blocks(launch) >= UINT32_MAX)
        throw_error(Error, "{}: a grid of {} blocks is too large to emulate", launch.kernel, num_blocks(launch));
}

}  // namespace tw::emulator
