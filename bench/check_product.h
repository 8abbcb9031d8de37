// Whether tilings of a product compute it: on whole numbers, whose sums are exact in every order, bit for bit.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dsl/interpret.h"
#include "ops/executable.h"
#include "schedules/tensor_product.h"

namespace tw::bench {

/// Fills an input that says what is multiplied: experts, each with rows one after another, or numbers of rows that
/// count. False for all other inputs, which are left as they are.
bool fill_choices(const schedules::TensorProduct& product, const std::string& input, HostArray& array, uint64_t seed);

/// Knows a product's results, each element of them: of small ones by the interpreter; of others by mma_sync in tiles of
/// warps on the device, which are first compared with float64 at some hundred elements.
class ProductCheck {
public:
    /// Throws Error if the tiles of warps do not pass.
    ProductCheck(const schedules::TensorProductShape& shape, const std::shared_ptr<Device>& device,
                 const Target& target);

    /// What is wrong with a program for the same product; nothing if all elements are right.
    std::optional<std::string> problem_of(Executable& executable) const;

private:
    schedules::TensorProduct product_;
    Bindings bindings_;
    HostArray expected_;
};

}  // namespace tw::bench
