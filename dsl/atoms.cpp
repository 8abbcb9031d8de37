#include "dsl/atoms.h"

#include <cstdlib>

namespace tw {

std::string to_string(MatrixUnit unit) {
    switch (unit) {
        case MatrixUnit::MmaSync: return "mma_sync";
    }
    return "?";
}

// PTX ISA 8.x, "Warp Level Matrix Multiply-Accumulate Instructions".
const std::vector<Atom>& atoms() {
    static const std::vector<Atom> table = {
        {mma_sync, "mma_m16n8k16", 16, 8, 16, bf16, f32, 80}, {mma_sync, "mma_m16n8k8", 16, 8, 8, bf16, f32, 80},
        {mma_sync, "mma_m16n8k16", 16, 8, 16, f16, f32, 80},  {mma_sync, "mma_m16n8k8", 16, 8, 8, f16, f32, 80},
        {mma_sync, "mma_m16n8k32", 16, 8, 32, i8, i32, 80},   {mma_sync, "mma_m16n8k32", 16, 8, 32, e4m3, f32, 89},
        {mma_sync, "mma_m16n8k32", 16, 8, 32, e5m2, f32, 89},
    };
    return table;
}

int arch_number(const Target& target) { return std::atoi(target.arch.c_str() + 3); }

}  // namespace tw
