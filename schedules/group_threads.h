// Threads for the rows of a group, and where these keep what several stages read of a row.
#pragma once
#include <optional>

#include "schedules/cooperative_rows.h"
#include "schedules/row_groups.h"

namespace tw::schedules {

/// What the loads and stores along rows allow.
struct RowVectors {
    int64_t widest = 1;      ///< elements of 16 bytes of the widest type
    int64_t neighbours = 1;  ///< of these, as many as lie at multiples of their bytes in all rows
    Tensor apart = {};       ///< whose rows begin elsewhere
    Type type = f32;         ///< the widest
};

struct GroupThreads {
    RowVectors vectors;
    RowThreads threads;                ///< in registers, or each stage reads the row again
    std::optional<RowThreads> shared;  ///< in shared memory, if rows are long and it has room
    int64_t reductions = 0;            ///< that the group makes
    bool has_kept = false;             ///< elements that several stages read
    bool stores_rows = false;          ///< a result has columns
    bool prefers_shared = false;       ///< more rows are under way so
};
GroupThreads group_threads(const RowGroup& group, const Target& target);

/// Whether it has elements along the group's columns, and reduces nothing.
bool has_columns(const RowGroup& group, const Operation& operation);

}  // namespace tw::schedules
