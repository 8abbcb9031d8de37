// Values of expressions at many points at once, a column for each node: what the interpreter of declarations computes
// with.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "dsl/expr.h"
#include "dsl/host_array.h"

namespace tw {

/// Points that are evaluated together, at most.
constexpr int most_lanes = 256;

/// A value of a type that stands elsewhere.
union Number {
    double real;      ///< of float types
    int64_t integer;  ///< of all others
};

inline Value value_of(Number number, Type type) {
    return is_float(type) ? Value{type, number.real, 0} : Value{type, 0, number.integer};
}
inline Number number_of(const Value& value) {
    return is_float(value.type) ? Number{.real = value.real} : Number{.integer = value.integer};
}

/// Columns have room for all lanes, start undefined, and are used again.
class ColumnPool {
    struct Return {
        ColumnPool* pool = nullptr;  // none: the column is another's
        void operator()(Number* column) const {
            if (pool) pool->unused_.emplace_back(column);
        }
    };

public:
    using Column = std::unique_ptr<Number[], Return>;

    Column take() {
        if (unused_.empty()) return Column(new Number[most_lanes], Return{this});
        Number* column = unused_.back().release();
        unused_.pop_back();
        return Column(column, Return{this});
    }
    /// The same column for another reader, who must be done with it before its owner is.
    static Column lend(const Column& column) { return Column(column.get(), Return{}); }

private:
    std::vector<std::unique_ptr<Number[]>> unused_;
};
using Column = ColumnPool::Column;

/// Points that are evaluated together, a lane for each: elements of an operation, or terms of reductions in it.
struct Block {
    /// What is known of a node.
    struct Known {
        uint64_t round = 0;           ///< in which it is known
        int num_lanes = 0;            ///< where it is known
        std::vector<char> has_value;  ///< by lane
        std::vector<Column> columns;  ///< one, or one a component of a reduction
    };

    explicit Block(Block* outer = nullptr) : outer(outer) {}

    void add_variable(const Expr& variable, Column column) {
        variables.emplace_back(variable.id(), std::move(column));
        num_own = variables.size();
    }
    /// Values of the block's own variables are others from here on, at so many points.
    void begin(int num_points) {
        size = num_points;
        ++round;
    }
    /// The same, at points that stand in these lanes of the block outside.
    void begin(std::vector<int> outer_lanes) {
        begin(static_cast<int>(outer_lanes.size()));
        if (outer_lanes == outer_lane) return;
        variables.erase(variables.begin() + static_cast<std::ptrdiff_t>(num_own), variables.end());
        outer_lane = std::move(outer_lanes);
    }

    Block* outer;                 ///< whose variables have values here too; none of an operation's elements
    int size = 0;                 ///< lanes
    std::vector<int> outer_lane;  ///< by lane
    std::vector<std::pair<const ExprNode*, Column>> variables;  ///< its own ones, then others that were looked up
    size_t num_own = 0;
    std::unordered_map<const ExprNode*, Known> known;
    uint64_t round = 0;  ///< what is known belongs to one
};

/// Some lanes of a block, in order.
class Points {
public:
    explicit Points(Block& block) : block_(&block), size_(block.size) {}
    Points(Block& block, std::vector<int> lanes) : block_(&block), size_(static_cast<int>(lanes.size())) {
        if (size_ < block.size) lanes_ = std::move(lanes);
    }

    Block& block() const { return *block_; }
    int size() const { return size_; }
    bool is_empty() const { return size_ == 0; }

    /// see(lane) for each.
    template <class See>
    void each(See&& see) const {
        if (lanes_.empty())
            for (int lane = 0; lane < size_; ++lane) see(lane);
        else
            for (int lane : lanes_) see(lane);
    }
    /// Those of which fits(lane) is true.
    template <class Fits>
    Points where(Fits&& fits) const {
        std::vector<int> lanes;
        lanes.reserve(static_cast<size_t>(size_));
        each([&](int lane) {
            if (fits(lane)) lanes.push_back(lane);
        });
        return Points(*block_, std::move(lanes));
    }

private:
    Block* block_;
    int size_;
    std::vector<int> lanes_;  // empty: the first `size_`
};

inline void copy(const Column& from, const Column& to, const Points& points) {
    points.each([&](int lane) { to[lane] = from[lane]; });
}

/// Rounds to a float type.
inline void round_column(Type type, const Column& column, const Points& points) {
    if (type == Type::F64) return;
    if (type == Type::F32)
        points.each([&](int lane) { column[lane].real = static_cast<float>(column[lane].real); });
    else
        points.each([&](int lane) { column[lane].real = round_to_type(type, column[lane].real); });
}

/// Wraps to a type of integers or truths.
inline void wrap_column(Type type, const Column& column, const Points& points) {
    if (type == Type::I64) return;
    points.each([&](int lane) { column[lane].integer = wrap_to_type(type, column[lane].integer); });
}

/// The elements at offsets, in place of the offsets.
template <class Stored, class Decode, class Member>
void load_as(const HostArray& array, const Column& column, const Points& points, Member member, Decode decode) {
    const std::byte* bytes = array.bytes.data();
    points.each([&](int lane) {
        Stored stored;
        std::memcpy(&stored, bytes + column[lane].integer * int64_t{sizeof stored}, sizeof stored);
        column[lane].*member = decode(stored);
    });
}
inline void load_column(const HostArray& array, const Column& column, const Points& points) {
    auto of_bfloat = [](uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); };
    switch (array.type) {
        case Type::F64: return load_as<double>(array, column, points, &Number::real, std::identity());
        case Type::F32: return load_as<float>(array, column, points, &Number::real, std::identity());
        case Type::BF16: return load_as<uint16_t>(array, column, points, &Number::real, of_bfloat);
        case Type::I64: return load_as<int64_t>(array, column, points, &Number::integer, std::identity());
        case Type::I32: return load_as<int32_t>(array, column, points, &Number::integer, std::identity());
        default: break;
    }
    const int64_t width = bytes_of(array.type);
    points.each([&](int lane) {
        column[lane] = number_of(load_element(array.type, &array.bytes[column[lane].integer * width]));
    });
}

