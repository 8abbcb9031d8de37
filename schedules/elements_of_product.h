// Outputs that are made, element by element, of a product's results, in the kernel that has them.
#pragma once
#include <vector>

#include "schedules/tensor_product.h"

namespace tw::schedules {

/// Outputs that reduce nothing and read the product where they stand, at all of its places, themselves or through
/// elements that are inlined:
///
///     z[i, j] = sum_k x[i, k] * w[j, k] + bias[j]           y[i, j] = relu(z[i, j]) * mask[i, j]
///
/// What else they read does not depend on the product. One that reads several products belongs to the last. Not those
/// whose rows or columns are reduced, but for products: that kernel can make them, too.
std::vector<Tensor> elements_of_product(const Tensor& product, const std::vector<Tensor>& outputs);

/// Tilings by which one kernel makes a product and elements of it; the best of each come first.
struct ElementTilings {
    std::vector<ProductTiling> faster;  ///< than a kernel for the product and others behind it, by the model of time
    std::vector<ProductTiling> others;
};

/// Of a product on tensor cores and such elements of it: a tile of the product is in shared memory on its way out,
/// where the elements read it. None of what steps or passes refuse.
ElementTilings tilings_with_elements(const Tensor& product, const std::vector<Tensor>& elements,
                                     const std::vector<Tensor>& outputs, const Target& target);

/// The steps of such elements, of a tile that leaves with each iteration of the loop, by so many threads. Before the
/// product is staged there.
void make_elements_of_tile(Schedule& s, const std::vector<Tensor>& elements, const Loop& leaving, int64_t threads);

}  // namespace tw::schedules
