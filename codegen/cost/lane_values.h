// Integers as the lanes of a warp have them, for counting what an access of theirs touches.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <optional>

#include "dsl/expr.h"

namespace tw::codegen {

inline constexpr int warp_lanes = 32;

/// A value a lane.
struct LaneValues {
    std::array<int64_t, warp_lanes> of_lane = {};
    bool is_uniform = true;  ///< the same in all lanes
    bool by_data = false;    ///< stands for what memory holds: made up, though equal places hold equal values

    static LaneValues all(int64_t value) {
        LaneValues values;
        values.of_lane.fill(value);
        return values;
    }
};

/// Variables that have values.
using LaneScope = std::map<const ExprNode*, LaneValues>;

/// The value of an integer or a condition; nothing of a variable that has none, and of what floats decide. An element
/// of memory is a number that its place alone decides, of an array's integers, as good as random.
std::optional<LaneValues> evaluate_lanes(const Expr& expr, const LaneScope& scope);

}  // namespace tw::codegen
