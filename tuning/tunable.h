// What can be tuned: a computation, and schedules of it by tilings that have names.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/operand_sets.h"
#include "dsl/schedule.h"

namespace tw::tuning {

/// What the tuner knows of a kernel: a family of them implements it, and no part of the tuner knows which it is.
struct Tunable {
    std::string name;             ///< the kernel's, without a tiling: records are kept under it
    std::vector<Tensor> outputs;  ///< the computation as it is declared, of constant extents; schedules have outputs
                                  ///< of the same shapes and types, of inputs of the same names
    /// Tilings to try: first the one that is taken today, then those that are expected to be fast.
    std::function<std::vector<std::string>(const Target&)> tilings;
    /// So many from the whole space, fast and slow ones, for whoever compares a model with what is measured. Empty: the
    /// tilings above are all there are.
    std::function<std::vector<std::string>(const Target&, size_t)> spread = {};
    /// Throws Error where the target or the computation does not allow the tiling.
    std::function<Schedule(const std::string& tiling, const Target&)> schedule;
    double flops = 0;  ///< in one run
    /// Of inputs that say what is computed; false leaves one to the tuner, which draws floats and numbers, and integers
    /// that are indices or lengths from the range that the declaration gives them. Empty: all are left to it.
    bench::FillInput fill = {};
    /// Whether results of whole numbers are exact in every order of their terms: then they are compared bit for bit,
    /// else with float64 (check_output).
    bool is_exact = true;
    int64_t largest = 4;  ///< of those whole numbers
    /// Another schedule, whose results all are compared with where the interpreter would take long; some hundred of
    /// its own are compared with float64 first. Empty: a thread for each element.
    std::function<Schedule(const Target&)> reference = {};
};

/// A product on tensor cores, a name of tensor_product_names.h. Nothing if it is no such name; throws Error if that has
/// a tiling.
std::optional<Tunable> tunable_product(const std::string& name);
/// A pass of a convolution, a name that parse_convolution reads; the rest as above.
std::optional<Tunable> tunable_convolution(const std::string& name);
/// What the library has of that name. Throws Error for any other, and names with a tiling.
Tunable find_tunable(const std::string& name);

}  // namespace tw::tuning
