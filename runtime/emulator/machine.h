// A launch under way: its units, and the scheduler that runs cluster after cluster.
#pragma once
#include <mutex>

#include "runtime/emulator/emulator.h"
#include "runtime/emulator/threads/report.h"
#include "runtime/emulator/units/array_lives.h"
#include "runtime/emulator/units/cp_async.h"
#include "runtime/emulator/units/tma.h"
#include "runtime/emulator/units/warp_matrix.h"

namespace tw::emulator {

/// Trusts the launch: check_launch has passed it before.
class Machine {
public:
    Machine(const Module& module, const Launch& launch, const Options& options);
    ~Machine();
    Machine(const Machine&) = delete;
    Machine& operator=(const Machine&) = delete;

    Report run();

    /// The index of a block: of this rank, in the cluster that ran as this one.
    emulated::Index3 block_index(uint32_t cluster, uint32_t rank) const;

    Core core;
    ThreadBarriers barriers;
    Cluster cluster;
    Mbarriers mbarriers;
    CpAsync cp_async;
    Tma tma;
    RegisterPool registers;
    Wgmma wgmma;
    WarpMatrix warp_matrix;
    ArrayLives array_lives;

private:
    void shuffle_clusters();
    void run_cluster(uint32_t cluster);
    void begin_cluster(uint32_t cluster);
    void end_cluster();
    void run_round();
    void choose_slow_warpgroups();
    void resume(uint32_t t);
    void perhaps_run_operations();
    void thread_main();
    void report_deadlock();
    Report finish();

    const Module::Entry entry_;
    std::vector<uint32_t> cluster_order_;  // empty: as they come
    std::vector<bool> is_slow_;            // warpgroups
    uint64_t num_switches_ = 0;
};

/// The one that runs in this process, or nullptr.
extern Machine* machine;

/// Held while it runs.
std::mutex& launch_mutex();

/// run(), for who holds the mutex.
Report run_alone(const Module& module, const Launch& launch, const Options& options);

/// The functions that the module calls, by what the options ask for.
emulated::Hooks hooks_for(const Options& options);

/// What registers hold before anything is written there: mostly what is found where it ends, and now and then
/// infinities, which show in a result where something swallows NaN.
emulated::Unwritten unwritten_of(uint64_t seed);

/// Where a value of a register to which nothing was written has ended in global memory, if it has.
std::optional<Incident> find_unwritten(Core& core);

/// "3 threads wait in __syncthreads at {}, first thread (0,0,0); ..." of those that nobody will wake.
Incident deadlock_of(const Machine& machine);

/// The finding that an incident makes.
Finding describe(const Incident& incident, const Machine& machine);

}  // namespace tw::emulator
