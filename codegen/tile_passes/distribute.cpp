#include <algorithm>
#include <bit>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "codegen/access/conditions.h"
#include "codegen/tile_passes/tile_passes.h"
#include "dsl/simplify.h"

namespace tw::codegen {
namespace {

constexpr int64_t widest_bytes = 16;
constexpr int64_t most_unrolled_steps = 8;

/// A width in elements, and why it is not larger.
struct Width {
    int64_t elements = 1;
    std::string reason;
};

class Distributor {
public:
    Distributor(const TileKernel& kernel, const TileOp& op) : kernel_(kernel), op_(op) {
        collect_accesses();
        for (const OpLoop& loop : op.loops) (loop.reduces ? reduce_loops_ : data_loops_).push_back(loop);
    }

    TileOp run() {
        if (std::string obstacle = why_not(); !obstacle.empty()) return on_thread_0(obstacle);
        move_to_back(fastest_loop());
        width_ = choose_width();
        return spread();
    }

private:
    void collect_accesses() {
        auto add = [&](const Buffer& buffer, const std::vector<Expr>& indices, bool stores) {
            if (buffer->memory == Memory::Global)
                accesses_.push_back({flat_access(buffer, indices), stores});
            else if (buffer->memory == Memory::Shared)
                accesses_.push_back({Access{buffer, indices}, stores});
        };
        for (const StoreTo& store : op_.stores) add(store.buffer, store.indices, true);
        visit_exprs(op_, [&](const Expr& root) {
            visit(root, [&](const Expr& e) {
                if (const Load* load = e.as<Load>()) add(load->buffer, load->indices, false);
            });
        });
    }

    /// Empty if the iterations of the data loops can run on any thread, in any order.
    std::string why_not() const {
        if (data_loops_.empty()) return why_single();
        if (loads_from(op_, Memory::Registers)) return "it reads registers, which other threads cannot see";
        for (const OpLoop& loop : op_.loops)
            for (const OpLoop& other : op_.loops)
                if (contains(loop.extent, other.variable))
                    return fmt::format("the extent of '{}' depends on '{}'", to_string(loop.variable),
                                       to_string(other.variable));
        for (const OpLoop& loop : data_loops_) {
            bool moves = std::any_of(op_.stores.begin(), op_.stores.end(), [&](const StoreTo& store) {
                return store.atomic || std::any_of(store.indices.begin(), store.indices.end(),
                                                   [&](const Expr& index) { return contains(index, loop.variable); });
            });
            if (!moves && !is_constant(loop.extent, 1))
                return fmt::format("it stores the same element for all '{}'", to_string(loop.variable));
        }
        return {};
    }

    /// Loops of a stage that stand around the op, as those of a sum do, have left it one element at a time.
    std::string why_single() const {
        std::vector<std::string> around;
        visit(kernel_.body, [&](const TileStmt& stmt) {
            const TileLoop* loop = stmt.as<TileLoop>();
            if (!loop || loop->is_block || is_constant(loop->extent, 1) || !is_stored_along(loop->variable)) return;
            if (std::ranges::find(around, to_string(loop->variable)) == around.end())
                around.push_back(to_string(loop->variable));
        });
        if (around.empty()) return "it has a single element";
        return fmt::format("each iteration of '{}' makes one element; bind '{}', or a part of it, to threads",
                           fmt::join(around, "', '"), around.back());
    }
    bool is_stored_along(const Expr& variable) const {
        return std::ranges::any_of(op_.stores, [&](const StoreTo& store) {
            return std::ranges::any_of(store.indices, [&](const Expr& index) { return contains(index, variable); });
        });
    }

    TileOp on_thread_0(const std::string& obstacle) const {
        if (kernel_.threads == 1) return op_;
        TileOp result = op_;
        result.active = simplify(kernel_.thread == 0);
        result.notes.push_back(
            fmt::format("{}: runs on thread 0 of {}, because {}", op_.name, kernel_.threads, obstacle));
        return result;
    }

