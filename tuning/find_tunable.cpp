#include "schedules/name_forms.h"
#include "support/error.h"
#include "tuning/tunable.h"

namespace tw::tuning {

Tunable find_tunable(const std::string& name) {
    for (const auto& family : {tunable_product, tunable_convolution})
        if (auto found = family(name)) return *found;
    const bool begins_so = name.starts_with("gemm_") || name.starts_with("convolution_");
    if (const std::string form = begins_so ? schedules::form_of(name) : ""; !form.empty())
        throw_error(Error, "there is no '{}' to tune; {}", name, form);
    throw_error(
        Error,
        "'{}' names no product on tensor cores, no convolution and no kernel; write gemm_TYPE_MxNxK, as "
        "gemm_bf16_4096x4096x4096_tb, or convolution_TYPE_IMAGESxHEIGHTxWIDTHxCHANNELS_FILTERS_RxS, or a kernel "
        "that is scheduled by rule, as softmax_16384x8192_bf16_automatic",
        name);
}

}  // namespace tw::tuning
