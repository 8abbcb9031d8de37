// All that is said of products in another way, so that rules find them.
#pragma once
#include <vector>

#include "dsl/schedule.h"
#include "schedules/redeclared.h"

namespace tw::schedules {

/// short_sums, factors_in_pairs, scaled_blocks, columns_in_turns, products_apart, self_products, joined_terms, as_matrices,
/// behind_products, copied_operands and turned_views, each of what the one before it says. `windows` are names of
/// tensors that as_matrices() takes whatever their types are.
Redeclared declare_products(const std::vector<Tensor>& outputs, const Target& target,
                            const std::vector<std::string>& windows = {});

}  // namespace tw::schedules
