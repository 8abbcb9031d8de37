// How long kernels take, by what is counted in them: a model that knows no operator and no schedule, only lowered code.
//
//   Prediction time = predict_time(s.tree(), s.target());
//   fmt::print("{:.3f} ms, {}\n", time.seconds * 1e3, time.kernels[0].bound);   // "memory"
#pragma once
#include <string>
#include <vector>

#include "codegen/cost/count_work.h"
#include "codegen/cost/device_speeds.h"
#include "dsl/cite.h"
#include "dsl/tree.h"

namespace tw::codegen {

struct KernelPrediction {
    std::string name;
    double seconds = 0;
    std::string bound;  ///< what takes longest: "memory", "second cache", "instructions", ..
    KernelWork work;
};
struct Prediction {
    double seconds = 0;  ///< of all kernels, one after the other
    std::vector<KernelPrediction> kernels;

    /// Of the text of all kernels: how long compiling takes follows it.
    double statements() const;
};

/// Named sizes are at their largest. Throws Error as lower() does. Nothing is printed, and nests that are known
/// (known_nests.h) are not lowered.
Prediction predict_time(const Tree& tree, const Target& target, const DeviceSpeeds& speeds = {},
                        const CiteStep& cite = {});

KernelPrediction predict_kernel(const ThreadKernel& kernel, const Target& target, const DeviceSpeeds& speeds = {});
/// Of what was counted before, on another device.
KernelPrediction predict_kernel(const std::string& name, const KernelWork& work, const Target& target,
                                const DeviceSpeeds& speeds);

}  // namespace tw::codegen
