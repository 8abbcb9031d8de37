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

constexpr uint64_t MaxOrderedBlocks = 1 << 24;  // more run as they come: an order would cost memory
constexpr size_t MaxDifferentIncidents = 4, MaxIncidents = 1000;
constexpr uint64_t StepsBetweenLooks = 1 << 20;

uint64_t num_blocks(const Launch& launch) { return uint64_t{launch.grid[0]} * launch.grid[1] * launch.grid[2]; }
uint64_t num_clusters(const Launch& launch) { return num_blocks(launch) / launch.cluster; }

bool may_go_on(Finding::Kind kind) {
    return kind == Finding::Kind::Race || kind == Finding::Kind::Uninitialised || kind == Finding::Kind::Misaligned ||
           kind == Finding::Kind::InFlight || kind == Finding::Kind::Unfenced;
}

bool is_same(const Incident& a, const Incident& b) {
    return a.kind == b.kind && a.site == b.site && a.other.has_value() == b.other.has_value() &&
           (!a.other || a.other->site == b.other->site);
}

}  // namespace

Incident incident_of(Finding::Kind kind, Stamp site) {
    Incident incident;
    incident.kind = kind;
    incident.thread = running.thread;
    incident.block = machine->current_cluster_;
    if (running.thread >= FirstAgent)
        if (const AsyncOperation* operation = machine->operations_.in_slot(running.thread)) {
            incident.thread = operation->issuer;
            incident.operation = operation->name;
        }
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
    const size_t window = (address - all[0].base) / SharedWindow, num_shared = machine->num_blocks_together_;
    if (window < num_shared) return &all[window];
    for (size_t i = num_shared; i < all.size(); ++i) {
        Memory& memory = all[i];
        if (address - memory.base >= memory.bytes) continue;
        if (memory.base % 4 == 0 && running.knowledge->previous_is_over) running.region = NearMemory(memory);
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
    num_blocks_together_ = launch.cluster;
    shared_memory_ = FiberStacks::get(num_threads() + 1).shared_windows();
    const unsigned num_rows = (num_threads() + 31) / 32 + NumAgents;
    memories_.reserve(launch.regions.size() + num_blocks_together_);
    for (unsigned i = 0; i < num_blocks_together_; ++i) {
        memories_.emplace_back(reinterpret_cast<uintptr_t>(shared_memory_ + i * SharedWindow), launch.shared_bytes,
                               "shared memory", true, true, false, num_rows);
        near_shared_.emplace_back(memories_.back());
    }
    for (const Region& region : launch.regions)
        memories_.emplace_back(reinterpret_cast<uintptr_t>(region.base), region.bytes, region.name, false,
                               region.writable, region.initialised, num_rows);
    if (num_clusters(launch) <= MaxOrderedBlocks) {
        auto& order = cluster_order_;
        order.resize(num_clusters(launch));
        std::iota(order.begin(), order.end(), 0);
        for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random_.below(i)]);
    }
    threads_.resize(num_threads());
    if (options.statistics) tally_.emplace(num_threads());
}

Machine::~Machine() = default;

emulated::Index3 Machine::block_index(uint32_t cluster, uint32_t rank) const {
    uint32_t index = cluster_order_.empty() ? cluster - 1 : cluster_order_[cluster - 1];
    index = index * num_blocks_together_ + rank;
    unsigned x = launch_.grid[0], y = launch_.grid[1];
    return {index % x, index / x % y, index / x / y};
}

Report Machine::run() {
    *module_.hooks() = hooks_for(options_);
    running = {};
    running.num_warps = (num_threads() + 31) / 32;
    running.code = module_.begin();
    *module_.unwritten() = unwritten_of(options_.seed);
    running.shared = NearMemory(memories_[0]);
    start_ = Clock::now();
    {
        SignalGuard signals(options_.seconds_limit);
        run_clusters();
    }
    if (options_.check && !stopped_) find_unwritten();
    return finish();
}

void Machine::run_clusters() {
    chunk_ = std::min(StepsBetweenLooks, options_.step_limit);
    running.steps_left = int64_t(chunk_);
    uint32_t count = uint32_t(num_clusters(launch_));
    for (uint32_t cluster = 1; cluster <= count && !stopped_; ++cluster) run_cluster(cluster);
}