    // Which loop runs along memory.

    struct OpAccess {
        Access access;
        bool stores;
    };

    int64_t extent_of(const OpLoop& loop) const {
        // For a symbolic extent, the part that is known to divide it.
        return as_constant(loop.extent).value_or(std::max<int64_t>(divisor_of(loop.extent), 1));
    }

    static bool moves_by_one(const OpAccess& access, const Expr& variable) {
        auto step = coefficient(affine_of(access.access.indices.back()), variable);
        return step && *step == 1;
    }

    /// The loop along which most accesses of global memory run, stores counting double; shared memory decides if there
    /// is no global one, since its layout is still open.
    size_t fastest_loop() const {
        size_t best = data_loops_.size() - 1;
        int best_score = score(best);
        for (size_t l = data_loops_.size(); l-- > 0;)
            if (score(l) > best_score) {
                best = l;
                best_score = score(l);
            }
        return best;
    }

    int score(size_t l) const {
        int global = 0, shared = 0;
        for (const OpAccess& access : accesses_) {
            if (access.access.indices.empty() || !moves_by_one(access, data_loops_[l].variable)) continue;
            (access.access.buffer->memory == Memory::Global ? global : shared) += access.stores ? 2 : 1;
        }
        return global * 16 + shared;
    }

    void move_to_back(size_t l) {
        std::rotate(data_loops_.begin() + l, data_loops_.begin() + l + 1, data_loops_.end());
    }

    // How many neighbours move at once.

    bool has_global() const {
        return std::any_of(accesses_.begin(), accesses_.end(),
                           [](const OpAccess& a) { return a.access.buffer->memory == Memory::Global; });
    }

    Width choose_width() const {
        const OpLoop& fast = data_loops_.back();
        Width result{.elements = 1, .reason = {}};
        bool any = false;
        for (const OpAccess& access : accesses_) {
            if (access.access.indices.empty() || !moves_by_one(access, fast.variable)) continue;
            if (has_global() && access.access.buffer->memory != Memory::Global) continue;
            Width own = width_of(access, fast);
            if (!any || own.elements < result.elements) result = own;
            any = true;
        }
        if (!any) return {.elements = 1, .reason = "neighbouring elements are not neighbours in memory"};
        while (result.elements > 1 && !mask_is_uniform(fast.variable, result.elements)) {
            result.elements /= 2;
            result.reason = fmt::format("the edge {} may cut a wider one", to_string(op_.mask));
        }
        return result;
    }

    Width width_of(const OpAccess& access, const OpLoop& fast) const {
        int bytes = bytes_of(access.access.buffer->type);
        int64_t widest = widest_bytes / bytes,
                width = wide_elements(access.access, fast.variable, extent_of(fast), widest_bytes);
        if (width == widest) return {width, {}};
        const std::string& name = access.access.buffer->name;
        if (extent_of(fast) % (2 * width) != 0)
            return {width, fmt::format("{} has {} neighbours in its last dimension here, no multiple of {}", name,
                                       to_string(fast.extent), widest)};
        Expr start = simplify(substitute(access.access.indices.back(), {{fast.variable, integer(0)}}));
        return {width, fmt::format("the rows of {} start at {}, which is only {}-byte aligned", name, to_string(start),
                                   std::max<int64_t>(divisor_of(start), 1) * bytes)};
    }

    bool mask_is_uniform(const Expr& variable, int64_t width) const {
        if (!as_constant(data_loops_.back().extent) && extent_of(data_loops_.back()) % width != 0) return false;
        Expr group = index_variable("g", 0, {}), lane = index_variable("q", 0, width - 1);
        for (const Expr& part : conjuncts_of(op_.mask))
            if (!uniform_over(simplify(substitute(part, {{variable, group * width + lane}})), lane, width).defined())
                return false;
        return true;
    }

    // The loops of one thread.

