// Elements that are stored by the kernel that sums over them.
#pragma once
#include <string>
#include <vector>

#include "dsl/schedule.h"

namespace tw::schedules {

/// What is worth it: below, a kernel for each is as fast.
struct SharingLimits {
    int64_t elements = 1 << 20, rows = 1024;
    bool sums_of_copies = true;  ///< sums read copies of rows, where there are such
};

struct SharedElements {
    std::vector<Tensor> outputs;     ///< each says what the one given in its place does, and has its name
    std::vector<std::string> notes;  ///< for explain()
};
/// Of large outputs that reduce nothing, over the elements of which, or of what they are made of, others are sums, each
/// element once:
///
///     dx[n, c] = dy[n, c] * f(x[n, c])      dbias[c] = sum_n dx[n, c]
///     d[n, c] = (y[n, c] - t[n, c]) / N     loss = sum_{n, c} (y[n, c] - t[n, c])^2
///
/// what both read becomes a tensor of its own (dx_made, y_read, t_read), which the kernel of the sums has in registers,
/// and of which it stores the output. A sum over all dimensions is one over columns first (loss_columns). Left as they
/// are: tensors of other than two dimensions, outputs and sums that depend on other reductions, and small ones. Sums
/// over rows that are copied, x_row of x (declare_rows), read the copies: what a kernel of rows keeps.
SharedElements share_elements(const std::vector<Tensor>& outputs, const SharingLimits& limits = {});

/// What a kernel of sums over rows to columns makes for each of its terms, and stores besides.
struct ElementsBeside {
    std::vector<Tensor> made;  ///< read by the sums, and by what is kept; readers first
    std::vector<Tensor> kept;  ///< outputs
};
/// Of sums over [columns]: outputs that reduce nothing, made of tensors that the sums' terms read, each element once.
ElementsBeside elements_beside_sums(const Tensor& sums, const std::vector<Tensor>& outputs,
                                    const SharingLimits& limits = {});

/// Whether these are sums over [columns] of elements, and read the tensor's, each once.
bool sums_all_rows(const Tensor& sums, const Tensor& of);

/// Makes and stores them in the innermost loop over the terms of the sums, in vectors of so many neighbours.
void keep_beside(Schedule& s, const ElementsBeside& elements, Loop terms, int64_t vector);

}  // namespace tw::schedules