void Machine::run_cluster(uint32_t cluster) {
    begin_cluster(cluster);
    while (num_gone_ < num_threads() && !stopped_) {
        if (num_ready_ > 0)
            run_round();
        else if (operations_.any())
            resume_operations();
        else
            report_deadlock();
    }
    end_cluster();
}

void Machine::report_deadlock() {
    Incident incident = incident_of(Finding::Kind::Deadlock, 0);
    name_waiting_threads(incident);
    incidents_.push_back(incident);
    stopped_ = true;
}

/// What is still under way ends, as the results may depend on it.
void Machine::end_cluster() {
    while (operations_.any() && !stopped_) resume_operations();
    if (tally_) tally_->flush();
}

void Machine::begin_cluster(uint32_t cluster) {
    current_cluster_ = cluster;
    running.blocks = {cluster, cluster};
    for (unsigned i = 0; i < num_blocks_together_; ++i)
        std::memset(shared_memory_ + i * SharedWindow, 0xff, launch_.shared_bytes);  // NaN in every float type
    last_clock_ = 1;
    num_ready_ = num_threads();
    num_gone_ = num_at_cluster_ = cluster_phase_ = 0;
    warps_.assign(running.num_warps, {});
    blocks_.assign(num_blocks_together_, {});
    barriers_.clear();
    operations_.clear();
    last_wgmma_.clear();
    begin_registers();
    cluster_arrived_ = {};
    auto nothing_known = std::make_shared<Knowledge>();
    nothing_known->previous_is_over = !launch_.starts_early;
    for (uint32_t t = 0; t < num_threads(); ++t) {
        begin_thread(t);
        threads_[t].knowledge = nothing_known;
        ++warps_[t / 32].lanes;
    }
}

void Machine::begin_thread(uint32_t t) {
    Thread& thread = threads_[t];
    thread = {};
    const uint32_t rank = block_of(t);
    thread.state = {.thread = {t % launch_.threads, 0, 0},
                    .block = block_index(current_cluster_, rank),
                    .block_size = {launch_.threads, 1, 1},
                    .grid_size = {launch_.grid[0], launch_.grid[1], launch_.grid[2]},
                    .lane = int(t % 32),
                    .shared_memory = shared_memory_ + rank * SharedWindow,
                    .cluster_rank = rank};
    auto stack = FiberStacks::get(num_threads() + 1).stack(t);
    thread.context = fibers::make_fcontext(stack.top, stack.bytes, &thread_main);
}

/// Now and then others: what one warpgroup does may be long over, or far ahead, when another one goes on.
void Machine::choose_slow_warpgroups() {
    if (!is_slow_.empty() && random_.next() % 64 != 0) return;
    is_slow_.resize((num_threads() + 127) / 128);
    for (size_t group = 0; group < is_slow_.size(); ++group) is_slow_[group] = random_.next() % 4 == 0;
}

/// Lets every ready thread run until it waits, in a random order; some are left out of each round, slow warpgroups of
/// most.
void Machine::run_round() {
    choose_slow_warpgroups();
    const bool only_fast = random_.next() % 8 != 0;
    const uint32_t n = num_threads(), first = uint32_t(random_.below(n));
    const bool backwards = random_.next() & 1;
    for (uint32_t i = 0; i < n && !stopped_; ++i) {
        uint32_t t = (first + (backwards ? n - i : i)) % n;
        if (threads_[t].wait != Wait::Ready || (only_fast && is_slow_[t / 128]) || random_.next() % 8 == 0) continue;
        threads_[t].copies.perhaps_move_one(random_);
        resume(t);
        perhaps_run_operations();
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
    running.has_registers = !thread.registers.empty();
    running.ordered = make_stamp(running.knowledge->writes.everyone + 1, 0);
    running.stack = FiberStacks::get(num_threads() + 1).stack(t).begin;
    if (!running.knowledge->previous_is_over) running.region = {};  // nothing of it is clear at a glance
    if (num_blocks_together_ > 1) running.shared = near_shared_[block_of(t)];
}

/// Of others that the thread meets from now on, each need not wait itself.
void Machine::griddepcontrol_wait() {
    if (current_->knowledge->previous_is_over) return;
    if (!previous_over_) {
        auto over = std::make_shared<Knowledge>();
        over->previous_is_over = true;
        previous_over_ = std::move(over);
    }
    learn(previous_over_);
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
