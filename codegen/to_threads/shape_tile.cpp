#include "codegen/to_threads/shape_tile.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "codegen/access/access.h"
#include "codegen/access/conditions.h"
#include "codegen/to_threads/choose_inside.h"
#include "codegen/to_threads/store_fragment.h"
#include "codegen/to_threads/store_lines.h"
#include "dsl/atoms.h"
#include "dsl/simplify.h"

namespace tw::codegen {
namespace {

class Shaper {
public:
    Shaper(const TileOp& op, const Placement& placement, const Target& target, std::vector<std::string>& notes)
        : op_(op), target_(target), notes_(notes) {
        Expr mask = placement.physical(op.mask);
        for (const StoreTo& store : op.stores) {
            Expr value = placement.physical(store.value);
            if (op.otherwise.defined()) value = select_unchecked(mask, value, op.otherwise);
            t_.stores.push_back({placement.checked(store.buffer, store.indices), value, store.atomic});
        }
        t_.conditions = conjuncts_of(placement.physical(op.active));
        if (!op.otherwise.defined())
            for (const Expr& part : conjuncts_of(mask)) t_.conditions.push_back(part);
        t_.reads_ahead = op.reads_ahead;
        for (ThreadStore& store : t_.stores) {  // only made under the conditions
            store.to = without_implied_checks(store.to, t_.conditions);
            store.value = without_implied_checks(store.value, t_.conditions);
        }
        for (OpLoop loop : op.loops) {
            loop.extent = placement.physical(loop.extent);
            t_.outer.push_back(loop);
        }
    }

    OpTile run() {
        ask_registers_first();
        split_long_innermost();
        take_tile();
        if (target_.has_stmatrix) t_.matrices = take_matrices(t_, op_, notes_);
        if (!t_.matrices) t_.lines = take_lines(t_, op_, notes_);
        if (t_.taken_over() == 0) choose_wide_store();
        if (changes_registers_by_shared_reads()) choose_inside(t_);
        peel_loops_without_reuse();
        if (t_.taken_over() == 0) split_into_vectors();
        return std::move(t_);
    }

private:
    /// Loops of which a condition on registers depends stand outside of others, so that one branch spares a warp all
    /// that they have in common: a row's products, if the row needs none.
    void ask_registers_first() {
        const auto asks = [&](const OpLoop& loop) {
            return std::ranges::any_of(t_.conditions, [&](const Expr& condition) {
                return reads_registers(condition) && contains(condition, loop.variable);
            });
        };
        if (std::ranges::none_of(t_.outer, asks) || !are_in_any_order()) return;
        std::ranges::stable_partition(t_.outer, asks);
    }

    static bool reads_registers(const Expr& expr) {
        bool found = false;
        visit(expr, [&](const Expr& e) {
            const Load* load = e.as<Load>();
            found = found || (load && load->buffer->memory == Memory::Registers);
        });
        return found;
    }

    /// Whether each iteration stores elements of its own, and reads no other's.
    bool are_in_any_order() const {
        for (const ThreadStore& store : t_.stores) {
            if (store.to.buffer->memory != Memory::Registers || store.atomic) return false;
            for (const OpLoop& loop : t_.outer)
                if (loop.execution == Execution::Serial || !contains_any(store.to.indices, loop.variable)) return false;
            bool reads_others = false;
            for (const ThreadStore& other : t_.stores)
                visit(other.value, [&](const Expr& e) {
                    const Load* load = e.as<Load>();
                    reads_others = reads_others || (load && load->buffer == store.to.buffer &&
                                                    !std::ranges::equal(load->indices, store.to.indices, equal));
                });
            if (reads_others) return false;
        }
        return true;
    }

    /// Elements of registers, under conditions that no register decides, by what several of them read from memory.
    bool changes_registers_by_shared_reads() const {
        if (t_.taken_over() > 0 || t_.store_width > 1 || !t_.has_inner_conditions()) return false;
        if (std::ranges::any_of(t_.conditions, reads_registers)) return false;
        for (const ThreadStore& store : t_.stores)
            if (store.to.buffer->memory != Memory::Registers || store.atomic) return false;
        const std::vector<PreloadOperand> operands = t_.operands();
        return std::ranges::any_of(operands, [&](const PreloadOperand& operand) {
            return std::ranges::any_of(t_.tile,
                                       [&](const OpLoop& loop) { return !operand.depends_on(loop.variable); });
        });
    }

    void take_tile() {
        while (!t_.outer.empty() && t_.outer.back().execution != Execution::Serial &&
               as_constant(t_.outer.back().extent)) {
            t_.tile.insert(t_.tile.begin(), t_.outer.back());
            t_.outer.pop_back();
        }
    }

