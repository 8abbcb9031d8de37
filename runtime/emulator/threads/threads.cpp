#include "runtime/emulator/threads/threads.h"

#include <cstdlib>
#include <numeric>
#include <utility>

#include <fmt/format.h>

namespace tw::emulator {
namespace {

namespace fibers = boost::context::detail;

std::vector<uint32_t> range(uint32_t first, uint32_t count) {
    std::vector<uint32_t> result(count);
    std::iota(result.begin(), result.end(), first);
    return result;
}

}  // namespace

std::string call_text(Wait wait, int barrier) {
    switch (wait) {
        case Wait::Block: return "__syncthreads";
        case Wait::Named: return fmt::format("barrier {}", barrier);
        case Wait::WarpBarrier: return "__syncwarp";
        case Wait::Shuffle: return "a shuffle";
        case Wait::Transactions: return "mbarrier_wait";
        case Wait::Cluster: return "cluster_wait";
        case Wait::Warpgroup: return "an operation of its warpgroup";
        case Wait::Registers: return "setmaxnreg_inc";
        case Wait::Matrix: return "an operation of its warp";
        case Wait::Ready:
        case Wait::Gone: break;
    }
    return "nothing";
}

Threads::Threads(const Module& module, const Launch& launch, Memories& memories, std::function<void()> body)
    : module_(module),
      launch_(launch),
      memories_(memories),
      body_(std::move(body)),
      threads_(launch.threads * launch.cluster) {}

void Threads::begin(std::span<const emulated::Index3> blocks, const KnowledgePointer& known) {
    num_ready_ = count();
    num_gone_ = 0;
    num_gone_of_.assign(blocks.size(), 0);
    for (uint32_t t = 0; t < count(); ++t) {
        begin_thread(t, blocks[rank_of(t)]);
        threads_[t].knowledge = known;
    }
}

void Threads::begin_thread(uint32_t t, const emulated::Index3& block) {
    Thread& thread = threads_[t];
    thread = {};
    const uint32_t rank = rank_of(t);
    thread.state = {.thread = {t % launch_.threads, 0, 0},
                    .block = block,
                    .block_size = {launch_.threads, 1, 1},
                    .grid_size = {launch_.grid[0], launch_.grid[1], launch_.grid[2]},
                    .lane = int(t % WarpThreads),
                    .shared_memory = reinterpret_cast<unsigned char*>(memories_.shared(rank).base),
                    .cluster_rank = rank};
    auto stack = FiberStacks::get(count() + 1).stack(t);
    thread.context = fibers::make_fcontext(stack.top, stack.bytes, &thread_main);
}

std::vector<uint32_t> Threads::of_block(uint32_t rank) const { return range(rank * per_block(), per_block()); }

std::vector<uint32_t> Threads::of_warp(uint32_t warp) const { return range(warp * WarpThreads, lanes_of_warp(warp)); }

std::vector<uint32_t> Threads::of_warpgroup(uint32_t warpgroup) const {
    return range(warpgroup * WarpgroupThreads, WarpgroupThreads);
}

void Threads::resume(uint32_t t) {
    become(t);
    Thread& thread = threads_[t];
    *module_.current() = &thread.state;
    for (;;) {
        thread.context = fibers::jump_fcontext(thread.context, this).fctx;
        if (!work_) break;
        std::exchange(work_, nullptr)();
        if (stopped_) break;
    }
    current_ = nullptr;
}

void Threads::resume_beside(std::function<void()> step) {
    if (!beside_fiber_) {
        auto stack = FiberStacks::get(count() + 1).stack(count());
        beside_fiber_ = fibers::make_fcontext(stack.top, stack.bytes, &beside_main);
    }
    beside_ = std::move(step);
    static emulated::ThreadState nobody{};
    *module_.current() = &nobody;
    current_ = &threads_[0];  // in a thread, as far as reports are concerned
    beside_fiber_ = fibers::jump_fcontext(beside_fiber_, this).fctx;
    current_ = nullptr;
}

void Threads::become(uint32_t t) {
    Thread& thread = threads_[t];
    current_ = &thread;
    running.thread = t;
    running.warp = t / WarpThreads;
    running.lane = t % WarpThreads;
    running.clock = thread.clock;
    running.knowledge = thread.knowledge.get();
    running.stamp = make_stamp(thread.clock, t);
    running.has_registers = thread.has_registers;
    running.ordered = make_stamp(running.knowledge->writes.everyone + 1, 0);
    running.stack = FiberStacks::get(count() + 1).stack(t).begin;
    if (!running.knowledge->previous_is_over) running.region = {};  // nothing of it is clear at a glance
    if (memories_.num_blocks() > 1) running.shared = memories_.near_shared(rank_of(t));
}

void Threads::wait(Wait wait, Stamp site) {
    current_->wait = wait;
    current_->site = uint32_t(site);
    --num_ready_;
    if (wait != Wait::Gone) return;
    ++num_gone_;
    ++num_gone_of_[rank_of(running.thread)];
}

void Threads::wake(const std::vector<uint32_t>& threads) {
    for (uint32_t t : threads) threads_[t].wait = Wait::Ready;
    num_ready_ += unsigned(threads.size());
}

void Threads::on_scheduler(std::function<void()> work) {
    work_ = std::move(work);
    switch_to_scheduler();
}

void Threads::stop() {
    stopped_ = true;
    switch_to_scheduler();
    std::abort();  // nobody resumes a thread of a stopped launch
}

void Threads::switch_to_scheduler() { scheduler_ = fibers::jump_fcontext(scheduler_, nullptr).fctx; }

void Threads::thread_main(fibers::transfer_t from) {
    Threads& self = *static_cast<Threads*>(from.data);
    self.scheduler_ = from.fctx;
    self.body_();
    self.switch_to_scheduler();
}

void Threads::beside_main(fibers::transfer_t from) {
    Threads& self = *static_cast<Threads*>(from.data);
    self.scheduler_ = from.fctx;
    for (;;) {
        self.beside_();
        self.switch_to_scheduler();
    }
}

}  // namespace tw::emulator
