// A launch under way: its memories, its threads as fibers, where they wait, and what has been found.
#pragma once
#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <optional>

#include <boost/context/detail/fcontext.hpp>

#include "device/cpu/hooks.h"
#include "runtime/emulator/async_operation.h"
#include "runtime/emulator/barriers.h"
#include "runtime/emulator/emulator.h"
#include "runtime/emulator/module.h"
#include "runtime/emulator/random.h"
#include "runtime/emulator/running.h"
#include "runtime/emulator/statistics.h"
#include "runtime/emulator/thread.h"

namespace tw::emulator {

/// A finding in the making: written down where it happens, told by describe() once the launch is over.
struct Incident {
    Finding::Kind kind = Finding::Kind::Crash;
    uint32_t thread = 0, block = 0;  // of whom: in its cluster; clusters are numbered as they run, from 1
    std::string operation;           // of an asynchronous one: its name
    uint32_t site = 0;               // where in the module's code
    Memory* memory = nullptr;        // of an access, if it is in one
    uint64_t offset = 0;             // in the memory; without one, the address
    size_t bytes = 0;
    AccessKind access = AccessKind::Read;
    struct Other {  // of a race
        AccessKind access = AccessKind::Read;
        uint32_t thread = 0, block = 0, site = 0;
    };
    std::optional<Other> other;
    std::string text;                  // what is to say beyond that
    std::vector<uint32_t> more_sites;  // replace "{}" in the text, in order
};

/// Of the running thread, here and now.
Incident incident_of(Finding::Kind kind, Stamp site);

/// Notes an incident. Races, uninitialised and misaligned accesses: the first few different ones, then the launch
/// stops. Others stop it at once. Does not return if it stops: the fiber is left for good, so hold nothing that needs a
/// destructor.
void report(const Incident& incident);

/// The memory that holds the address, or to which it belongs as an overrun of shared memory; nullptr if none.
Memory* find_memory(uintptr_t address);

/// An access outside of all memories: fine in the module's constants, else out of bounds.
void check_elsewhere(uintptr_t address, size_t bytes, AccessKind kind, Stamp site);

class Machine {
public:
    Machine(const Module& module, const Launch& launch, const Options& options);
    ~Machine();

    Report run();

    // What hooks do for the running thread.
    void sync_threads(Stamp site);
    void sync_warp(Stamp site);
    void sync_named(int id, int threads, Stamp site);
    uint64_t shuffle(uint64_t value, int source_lane, Stamp site);
    void perhaps_let_others_run();
    void cp_async(void* to, const void* from, int bytes, bool there, Stamp site);
    void cp_async_commit();
    void cp_async_wait(int pending, Stamp site);
    void matrix_operation(const MatrixCall& call, Stamp site);
    void mbarrier_init(void* barrier, int arrivals, Stamp site);
    void fence_mbarrier_init();
    void mbarrier_arrive(void* barrier, int rank, Stamp site);
    void mbarrier_expect_tx(void* barrier, unsigned bytes, Stamp site);
    void mbarrier_wait(void* barrier, unsigned phase, Stamp site);
    void tma(const emulated::TmaCall& call, Stamp site);
    void tma_store_commit();
    void tma_store_wait(int pending, bool only_read, Stamp site);
    void fence_proxy_async();
    void wgmma(const emulated::WgmmaCall& call, Stamp site);
    void wgmma_fence(Stamp site);
    void wgmma_commit(Stamp site);
    void wgmma_wait(int pending, Stamp site);
    void touch_registers(uintptr_t address, size_t bytes, AccessKind kind, Stamp site);
    void set_registers(int count, bool grows, Stamp site);
    bool elect_one(Stamp site);
    void griddepcontrol_wait();
    void cluster_arrive(Stamp site);
    void cluster_wait(Stamp site);
    void* peer_shared(void* own, unsigned rank, Stamp site);