    /// A long innermost loop along memory becomes a loop over vectors.
    void split_long_innermost() {
        if (t_.outer.empty() || t_.outer.back().execution != Execution::Serial) return;
        OpLoop loop = t_.outer.back();
        auto extent = as_constant(loop.extent);
        if (!extent) return;
        int64_t width = 1;
        for (const ThreadStore& store : t_.stores)
            if (store.to.buffer->memory != Memory::Registers)
                width = std::max(width, wide_elements(store.to, loop.variable, *extent));
        for (const PreloadOperand& operand : t_.operands()) width = std::max(width, operand.width_along(loop));
        if (width == 1) return;
        if (width == *extent) {
            t_.outer.back().execution = Execution::Unroll;
            return;
        }
        Expr group = index_variable(name_of(loop.variable) + "_vector", 0, *extent / width - 1);
        Expr lane = index_variable(name_of(loop.variable), 0, width - 1);
        t_.replace(loop.variable, group * width + lane);
        t_.outer.back() = {group, integer(*extent / width), Execution::Serial, loop.reduces};
        t_.outer.push_back({lane, integer(width), Execution::Unroll, loop.reduces});
    }

    /// The loop of the tile along which the store can be widest, and the width.
    void choose_wide_store() {
        for (const ThreadStore& store : t_.stores)
            if (store.to.buffer->memory == Memory::Registers || store.atomic) return;
        for (size_t l = t_.tile.size(); l-- > 0;) {
            int64_t extent = require_constant(t_.tile[l].extent), width = extent;
            for (const ThreadStore& store : t_.stores)
                width = std::min(width, wide_elements(store.to, t_.tile[l].variable, extent));
            while (width > 1 && !uniform_conditions(t_.tile[l].variable, width)) width /= 2;
            if (width > t_.store_width) {
                t_.store_width = width;
                t_.wide_variable = t_.tile[l].variable;
            }
        }
        if (!t_.tile.empty() && t_.tile.back().execution == Execution::Vector && !t_.tile.back().chosen &&
            !(t_.tile.size() == 1 && ragged_width(t_.tile[0]) > 1))
            tell_what_is_narrower(t_.tile.back());
    }

    /// Notes which accesses of a vector loop that the user asked for move fewer elements at once.
    void tell_what_is_narrower(const OpLoop& loop) {
        const int64_t extent = require_constant(loop.extent);
        int64_t uniform = extent;
        while (uniform > 1 && (extent % uniform != 0 || !uniform_conditions(loop.variable, uniform))) --uniform;
        std::vector<std::string> narrower;
        auto add = [&](const char* verb, const Access& access, int64_t width) {
            // An instruction moves at most 16 bytes: several of them are what was asked for.
            const int64_t widest = std::min<int64_t>(extent, 16 / bytes_of(access.buffer->type));
            width = std::min(width, uniform);
            if (access.buffer->memory == Memory::Registers || width >= widest) return;
            std::string text = fmt::format("'{}' is {} {}", access.buffer->name, verb,
                                           width == 1 ? "one by one" : fmt::format("{} at once", width));
            if (std::find(narrower.begin(), narrower.end(), text) == narrower.end()) narrower.push_back(text);
        };
        int64_t stored = extent;
        for (const ThreadStore& store : t_.stores)
            stored = std::min(stored, wide_elements(store.to, loop.variable, extent));
        for (const ThreadStore& store : t_.stores)
            if (!store.atomic) add("stored", store.to, stored);
        for (const PreloadOperand& operand : t_.operands())
            if (operand.depends_on(loop.variable)) add("read", operand.access, operand.width_along(loop));
        if (narrower.empty()) return;
        notes_.push_back(
            fmt::format("{}: of the vector loop '{}' of {}, {}: no more elements are proven to be aligned "
                        "neighbours under one condition",
                        op_.name, to_string(loop.variable), extent, fmt::join(narrower, ", ")));
    }

    bool uniform_conditions(const Expr& variable, int64_t width) const {
        Expr group = index_variable("g", 0, {}), lane = index_variable("q", 0, width - 1);
        for (const Expr& condition : t_.conditions) {
            Expr split = simplify(substitute(condition, {{variable, group * width + lane}}));
            if (!uniform_over(split, lane, width).defined()) return false;
        }
        return true;
    }

    /// How many elements along the loop all stores write at once, conditions aside.
    int64_t stored_width(const OpLoop& loop) const {
        int64_t width = require_constant(loop.extent);
        for (const ThreadStore& store : t_.stores)
            width = store.atomic || store.to.buffer->memory == Memory::Registers
                        ? 1
                        : std::min(width, wide_elements(store.to, loop.variable, width));
        return width;
    }

