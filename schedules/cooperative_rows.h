// Row-wise computations whose rows are shared by the threads of a block.
#pragma once
#include <optional>

#include "dsl/schedule.h"

namespace tw::schedules {

struct RowThreads {
    int64_t threads = 256;   ///< share one row, at most
    int64_t rows = 1;        ///< a block
    int64_t neighbours = 4;  ///< elements that a thread moves at once
    bool keep = true;        ///< what several stages read of a row stays in registers; else each computes it again
    int64_t in_shared = 0;   ///< it stays in shared memory instead, of so many blocks a multiprocessor; what is made of
                             ///< it is made again by each reader
};

/// Threads for rows of so many elements, each with a few vectors of `neighbours`; several short rows share a warp.
RowThreads row_threads(int64_t columns, int64_t neighbours);

/// The same for so many rows, of each of which so many bytes are kept in shared memory: as many blocks a multiprocessor
/// as that has room for, at most 4; nothing if it has none.
std::optional<RowThreads> row_threads_in_shared(int64_t bytes, int64_t rows, int64_t neighbours, const Target& target);

/// The rows of these loops, which become one: blocks take so many, each by threads of its own. Returns the loop along
/// a block's rows.
Loop bind_rows(Schedule& s, const std::vector<Loop>& loops, int64_t rows_of_block, TW_HERE);

/// Schedules `y` over (row, ..., column) or, if it itself reduces, over rows, and every stage that it reads: a block
/// takes `rows` rows at a time, the threads share a row's elements. Elementwise stages with one reader are inlined,
/// results of reductions are in every thread. Where combining divides (running means), a thread reduces each of its
/// vectors first, whose number of terms is known. Fewer threads share rows of which nothing is kept. A scalar that the
/// rows read is a kernel of its own.
void schedule_cooperative_rows(Schedule& s, const Tensor& y, const RowThreads& shape, TW_HERE);

/// Elements whose last dimension holds rows and their columns: x(i, group * 32 + k).
struct SplitRows {
    Tensor of;
    int64_t columns;  ///< of a row
};

/// The same of several results over these rows, of which none reads another, and of these stages alone, the results
/// among them, producers first: others that they read are kernels of their own. Returns the threads that rows have.
RowThreads schedule_cooperative_rows(Schedule& s, const std::vector<Tensor>& results, const std::vector<Stage>& made,
                                     const RowThreads& shape, const std::vector<SplitRows>& split = {}, TW_HERE);

/// A result over these rows as above, and beside it sums over all rows of what its stages read, over [columns], in one
/// pass: a block takes neighbouring rows in turn, its threads keep the sums of their columns, and a second kernel adds
/// those of blocks. `made` are the result's stages, none of which is another result.
void schedule_rows_and_sums(Schedule& s, const Tensor& result, const std::vector<Stage>& made, const RowThreads& shape,
                            const Tensor& sums, TW_HERE);

}  // namespace tw::schedules
