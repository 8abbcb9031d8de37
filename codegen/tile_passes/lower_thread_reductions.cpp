#include <algorithm>

#include "codegen/access/access.h"
#include "codegen/access/layout.h"
#include "codegen/mapping/bindings.h"
#include "codegen/tile_passes/tile_passes.h"
#include "dsl/simplify.h"
#include "support/error.h"

namespace tw::codegen {
namespace {

constexpr int warp_lanes = 32;
constexpr int64_t most_meeting = 64;  // parts that one thread reads from shared memory

/// Shuffles move words: a bool travels as one.
Expr exchanged(const Expr& value, int64_t lane_bits) {
    bool is_bool = value.type() == Type::Bool;
    Expr word = is_bool ? cast_unchecked(Type::I32, value) : value;
    Expr other = make_expr(word.type(), Exchange{word, static_cast<int>(lane_bits)});
    return is_bool ? binary(BinaryOp::NotEqual, other, constant(Type::I32, 0)) : other;
}

const Across& across_of(const TileOp& op) { return op.as<CombineOp>()->across; }

/// combine(left, right) for all components.
std::vector<Expr> combined(const TileOp& op, const std::vector<Expr>& left, const std::vector<Expr>& right) {
    Substitution operands;
    for (size_t c = 0; c < left.size(); ++c) {
        operands.emplace_back(across_of(op).left[c], left[c]);
        operands.emplace_back(across_of(op).right[c], right[c]);
    }
    std::vector<Expr> values;
    for (size_t c = 0; c < left.size(); ++c) values.push_back(simplify(substitute(op.stores[c].value, operands)));
    return values;
}

/// What comes before a part, behind `left`; nothing if nobody asks for it.
std::vector<Expr> behind(const TileOp& op, const std::vector<Expr>& left) {
    Substitution operands;
    for (size_t c = 0; c < left.size(); ++c) operands.emplace_back(across_of(op).left[c], left[c]);
    std::vector<Expr> values;
    for (size_t s = left.size(); s < op.stores.size(); ++s)
        values.push_back(simplify(substitute(op.stores[s].value, operands)));
    return values;
}

bool is_lazy(const Expr& value) {
    bool found = false;
    visit(value, [&](const Expr& e) { found = found || e.as<Select>(); });
    return found;
}

/// a + b, min(a, b), ...: one operation on each component, whose operands may change places without changing a bit.
bool is_symmetric(const TileOp& op) {
    return std::all_of(op.stores.begin(), op.stores.end(), [](const StoreTo& store) {
        const Binary* node = store.value.as<Binary>();
        if (!node) return false;
        bool commutes = node->op == BinaryOp::Add || node->op == BinaryOp::Mul || node->op == BinaryOp::Min ||
                        node->op == BinaryOp::Max || node->op == BinaryOp::And || node->op == BinaryOp::Or ||
                        node->op == BinaryOp::BitAnd || node->op == BinaryOp::BitOr || node->op == BinaryOp::BitXor;
        return commutes && node->a.as<Variable>() && node->b.as<Variable>();
    });
}

/// The statements that take the place of one Combine.
class Combination {
public:
    Combination(TileKernel& kernel, const TileOp& op, const CiteStep& cite) : kernel_(kernel), op_(op), cite_(cite) {
        for (const ThreadCoordinate& coordinate : op.threads)
            if (coordinate.variable.same(across_of(op).variable)) coordinate_ = coordinate;
        totals_.assign(op.stores.begin(), op.stores.begin() + static_cast<std::ptrdiff_t>(across_of(op).left.size()));
        befores_.assign(op.stores.begin() + static_cast<std::ptrdiff_t>(totals_.size()), op.stores.end());
        for (const StoreTo& store : totals_)
            own_.push_back(make_expr(store.buffer->type, Load{store.buffer, store.indices}));
        lanes_ = lanes();
        parts_ = coordinate_.extent / lanes_;
    }

    TileStmt run() {
        for (int64_t distance = 1; distance < lanes_; distance *= 2) exchange(distance);
        if (parts_ > 1) meet();
        return make_tile(TileBlock{std::move(stmts_)});
    }

private:
    /// How many neighbours along the coordinate are lanes of one warp, for all threads alike.
    int64_t lanes() const {
        bool whole_warps = kernel_.threads % warp_lanes == 0 && warp_lanes % coordinate_.stride == 0;
        for (const ThreadCoordinate& other : op_.threads) {
            bool slower = other.stride % (coordinate_.stride * coordinate_.extent) == 0;
            bool faster = other.stride * other.extent <= coordinate_.stride;
            whole_warps = whole_warps && (other.variable.same(coordinate_.variable) || slower || faster);
        }
        int64_t count = 1;
        while (whole_warps && coordinate_.extent % (2 * count) == 0 && 2 * count * coordinate_.stride <= warp_lanes)
            count *= 2;
        return count;
    }

