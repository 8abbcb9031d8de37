#include "codegen/signals/simulate_signals.h"

#include <algorithm>
#include <limits>
#include <map>
#include <queue>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include "codegen/signals/signal_events.h"
#include "codegen/thread_ir/thread_walk.h"
#include "support/error.h"

namespace tw::codegen {
namespace {

using Event = SignalEvent;
using Kind = SignalEvent::Kind;

constexpr int warpgroup = 128;
constexpr size_t events_to_verify = 120;  // of a thread
constexpr size_t waits_not = std::numeric_limits<size_t>::max();

struct Problem {
    std::string text;
};

class Simulator {
public:
    Simulator(const ThreadKernel& kernel, SignalEvents& events, size_t most, const SignalSpeeds& speeds)
        : kernel_(kernel), events_(events), speeds_(speeds), per_block_(kernel.threads + kernel.producer_threads) {
        for (int rank = 0; rank < kernel.cluster; ++rank)
            for (int t = 0; t < per_block_; ++t) threads_.emplace_back(events.run(rank, t, most), rank, t);
        blocks_.resize(static_cast<size_t>(kernel.cluster));
        name_lanes();
    }

    SignalSimulation run() {
        result_.simulated = true;
        for (size_t t = 0; t < threads_.size(); ++t) wake(t, threads_[t].index / warpgroup * speeds_.late_groups);
        try {
            while (!queue_.empty() && !cut_off_) {
                Moment next = queue_.top();
                queue_.pop();
                now_ = next.time;
                if (next.thread >= 0)
                    step(static_cast<size_t>(next.thread));
                else
                    deliver(next.box);
            }
            check_end();
        } catch (const Problem& problem) {
            result_.problem = problem.text;
        }
        result_.cycles = now_;
        return std::move(result_);
    }

private:
    struct Slot {
        int boxes_under_way = 0, readers = 0;
        int64_t generation = 0;  // of what boxes have brought
        bool filled = false, was_read = false;
        int barrier = -1;  // at which its boxes are counted
    };
    struct Barrier {
        int64_t arrivals = 0, missing = 0, bytes = 0;
        int64_t phases = 0;  // that have ended
        std::vector<size_t> waiting;
    };
    struct Block {
        std::map<int, Barrier> barriers;
        std::map<int, Slot> slots;
        std::map<int, std::vector<size_t>> meeting;  // by id
        int64_t unit_free = 0, boxes_free = 0;
        std::map<int, std::vector<int64_t>> products;  // of a warpgroup: their ends
    };
    struct Group {
        int64_t end = 0;
        std::vector<int> slots;
    };
    struct Thread {
        Thread(ThreadEvents events, int block, int number) : list(std::move(events)), rank(block), index(number) {}

        ThreadEvents list;
        int rank, index;
        size_t next = 0;
        bool resumed = false;  // what it waited for has come
        size_t products = 0;
        Group open;
        std::vector<Group> groups;          // committed, not awaited
        std::map<int, int64_t> generation;  // of slots, when it last read them
        std::map<int, bool> fresh;          // since it last passed the barrier of a slot
        int lane = -1;
        int64_t since = 0;
    };
    struct Box {
        int rank, slot, barrier;
        int64_t bytes;
    };
    struct Moment {
        int64_t time;
        int64_t order;
        int thread;  // -1: a box arrives
        Box box;
        bool operator<(const Moment& other) const { return std::tie(time, order) > std::tie(other.time, other.order); }
    };

