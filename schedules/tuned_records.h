// What the tuner found: for each product on tensor cores the tiling that was fastest on a device, a line of JSON each.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "schedules/tensor_product.h"

namespace tw::schedules {

struct TunedRecord {
    std::string kernel;       ///< "gemm_bf16_4096x4096x4096_tb": a name of tensor_product_names.h without tiles
    std::string tiling;       ///< "128x192x64g2s4r", see parse_tiling
    std::string schedule;     ///< the steps that this gave when it was measured: Schedule::save()
    std::string device;       ///< "NVIDIA H200"
    std::string arch;         ///< "sm_90a"
    std::string version;      ///< this library's
    double milliseconds = 0;  ///< one run takes: the median
    double spread = 0;        ///< the width of the middle half of the measurements, as a share of the median

    bool operator==(const TunedRecord&) const = default;
};

/// Reads lines of JSON; empty ones are passed over. Throws Error, which begins with `source` and the line's number,
/// where one is no record.
std::vector<TunedRecord> parse_records(std::string_view text, const std::string& source);
/// The lines, in the order of the kernels' names.
std::string records_text(std::vector<TunedRecord> records);
/// Puts the record in the place of that of the same product on the same device, or behind all others.
void put_record(std::vector<TunedRecord>& records, const TunedRecord& record);

/// The records that the library was built with: schedules/tuned/h200.jsonl.
std::string_view embedded_records();
/// The tiling that they tell for exactly this product, if the target is the one that they were measured on.
std::optional<ProductTiling> tuned_tiling(const TensorProductShape& shape, const Target& target);

}  // namespace tw::schedules