/// The first `size` lanes to elements of the array's type, from `bytes` on.
inline void store_column(const Column& column, int size, Type type, std::byte* bytes) {
    if (type == Type::F64) return void(std::memcpy(bytes, column.get(), static_cast<size_t>(size) * sizeof(double)));
    for (int lane = 0; lane < size; ++lane, bytes += bytes_of(type)) store_element(value_of(column[lane], type), bytes);
}

/// The terms of a reduction at some points, those of each point in the order of its axes, the last one fastest.
class ReduceTerms {
public:
    /// `extents`: a column an axis. Where one is 0 there are no terms.
    ReduceTerms(const std::vector<Column>& extents, const Points& points) {
        std::map<std::vector<int64_t>, std::vector<int>> points_of;
        std::vector<int64_t> shape(extents.size());
        points.each([&](int lane) {
            for (size_t d = 0; d < shape.size(); ++d) shape[d] = extents[d][lane].integer;
            points_of[shape].push_back(lane);
        });
        for (auto& [shape, lanes] : points_of) {
            if (std::any_of(shape.begin(), shape.end(), [](int64_t extent) { return extent <= 0; })) continue;
            Group& group = left_.emplace_back();
            group.points = std::move(lanes);
            group.extents = shape;
            group.next.resize(shape.size());
            group.taken.resize(shape.size() * most_lanes);
        }
    }

    /// Begins the block with the next terms of all points that have any left: one of each, or where there is room for
    /// more, several, side by side. The axes are the block's first variables. False at the end.
    bool fill(Block& block) {
        bool is_as_before = std::erase_if(left_, [](const Group& group) { return !group.has_more; }) == 0;
        if (left_.empty()) return false;
        size_t num_points = 0;
        for (const Group& group : left_) num_points += group.points.size();
        for (Group& group : left_) is_as_before = take(group, most_lanes / num_points) && is_as_before;
        if (is_as_before)
            block.begin(block.size);
        else
            place(block);
        size_t first = 0;
        for (const Group& group : left_)
            for (size_t point = 0; point < group.points.size(); ++point, first += group.count)
                for (size_t d = 0; d < group.extents.size(); ++d)
                    for (size_t term = 0; term < group.count; ++term)
                        block.variables[d].second[first + term].integer = group.taken[d * most_lanes + term];
        return true;
    }

    /// Where the terms of each point start in the block, and where the last ones end.
    const std::vector<int>& starts() const { return starts_; }

private:
    /// Points with terms at the same indices.
    struct Group {
        std::vector<int> points;                    ///< their lanes
        std::vector<int64_t> extents, next, taken;  ///< `taken`: indices of `count` terms, by axis
        size_t count = 0;
        bool has_more = true;
    };

    /// The next terms of a point, at most so many. Whether there are as many as before.
    static bool take(Group& group, size_t most) {
        const size_t before = std::exchange(group.count, 0);
        for (; group.count < most && group.has_more; ++group.count) {
            for (size_t d = 0; d < group.next.size(); ++d) group.taken[d * most_lanes + group.count] = group.next[d];
            group.has_more = advance(group.next, group.extents);
        }
        return group.count == before;
    }

    void place(Block& block) {
        std::vector<int> lanes;
        starts_ = {0};
        for (const Group& group : left_)
            for (int point : group.points) {
                lanes.insert(lanes.end(), group.count, point);
                starts_.push_back(static_cast<int>(lanes.size()));
            }
        block.begin(std::move(lanes));
    }

    std::vector<Group> left_;  // those that have terms left
    std::vector<int> starts_;
};

}  // namespace tw