    void name_lanes() {
        std::vector<std::pair<int, std::string>> named;
        visit(kernel_.body, [&](const ThreadStmt& stmt) {
            const ThreadRole* role = stmt.as<ThreadRole>();
            if (!role) return;
            bool copies = role->first >= kernel_.threads;
            int lanes = copies ? 1 : std::max(role->threads / warpgroup, 1);
            for (int lane = 0; lane < lanes; ++lane)
                named.emplace_back(role->first + lane * warpgroup,
                                   lanes > 1 ? fmt::format("{} {}", role->name, lane + 1) : role->name);
        });
        if (named.empty()) named.emplace_back(0, "all threads");
        std::sort(named.begin(), named.end());
        for (const auto& [thread, name] : named) {
            threads_[static_cast<size_t>(thread)].lane = static_cast<int>(result_.lanes.size());
            result_.lanes.push_back({name, {}});
        }
    }

    void wake(size_t thread, int64_t time) { queue_.push({time, order_++, static_cast<int>(thread), {}}); }

    void span(const Thread& thread, SignalSpan::Kind kind, int64_t from, int64_t to) {
        if (thread.lane >= 0 && to > from)
            result_.lanes[static_cast<size_t>(thread.lane)].spans.push_back({kind, from, to});
    }

    Block& block_of(const Thread& thread) { return blocks_[static_cast<size_t>(thread.rank)]; }

    /// Until it waits, or time goes by.
    void step(size_t number) {
        Thread& thread = threads_[number];
        while (thread.next < thread.list.events.size()) {
            const Event& event = thread.list.events[thread.next];
            if (!thread.resumed) thread.since = now_;
            if (!happens(number, thread, event)) return;
            thread.resumed = false;
            ++thread.next;
        }
        cut_off_ = cut_off_ || !thread.list.whole;
    }

    /// Whether the thread goes on at once; else it is woken, and looks at the event again.
    bool happens(size_t number, Thread& thread, const Event& event) {
        switch (event.kind) {
            case Kind::Work: return passes_by(number, thread, now_ + event.number, SignalSpan::Kind::Work);
            case Kind::Init:
                block_of(thread).barriers[event.object] = {event.number, event.number, 0, 0, {}};
                return true;
            case Kind::Arrive: return arrive(thread, event, 0);
            case Kind::Expect: return arrive(thread, event, event.number);
            case Kind::Wait: return wait(number, thread, event);
            case Kind::Meet: return meet(number, thread, block_of(thread).meeting[event.object], event.number);
            case Kind::Come: return come(block_of(thread).meeting[event.object], event.number);
            case Kind::ClusterArrive: return true;
            case Kind::ClusterWait:
                return meet(number, thread, cluster_meeting_, static_cast<int64_t>(threads_.size()));
            case Kind::Load: return load(thread, event);
            case Kind::Multiply: return multiply(thread, event);
            case Kind::Commit: thread.groups.push_back(std::exchange(thread.open, {})); return true;
            case Kind::AwaitProducts: return await_products(number, thread, event.number);
        }
        return true;
    }

    bool passes_by(size_t number, Thread& thread, int64_t end, SignalSpan::Kind kind) {
        if (now_ < end && !thread.resumed) {
            thread.resumed = true;
            span(thread, kind, now_, end);
            wake(number, end);
            return false;
        }
        return true;
    }

    Barrier& barrier(int rank, int number) {
        auto& all = blocks_.at(static_cast<size_t>(rank)).barriers;
        auto found = all.find(number);
        if (found == all.end())
            throw Problem{fmt::format("{} is used before it is made", events_.barrier_name(number))};
        return found->second;
    }

    bool arrive(Thread& thread, const Event& event, int64_t bytes) {
        Barrier& at = barrier(event.rank < 0 ? thread.rank : event.rank, event.object);
        if (at.missing == 0)
            throw Problem{fmt::format("more arrive at {} than its phase takes", events_.barrier_name(event.object))};
        --at.missing;
        at.bytes += bytes;
        complete(at);
        return true;
    }

    void complete(Barrier& barrier) {
        if (barrier.missing > 0 || barrier.bytes != 0) return;
        ++barrier.phases;
        barrier.missing = barrier.arrivals;
        for (size_t thread : std::exchange(barrier.waiting, {})) wake(thread, now_);
    }

