// What the tuner found: for each kernel the tiling that was fastest on a device, a line of JSON each.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "schedules/convolution_tilings.h"
#include "schedules/tensor_product.h"

namespace tw::schedules {

struct TilingTime {
    std::string tiling;
    double milliseconds = 0;  ///< the median

    bool operator==(const TilingTime&) const = default;
};
struct TunedRecord {
    std::string kernel;       ///< a name without a tiling: "gemm_bf16_4096x4096x4096_tb", "convolution_bf16_..."
    std::string tiling;       ///< "128x192x64g2s4r", as behind _tile in a name
    std::string schedule;     ///< the steps that this gave when it was measured: Schedule::save()
    std::string device;       ///< "NVIDIA H200"
    std::string arch;         ///< "sm_90a"; "emulated sm_90a" of the emulator's times, which no target's kernels take
    std::string version;      ///< this library's
    double milliseconds = 0;  ///< one run takes: the median
    double spread = 0;        ///< the width of the middle half of the measurements, as a share of the median
    /// What was measured beside it, itself among them, the fastest first: those found wrong are not there. Nothing in
    /// records of versions that kept no times.
    std::vector<TilingTime> measured = {};

    bool operator==(const TunedRecord&) const = default;
};

/// Reads lines of JSON; empty ones are passed over. Throws Error, which begins with `source` and the line's number,
/// where one is no record, or has a product or a convolution (tensor_product_names.h, parse_convolution) with a tiling
/// in its name or none that it can have, as the winner's or that of a time. Other kernels' names and tilings are those
/// of whoever tuned them.
std::vector<TunedRecord> parse_records(std::string_view text, const std::string& source);
/// The lines, in the order of the kernels' names.
std::string records_text(std::vector<TunedRecord> records);
/// Puts the record in the place of that of the same computation on the same device, or behind all others.
void put_record(std::vector<TunedRecord>& records, const TunedRecord& record);

/// The records that the library was built with: schedules/tuned/h200.jsonl.
std::string_view embedded_records();

/// Records that are asked before the library's as long as this lives, those of the latest first. Not to be made or to
/// end while other threads make schedules.
class RecordsInUse {
public:
    explicit RecordsInUse(const std::vector<TunedRecord>& records);
    ~RecordsInUse();
    RecordsInUse(const RecordsInUse&) = delete;
    RecordsInUse& operator=(const RecordsInUse&) = delete;
};

/// The tiling that they tell for exactly this product, if the target is the one that they were measured on; where many
/// instructions follow its sums, that of a product behind which about as many do.
std::optional<ProductTiling> tuned_tiling(const TensorProductShape& shape, const Target& target);
/// The same of a pass of a convolution.
std::optional<ConvolutionTiling> tuned_tiling(const ConvolutionShape& shape, ConvolutionPass pass,
                                              const Target& target);
/// The same of a kernel by its name, as the record has it.
std::optional<std::string> tuned_tiling(const std::string& kernel, const Target& target);
/// What they tell of a kernel by its name, whatever the target: those to be asked first come first.
std::vector<TunedRecord> tuned_records_of(const std::string& kernel);

}  // namespace tw::schedules
