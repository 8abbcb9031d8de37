// Reductions along the rows of a product, made of its tiles while they are in registers.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "schedules/composed_parts.h"

namespace tw::schedules {

struct RowsOfProducts {
    std::optional<Schedule> schedule;  ///< outputs() say the same as those given; explain() says what was found
    std::vector<std::string> refused;  ///< for explain(): products whose rows were tried, and why they are not made so
    double seconds = 0;                ///< of the schedule, by the model of time
    double least_with_memory = 0;  ///< that it would count at least of kernels that store those products and read them
};

/// Of products of matrices on tensor cores, what is made of their rows is made of the registers of their tiles, where
/// these have rows whole (rows_in_tiles), or where all of it reduces rows (rows_by_tiles). Elements that are read
/// beside, as z[i, label[i]], are sums of their own. All else is scheduled by `choose_rest`. No schedule where there is
/// no such product, or none that can be built so.
RowsOfProducts with_product_rows(const std::vector<Tensor>& outputs, const Target& target,
                                 const ChooseRest& choose_rest);

/// Whether the model of time expects the schedule that was found to be faster than the one with all products in memory,
/// which is asked for only where that is not known beforehand; if not, `refused` has a line of both times more.
bool are_faster(RowsOfProducts& rows, const std::function<const Schedule&()>& stored);

}  // namespace tw::schedules