    /// For the asynchronous operation that runs: its bytes have arrived, for whom waits at the barrier.
    void complete_bytes(uintptr_t barrier, int64_t bytes);

    /// Whoever runs accesses this shared memory.
    void note_use(const Memory& shared, Stamp site);

    /// Leaves the running fiber for good and ends the launch.
    [[noreturn]] void stop();

    const Module& module() const { return module_; }
    const Options& options() const { return options_; }
    unsigned num_threads() const { return launch_.threads * num_blocks_together_; }  // of a cluster
    unsigned threads_per_block() const { return launch_.threads; }
    bool in_thread() const { return current_ != nullptr; }
    emulated::Index3 block_index(uint32_t cluster, uint32_t rank) const;
    const std::vector<Memory>& memories() const { return memories_; }  // first the shared ones
    const AsyncOperations& operations() const { return operations_; }
    Random& random() { return random_; }
    Tally* tally() { return tally_ ? &*tally_ : nullptr; }

private:
    friend void report(const Incident&);
    friend Incident incident_of(Finding::Kind, Stamp);
    friend Memory* find_memory(uintptr_t);
    friend void look_at_limits();

    struct Warp {
        unsigned lanes = 0, arrived = 0;
    };
    struct NamedBarrier {
        int expected = 0;
        std::vector<uint32_t> arrived;
        std::vector<uint32_t> met;  // those who met here last, the first of them at this clock
        uint32_t met_clock = 0;
    };

    struct Block {
        unsigned num_at_barrier = 0, num_gone = 0;
        int free_registers = 0;
        std::map<uint32_t, uint32_t> used_by;  // clocks of copies and other blocks' threads that have used its memory
        NamedBarrier named[16];
    };

    void run_clusters();
    void run_cluster(uint32_t cluster);
    void begin_cluster(uint32_t cluster);
    void begin_thread(uint32_t t);
    void end_cluster();
    void report_deadlock();
    uint32_t block_of(uint32_t thread) const {
        return thread < FirstAgent ? thread / launch_.threads : operations_.in_slot(thread)->issuer / launch_.threads;
    }
    Block& block() { return blocks_[block_of(running.thread)]; }
    std::vector<uint32_t> threads_of_block(uint32_t rank) const;
    void run_round();
    void choose_slow_warpgroups();
    void resume(uint32_t t);
    void become(uint32_t t);
    void become(const AsyncOperation& operation);
    uint32_t next_clock();
    void advance_clock();
    std::shared_ptr<Knowledge> release();
    void learn(const KnowledgePointer& known);
    void start(std::shared_ptr<AsyncOperation> operation, KnowledgePointer knowledge, Stamp site);
    bool step(const std::shared_ptr<AsyncOperation>& operation);
    void finish(std::shared_ptr<AsyncOperation> operation);
    static void operations_main(boost::context::detail::transfer_t from);
    void perhaps_run_operations();
    void resume_operations();
    std::string waiting_text(const Thread& thread) const;
    std::string barrier_text(uintptr_t address) const;
    TransactionBarrier& barrier_at(uintptr_t address, const char* verb, Stamp site);
    void require_fenced(uintptr_t barrier, Stamp site);
    void require_byte_count(uintptr_t address, const TransactionBarrier& barrier, Stamp site);
    void complete_phase_if_done(uintptr_t address, TransactionBarrier& barrier, Stamp site);
    void arrive(uintptr_t address, TransactionBarrier& barrier, Stamp site);
    void require_tile_place(const void* shared, uint32_t span, const char* name, Stamp site);
    void require_stores_read();
    void note_foreign_use(uint32_t rank, Stamp site);
    void require_no_foreign_use();
    bool arrive_at_warpgroup(const char* name, Stamp site);
    void converge(Stamp site);
    void require_descriptor(uint64_t bits, const char* operand, bool transposed, Stamp site);
    Registers* find_registers(const void* begin);
    void require_fenced_registers(const void* begin, bool may_be_in_flight, Stamp site);
    void start_wgmma(Stamp site);
    void hold_registers(const void* begin, size_t bytes, bool is_result, std::shared_ptr<WarpgroupOperation> operation);
    void begin_registers();
    void give_registers();
    void require_product_fits(const emulated::WgmmaCall& call, Stamp site);
    void wait(Wait wait, Stamp site);
    void switch_to_scheduler();
    void leave();
    static void thread_main(boost::context::detail::transfer_t from);
    void wake(const std::vector<uint32_t>& threads);
    void meet(const std::vector<uint32_t>& threads);
    void check_row(const MatrixCall& call, Stamp site);
    void load_or_store(Thread* lanes, const MatrixCall& call, Stamp site);
    void require_registers(const void* registers, const char* operation, Stamp site);
    bool arrive_at_warp(Wait wait, Stamp site);
    std::vector<uint32_t> lanes_of(uint32_t warp) const;
    void on_scheduler(std::function<void()> work);
    void require_same_place(const Thread& first, Stamp site);
    void require_order_with_last(const NamedBarrier& barrier, int id, Stamp site);
    void diverge(std::string text, Stamp site, std::vector<uint32_t> more_sites = {});
    void name_waiting_threads(Incident& incident) const;
    void find_unwritten();
    Report finish();

