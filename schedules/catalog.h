// The kernels that come with the library, by name: what `tw list` shows and what tests and the GPU suite run through.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "dsl/schedule.h"

namespace tw::schedules {

struct CatalogEntry {
    std::string name;  ///< "product_64x48x40"
    std::string description;
    double flops = 0;  ///< in one run
    std::function<Schedule(const Target&)> make;
    double bytes = 0;  ///< to be moved in one run, if it is known: each operand and result once
    /// Gives random inputs what random numbers are not, such as tables; empty where they will do.
    std::function<void(Bindings& bindings, uint64_t seed)> give_tables = {};
};

/// Every entry; names are unique.
const std::vector<CatalogEntry>& catalog();
/// The library's entry of this name, or nullptr. Known for any extents: "product_MxNxK" with suffixes _ta, _tb
/// (transposed operands) and _ab (alpha, beta), the names of families.h ("softmax_16384x8192_bf16"), those of
/// tensor_product_names.h, and those of attention.h, attention_backward.h, linear_cross_entropy.h and fused_training.h. With "_automatic"
/// behind any of these, the same declaration as choose_schedule schedules it: "softmax_16384x8192_bf16_automatic".
const CatalogEntry* find_library_kernel(const std::string& name);
/// The library's kernel of this name, or the one that register_kernel.h was given. Throws as registered_kernels() does.
const CatalogEntry* find_kernel(const std::string& name);

}  // namespace tw::schedules