    bool wait(size_t number, Thread& thread, const Event& event) {
        Barrier& at = barrier(thread.rank, event.object);
        if ((at.phases + 1 - event.number) % 2 != 0) {
            thread.resumed = true;  // keeps the beginning
            at.waiting.push_back(number);
            return false;
        }
        span(thread, SignalSpan::Kind::Wait, thread.since, now_);
        for (auto& [slot, state] : block_of(thread).slots)
            if (state.barrier == event.object) thread.fresh[slot] = true;
        return true;
    }

    bool meet(size_t number, Thread& thread, std::vector<size_t>& there, int64_t all) {
        if (thread.resumed) {
            span(thread, SignalSpan::Kind::Wait, thread.since, now_);
            return true;
        }
        there.push_back(number);
        thread.resumed = true;
        wake_if_complete(there, all);
        return false;
    }

    bool come(std::vector<size_t>& there, int64_t all) {
        there.push_back(waits_not);
        wake_if_complete(there, all);
        return true;
    }

    void wake_if_complete(std::vector<size_t>& there, int64_t all) {
        if (static_cast<int64_t>(there.size()) < all) return;
        for (size_t other : std::exchange(there, {}))
            if (other != waits_not) wake(other, now_);
    }

    bool load(Thread& thread, const Event& event) {
        unsigned ranks = event.ranks ? event.ranks : 1u << thread.rank;
        Block& own = block_of(thread);
        int64_t start = std::max(now_, own.boxes_free);
        own.boxes_free = start + (speeds_.bytes_per_cycle ? event.number / speeds_.bytes_per_cycle : 0);
        int64_t arrives = own.boxes_free + speeds_.load_latency;
        span(thread, SignalSpan::Kind::Load, start, arrives);
        for (int rank = 0; rank < kernel_.cluster; ++rank) {
            if (!(ranks >> rank & 1)) continue;
            Slot& slot = blocks_[static_cast<size_t>(rank)].slots[event.object];
            if (slot.readers > 0)
                throw Problem{fmt::format("a box overwrites {}, which is still read", events_.slot_name(event.object))};
            if (slot.boxes_under_way == 0 && slot.filled && !slot.was_read)
                throw Problem{
                    fmt::format("a box overwrites {}, which nobody has read", events_.slot_name(event.object))};
            if (slot.boxes_under_way++ == 0) ++slot.generation, slot.was_read = !read_as_matrix(event.object);
            slot.filled = true;
            slot.barrier = event.barrier;
            queue_.push({arrives, order_++, -1, {rank, event.object, event.barrier, event.number}});
        }
        return true;
    }

    /// By products; what other statements read is not followed.
    bool read_as_matrix(int slot) {
        if (matrices_.empty()) {
            matrices_.insert(-1);
            for (const Thread& thread : threads_)
                for (const Event& event : thread.list.events)
                    if (event.kind == Kind::Multiply) matrices_.insert({event.object, event.other});
        }
        return matrices_.contains(slot);
    }

    void deliver(const Box& box) {
        --blocks_[static_cast<size_t>(box.rank)].slots[box.slot].boxes_under_way;
        Barrier& at = barrier(box.rank, box.barrier);
        at.bytes -= box.bytes;
        complete(at);
    }

    bool multiply(Thread& thread, const Event& event) {
        Block& own = block_of(thread);
        std::vector<int64_t>& ends = own.products[thread.index / warpgroup];
        if (thread.products == ends.size()) {
            own.unit_free = std::max(own.unit_free, now_) + event.number;
            ends.push_back(own.unit_free);
        }
        int64_t end = ends[thread.products++];
        span(thread, SignalSpan::Kind::Multiply, end - event.number, end);
        thread.open.end = end;
        for (int number : {event.object, event.other}) {
            if (number < 0) continue;
            Slot& slot = own.slots[number];
            if (!slot.filled || slot.boxes_under_way > 0)
                throw Problem{fmt::format("a product reads {}, which has not arrived", events_.slot_name(number))};
            if (thread.fresh[number] && thread.generation[number] == slot.generation)
                throw Problem{fmt::format("products read {} twice", events_.slot_name(number))};
            thread.fresh[number] = false;
            thread.generation[number] = slot.generation;
            slot.was_read = true;
            if (thread.index % warpgroup != 0) continue;  // its first thread stands for all of them
            ++slot.readers;
            thread.open.slots.push_back(number);
        }
        return true;
    }

