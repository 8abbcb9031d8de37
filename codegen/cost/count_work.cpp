#include "codegen/cost/count_work.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "codegen/cost/lane_values.h"
#include "codegen/cost/warp_run.h"
#include "codegen/thread_ir/thread_walk.h"

namespace tw::codegen {
namespace {

constexpr int most_looked_at = 3;           // warps of a role, beside the first
constexpr double registers_too_many = 0.2;  // of a block: compilers need a little less than what is counted
constexpr double own_registers = 32;        // of a thread, beside its arrays

/// Warps that do the same: one of them, and how many there are.
struct EqualWarps {
    int warp;
    double count;
};

/// The first warp of a block and of each role stands for itself, as it often does more; a few for the rest, of which
/// some may be idle.
std::vector<EqualWarps> kinds_of_warps(const ThreadKernel& kernel) {
    const int all = (kernel.threads + kernel.producer_threads + warp_lanes - 1) / warp_lanes;
    std::set<int> begins{0, all};
    visit(kernel.body, [&](const ThreadStmt& stmt) {
        const ThreadRole* role = stmt.as<ThreadRole>();
        if (!role) return;
        begins.insert(role->first / warp_lanes);
        begins.insert((role->first + role->threads) / warp_lanes);
    });
    std::vector<EqualWarps> kinds;
    for (auto begin = begins.begin(); std::next(begin) != begins.end(); ++begin) {
        const int first = *begin, count = *std::next(begin) - first;
        kinds.push_back({first, 1});
        const int others = count - 1, looked_at = std::min(others, most_looked_at);
        for (int k = 0; k < looked_at; ++k)
            kinds.push_back(
                {first + 1 + (2 * k + 1) * others / (2 * looked_at), static_cast<double>(others) / looked_at});
    }
    return kinds;
}

double bytes_declared(const ThreadDeclare& declared) {
    double bytes = bytes_of(declared.buffer->type);
    for (const Expr& extent : declared.buffer->shape) bytes *= static_cast<double>(most_of(extent));
    return bytes;
}

/// Arrays that a statement touches, and the bytes of those that it declares inside and has at once, where it has most:
/// each array while its block uses it, from the first statement that does to the last. Where one begins as others end,
/// elements take each other's place.
struct HeldArrays {
    std::set<const BufferNode*> touched;
    double most = 0;
};

HeldArrays held_arrays(const ThreadStmt& stmt) {
    HeldArrays result;
    for (const MemoryAccess& access : memory_accesses(stmt)) result.touched.insert(access.place.buffer.get());
    const std::vector<ThreadStmt> kids = children(stmt);
    std::vector<double> inside;
    std::map<const BufferNode*, std::pair<size_t, size_t>> lives;  // the first and the last statement
    for (const ThreadStmt& kid : kids) {
        HeldArrays held = held_arrays(kid);
        for (const BufferNode* array : held.touched)
            lives.try_emplace(array, inside.size(), inside.size()).first->second.second = inside.size();
        inside.push_back(held.most);
        result.touched.merge(held.touched);
    }
    std::vector<double> before(kids.size()), behind(kids.size());
    for (const ThreadStmt& kid : kids) {
        const ThreadDeclare* array = kid.as<ThreadDeclare>();
        const auto life = array ? lives.find(array->buffer.get()) : lives.end();
        if (life == lives.end()) continue;
        const auto [first, last] = life->second;
        for (size_t n = first; n <= last; ++n) {
            if (n > first || first == last) before[n] += bytes_declared(*array);
            if (n < last || first == last) behind[n] += bytes_declared(*array);
        }
    }
    for (size_t n = 0; n < kids.size(); ++n)
        result.most = std::max(result.most, std::max(before[n], behind[n]) + inside[n]);
    return result;
}

/// 0: no warps have roles.
int turns_of(const ThreadKernel& kernel) {
    int turns = 0;
    visit(kernel.body, [&](const ThreadStmt& stmt) {
        if (const ThreadRole* role = stmt.as<ThreadRole>()) turns = std::max(turns, role->turns);
    });
    return turns;
}

double written_out(const ThreadStmt& stmt) {
    double statements = 1;
    for (const ThreadStmt& kid : children(stmt)) statements += written_out(kid);
    const ThreadLoop* loop = stmt.as<ThreadLoop>();
    return loop && loop->unroll ? statements * static_cast<double>(most_of(loop->extent)) : statements;
}

double resident_blocks(const ThreadKernel& kernel, const Target& target, double registers) {
    const double threads = kernel.threads + kernel.producer_threads;
    const auto shared = static_cast<double>(bytes_of_shared(kernel.shared, kernel.unions)) + 1024;
    double most = target.blocks_per_multiprocessor;
    most = std::min(most, static_cast<double>(target.threads_per_multiprocessor) / threads);
    most = std::min(most, static_cast<double>(target.shared_bytes_per_multiprocessor) / shared);
    registers = std::min(registers, static_cast<double>(target.max_registers_per_thread));
    most = std::min(most, static_cast<double>(target.registers) / (registers * threads) + registers_too_many);
    return std::max({std::floor(most), static_cast<double>(kernel.occupancy), 1.0});
}

}  // namespace

KernelWork count_work(const ThreadKernel& kernel, const Target& target) {
    KernelWork result;
    for (const Expr& extent : kernel.grid)
        if (extent.defined()) result.blocks *= static_cast<double>(most_of(extent));
    result.statements = written_out(kernel.body);
    result.registers = held_arrays(kernel.body).most / 4 + own_registers;
    result.resident = resident_blocks(kernel, target, result.registers);
    result.warps = (kernel.threads + kernel.producer_threads + warp_lanes - 1) / warp_lanes;
    result.turns = turns_of(kernel);
    WarpCounts all;
    double trips = 0, barriers = 0;
    for (const EqualWarps& kind : kinds_of_warps(kernel)) {
        WarpCounts one = run_warp(kernel, target, kind.warp, result.resident * result.warps);
        trips = std::max(trips, one.work.round_trips);
        barriers = std::max(barriers, one.work.barriers);
        result.of_busiest_warp = std::max(result.of_busiest_warp, one.work.waits);
        all += kind.count * one;
    }
    result.of_block = all.work;
    result.of_block.round_trips = trips;
    result.of_block.barriers = barriers;
    for (const auto& [array, sectors] : all.sectors) {
        const double bytes = sectors * static_cast<double>(sector) * result.blocks;
        result.l2_bytes += bytes;
        result.memory_bytes += std::min(bytes, bytes_of_array(*array));
    }
    result.atomics = all.atomics * result.blocks;
    return result;
}

}  // namespace tw::codegen
