#include "codegen/tile_passes/stored_elements.h"

#include <algorithm>

namespace tw::codegen {

std::optional<std::vector<int64_t>> box_stored(const TileOp& op, const StoreTo& store) {
    std::vector<int64_t> extents;
    for (size_t d = 0; d < store.indices.size(); ++d) {
        auto loop = std::find_if(op.loops.begin(), op.loops.end(),
                                 [&](const OpLoop& l) { return l.variable.same(store.indices[d]); });
        auto coordinate = std::find_if(op.threads.begin(), op.threads.end(),
                                       [&](const ThreadCoordinate& t) { return t.variable.same(store.indices[d]); });
        Expr extent = loop != op.loops.end()           ? loop->extent
                      : coordinate != op.threads.end() ? constant(Type::I64, coordinate->extent)
                                                       : store.indices[d];
        bool single = is_constant(extent, 0) && is_constant(store.buffer->shape[d], 1);
        extents.push_back(single ? 1 : as_constant(extent).value_or(0));
        if (single) continue;
        if ((loop == op.loops.end() && coordinate == op.threads.end()) || !as_constant(extent)) return {};
        if (prove(extent <= cast_unchecked(Type::I64, store.buffer->shape[d])) != true) return {};
        for (size_t other = 0; other < d; ++other)
            if (store.indices[other].same(store.indices[d])) return {};
    }
    return extents;
}

bool masks_whole_elements(const TileOp& op, const StoreTo& store) {
    auto agree = [&](const Expr& variable) {
        return !contains(op.mask, variable) || std::any_of(store.indices.begin(), store.indices.end(),
                                                           [&](const Expr& index) { return index.same(variable); });
    };
    return std::all_of(op.loops.begin(), op.loops.end(), [&](const OpLoop& l) { return agree(l.variable); }) &&
           std::all_of(op.threads.begin(), op.threads.end(),
                       [&](const ThreadCoordinate& t) { return agree(t.variable); });
}

bool is_told_by(const Expr& variable, const TileOp& op, const StoreTo& store) {
    for (const Expr& index : store.indices) {
        if (!contains(index, variable)) continue;
        std::vector<std::pair<int64_t, int64_t>> steps;  // of the index, and how many
        for (const OpLoop& loop : op.loops) {
            if (!contains(index, loop.variable)) continue;
            auto step = coefficient(affine_of(index), loop.variable), extent = as_constant(loop.extent);
            if (!step || *step <= 0 || !extent) return false;
            steps.emplace_back(*step, *extent);
        }
        std::sort(steps.begin(), steps.end());
        int64_t span = 0;
        for (auto [step, extent] : steps) {
            if (step <= span) return false;
            span += step * (extent - 1);
        }
        return true;
    }
    return false;
}

Substitution digits_of(const Expr& index, const Expr& element, const TileOp& op) {
    Substitution digits;
    const Affine affine = affine_of(index);
    for (const OpLoop& loop : op.loops)
        if (auto step = coefficient(affine, loop.variable); step && *step > 0)
            digits.emplace_back(loop.variable, simplify(element / *step % loop.extent));
    return digits;
}

bool stores_all_private(const TileOp& op, const StoreTo& store) {
    if (store.buffer->memory != Memory::Registers) return false;
    int64_t elements = 1, stored = 1;
    for (const Expr& extent : store.buffer->shape) elements *= require_constant(extent);
    for (const OpLoop& loop : op.loops) {
        if (!as_constant(loop.extent) || (!is_constant(loop.extent, 1) && !is_told_by(loop.variable, op, store)))
            return false;
        stored *= *as_constant(loop.extent);
    }
    for (size_t d = 0; d < store.indices.size(); ++d) {
        const Affine affine = affine_of(store.indices[d]);
        auto is_loop = [&](const auto& term) {
            return std::ranges::any_of(op.loops, [&](const OpLoop& l) { return l.variable.same(term.first); });
        };
        const Interval range = bounds_of(store.indices[d]);
        if (affine.offset != 0 || !std::ranges::all_of(affine.terms, is_loop) || !range.max ||
            *range.max >= require_constant(store.buffer->shape[d]))
            return false;
    }
    return stored == elements;
}

int64_t runs_of(const TileOp& op) {
    int64_t runs = 1;
    for (const OpLoop& loop : op.loops) runs *= as_constant(loop.extent).value_or(1);
    return runs;
}

bool chooses_loads(const TileOp& op, const std::vector<Expr>& loops_around) {
    const std::vector<Buffer> loads = loads_of(op);
    const bool is_global = std::ranges::any_of(loads, [](const Buffer& b) { return b->memory == Memory::Global; });
    auto differs = [&](const Expr& variable) { return contains(op.mask, variable); };
    return is_global && !loops_around.empty() &&
           (std::ranges::any_of(loops_around, differs) ||
            std::ranges::any_of(op.loops, [&](const OpLoop& loop) { return differs(loop.variable); }));
}

std::optional<Expr> added_term(const StoreTo& store) {
    auto is_target = [&](const Expr& e) {
        const Load* load = e.as<Load>();
        if (!load || load->buffer != store.buffer) return false;
        return std::equal(load->indices.begin(), load->indices.end(), store.indices.begin(), store.indices.end(),
                          equal);
    };
    if (const Fma* node = store.value.as<Fma>(); node && is_target(node->c))
        return binary(BinaryOp::Mul, node->a, node->b);
    const Binary* node = store.value.as<Binary>();
    if (!node || node->op != BinaryOp::Add) return {};
    if (is_target(node->a)) return node->b;
    if (is_target(node->b)) return node->a;
    return {};
}

bool in_bounds(const std::vector<Expr>& indices, const std::vector<int64_t>& extents) {
    for (size_t d = 0; d < indices.size(); ++d) {
        Interval range = bounds_of(indices[d]);
        if (!range.min || !range.max || *range.min < 0 || *range.max >= extents[d]) return false;
    }
    return true;
}

}  // namespace tw::codegen
