#include "dsl/atoms.h"

#include <fmt/format.h>

namespace tw {

std::string to_string(MatrixUnit unit) {
    switch (unit) {
        case MatrixUnit::MmaSync: return "mma_sync";
        case MatrixUnit::Wgmma: return "wgmma";
    }
    return "?";
}

namespace {

/// PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions": n is a multiple of 8 up to 256, of s8 of 16, or 8
/// or 24.
void add_wgmma(std::vector<Atom>& table, Type type, const char* name, Type sum) {
    int k = 32 / bytes_of(type);
    for (int n = 256; n >= 8; n -= 8)
        if (type != i8 || n % 16 == 0 || n == 24 || n == 8)
            table.push_back(
                {wgmma, fmt::format("wgmma_m64n{}k{}_{}", n, k, name), 64, n, k, type, sum, &Target::has_wgmma});
}

std::vector<Atom> make_table() {
    constexpr auto sync = &Target::has_mma_sync, fp8 = &Target::has_mma_fp8;
    // PTX ISA, "Warp Level Matrix Multiply-Accumulate Instructions".
    std::vector<Atom> table = {
        {mma_sync, "mma_m16n8k16", 16, 8, 16, bf16, f32, sync}, {mma_sync, "mma_m16n8k8", 16, 8, 8, bf16, f32, sync},
        {mma_sync, "mma_m16n8k16", 16, 8, 16, f16, f32, sync},  {mma_sync, "mma_m16n8k8", 16, 8, 8, f16, f32, sync},
        {mma_sync, "mma_m16n8k8", 16, 8, 8, tf32, f32, sync},   {mma_sync, "mma_m16n8k4", 16, 8, 4, tf32, f32, sync},
        {mma_sync, "mma_m16n8k32", 16, 8, 32, i8, i32, sync},   {mma_sync, "mma_m16n8k32", 16, 8, 32, e4m3, f32, fp8},
        {mma_sync, "mma_m16n8k32", 16, 8, 32, e5m2, f32, fp8},
    };
    add_wgmma(table, bf16, "bf16", f32);
    add_wgmma(table, f16, "f16", f32);
    add_wgmma(table, tf32, "tf32", f32);
    add_wgmma(table, i8, "s8", i32);
    add_wgmma(table, e4m3, "e4m3", f32);
    add_wgmma(table, e5m2, "e5m2", f32);
    return table;
}

}  // namespace

const std::vector<Atom>& atoms() {
    static const std::vector<Atom> table = make_table();
    return table;
}

}  // namespace tw