    /// How many elements along the loop move at once where all conditions hold for all of them; 1 where none is cut
    /// inside of a vector, or it cannot be told where, or registers would be found by a variable index.
    int64_t ragged_width(const OpLoop& loop) const {
        const auto extent = as_constant(loop.extent);
        if (!extent || t_.taken_over() > 0) return 1;
        for (const ThreadStore& store : t_.stores)
            if (store.atomic ||
                (store.to.buffer->memory == Memory::Registers && contains_any(store.to.indices, loop.variable)))
                return 1;
        int64_t width = stored_width(loop);
        for (const PreloadOperand& operand : t_.operands()) {
            if (operand.depends_on(loop.variable) && operand.guard.defined()) return 1;
            width = std::max(width, operand.width_along(loop));
        }
        if (width <= 1 || *extent % width != 0 || uniform_conditions(loop.variable, width)) return 1;
        const Expr group = index_variable("g", 0, {}), lane = index_variable("q", 0, width - 1);
        for (const Expr& condition : t_.conditions) {
            const Expr split = simplify(substitute(condition, {{loop.variable, group * width + lane}}));
            if (!uniform_over(split, lane, width).defined() && !all_over(split, lane, width).defined()) return 1;
        }
        return width;
    }

    static bool contains_any(const std::vector<Expr>& exprs, const Expr& variable) {
        return std::ranges::any_of(exprs, [&](const Expr& expr) { return contains(expr, variable); });
    }

    void take_ragged(const Expr& lane, int64_t width) {
        std::vector<Expr> uniform;
        for (const Expr& condition : t_.conditions)
            if (uniform_over(condition, lane, width).defined()) {
                uniform.push_back(condition);
            } else {
                t_.ragged.push_back(condition);
                t_.whole.push_back(all_over(condition, lane, width));
            }
        t_.conditions = uniform;
    }

    /// Whether the vectors that lanes read for their part of a matrix are more than registers may hold, and depend on
    /// the loop.
    bool is_crowded_by(const OpLoop& loop) const {
        if (!op_.lanes) return false;
        int64_t elements = 0;
        bool depends = false;
        for (const PreloadOperand& operand : t_.operands()) {
            int64_t own = 1, width = 1;
            for (const OpLoop& each : t_.tile) {
                if (!operand.depends_on(each.variable)) continue;
                own *= require_constant(each.extent);
                width = std::max(width, operand.width_along(each));
            }
            if (operand.width_along(loop) > 1) return false;
            elements += own;
            depends = depends || (width > 1 && operand.depends_on(loop.variable));
        }
        return depends && elements > most_preloaded_elements;
    }

    /// An outer loop of the tile on which everything depends gives no reuse: it is unrolled around the tile, and so is
    /// one that a condition depends on, or without which registers hold what the tile reads in vectors.
    void peel_loops_without_reuse() {
        const size_t innermost = std::max<size_t>(t_.taken_over(), 1);
        while (t_.tile.size() > innermost) {
            const OpLoop& loop = t_.tile.front();
            bool along = t_.wide_variable.defined() && t_.wide_variable.same(loop.variable), guards = false;
            for (const Expr& condition : t_.conditions) guards = guards || contains(condition, loop.variable);
            for (const PreloadOperand& operand : t_.operands())
                along = along || (!guards && !operand.depends_on(loop.variable)) || operand.width_along(loop) > 1;
            const bool widest = t_.wide_variable.defined() && t_.wide_variable.same(loop.variable);
            if (along && (widest || !is_crowded_by(loop))) return;
            t_.outer.push_back(loop);
            t_.tile.erase(t_.tile.begin());
        }
    }

    /// A tile of a single loop becomes a loop over vectors around a tile of one vector.
    void split_into_vectors() {
        if (t_.tile.size() != 1) return;
        OpLoop& loop = t_.tile[0];
        int64_t extent = require_constant(loop.extent), width = t_.store_width;
        for (const PreloadOperand& operand : t_.operands()) width = std::max(width, operand.width_along(loop));
        while (width > 1 && !uniform_conditions(loop.variable, width)) width /= 2;
        if (const int64_t ragged = ragged_width(loop); ragged > width) {
            width = ragged;
            t_.store_width = std::min(width, stored_width(loop));
            t_.wide_variable = t_.store_width > 1 ? loop.variable : Expr();
        }
        if (width == 1) {  // nothing to gain from a tile
            t_.outer.push_back(loop);
            t_.tile.clear();
            t_.store_width = 1;
            t_.wide_variable = {};
            return;
        }
        t_.store_width = std::min(t_.store_width, width);
        Expr lane = index_variable(name_of(loop.variable), 0, width - 1), value = lane;
        if (extent > width) {
            Expr group = index_variable(name_of(loop.variable) + "_vector", 0, extent / width - 1);
            t_.outer.push_back({group, integer(extent / width), Execution::Unroll, loop.reduces});
            value = group * width + lane;
        }
        t_.replace(loop.variable, value);
        take_ragged(lane, width);
        for (Expr& condition : t_.conditions) condition = uniform_over(condition, lane, width);
        if (t_.wide_variable.defined()) t_.wide_variable = lane;
        loop = {lane, integer(width), Execution::Vector, loop.reduces};
    }

    const TileOp& op_;
    const Target& target_;
    std::vector<std::string>& notes_;
    OpTile t_;
};

}  // namespace

OpTile shape_tile(const TileOp& op, const Placement& placement, const Target& target, std::vector<std::string>& notes) {
    return Shaper(op, placement, target, notes).run();
}

}  // namespace tw::codegen
