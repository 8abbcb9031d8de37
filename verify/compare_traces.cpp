// Two kernels by what their threads do.
#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "verify/trace_threads.h"

namespace tw::fuzz {
namespace {

using Kind = TracedOperation::Kind;

constexpr size_t kWarp = 32;
constexpr size_t kWarpgroup = 128;

/// Numbers say nothing where those who use one are always the same threads: these get the number of the first of them.
void renumber_barriers(std::vector<ThreadTrace>& threads) {
    std::map<int, std::vector<size_t>> users;
    for (size_t t = 0; t < threads.size(); ++t)
        for (const auto* part : {&threads[t].before, &threads[t].after})
            for (const TracedOperation& operation : *part) {
                if (operation.kind != Kind::Barrier || operation.number == 0) continue;
                std::vector<size_t>& known = users[operation.number];
                if (known.empty() || known.back() != t) known.push_back(t);
            }
    std::map<int, int> numbers;
    for (const auto& [id, own] : users) {
        const bool apart = std::all_of(users.begin(), users.end(), [&, &mine = own](const auto& other) {
            return other.second == mine || std::none_of(mine.begin(), mine.end(), [&](size_t t) {
                       return std::binary_search(other.second.begin(), other.second.end(), t);
                   });
        });
        numbers[id] = apart ? -1 - static_cast<int>(own[0]) : id;
    }
    for (ThreadTrace& thread : threads)
        for (auto* part : {&thread.before, &thread.after})
            for (TracedOperation& operation : *part)
                if (auto found = numbers.find(operation.number);
                    operation.kind == Kind::Barrier && found != numbers.end())
                    operation.number = found->second;
}

/// What a lane holds goes to rows that others name: the store is dead if all rows are.
class StoreOfMatrices {
public:
    void add(TracedOperation& lane, bool dead) {
        lanes_.push_back(&lane);
        dead_ = dead_ && dead;
    }
    void mark() {
        for (TracedOperation* lane : lanes_)
            if (dead_) lane->kind = Kind::Idle;
    }

private:
    std::vector<TracedOperation*> lanes_;
    bool dead_ = true;
};

/// Elements of shared memory that are written and not read behind a barrier, before they are written again.
void mark_dead_stores(std::vector<ThreadTrace>& threads) {
    std::map<uint64_t, std::map<int32_t, int>> events;  // of a place, by epochs: 1 writes, 2 reads
    for (const ThreadTrace& thread : threads)
        for (const TracedAccess& access : thread.accesses) events[access.place][access.epoch] |= access.writes ? 1 : 2;
    auto is_dead = [&](uint64_t place, int32_t epoch) {
        const auto& all = events.at(place);
        if (all.at(epoch) & 2) return false;
        auto next = all.upper_bound(epoch);
        return next == all.end() || next->second == 1;
    };
    std::map<std::pair<size_t, size_t>, StoreOfMatrices> of_warps;
    for (size_t t = 0; t < threads.size(); ++t) {
        int32_t epoch = 0;
        size_t stores = 0;
        for (auto* part : {&threads[t].before, &threads[t].after})
            for (TracedOperation& operation : *part) {
                epoch += operation.kind == Kind::Barrier;
                bool dead = operation.kind == Kind::Store || operation.kind == Kind::Matrices;
                for (int e = 0; e < operation.number && dead; ++e)
                    dead = is_dead(operation.place + static_cast<uint64_t>(e), epoch);
                if (operation.kind == Kind::Matrices)
                    of_warps[{t / kWarp, stores++}].add(operation, dead);
                else if (dead)
                    operation.kind = Kind::Idle;
            }
    }
    for (auto& [warp, store] : of_warps) store.mark();
}

/// Barriers at which each thread waits at most once, for the phase before the first.
void mark_unused_barriers(std::vector<ThreadTrace>& threads) {
    std::set<uint64_t> used;
    for (const ThreadTrace& thread : threads) {
        std::set<uint64_t> waited;
        for (const auto* part : {&thread.before, &thread.after})
            for (const TracedOperation& operation : *part)
                if (operation.kind == Kind::Wait && (operation.number == 0 || !waited.insert(operation.place).second))
                    used.insert(operation.place);
    }
    for (ThreadTrace& thread : threads)
        for (auto* part : {&thread.before, &thread.after})
            for (TracedOperation& operation : *part) {
                const bool of_barrier =
                    operation.kind == Kind::Init || operation.kind == Kind::Arrival || operation.kind == Kind::Wait;
                if (of_barrier && !used.contains(operation.place)) operation.kind = Kind::Idle;
            }
}

/// How many phases of a barrier must end for the waits of a thread, which takes them in turn; more than any if not.
int phases_awaited(const ThreadTrace& thread, uint64_t place) {
    int waits = 0, first = 0;
    for (const auto* part : {&thread.before, &thread.after})
        for (const TracedOperation& operation : *part) {
            if (operation.kind != Kind::Wait || operation.place != place) continue;
            if (waits == 0) first = operation.number;
            if (operation.number != (first + waits) % 2) return std::numeric_limits<int>::max();
            ++waits;
        }
    return waits - (first == 1);  // the phase before the first has ended
}

/// Waits for the phase before the first, which has ended: each thread's first at a barrier, for parity 1.
void mark_waits_for_nothing(std::vector<ThreadTrace>& threads) {
    for (ThreadTrace& thread : threads) {
        std::set<uint64_t> waited;
        for (auto* part : {&thread.before, &thread.after})
            for (TracedOperation& operation : *part)
                if (operation.kind == Kind::Wait && waited.insert(operation.place).second && operation.number == 1)
                    operation.kind = Kind::Idle;
    }
}

bool tells_that_it_is_done(const ThreadTrace& thread) {
    return std::any_of(thread.after.begin(), thread.after.end(),
                       [](const TracedOperation& operation) { return operation.kind == Kind::Arrival; });
}

/// Behind them come only further products and waits for what these read, and then a wait for as many or more; and no
/// thread tells others that products have been read.
void mark_superfluous_waits(std::vector<ThreadTrace>& threads) {
    if (std::any_of(threads.begin(), threads.end(), tells_that_it_is_done)) return;
    for (ThreadTrace& thread : threads)
        for (auto* part : {&thread.before, &thread.after}) {
            int later = std::numeric_limits<int>::max();  // what the next wait leaves under way
            for (auto operation = part->rbegin(); operation != part->rend(); ++operation) {
                if (operation->kind == Kind::Products) {
                    const int own = operation->number;
                    if (later <= own) operation->kind = Kind::Idle;
                    later = std::min(later, own);
                } else if (operation->kind != Kind::Multiply && operation->kind != Kind::Wait &&
                           operation->kind != Kind::Idle) {
                    later = std::numeric_limits<int>::max();
                }
            }
        }
}

/// What is left without arrivals.
std::vector<TracedOperation> own_operations(const std::vector<TracedOperation>& all) {
    std::vector<TracedOperation> own;
    for (const TracedOperation& operation : all)
        if (operation.kind != Kind::Arrival) own.push_back(operation);
    return own;
}

/// The arrivals, each with the number of waits that stand before it, which all threads of a warpgroup have alike.
std::vector<std::pair<size_t, uint64_t>> arrivals(const std::vector<ThreadTrace>& threads, size_t first) {
    std::vector<std::pair<size_t, uint64_t>> found;
    for (size_t t = first; t < std::min(first + kWarpgroup, threads.size()); ++t) {
        size_t before = 0;
        for (const TracedOperation& operation : threads[t].after) {
            if (operation.kind == Kind::Arrival) found.emplace_back(before, operation.operation);
            before += operation.kind == Kind::Wait || operation.kind == Kind::Products;
        }
    }
    std::sort(found.begin(), found.end());
    return found;
}

template <class Part>
bool same_in_some_order(const std::vector<ThreadTrace>& one, const std::vector<ThreadTrace>& other, size_t first,
                        size_t count, Part part) {
    std::vector<const std::vector<TracedOperation>*> a, b;
    for (size_t t = first; t < std::min(first + count, one.size()); ++t) {
        a.push_back(&(one[t].*part));
        b.push_back(&(other[t].*part));
    }
    return std::is_permutation(a.begin(), a.end(), b.begin(), b.end(),
                               [](const auto* x, const auto* y) { return *x == *y; });
}

constexpr const char* kTheSame = "every thread does the same";

std::vector<ThreadTrace> without_idle(std::vector<ThreadTrace> threads) {
    for (ThreadTrace& thread : threads)
        for (auto* part : {&thread.before, &thread.after})
            std::erase_if(*part, [](const TracedOperation& operation) { return operation.kind == Kind::Idle; });
    return threads;
}

bool waits_for_more(const TracedOperation& original, const TracedOperation& mutant) {
    return original.kind == Kind::Products && mutant.kind == Kind::Products && mutant.number <= original.number;
}

/// The mutant's thread does the same, but waits more often, or for more. That cannot make a result wrong. It could make
/// the kernel hang, as the emulator would have told.
bool only_waits_more(const std::vector<TracedOperation>& original, const std::vector<TracedOperation>& mutant) {
    size_t next = 0;
    for (const TracedOperation& operation : mutant) {
        const bool left = next < original.size();
        if (left && (original[next] == operation || waits_for_more(original[next], operation)))
            ++next;
        else if (operation.kind != Kind::Wait)
            return false;
    }
    return next == original.size();
}

/// Whatever is idle in one of them alone.
bool same_operation(const TracedOperation& one, const TracedOperation& other) {
    return one.operation == other.operation && one.number == other.number && one.place == other.place;
}

/// Begins with a wait, so that nobody is told anything but in its turn, and has no results.
bool is_idle_round(std::vector<TracedOperation>::const_iterator begin,
                   std::vector<TracedOperation>::const_iterator end) {
    auto first = std::find_if(begin, end, [](const TracedOperation& one) { return one.kind != Kind::Idle; });
    return first == end || (first->kind == Kind::Wait && std::none_of(begin, end, [](const TracedOperation& one) {
                                return one.kind == Kind::Result;
                            }));
}

/// The mutant's threads do the same, and then more, of which nothing is a result.
bool only_go_on(const std::vector<ThreadTrace>& original, const std::vector<ThreadTrace>& mutant) {
    auto goes_on = [](const ThreadTrace& one, const ThreadTrace& other) {
        const std::vector<TracedOperation>&own = one.after, &more = other.after;
        return std::equal(one.before.begin(), one.before.end(), other.before.begin(), other.before.end(),
                          same_operation) &&
               own.size() <= more.size() && std::equal(own.begin(), own.end(), more.begin(), same_operation) &&
               is_idle_round(more.begin() + static_cast<ptrdiff_t>(own.size()), more.end());
    };
    return std::equal(original.begin(), original.end(), mutant.begin(), mutant.end(), goes_on);
}

bool holds_parts(const std::vector<TracedOperation>& all) {
    return std::any_of(all.begin(), all.end(), [](const TracedOperation& one) {
        return one.kind == Kind::Products || one.kind == Kind::Matrices;
    });
}

/// Why the traces of one block, of which nothing is idle, are the same.
Sameness why_same(const std::vector<ThreadTrace>& original, const std::vector<ThreadTrace>& mutant) {
    if (original.size() != mutant.size()) return {};
    bool same_before = true, same_after = true, same_own = true, waits_more = true;
    for (size_t t = 0; t < original.size(); ++t) {
        const std::vector<TracedOperation>&one = original[t].after, &other = mutant[t].after;
        same_before = same_before && original[t].before == mutant[t].before;
        same_after = same_after && one == other;
        same_own = same_own && own_operations(one) == own_operations(other);
        waits_more = waits_more && only_waits_more(one, other);
    }
    if (same_before && same_after) return {"every thread does the same, but for what has no effect", true};
    if (same_after && same_in_some_order(original, mutant, 0, original.size(), &ThreadTrace::before))
        return {"another thread does it, before all meet"};
    if (!same_before) return {};
    if (waits_more) return {"only waits more often, or for more", true};
    bool in_warps = true, by_warpgroups = same_own;
    for (size_t t = 0; t < original.size(); ++t)  // lanes that hold parts of products are not alike
        in_warps = in_warps && (original[t].after == mutant[t].after || !holds_parts(original[t].after));
    for (size_t first = 0; first < original.size(); first += kWarp)
        in_warps = in_warps && same_in_some_order(original, mutant, first, kWarp, &ThreadTrace::after);
    for (size_t first = 0; first < original.size(); first += kWarpgroup)
        by_warpgroups = by_warpgroups && arrivals(original, first) == arrivals(mutant, first);
    if (by_warpgroups) return {"another thread of the warpgroup says that it is done"};
    if (in_warps) return {"two threads of a warp change places"};
    return {};
}

/// Arrivals at a barrier where one thread alone arrives, once a phase, behind those for the last phase that anybody
/// waits for.
void mark_unawaited_arrivals(std::vector<ThreadTrace>& threads) {
    std::map<uint64_t, std::set<size_t>> arriving;
    for (size_t t = 0; t < threads.size(); ++t)
        for (const auto* part : {&threads[t].before, &threads[t].after})
            for (const TracedOperation& operation : *part)
                if (operation.kind == Kind::Arrival) arriving[operation.place].insert(t);
    for (const auto& [place, by] : arriving) {
        if (by.size() != 1) continue;
        int awaited = 0;
        for (const ThreadTrace& thread : threads) awaited = std::max(awaited, phases_awaited(thread, place));
        ThreadTrace& thread = threads[*by.begin()];
        for (auto* part : {&thread.before, &thread.after})
            for (TracedOperation& operation : *part)
                if (operation.kind == Kind::Arrival && operation.place == place && awaited-- <= 0)
                    operation.kind = Kind::Idle;
    }
}

/// Has the blocks ask in order for the boxes that threads with the same index ask for, each its n-th.
Traces with_askers_in_order(Traces blocks) {
    std::map<std::pair<size_t, size_t>, std::vector<TracedOperation*>> boxes;  // of a thread, its n-th
    for (std::vector<ThreadTrace>& threads : blocks)
        for (size_t t = 0; t < threads.size(); ++t) {
            size_t n = 0;
            for (TracedOperation& operation : threads[t].after)
                if (operation.kind == Kind::Multicast) boxes[{t, n++}].push_back(&operation);
        }
    for (auto& [which, asked] : boxes) {
        std::vector<uint64_t> operations;
        for (const TracedOperation* one : asked) operations.push_back(one->operation);
        std::ranges::sort(operations);
        for (size_t b = 0; b < asked.size(); ++b) asked[b]->operation = operations[b];
    }
    return blocks;
}

/// Whether there are threads behind those of the original, which meet all others and do nothing else.
bool stand_by(const Traces& original, const Traces& mutant) {
    auto does_nothing = [](const TracedOperation& operation) {
        return operation.kind == Kind::Idle || (operation.kind == Kind::Barrier && operation.number == 0);
    };
    auto stands_by = [&](const ThreadTrace& thread) {
        return !thread.relied && thread.accesses.empty() && std::ranges::all_of(thread.before, does_nothing) &&
               std::ranges::all_of(thread.after, does_nothing);
    };
    auto in_block = [&](const std::vector<ThreadTrace>& own, const std::vector<ThreadTrace>& more) {
        return own.size() < more.size() &&
               std::all_of(more.begin() + static_cast<ptrdiff_t>(own.size()), more.end(), stands_by);
    };
    return std::ranges::equal(original, mutant, in_block);
}

Traces without_threads_behind(const Traces& original, Traces mutant) {
    for (size_t b = 0; b < original.size(); ++b) mutant[b].resize(original[b].size());
    return mutant;
}

Traces without_unawaited_arrivals(Traces blocks) {
    for (std::vector<ThreadTrace>& threads : blocks) mark_unawaited_arrivals(threads);
    return blocks;
}

Sameness why_same_blocks(const Traces& original, const Traces& mutant) {
    if (original.size() != mutant.size()) return {};
    Sameness all{kTheSame};
    for (size_t b = 0; b < original.size(); ++b) {
        auto operations = [](const ThreadTrace& one, const ThreadTrace& other) {
            return one.before == other.before && one.after == other.after;
        };
        if (std::equal(original[b].begin(), original[b].end(), mutant[b].begin(), mutant[b].end(), operations))
            continue;
        if (only_go_on(original[b], mutant[b])) {
            all = {"goes on after its last result", true};
            continue;
        }
        Sameness own = why_same(without_idle(original[b]), without_idle(mutant[b]));
        if (own.reason.empty()) return {};
        all.reason = own.reason;
        all.unless_it_hangs = all.unless_it_hangs || own.unless_it_hangs;
    }
    return all;
}

}  // namespace

void normalise(std::vector<ThreadTrace>& threads) {
    renumber_barriers(threads);
    mark_dead_stores(threads);
    mark_unused_barriers(threads);
    mark_superfluous_waits(threads);
    mark_waits_for_nothing(threads);
}

Sameness why_same(const Traces& original, const Traces& mutant) {
    if (stand_by(original, mutant)) {
        Sameness same = why_same(original, without_threads_behind(original, mutant));
        if (same.reason.empty()) return {};
        return {same.reason + ", beside threads that do nothing", true};
    }
    Sameness same = why_same_blocks(original, mutant);
    if (!same.reason.empty()) return same;
    same = why_same_blocks(without_unawaited_arrivals(original), without_unawaited_arrivals(mutant));
    if (!same.reason.empty()) return same;
    same = why_same_blocks(with_askers_in_order(original), with_askers_in_order(mutant));
    if (same.reason.empty()) return {};
    return {same.reason + ", but for which block of a cluster asks for a box", true};
}

bool all_wait_for_previous(const Traces& traces) {
    return std::ranges::all_of(traces, [](const std::vector<ThreadTrace>& threads) {
        std::optional<int> waited;
        for (const ThreadTrace& thread : threads)
            if (thread.waited) waited = std::min(*thread.waited, waited.value_or(*thread.waited));
        return std::ranges::all_of(
            threads, [&](const ThreadTrace& thread) { return !thread.relied || (waited && *waited < *thread.relied); });
    });
}

}  // namespace tw::fuzz