    // Within a warp.

    void exchange(int64_t distance) {
        std::vector<Expr> other;
        for (const Expr& own : own_) other.push_back(exchanged(own, distance * coordinate_.stride));
        const bool symmetric = is_symmetric(op_);
        if (std::vector<Expr> values = combined(op_, own_, other);
            symmetric && befores_.empty() && !is_lazy(values[0])) {
            stmts_.push_back(combine(values, op_.loops));
            return;
        }
        std::vector<Buffer> arrays = registers("_other", shape_of_loops());
        std::vector<Expr> fetched = loads(arrays, loop_variables());
        stmts_.push_back(map_op(stores(arrays, loop_variables(), other), op_.loops));
        Expr is_later = simplify(across_of(op_).variable / distance % 2 == 1);
        put_behind(is_later, fetched, op_.loops);
        std::vector<Expr> left, right;
        for (size_t c = 0; c < own_.size(); ++c) {
            left.push_back(symmetric ? own_[c] : select_unchecked(is_later, fetched[c], own_[c]));
            right.push_back(symmetric ? fetched[c] : select_unchecked(is_later, own_[c], fetched[c]));
        }
        stmts_.push_back(combine(combined(op_, left, right), op_.loops));
        in_registers(arrays);
    }

    /// Where the condition holds, what comes before a thread's part has `left` before it.
    void put_behind(const Expr& condition, const std::vector<Expr>& left, const std::vector<OpLoop>& loops) {
        if (befores_.empty()) return;
        std::vector<StoreTo> stores = befores_;
        const std::vector<Expr> values = behind(op_, left);
        for (size_t c = 0; c < stores.size(); ++c)
            stores[c].value = select_unchecked(
                condition, values[c], make_expr(stores[c].buffer->type, Load{stores[c].buffer, stores[c].indices}));
        stmts_.push_back(map_op(std::move(stores), loops));
    }

    // Between warps.

    void meet() {
        if (parts_ > most_meeting)
            throw_error(Error,
                        "{}the {} threads of loop '{}' form {} groups within warps, of which each thread would combine "
                        "the parts; {} at most: bind a power of two of threads, neighbours first",
                        cite_(op_.step), coordinate_.extent, tw::to_string(across_of(op_).variable), parts_,
                        most_meeting);
        std::vector<Buffer> meeting = meeting_places();
        TileOp put = map_op_of(stores(meeting, place_of(simplify(across_of(op_).variable / lanes_)), own_), op_.loops);
        put.threads = op_.threads;
        put.active = one_thread_each(op_.threads, kernel_.thread, kernel_.threads);
        put.mask = simplify(across_of(op_).variable % lanes_ == 0);
        stmts_.push_back(make_tile(std::move(put)));

        std::vector<Buffer> parts = registers("_parts", {parts_});
        std::vector<TileStmt> outside = std::move(stmts_);
        stmts_.clear();
        Expr part = index_variable("part", 0, parts_ - 1);
        stmts_.push_back(map_op(stores(parts, {part}, loads(meeting, place_of(part))), {unrolled(part, parts_)}));
        for (int64_t distance = 1; distance < parts_; distance *= 2) combine_parts(parts, distance);
        stmts_.push_back(combine(loads(parts, {integer(0)}), {}));
        in_registers(parts);
        TileStmt inside = make_tile(TileBlock{std::move(stmts_)});
        for (auto loop = op_.loops.rbegin(); loop != op_.loops.rend(); ++loop)
            inside =
                make_tile(TileLoop{loop->variable, loop->extent, as_constant(loop->extent).has_value(), false, inside});
        stmts_ = std::move(outside);
        stmts_.push_back(inside);
    }

    void combine_parts(const std::vector<Buffer>& parts, int64_t distance) {
        int64_t pairs = (parts_ - distance + 2 * distance - 1) / (2 * distance);
        Expr pair = index_variable("pair", 0, pairs - 1);
        Expr left = simplify(pair * (2 * distance)), right = simplify(pair * (2 * distance) + distance);
        const Expr mine = simplify(across_of(op_).variable / (lanes_ * distance));
        put_behind(simplify(mine == pair * 2 + 1), loads(parts, {left}), {unrolled(pair, pairs)});
        std::vector<Expr> values = combined(op_, loads(parts, {left}), loads(parts, {right}));
        stmts_.push_back(map_op(stores(parts, {left}, values), {unrolled(pair, pairs)}));
    }

