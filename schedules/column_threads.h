// Threads of reductions along the leading dimension.
#pragma once
#include <optional>

#include "dsl/schedule.h"
#include "schedules/elements_beside_sums.h"

namespace tw::schedules {

/// Whether what combines two results divides, as running means do: a division costs more than adding several terms.
bool combining_divides(const ReducerNode& reducer);

/// How a reduction along the leading dimension is dealt out. A block takes `lanes` vectors of `neighbours` columns of
/// `chunk` rows; `rows` of its threads stand in one column.
struct ColumnThreads {
    int64_t lanes = 32, rows = 8, neighbours = 8;
    int64_t chunk = 256;  ///< rows a block; all rows if there are no more
    int64_t steps = 1;    ///< rows that a thread loads before it adds the first; neighbours where combining divides
};
/// Chunks of about two waves of blocks on a large GPU, at least 8 rows a thread; `others`: as many matrices of so many
/// rows and columns. Throws Error if there are no neighbours.
ColumnThreads column_threads(int64_t rows, int64_t columns, int64_t neighbours, int64_t others = 1, TW_HERE);

/// Results side by side in what is read, each of so many terms that threads share them.
struct ColumnReduction {
    int64_t rows;
    ColumnThreads threads;
    ElementsBeside beside = {};  ///< what its kernel stores, too
};
std::optional<ColumnReduction> column_reduction_of(const Tensor& c);

}  // namespace tw::schedules
