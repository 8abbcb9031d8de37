#include "dsl/target.h"

#include <array>

#include "support/error.h"

namespace tw {

Target target(const std::string& arch, std::source_location where) {
    struct Row {
        const char* arch;
        int64_t shared_kib;   // CUDA programming guide, table of compute capabilities: opt-in maximum of a block
        int multiprocessors;  // A100, RTX A6000, L40S, H200, B200, RTX PRO 6000: NVIDIA's data sheets
        bool programmatic_launch = false;  // likewise: from 9.0 on
    };
    static constexpr std::array rows = {Row{"sm_80", 163, 108},        Row{"sm_86", 99, 84},
                                        Row{"sm_89", 99, 142},         Row{"sm_90", 227, 132, true},
                                        Row{"sm_90a", 227, 132, true}, Row{"sm_100a", 227, 148, true},
                                        Row{"sm_120a", 99, 188, true}};
    std::string known;
    for (const Row& row : rows) {
        if (arch == row.arch)
            return Target{.arch = arch,
                          .shared_bytes = row.shared_kib * 1024,
                          .multiprocessors = row.multiprocessors,
                          .programmatic_launch = row.programmatic_launch};
        known += known.empty() ? row.arch : std::string(", ") + row.arch;
    }
    user_error(where, "target(\"{}\"): unknown; choose one of {}", arch, known);
}

}  // namespace tw
