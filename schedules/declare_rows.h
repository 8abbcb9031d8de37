// Rows that one kernel makes, declared so that it can keep in registers what it needs more than once.
#pragma once
#include <string>
#include <vector>

#include "dsl/tensor.h"

namespace tw::schedules {

struct DeclaredRows {
    std::vector<Tensor> outputs;      ///< each says what the one given in its place does, and has its name
    std::vector<std::string> copies;  ///< elements that lie in memory though they are no outputs
    std::vector<std::string> notes;   ///< for explain()
};

/// Of the groups of row_groups():
/// - a reduction inside an element that is the same for a whole row is a tensor of its own,
///
///       y[i, j] = x[i, j] / sum_k x[i, k]        y_sum[i] = sum_k x[i, k],  y[i, j] = x[i, j] / y_sum[i]
///
/// - rows that several of its stages read are copied first, `x_row`,
/// - a result that others of the group read is a copy of what these read, `y_kept`,
/// - a reduction over several axes is one over the elements of the row.
///
/// Values, and the order of terms, stay. `without`: names of operations whose groups are left as they are.
DeclaredRows declare_rows(const std::vector<Tensor>& outputs, const std::vector<std::string>& without);

/// The first of these alone, of all operations.
std::vector<Tensor> reductions_apart(const std::vector<Tensor>& outputs);

}  // namespace tw::schedules
