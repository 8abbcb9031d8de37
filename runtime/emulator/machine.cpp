#include "runtime/emulator/machine.h"

#include <numeric>

#include "runtime/emulator/threads/signals.h"

namespace tw::emulator {

Machine* machine = nullptr;

namespace {

constexpr uint64_t MaxOrderedClusters = 1 << 24;  // more run as they come: an order would cost memory

uint64_t num_clusters(const Launch& launch) {
    return uint64_t{launch.grid[0]} * launch.grid[1] * launch.grid[2] / launch.cluster;
}

}  // namespace

Machine::Machine(const Module& module, const Launch& launch, const Options& options)
    : core(module, launch, options, [this] { thread_main(); }),
      barriers(core),
      cluster(core),
      mbarriers(core, cluster),
      cp_async(core),
      tma(core, mbarriers),
      registers(core, barriers),
      wgmma(core, barriers, registers),
      warp_matrix(core, barriers, wgmma),
      array_lives(core),
      entry_(module.entry(launch.kernel)) {
    shuffle_clusters();
    machine = this;
}

Machine::~Machine() { machine = nullptr; }

void Machine::shuffle_clusters() {
    if (num_clusters(core.launch) > MaxOrderedClusters) return;
    cluster_order_.resize(num_clusters(core.launch));
    std::iota(cluster_order_.begin(), cluster_order_.end(), 0);
    for (size_t i = cluster_order_.size(); i > 1; --i)
        std::swap(cluster_order_[i - 1], cluster_order_[core.random.below(i)]);
}

emulated::Index3 Machine::block_index(uint32_t cluster, uint32_t rank) const {
    uint32_t index = cluster_order_.empty() ? cluster - 1 : cluster_order_[cluster - 1];
    index = index * core.launch.cluster + rank;
    const unsigned x = core.launch.grid[0], y = core.launch.grid[1];
    return {index % x, index / x % y, index / x / y};
}

Report Machine::run() {
    *core.module.hooks() = hooks_for(core.options);
    *core.module.unwritten() = unwritten_of(core.options.seed);
    running = {};
    running.num_warps = core.threads.num_warps();
    running.code = core.module.begin();
    running.shared = core.memories.near_shared(0);
    core.limits.begin();
    {
        SignalGuard signals(core.options.seconds_limit);
        const auto count = uint32_t(num_clusters(core.launch));
        for (uint32_t cluster = 1; cluster <= count && !core.threads.stopped(); ++cluster) run_cluster(cluster);
    }
    if (core.options.check && !core.threads.stopped())
        if (auto incident = find_unwritten(core)) core.incidents.add_last(*incident);
    return finish();
}

void Machine::run_cluster(uint32_t cluster) {
    begin_cluster(cluster);
    while (core.threads.num_gone() < core.threads.count() && !core.threads.stopped()) {
        if (core.threads.num_ready() > 0)
            run_round();
        else if (core.operations.any())
            core.operations.resume();
        else
            report_deadlock();
    }
    end_cluster();
}

void Machine::begin_cluster(uint32_t number) {
    running.blocks = {number, number};
    core.memories.forget_shared();
    std::vector<emulated::Index3> blocks;
    for (uint32_t rank = 0; rank < core.launch.cluster; ++rank) blocks.push_back(block_index(number, rank));
    auto nothing_known = std::make_shared<Knowledge>();
    nothing_known->previous_is_over = !core.launch.starts_early;
    core.threads.begin(blocks, nothing_known);
    core.order.begin();
    core.operations.begin();
    barriers.begin();
    cluster.begin();
    mbarriers.begin();
    cp_async.begin();
    tma.begin();
    registers.begin();
    array_lives.begin();
    wgmma.begin();
    warp_matrix.begin();
}

/// What is still under way ends, as the results may depend on it.
void Machine::end_cluster() {
    while (core.operations.any() && !core.threads.stopped()) core.operations.resume();
    if (core.tally) core.tally->flush();
}

/// Now and then others: what one warpgroup does may be long over, or far ahead, when another one goes on.
void Machine::choose_slow_warpgroups() {
    if (!is_slow_.empty() && core.random.next() % 64 != 0) return;
    is_slow_.resize(core.threads.num_warpgroups());
    for (size_t group = 0; group < is_slow_.size(); ++group) is_slow_[group] = core.random.next() % 4 == 0;
}

/// Lets every ready thread run until it waits, in a random order; some are left out of each round, slow warpgroups of
/// most.
void Machine::run_round() {
    choose_slow_warpgroups();
    const bool only_fast = core.random.next() % 8 != 0;
    const uint32_t n = core.threads.count(), first = uint32_t(core.random.below(n));
    const bool backwards = core.random.next() & 1;
    for (uint32_t i = 0; i < n && !core.threads.stopped(); ++i) {
        const uint32_t t = (first + (backwards ? n - i : i)) % n;
        if (core.threads[t].wait != Wait::Ready) continue;
        if ((only_fast && is_slow_[t / WarpgroupThreads]) || core.random.next() % 8 == 0) continue;
        cp_async.perhaps_move_one(t);
        resume(t);
        perhaps_run_operations();
    }
}

void Machine::resume(uint32_t t) {
    ++num_switches_;
    running.thread = t;  // whom a limit that is reached now names
    if (--running.steps_left < 0) look_at_limits();
    if (!core.threads.stopped()) core.threads.resume(t);
}

void Machine::perhaps_run_operations() {
    if (!core.operations.any() || core.threads.stopped()) return;
    if (core.threads.num_ready() > 0 && core.random.next() % 16 != 0) return;
    core.operations.resume();
}

void Machine::thread_main() {
    entry_(const_cast<void**>(core.launch.arguments.data()));
    tma.require_stores_read();
    barriers.require_nobody_waits();
    core.threads.wait(Wait::Gone, 0);
    const uint32_t rank = core.threads.rank_of(running.thread);
    if (core.threads.num_gone_of(rank) < core.threads.per_block()) return;
    barriers.require_none_is_left(rank);
    cluster.require_no_foreign_use();
}

void Machine::report_deadlock() {
    core.incidents.add_last(deadlock_of(*this));
    core.threads.end();
}

Report Machine::finish() {
    Report report;
    report.seconds = core.limits.seconds();
    report.accesses = core.limits.steps() - num_switches_;
    for (const Incident& incident : core.incidents.all()) report.findings.push_back(describe(incident, *this));
    if (core.tally) report.statistics = core.tally->finish(core.module);
    return report;
}

std::mutex& launch_mutex() {
    static std::mutex mutex;
    return mutex;
}

Report run_alone(const Module& module, const Launch& launch, const Options& options) {
    check_launch(module, launch);
    return Machine(module, launch, options).run();
}

Report run(const Module& module, const Launch& launch, const Options& options) {
    std::lock_guard lock(launch_mutex());
    return run_alone(module, launch, options);
}

}  // namespace tw::emulator
