// The family of warpgroup products, too many to write down: each text is made when its name is asked for.
//
//   wgmma_m64n256k16_bf16                  float (&d)[128], u64 a_descriptor, u64 b_descriptor, bool accumulate
//   wgmma_m64n96k32_e4m3_e5m2              types of a and b differ
//   wgmma_m64n64k16_f16_registers          a in registers: const unsigned* a, four words as pack_registers makes them
//   wgmma_m64n64k16_f16<true, false>       transposes (of b alone where a is in registers), of 16-bit types
//   wgmma_m64n64k16_f16_negated            subtracts the product; of all types but s8
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tw::device {

struct WarpgroupProduct {
    int n = 0, k = 0;
    std::string a, b;  // types: bf16 f16 tf32 e4m3 e5m2 s8
    bool a_in_registers = false;
    bool negated = false;

    std::string name() const;
    std::string text() const;  // as CUDA
    std::string twin() const;  // for the emulator
};

/// Nothing if the name is of another family, or if the hardware has no such product: n is a multiple of 8 to 256 (of s8
/// 8, 24 or a multiple of 16), k is 16 of 16-bit types, 8 of tf32, 32 of 8-bit types, and s8 is not subtracted.
std::optional<WarpgroupProduct> find_warpgroup_product(std::string_view name);

/// The twins of all that a kernel's texts call.
std::string warpgroup_twins(const std::vector<std::string_view>& texts);

}  // namespace tw::device