    /// [part][other coordinates of the thread][loops], a component each.
    std::vector<Buffer> meeting_places() {
        std::vector<int64_t> shape{parts_};
        for (const ThreadCoordinate& coordinate : op_.threads)
            if (!coordinate.variable.same(coordinate_.variable)) shape.push_back(coordinate.extent);
        for (int64_t extent : shape_of_loops()) shape.push_back(extent);
        std::vector<Buffer> result;
        for (const StoreTo& store : totals_) {
            BufferNode node = *register_array(store.buffer->name + "_meet", store.buffer->type, shape);
            node.memory = Memory::Shared;
            node.step = op_.step;
            result.push_back(std::make_shared<const BufferNode>(std::move(node)));
            kernel_.shared.push_back({result.back(), row_major(shape)});
        }
        return result;
    }

    std::vector<Expr> place_of(const Expr& part) const {
        std::vector<Expr> indices{part};
        for (const ThreadCoordinate& coordinate : op_.threads)
            if (!coordinate.variable.same(coordinate_.variable)) indices.push_back(coordinate.variable);
        for (const OpLoop& loop : op_.loops) indices.push_back(loop.variable);
        return indices;
    }

    // Parts of ops.

    static OpLoop unrolled(const Expr& variable, int64_t extent) {
        return {variable, integer(extent), Execution::Unroll, false};
    }

    /// Segments of a loop may be longer in one iteration of those around than in another.
    std::vector<int64_t> shape_of_loops() const {
        std::vector<int64_t> shape;
        for (const OpLoop& loop : op_.loops) {
            auto most = bounds_of(loop.extent).max;
            shape.push_back(most ? std::max<int64_t>(*most, 1) : require_constant(loop.extent));
        }
        return shape;
    }

    std::vector<Expr> loop_variables() const {
        std::vector<Expr> variables;
        for (const OpLoop& loop : op_.loops) variables.push_back(loop.variable);
        return variables;
    }

    std::vector<Buffer> registers(const std::string& suffix, const std::vector<int64_t>& shape) const {
        std::vector<Buffer> result;
        for (const StoreTo& store : totals_)
            result.push_back(register_array(store.buffer->name + suffix, store.buffer->type, shape));
        return result;
    }

    static std::vector<Expr> loads(const std::vector<Buffer>& buffers, const std::vector<Expr>& indices) {
        std::vector<Expr> result;
        for (const Buffer& buffer : buffers) result.push_back(make_expr(buffer->type, Load{buffer, indices}));
        return result;
    }

    static std::vector<StoreTo> stores(const std::vector<Buffer>& buffers, const std::vector<Expr>& indices,
                                       const std::vector<Expr>& values) {
        std::vector<StoreTo> result;
        for (size_t c = 0; c < buffers.size(); ++c) result.push_back({buffers[c], indices, values[c]});
        return result;
    }

    TileOp map_op_of(std::vector<StoreTo> stores, std::vector<OpLoop> loops) const {
        TileOp result = op_;
        result.action = MapOp{};
        result.stores = std::move(stores);
        result.loops = std::move(loops);
        for (OpLoop& loop : result.loops) loop.execution = Execution::Unroll;
        result.threads.clear();
        result.notes.clear();
        result.name += ": combine the threads' parts";
        return result;
    }
    TileStmt map_op(std::vector<StoreTo> stores, std::vector<OpLoop> loops) const {
        return make_tile(map_op_of(std::move(stores), std::move(loops)));
    }

    /// Into the op's own registers.
    TileStmt combine(const std::vector<Expr>& values, std::vector<OpLoop> loops) const {
        TileOp result = map_op_of(totals_, std::move(loops));
        for (size_t c = 0; c < values.size(); ++c) result.stores[c].value = values[c];
        return make_tile(std::move(result));
    }

    /// The statements so far may use the arrays.
    void in_registers(const std::vector<Buffer>& arrays) {
        TileStmt body = make_tile(TileBlock{std::move(stmts_)});
        for (const Buffer& array : arrays) body = make_tile(TileAllocate{array, body});
        stmts_ = {body};
    }

    TileKernel& kernel_;
    const TileOp& op_;
    const CiteStep& cite_;
    ThreadCoordinate coordinate_{};
    std::vector<StoreTo> totals_, befores_;
    std::vector<Expr> own_;
    int64_t lanes_ = 1, parts_ = 1;
    std::vector<TileStmt> stmts_;
};

}  // namespace

TileKernel lower_thread_reductions(const TileKernel& kernel, const CiteStep& cite) {
    TileKernel result = kernel;
    result.body = replace_ops(kernel.body, [&](const TileOp& op) {
        return op.is<CombineOp>() ? Combination(result, op, cite).run() : make_tile(TileOp(op));
    });
    return result;
}

}  // namespace tw::codegen