    bool await_products(size_t number, Thread& thread, int64_t under_way) {
        size_t count = thread.groups.size() > static_cast<size_t>(under_way)
                           ? thread.groups.size() - static_cast<size_t>(under_way)
                           : 0;
        if (count && !passes_by(number, thread, thread.groups[count - 1].end, SignalSpan::Kind::Wait)) return false;
        for (size_t g = 0; g < count; ++g)
            for (int slot : thread.groups[g].slots) --block_of(thread).slots[slot].readers;
        thread.groups.erase(thread.groups.begin(), thread.groups.begin() + static_cast<std::ptrdiff_t>(count));
        return true;
    }

    void check_end() {
        result_.whole = !cut_off_;
        if (cut_off_) return;
        for (const Thread& thread : threads_)
            if (thread.next < thread.list.events.size()) throw Problem{stuck(thread)};
        for (const Block& block : blocks_)
            for (const auto& [id, there] : block.meeting)
                if (!there.empty())
                    throw Problem{fmt::format("{} threads have come to barrier {}, and no others", there.size(), id)};
        for (size_t rank = 0; rank < blocks_.size(); ++rank)
            for (const auto& [number, at] : blocks_[rank].barriers)
                if (at.missing != at.arrivals || at.bytes != 0)
                    throw Problem{
                        fmt::format("{} is left in the middle of a phase: {} arrivals and {} bytes are missing",
                                    events_.barrier_name(number), at.missing, at.bytes)};
    }

    std::string stuck(const Thread& thread) const {
        const Event& event = thread.list.events[thread.next];
        std::string what = "for the others";
        if (event.kind == Kind::Wait)
            what = fmt::format("at {} for the phase of parity {}", events_.barrier_name(event.object), event.number);
        if (event.kind == Kind::Meet) what = fmt::format("at barrier {} for {} threads", event.object, event.number);
        return fmt::format("thread {} of block {} waits {} for ever", thread.index, thread.rank, what);
    }

    const ThreadKernel& kernel_;
    SignalEvents& events_;
    const SignalSpeeds& speeds_;
    int per_block_;
    std::vector<Thread> threads_;
    std::vector<Block> blocks_;
    std::vector<size_t> cluster_meeting_;
    std::set<int> matrices_;
    std::priority_queue<Moment> queue_;
    int64_t now_ = 0, order_ = 0;
    bool cut_off_ = false;  // a thread has come to the end of what is known of it
    SignalSimulation result_;
};

}  // namespace

SignalSimulation simulate_signals(const ThreadKernel& kernel, size_t most_events, const SignalSpeeds& speeds) {
    auto events = SignalEvents::of(kernel);
    if (!events) return {};
    return Simulator(kernel, *events, most_events, speeds).run();
}

void verify_signals(const ThreadKernel& kernel) {
    auto events = SignalEvents::of(kernel);
    if (!events) return;
    constexpr SignalSpeeds usual{}, at_once{.load_latency = 0, .bytes_per_cycle = 0},
        slow{.load_latency = 50000, .late_groups = 20000};
    for (const SignalSpeeds& speeds : {usual, at_once, slow}) {
        std::string problem = Simulator(kernel, *events, events_to_verify, speeds).run().problem;
        internal_check(problem.empty(), "kernel {}: {}", kernel.name, problem);
    }
}

}  // namespace tw::codegen