    TileOp spread() const {
        Expr vectors = integer(1);
        for (const OpLoop& loop : data_loops_) vectors = vectors * cast_unchecked(Type::I64, loop.extent);
        vectors = simplify(vectors / width_.elements);
        Expr steps = simplify((vectors + (kernel_.threads - 1)) / kernel_.threads);

        TileOp result = op_;
        result.loops.clear();
        Expr position = kernel_.thread;
        if (!is_constant(steps, 1)) {
            auto count = as_constant(steps);
            Expr step = index_variable("step", 0, count ? std::optional(*count - 1) : std::nullopt);
            bool unroll = count && *count <= most_unrolled_steps && reduce_loops_.empty();
            result.loops.push_back({step, steps, unroll ? Execution::Unroll : Execution::Serial, false});
            position = step * kernel_.threads + kernel_.thread;
        }
        result.active = conjunction(op_.active, simplify(position < vectors));
        Substitution to_position = positions(position);
        if (width_.elements > 1) {
            Expr lane = index_variable("v", 0, width_.elements - 1);
            to_position.back().second = to_position.back().second * width_.elements + lane;
            result.loops.push_back(
                {.variable = lane, .extent = integer(width_.elements), .execution = Execution::Vector, .chosen = true});
        }
        result = map_exprs(result, [&](const Expr& e) { return simplify(substitute(e, to_position)); });
        // In each element's own order: reduce loops inside.
        result.loops.insert(result.loops.end() - (width_.elements > 1), reduce_loops_.begin(), reduce_loops_.end());
        result.notes.push_back(note());
        return result;
    }

    static Expr conjunction(const Expr& a, const Expr& b) {
        std::vector<Expr> parts = conjuncts_of(a);
        for (const Expr& part : conjuncts_of(b)) parts.push_back(part);
        return all_of(parts);
    }

    /// Each data loop's variable as a coordinate of the position, the fastest in vectors.
    Substitution positions(Expr position) const {
        Substitution result;
        Expr rest = std::move(position);
        for (size_t l = data_loops_.size(); l-- > 0;) {
            Expr extent = cast_unchecked(Type::I64, data_loops_[l].extent);
            if (l + 1 == data_loops_.size()) extent = simplify(extent / width_.elements);
            result.insert(result.begin(), {data_loops_[l].variable, l == 0 ? rest : rest % extent});
            rest = simplify(rest / extent);
        }
        return result;
    }

    /// Threads that have a part of it.
    int64_t num_working() const {
        int64_t vectors = 1;
        for (const OpLoop& loop : data_loops_) {
            const auto extent = as_constant(loop.extent);
            if (!extent) return kernel_.threads;
            vectors *= *extent;
        }
        return std::clamp<int64_t>(vectors / width_.elements, 1, kernel_.threads);
    }

    std::string note() const {
        int bytes = 1;
        for (const OpAccess& access : accesses_) bytes = std::max(bytes, bytes_of(access.access.buffer->type));
        const int64_t threads = num_working();
        std::string text = fmt::format("{}: {}, {} element{} of {} bytes at once", op_.name,
                                       threads == 1 ? "one thread" : fmt::format("{} threads together", threads),
                                       width_.elements, width_.elements > 1 ? "s" : "", bytes);
        return width_.reason.empty() ? text : text + ": " + width_.reason;
    }

    const TileKernel& kernel_;
    const TileOp& op_;
    std::vector<OpAccess> accesses_;
    std::vector<OpLoop> data_loops_, reduce_loops_;
    Width width_;
};

}  // namespace

TileKernel distribute(const TileKernel& kernel) {
    TileKernel result = kernel;
    result.body = map_ops(kernel.body, [&](const TileOp& op) {
        bool spread = op.is<CallOp>() || op.is<AccessOp>() || op.is<TmaCopyOp>();
        if (spread || !op.threads.empty() || stores_to(op, Memory::Registers)) return op;
        return Distributor(kernel, op).run();
    });
    return result;
}

}  // namespace tw::codegen
