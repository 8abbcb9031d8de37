// Families of kernels, each known by names with extents and types: "softmax_16384x8192_bf16".
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dsl/schedule.h"

namespace tw::schedules {

/// What a name asks for.
struct KernelRequest {
    std::vector<int64_t> extents;
    Type type = f32;
    int64_t pitch = 0;  ///< elements between the rows of the first operand, 0 for dense
};

struct Family {
    std::string name;         ///< "softmax"
    std::string description;  ///< "exp(x) / sum of exp(x) along rows"
    size_t rank;              ///< extents in a name
    std::function<Schedule(const KernelRequest&, const Target&)> make;
    std::function<double(const KernelRequest&)> bytes;  ///< how many must be moved: each operand and result once
    std::function<double(const KernelRequest&)> flops;
    bool f32_only = false;
    bool pitched = false;  ///< knows "_pitch8200"
};

/// The memory-bound ones.
const std::vector<Family>& families();

/// Reads "NAME_AxB_TYPE" or "NAME_AxB_TYPE_pitchP" as a request to the family; nothing if it is no such name, has
/// another number of extents, a type that the family lacks, or a pitch below the last extent.
std::optional<KernelRequest> parse_request(const Family& family, const std::string& name);

}  // namespace tw::schedules
