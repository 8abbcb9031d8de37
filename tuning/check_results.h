// Whether schedules of a tunable compute it: on whole numbers, whose sums are exact in every order, bit for bit.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dsl/interpret.h"
#include "ops/executable.h"
#include "tuning/tunable.h"

namespace tw::tuning {

/// What fills the tunable's inputs beside random numbers: its own `fill`, and integers as the declaration uses
/// them, of these sizes and scalars.
bench::FillInput fill_of(const Tunable& tunable, const Bindings& numbers);

/// Knows the results of whole numbers, each element of them: of small computations by the interpreter; of others, and
/// of those with named approximations, by the tunable's reference on the device, which is first compared with float64
/// at some hundred elements, fewer of long sums. Of a tunable that is not exact, all are compared with float64 at some
/// thousand elements.
class ResultCheck {
public:
    ResultCheck(const Tunable& tunable, std::shared_ptr<Device> device, const Target& target);

    /// What is wrong with a program for the same computation; nothing if all elements are right. `roundings` are those
    /// of its schedule. Throws Error if the reference does not pass.
    std::optional<std::string> problem_of(Executable& executable, const std::vector<Type>& roundings = {});

private:
    std::vector<HostArray> by_reference() const;

    const Tunable& tunable_;
    std::shared_ptr<Device> device_;
    const Target target_;
    Bindings bindings_;
    std::vector<HostArray> expected_;  ///< empty until it is asked for
};

}  // namespace tw::tuning
