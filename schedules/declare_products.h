// All that is said of products in another way, so that rules find them.
#pragma once
#include <string>
#include <vector>

#include "dsl/schedule.h"

namespace tw::schedules {

struct DeclaredProducts {
    std::vector<Tensor> outputs;     ///< each says what the one given in its place does, and has its name
    std::vector<std::string> notes;  ///< for explain()
};
/// products_apart, joined_terms, as_matrices, behind_products and copied_operands, each of what the one before it says.
DeclaredProducts declare_products(const std::vector<Tensor>& outputs, const Target& target);

}  // namespace tw::schedules
