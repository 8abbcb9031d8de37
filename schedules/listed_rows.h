// Sums whose terms each count for one row, of which blocks of rows list their own: one kernel.
#pragma once
#include "dsl/schedule.h"
#include "schedules/sorted_terms.h"

namespace tw::schedules {

/// How a block of rows lists its terms, and adds them.
struct ListedTiles {
    int64_t rows = 0;    ///< of a block
    int64_t lanes = 0;   ///< threads of a row
    int64_t beside = 0;  ///< rows that threads have side by side; each has rows / beside
    int64_t vector = 1;  ///< neighbours of a row that a thread has at once
    int64_t parts = 1;   ///< of these vectors, lanes apart
    int64_t tiles = 1;   ///< of columns, which a block has one after another, if it lists all terms at once
    int64_t terms = 0;   ///< listed at a time
    int64_t columns() const { return lanes * parts * vector; }
};

ListedTiles listed_tiles(const ScatteredSizes& sizes);
/// What a large GPU takes to find terms so, beside adding them.
double microseconds_to_list(const ScatteredSizes& sizes);
/// A reduction over (row, column), of so many terms, by such blocks; wide rows are several blocks'.
void schedule_listed(Schedule& s, const Stage& y, int64_t terms, const ListedTiles& tiles);

}  // namespace tw::schedules
