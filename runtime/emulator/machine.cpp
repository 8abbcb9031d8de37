#include "runtime/emulator/machine.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <numeric>

#include "runtime/emulator/fiber_stacks.h"
#include "runtime/emulator/signals.h"

namespace tw::emulator {

namespace fibers = boost::context::detail;
using Clock = std::chrono::steady_clock;

Machine* machine = nullptr;

namespace {

constexpr unsigned MaxThreads = 1024;
constexpr uint64_t MaxOrderedBlocks = 1 << 24;  // more run as they come: an order would cost memory
constexpr size_t MaxDifferentIncidents = 4, MaxIncidents = 1000;
constexpr uint64_t StepsBetweenLooks = 1 << 20;

uint64_t num_blocks(const Launch& launch) { return uint64_t{launch.grid[0]} * launch.grid[1] * launch.grid[2]; }

bool may_go_on(Finding::Kind kind) {
    return kind == Finding::Kind::Race || kind == Finding::Kind::Uninitialised || kind == Finding::Kind::Misaligned ||
           kind == Finding::Kind::InFlight;
}

bool is_same(const Incident& a, const Incident& b) {
    return a.kind == b.kind && a.site == b.site && a.other.has_value() == b.other.has_value() &&
           (!a.other || a.other->site == b.other->site);
}

}  // namespace

void check_launch(const Module& module, const Launch& launch) {
    if (!module.entry(launch.kernel)) throw_error(Error, "emulator: the module has no kernel '{}'", launch.kernel);
    if (launch.threads < 1 || launch.threads > MaxThreads)
        throw_error(Error, "{}: {} threads a block; a block has 1 to {}", launch.kernel, launch.threads, MaxThreads);
    if (launch.shared_bytes > SharedWindow / 2)
        throw_error(Error, "{}: {} bytes of shared memory; a block has at most {}", launch.kernel, launch.shared_bytes,
                    SharedWindow / 2);
    if (num_blocks(launch) >= UINT32_MAX)
        throw_error(Error, "{}: a grid of {} blocks is too large to emulate", launch.kernel, num_blocks(launch));
}

Incident incident_of(Finding::Kind kind, Stamp site) {
    Incident incident;
    incident.kind = kind;
    incident.thread = running.thread;
    incident.block = machine->current_block_;
    incident.site = uint32_t(site);
    return incident;
}

void report(const Incident& incident) {
    static size_t num_repeated;
    auto& all = machine->incidents_;
    if (all.empty()) num_repeated = 0;
    bool is_known = std::any_of(all.begin(), all.end(), [&](auto& one) { return is_same(one, incident); });
    if (!is_known) all.push_back(incident);
    if (!may_go_on(incident.kind) || all.size() == MaxDifferentIncidents || ++num_repeated == MaxIncidents)
        machine->stop();
}

Memory* find_memory(uintptr_t address) {
    auto& all = machine->memories_;
    if (address - all[0].base < SharedWindow) return &all[0];
    for (size_t i = 1; i < all.size(); ++i) {
        Memory& memory = all[i];
        if (address - memory.base >= memory.bytes) continue;
        if (memory.base % 4 == 0) running.region = NearMemory(memory);
        return &memory;
    }
    return nullptr;
}

void check_elsewhere(uintptr_t address, size_t bytes, AccessKind kind, Stamp site) {
    if (kind == AccessKind::Read && machine->module().contains(address)) return;
    Incident incident = incident_of(Finding::Kind::OutOfBounds, site);
    incident.offset = address;
    incident.bytes = bytes;
    incident.access = kind;
    report(incident);
}

void look_at_limits() {
    Machine& m = *machine;
    m.steps_ += m.chunk_;
    m.chunk_ = std::min(StepsBetweenLooks, m.options_.step_limit - m.steps_);
    running.steps_left = int64_t(m.chunk_);
    if (m.chunk_ > 0 && Clock::now() - m.start_ < std::chrono::duration<double>(m.options_.seconds_limit)) return;
    Incident incident = incident_of(Finding::Kind::StepLimit, 0);
    if (m.chunk_ == 0)
        incident.text = fmt::format("{} steps did not end the launch", m.options_.step_limit);
    else
        incident.text = fmt::format("{} seconds did not end the launch", m.options_.seconds_limit);
    if (m.in_thread()) report(incident);
    m.incidents_.push_back(incident);
    m.stopped_ = true;
}

Machine::Machine(const Module& module, const Launch& launch, const Options& options)
    : module_(module), launch_(launch), options_(options), entry_(module.entry(launch.kernel)), random_(options.seed) {
    check_launch(module, launch);
    shared_memory_ = FiberStacks::get(launch.threads).shared_window();
    const unsigned num_warps = (launch.threads + 31) / 32;
    memories_.reserve(launch.regions.size() + 1);
    memories_.emplace_back(reinterpret_cast<uintptr_t>(shared_memory_), launch.shared_bytes, "shared memory", true,
                           true, false, num_warps);
    for (const Region& region : launch.regions)
        memories_.emplace_back(reinterpret_cast<uintptr_t>(region.base), region.bytes, region.name, false,
                               region.writable, region.initialised, num_warps);
    if (num_blocks(launch) <= MaxOrderedBlocks) {
        block_order_.resize(num_blocks(launch));
        std::iota(block_order_.begin(), block_order_.end(), 0);
        for (size_t i = block_order_.size(); i > 1; --i) std::swap(block_order_[i - 1], block_order_[random_.below(i)]);
    }
    threads_.resize(launch.threads);
    if (options.statistics) tally_.emplace(launch.threads);
}

Machine::~Machine() = default;

emulated::Index3 Machine::block_index(uint32_t block) const {
    uint32_t index = block_order_.empty() ? block - 1 : block_order_[block - 1];
    unsigned x = launch_.grid[0], y = launch_.grid[1];
    return {index % x, index / x % y, index / x / y};
}

Report Machine::run() {
    *module_.hooks() = hooks_for(options_);
    running = {};
    running.num_warps = (launch_.threads + 31) / 32;
    running.code = module_.begin();
    running.shared = NearMemory(memories_[0]);
    start_ = Clock::now();
    {
        SignalGuard signals(options_.seconds_limit);
        run_blocks();
    }
    return finish();
}

void Machine::run_blocks() {
    chunk_ = std::min(StepsBetweenLooks, options_.step_limit);
    running.steps_left = int64_t(chunk_);
    uint32_t count = uint32_t(num_blocks(launch_));
    for (uint32_t block = 1; block <= count && !stopped_; ++block) run_block(block);
}

void Machine::run_block(uint32_t block) {
    begin_block(block);
    while (num_gone_ < launch_.threads && !stopped_) {
        if (num_ready_ > 0) {
            run_round();
            continue;
        }
        Incident incident = incident_of(Finding::Kind::Deadlock, 0);
        name_waiting_threads(incident);
        incidents_.push_back(incident);
        stopped_ = true;
    }
    if (tally_) tally_->flush();
}

void Machine::begin_block(uint32_t block) {
    current_block_ = block;
    running.blocks = {block, block};
    std::memset(shared_memory_, 0xff, launch_.shared_bytes);  // NaN in every float type
    last_clock_ = 1;
    num_ready_ = launch_.threads;
    num_gone_ = num_at_barrier_ = 0;
    warps_.assign(running.num_warps, {});
    for (NamedBarrier& barrier : named_) barrier = {};
    auto nothing_known = std::make_shared<const Knowledge>();
    for (uint32_t t = 0; t < launch_.threads; ++t) {
        begin_thread(t);
        threads_[t].knowledge = nothing_known;
        ++warps_[t / 32].lanes;
    }
}

void Machine::begin_thread(uint32_t t) {
    Thread& thread = threads_[t];
    thread = {};
    thread.state = {.thread = {t, 0, 0},
                    .block = block_index(current_block_),
                    .block_size = {launch_.threads, 1, 1},
                    .grid_size = {launch_.grid[0], launch_.grid[1], launch_.grid[2]},
                    .lane = int(t % 32),
                    .shared_memory = shared_memory_};
    auto stack = FiberStacks::get(launch_.threads).stack(t);
    thread.context = fibers::make_fcontext(stack.top, stack.bytes, &thread_main);
}

/// Lets every ready thread run until it waits, in a random order; some are left out of each round.
void Machine::run_round() {
    const uint32_t n = launch_.threads, first = uint32_t(random_.below(n));
    const bool backwards = random_.next() & 1;
    for (uint32_t i = 0; i < n && !stopped_; ++i) {
        uint32_t t = (first + (backwards ? n - i : i)) % n;
        if (threads_[t].wait != Wait::Ready || random_.next() % 8 == 0) continue;
        threads_[t].copies.perhaps_move_one(random_);
        resume(t);
    }
}

void Machine::resume(uint32_t t) {
    become(t);
    Thread& thread = threads_[t];
    *module_.current() = &thread.state;
    if (--running.steps_left < 0) look_at_limits();
    ++switches_;
    for (;;) {
        thread.context = fibers::jump_fcontext(thread.context, this).fctx;
        if (!work_) break;
        std::exchange(work_, nullptr)();
        if (stopped_) break;
    }
    current_ = nullptr;
}

/// What is checked from now on, this thread does.
void Machine::become(uint32_t t) {
    Thread& thread = threads_[t];
    current_ = &thread;
    running.thread = t;
    running.warp = t / 32;
    running.lane = t % 32;
    running.clock = thread.clock;
    running.knowledge = thread.knowledge.get();
    running.stamp = make_stamp(thread.clock, t);
    running.ordered = make_stamp(running.knowledge->everyone + 1, 0);
    running.stack = FiberStacks::get(launch_.threads).stack(t).begin;
}

void Machine::thread_main(fibers::transfer_t from) {
    Machine& m = *static_cast<Machine*>(from.data);
    m.scheduler_ = from.fctx;
    m.entry_(const_cast<void**>(m.launch_.arguments.data()));
    m.leave();
    m.switch_to_scheduler();
}

void Machine::switch_to_scheduler() { scheduler_ = fibers::jump_fcontext(scheduler_, nullptr).fctx; }

/// Runs what needs more stack than a fiber has.
void Machine::on_scheduler(std::function<void()> work) {
    work_ = std::move(work);
    switch_to_scheduler();
}

void Machine::stop() {
    stopped_ = true;
    switch_to_scheduler();
    std::abort();  // nobody resumes a thread of a stopped launch
}

Report Machine::finish() {
    Report report;
    report.seconds = std::chrono::duration<double>(Clock::now() - start_).count();
    report.accesses = steps_ + chunk_ - uint64_t(running.steps_left) - switches_;
    for (const Incident& incident : incidents_) report.findings.push_back(describe(incident, *this));
    if (tally_) report.statistics = tally_->finish(module_);
    return report;
}

std::mutex& launch_mutex() {
    static std::mutex mutex;
    return mutex;
}

Report run_alone(const Module& module, const Launch& launch, const Options& options) {
    Machine here(module, launch, options);
    machine = &here;
    Report report = here.run();
    machine = nullptr;
    return report;
}

Report run(const Module& module, const Launch& launch, const Options& options) {
    std::lock_guard lock(launch_mutex());
    return run_alone(module, launch, options);
}

}  // namespace tw::emulator
