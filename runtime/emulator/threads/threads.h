// The threads of a cluster as fibers, of which one runs at a time.
#pragma once
#include <algorithm>
#include <functional>
#include <span>
#include <vector>

#include "runtime/emulator/host/module.h"
#include "runtime/emulator/memory/memories.h"
#include "runtime/emulator/threads/thread.h"

namespace tw::emulator {

constexpr uint32_t WarpThreads = 32, WarpgroupThreads = 128;

class Threads {
public:
    /// Each runs `body` from a cluster's begin on, which ends with wait(Gone).
    Threads(const Module& module, const Launch& launch, Memories& memories, std::function<void()> body);

    /// All of a cluster's blocks, whose indices these are, from the start.
    void begin(std::span<const emulated::Index3> blocks, const KnowledgePointer& known);

    uint32_t count() const { return uint32_t(threads_.size()); }  // in the cluster
    uint32_t per_block() const { return launch_.threads; }
    uint32_t num_warps() const { return (count() + WarpThreads - 1) / WarpThreads; }
    uint32_t num_warpgroups() const { return (count() + WarpgroupThreads - 1) / WarpgroupThreads; }
    Thread& operator[](uint32_t t) { return threads_[t]; }
    const Thread& operator[](uint32_t t) const { return threads_[t]; }
    std::span<const Thread> all() const { return threads_; }

    uint32_t rank_of(uint32_t t) const { return t / launch_.threads; }
    unsigned lanes_of_warp(uint32_t warp) const { return std::min(count() - warp * WarpThreads, WarpThreads); }
    std::vector<uint32_t> of_block(uint32_t rank) const;
    std::vector<uint32_t> of_warp(uint32_t warp) const;
    std::vector<uint32_t> of_warpgroup(uint32_t warpgroup) const;  // a whole one

    unsigned num_ready() const { return num_ready_; }
    unsigned num_gone() const { return num_gone_; }
    unsigned num_gone_of(uint32_t rank) const { return num_gone_of_[rank]; }

    // By the scheduler.

    /// Until the thread waits, or lets others run.
    void resume(uint32_t t);

    /// Runs a step on a fiber beside those of threads, where a finding can end the launch.
    void resume_beside(std::function<void()> step);

    /// Ends the launch from outside of all fibers.
    void end() { stopped_ = true; }
    bool stopped() const { return stopped_; }

    // By what runs.

    bool any_runs() const { return current_ != nullptr; }
    Thread& current() { return *current_; }

    /// What is checked from now on, this thread does.
    void become(uint32_t t);

    /// It does, once it has let others run.
    void wait(Wait wait, Stamp site);
    void let_others_run() { switch_to_scheduler(); }
    void wake(const std::vector<uint32_t>& threads);

    /// Runs what needs more stack than a fiber has.
    void on_scheduler(std::function<void()> work);

    /// Leaves the running fiber for good and ends the launch.
    [[noreturn]] void stop();

private:
    void begin_thread(uint32_t t, const emulated::Index3& block);
    void switch_to_scheduler();
    static void thread_main(boost::context::detail::transfer_t from);
    static void beside_main(boost::context::detail::transfer_t from);

    const Module& module_;
    const Launch& launch_;
    Memories& memories_;
    std::function<void()> body_, beside_, work_;
    std::vector<Thread> threads_;
    std::vector<unsigned> num_gone_of_;  // by rank
    unsigned num_ready_ = 0, num_gone_ = 0;
    Thread* current_ = nullptr;
    boost::context::detail::fcontext_t scheduler_ = nullptr, beside_fiber_ = nullptr;
    bool stopped_ = false;
};

}  // namespace tw::emulator
