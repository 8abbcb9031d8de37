#include "dsl/target.h"

#include <algorithm>
#include <vector>

#include "support/error.h"

namespace tw {
namespace {

struct Row {
    const char* arch;
    int major, minor;
    // CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
    int threads_per_multiprocessor, blocks_per_multiprocessor, shared_kib_per_multiprocessor, shared_kib_per_block;
    // A100, RTX A6000, L40S, H200, B200, RTX PRO 6000: NVIDIA's data sheets.
    int multiprocessors, l2_mib;
};
constexpr Row rows[] = {
    {"sm_80", 8, 0, 2048, 32, 164, 163, 108, 40},    {"sm_86", 8, 6, 1536, 16, 100, 99, 84, 6},
    {"sm_89", 8, 9, 1536, 24, 100, 99, 142, 96},     {"sm_90", 9, 0, 2048, 32, 228, 227, 132, 50},
    {"sm_90a", 9, 0, 2048, 32, 228, 227, 132, 50},   {"sm_100a", 10, 0, 2048, 32, 228, 227, 148, 126},
    {"sm_120a", 12, 0, 1536, 24, 100, 99, 188, 128},
};

Target target_of_row(const Row& row) {
    const bool is_ada_or_later = row.major > 8 || (row.major == 8 && row.minor >= 9),
               is_hopper_or_later = row.major >= 9;
    const bool has_own_features = std::string_view(row.arch).back() == 'a';
    return {.arch = row.arch,
            .compute_major = row.major,
            .compute_minor = row.minor,
            .shared_bytes = int64_t{row.shared_kib_per_block} << 10,
            .threads_per_multiprocessor = row.threads_per_multiprocessor,
            .blocks_per_multiprocessor = row.blocks_per_multiprocessor,
            .shared_bytes_per_multiprocessor = int64_t{row.shared_kib_per_multiprocessor} << 10,
            .multiprocessors = row.multiprocessors,
            .l2_bytes = int64_t{row.l2_mib} << 20,
            .has_mma_sync = true,
            .has_mma_fp8 = is_ada_or_later,
            .has_tma = is_hopper_or_later,
            .has_clusters = is_hopper_or_later,
            .has_stmatrix = is_hopper_or_later,
            .has_wgmma = row.major == 9 && has_own_features,
            // For sm_120a, ptxas 13.0 ignores setmaxnreg and says so.
            .has_setmaxnreg = (row.major == 9 || row.major == 10) && has_own_features,
            .has_programmatic_launch = is_hopper_or_later};
}

const std::vector<Target>& targets() {
    static const std::vector<Target> table = [] {
        std::vector<Target> made;
        for (const Row& row : rows) made.push_back(target_of_row(row));
        return made;
    }();
    return table;
}

}  // namespace

Target target(const std::string& arch, std::source_location where) {
    const Target* found = find_target(arch);
    user_check(found, where, "target(\"{}\"): unknown; choose one of {}", arch, known_targets());
    return *found;
}

const Target* find_target(std::string_view arch) {
    for (const Target& known : targets())
        if (known.arch == arch) return &known;
    return nullptr;
}

std::string known_targets() {
    std::string text;
    for (const Target& known : targets()) text += (text.empty() ? "" : ", ") + known.arch;
    return text;
}

std::string feature_text(bool Target::*feature) {
    const std::pair<bool Target::*, const char*> table[] = {
        {&Target::has_mma_sync, "mma.sync and cp.async"},
        {&Target::has_mma_fp8, "mma.sync of fp8"},
        {&Target::has_tma, "TMA and mbarriers"},
        {&Target::has_clusters, "clusters"},
        {&Target::has_stmatrix, "stmatrix"},
        {&Target::has_wgmma, "wgmma"},
        {&Target::has_setmaxnreg, "setmaxnreg"},
        {&Target::has_programmatic_launch, "programmatic dependent launch"},
    };
    auto found = std::find_if(std::begin(table), std::end(table), [&](auto& row) { return row.first == feature; });
    internal_check(found != std::end(table), "a feature without words");
    return found->second;
}

const std::string& first_target_with(bool Target::*feature) {
    auto found = std::find_if(targets().begin(), targets().end(), [&](const Target& known) { return known.*feature; });
    internal_check(found != targets().end(), "no target has this feature");
    return found->arch;
}

}  // namespace tw
