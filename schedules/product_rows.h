// Reductions along the rows of a product, made of its tiles while they are in registers.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "schedules/composed_parts.h"

namespace tw::schedules {

struct RowsOfProducts {
    std::optional<Schedule> schedule;  ///< outputs() say the same as those given; explain() says what was found
    std::vector<std::string> refused;  ///< for explain(): products whose rows were tried, and why they are not made so
};

/// Of products of matrices on tensor cores that are no outputs, z[i, j], where all that reads them, itself or through
/// elements that are inlined, reduces rows of it whole:
///
///     m[i] = max_j z[i, j]                                best[i] = argmax_j (z[i, j] - norm[j])
///     l[i] = log(sum_j exp(z[i, j] - m[i])) + m[i]        y[i] = sum_j z[i, j] * x[i, j]
///
/// a tile's part of each reduction is made of its registers, and kernels behind combine the parts of a row: the product
/// has no memory. An element of it that is read beside, as z[i, label[i]], is a sum of its own. Where tiles have rows
/// whole, what is made of them is made there: see rows_in_tiles. All else is scheduled by `choose_rest`. No schedule
/// where there is no such product, or none that can be built so.
RowsOfProducts with_product_rows(const std::vector<Tensor>& outputs, const Target& target,
                                 const ChooseRest& choose_rest);

/// Whether the model of time expects the schedule that was found to be faster than one with all products in memory; if
/// not, `refused` has a line of both times more.
bool are_faster(RowsOfProducts& rows, const Schedule& stored);

}  // namespace tw::schedules