    const Module& module_;
    const Launch& launch_;
    Options options_;
    Module::Entry entry_;
    Random random_;
    unsigned num_blocks_together_ = 1;        // in a cluster
    unsigned char* shared_memory_ = nullptr;  // windows of all blocks of the cluster
    std::vector<Memory> memories_;
    std::vector<NearMemory> near_shared_;
    std::vector<uint32_t> cluster_order_;  // empty: as they come
    std::vector<Thread> threads_;
    std::vector<Warp> warps_;
    std::vector<Block> blocks_;
    std::map<uintptr_t, TransactionBarrier> barriers_;
    AsyncOperations operations_;
    std::map<uint32_t, std::shared_ptr<AsyncOperation>> last_wgmma_;  // by warpgroup
    std::vector<int> registers_of_warpgroup_;                         // of a thread
    KnowledgeJoins joins_;
    KnowledgePointer previous_over_;  // what griddepcontrol_wait tells
    Knowledge cluster_arrived_;
    KnowledgePointer cluster_completed_;
    uint32_t cluster_phase_ = 0, num_at_cluster_ = 0;
    std::vector<bool> is_slow_;  // warpgroups
    uint32_t current_cluster_ = 0, last_clock_ = 1;
    unsigned num_ready_ = 0, num_gone_ = 0;
    Thread* current_ = nullptr;
    boost::context::detail::fcontext_t scheduler_ = nullptr, operations_fiber_ = nullptr;
    std::function<void()> work_;
    bool stopped_ = false;
    std::vector<Incident> incidents_;
    std::optional<Tally> tally_;
    uint64_t steps_ = 0, chunk_ = 0, switches_ = 0;
    std::chrono::steady_clock::time_point start_;
};

/// The one that runs in this process, or nullptr.
extern Machine* machine;

/// An access that a primitive makes for the running thread, as if by its own instruction: counted and checked.
void access(const void* memory, size_t bytes, AccessKind kind, Stamp site);

/// The primitive at `site` was given what it does not take: "copies to ...". Ends the launch.
[[noreturn]] void misuse(std::string text, Stamp site);

/// Held while it runs.
std::mutex& launch_mutex();

/// run(), for who holds the mutex.
Report run_alone(const Module& module, const Launch& launch, const Options& options);

/// The functions that the module calls, by what the options ask for.
emulated::Hooks hooks_for(const Options& options);

/// What registers hold before anything is written there: mostly what is found where it ends, and now and then
/// infinities, which show in a result where something swallows NaN.
emulated::Unwritten unwritten_of(uint64_t seed);

/// The finding that an incident makes.
Finding describe(const Incident& incident, const Machine& machine);

}  // namespace tw::emulator
