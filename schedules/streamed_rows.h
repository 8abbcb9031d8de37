// Rows that registers do not hold, in one pass: reductions that need each other's results, and what is made of rows.
#pragma once
#include "dsl/schedule.h"

namespace tw::schedules {

/// How the threads of a block share rows. A thread takes `vectors` of `neighbours` elements of a row at a time, all
/// loaded before the first is used.
struct RowChunks {
    int64_t threads = 256;  ///< share one row
    int64_t rows = 1;       ///< a block
    int64_t neighbours = 8, vectors = 4;

    int64_t elements() const { return threads * neighbours * vectors; }
};

/// Chunks for rows of so many elements of a type, of which `neighbours` lie at multiples of their bytes. Throws Error
/// if there are no neighbours.
RowChunks row_chunks(int64_t columns, int64_t neighbours, Type type, TW_HERE);

/// Schedules `y`, over rows or (row, ..., column), and the reductions along rows that it is made of, in one pass: each
/// thread reduces its chunks, with values of its own (a maximum and what is relative to it), and behind the pass the
/// threads' parts are combined. Elementwise stages are inlined; one that `y` reads is computed again from the operand.
/// Without reductions, the threads share a row's elements, and compute first what is the same for all of them. Throws
/// Error where terms have no ratio (Schedule::stream).
///
/// `aligned`: an operand whose rows begin at any place in memory. Loops along them are aligned to its vectors
/// (Schedule::align), which only the ends of a row take element by element.
void schedule_streamed_rows(Schedule& s, const Tensor& y, const RowChunks& shape, const Tensor& aligned = {}, TW_HERE);

/// The same of several results over these rows, and of these stages alone, the results among them: others that they
/// read are kernels of their own.
void schedule_streamed_rows(Schedule& s, const std::vector<Tensor>& results, const std::vector<Stage>& made,
                            const RowChunks& shape, const Tensor& aligned = {}, TW_HERE);

}  // namespace tw::schedules
