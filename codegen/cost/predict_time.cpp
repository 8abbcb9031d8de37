#include "codegen/cost/predict_time.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "codegen/cost/known_nests.h"
#include "codegen/cost/lane_values.h"

namespace tw::codegen {
namespace {

constexpr double kept_registers = 240;  // of a thread, as they are counted, that do not spill
constexpr double of_first_trips = 0.5;  // that no other block hides
constexpr double beside = 0.1;          // of what is not the longest: as much of it is not hidden,
constexpr double of_few_rounds = 0.2;   // and so much more where blocks begin, and wait, together

struct Share {
    double seconds;
    const char* name;
};

bool is_shorter(const Share& a, const Share& b) { return a.seconds < b.seconds; }

}  // namespace

const std::vector<DeviceSpeed>& device_speeds() {
    static const std::vector<DeviceSpeed> speeds{
        {"clock", &DeviceSpeeds::clock, "cycles/s"},
        {"memory_bytes", &DeviceSpeeds::memory_bytes, "bytes/s"},
        {"l2_bytes", &DeviceSpeeds::l2_bytes, "bytes/s"},
        {"launch", &DeviceSpeeds::launch, "s"},
        {"round_trip", &DeviceSpeeds::round_trip, "s"},
        {"instructions", &DeviceSpeeds::instructions, "a cycle"},
        {"specials", &DeviceSpeeds::specials, "a cycle"},
        {"doubles", &DeviceSpeeds::doubles, "a cycle"},
        {"blocks", &DeviceSpeeds::blocks, "1/s"},
        {"atomics", &DeviceSpeeds::atomics, "sectors/s"},
        {"barrier", &DeviceSpeeds::barrier, "cycles"},
        {"wavefronts", &DeviceSpeeds::wavefronts, "a cycle"},
        {"warp_latency", &DeviceSpeeds::warp_latency, "cycles"},
        {"spill_bytes", &DeviceSpeeds::spill_bytes, "bytes"},
    };
    return speeds;
}

KernelPrediction predict_kernel(const ThreadKernel& kernel, const Target& target, const DeviceSpeeds& speeds) {
    return predict_kernel(kernel.name, count_work(kernel, target), target, speeds);
}

KernelPrediction predict_kernel(const std::string& name, const KernelWork& work, const Target& target,
                                const DeviceSpeeds& speeds) {
    const BlockWork& block = work.of_block;
    const double slots = target.multiprocessors * work.resident;
    const double busiest = std::ceil(work.blocks / target.multiprocessors);  // blocks of one multiprocessor
    // A few warps do not issue as fast: each waits for its own results.
    const double warps = std::min(work.resident, busiest) * work.warps,
                 cycles_issued =
                     std::max(block.instructions / speeds.instructions, block.waits * speeds.warp_latency / warps);
    // Where tensor cores work for roles, a warp makes results when the unit is done with them: what others do then are
    // groups in turn, and other blocks.
    const double actors = std::max(work.turns, 1) * std::min(work.resident, std::max(busiest, 1.0));
    const double of_turn =
        work.turns == 0 || block.unit_cycles == 0
            ? 0
            : (block.unit_cycles + std::max(work.turns, 1) * work.of_busiest_warp * speeds.warp_latency) / actors;
    const double spilled =
        std::max(work.registers - kept_registers, 0.0) * speeds.spill_bytes * warp_lanes * work.warps * work.blocks;
    const double trips = block.round_trips * speeds.round_trip + block.barriers * speeds.barrier / speeds.clock;
    auto cycles = [&](double of_block) { return busiest * of_block / speeds.clock; };

    // What one of these does not hide of another belongs to one group.
    const Share groups[] = {
        std::max(
            {Share{work.memory_bytes / speeds.memory_bytes, "memory"},
             Share{work.l2_bytes / speeds.l2_bytes, "second cache"},
             Share{(work.l2_bytes + spilled) / speeds.l2_bytes, spilled > 0 ? "spilled registers" : "second cache"},
             Share{work.atomics / speeds.atomics, "atomic updates"}},
            is_shorter),
        std::max({Share{cycles(cycles_issued), "instructions"},
                  Share{cycles(block.special / speeds.specials), "special functions"},
                  Share{cycles(block.doubles / speeds.doubles), "f64"},
                  Share{cycles(block.wavefronts / speeds.wavefronts), "shared memory and first cache"},
                  Share{cycles(of_turn), "results of tensor cores"}, Share{cycles(block.unit_cycles), "tensor cores"}},
                 is_shorter),
        Share{std::ceil(work.blocks / slots) * trips, "latency"},
        Share{work.blocks / speeds.blocks, "blocks that begin"},
    };
    const Share longest = *std::max_element(std::begin(groups), std::end(groups), is_shorter);
    double others = -longest.seconds;
    for (const Share& group : groups) others += group.seconds;
    const double shown = std::min(1.0, beside + of_few_rounds * slots / std::max(work.blocks, 1.0));
    const double seconds = speeds.launch + of_first_trips * trips + longest.seconds + shown * others;
    return {name, seconds, longest.seconds > speeds.launch ? longest.name : "launch", work};
}

double Prediction::statements() const {
    double all = 0;
    for (const KernelPrediction& kernel : kernels) all += kernel.work.statements;
    return all;
}

Prediction predict_time(const Tree& tree, const Target& target, const DeviceSpeeds& speeds, const CiteStep& cite) {
    Prediction result;
    for (const CountedKernel& kernel : counted_kernels(tree, target, cite)) {
        result.kernels.push_back(predict_kernel(kernel.name, kernel.work, target, speeds));
        result.seconds += result.kernels.back().seconds;
    }
    return result;
}

}  // namespace tw::codegen
