#include <algorithm>
#include <map>
#include <set>

#include <fmt/ranges.h>

#include "codegen/tile_passes/tile_passes.h"
#include "dsl/simplify.h"
#include "support/error.h"

namespace tw::codegen {
namespace {

constexpr int thread_place = 3;

/// Which coordinate of the thread or block, times what.
struct Part {
    int place;  // 0 to 2: a dimension of the grid, or thread_place
    int64_t stride, extent, coefficient;
    bool fixed;  // stays the same while the buffer lives
    auto operator<=>(const Part&) const = default;
};

/// An index as its coordinates' part and the rest, which stays.
struct SplitIndex {
    std::vector<Part> parts;
    Expr rest;
    bool apart = true;  // no two threads have an element in common
};

class Privatizer {
public:
    Privatizer(const TileKernel& kernel, const CiteStep& cite) : kernel_(kernel), cite_(cite) {}

    TileKernel run() {
        collect_fixed(kernel_.body);
        visit_ops(kernel_.body, [&](const TileOp& op) { collect_mixed(op); });
        visit_ops(kernel_.body, [&](const TileOp& op) { check_mixed(op); });
        visit_ops(kernel_.body, [&](const TileOp& op) { collect(op); });
        TileKernel result = kernel_;
        result.body = rewrite(kernel_.body);
        note_local_memory(result);
        return result;
    }

private:
    struct Dimension {
        std::vector<Part> parts;
        int64_t extent = 0;  // of the rest
    };
    struct Private {
        Buffer buffer;  // what takes its place
        std::vector<Dimension> dimensions;
    };

    void collect_fixed(const TileStmt& root) {
        visit(root, [&](const TileStmt& stmt) {
            if (const TileAllocate* allocate = stmt.as<TileAllocate>())
                fixed_[allocate->buffer.get()] = allocate->around;
        });
    }

    bool is_fixed(const Buffer& buffer, const Expr& coordinate) const {
        auto found = fixed_.find(buffer.get());
        return found != fixed_.end() && std::any_of(found->second.begin(), found->second.end(),
                                                    [&](const Expr& v) { return v.same(coordinate); });
    }

    /// Whether the thread's coordinates, of those that do not stay, stand in a quotient or a remainder.
    bool mixes_coordinates(const Buffer& buffer, const Expr& index) const {
        Affine affine = affine_of(index);
        return std::any_of(kernel_.thread_coordinates.begin(), kernel_.thread_coordinates.end(),
                           [&](const ThreadCoordinate& coordinate) {
                               return !is_fixed(buffer, coordinate.variable) &&
                                      !coefficient(affine, coordinate.variable);
                           });
    }

    void collect_mixed(const TileOp& op) {
        for (const StoreTo& store : op.stores)
            for (const Expr& index : store.indices)
                if (store.buffer->memory == Memory::Registers && mixes_coordinates(store.buffer, index))
                    mixed_.try_emplace(store.buffer.get(), store.indices);
    }

    /// Which thread has an element that was stored at a / 12, a % 12 can be told for that very element only.
    void check_mixed(const TileOp& op) const {
        auto check = [&](const Buffer& buffer, const std::vector<Expr>& indices) {
            auto found = mixed_.find(buffer.get());
            if (found == mixed_.end()) return;
            if (!std::equal(indices.begin(), indices.end(), found->second.begin(), found->second.end(), equal))
                refuse(buffer, indices);
        };
        for (const StoreTo& store : op.stores) check(store.buffer, store.indices);
        visit_exprs(op, [&](const Expr& root) {
            visit(root, [&](const Expr& e) {
                if (const Load* load = e.as<Load>()) check(load->buffer, load->indices);
            });
        });
    }

    [[noreturn]] void refuse(const Buffer& buffer, const std::vector<Expr>& indices) const {
        throw_error(Error,
                    "{}'{}' lives in registers, but an element that one thread writes at [{}] is read by another; "
                    "set_memory({}, Memory::Shared){}",
                    cite_(buffer->step), buffer->name, fmt::join(texts(indices), ", "), buffer->name,
                    kernel_.fragment_row.defined() ? ", or have lanes share its readers' loops, those of a reduction "
                                                     "around its data loops (order)"
                                                   : "");
    }

    SplitIndex split(const Buffer& buffer, const Expr& index) const {
        Affine affine = affine_of(index);
        SplitIndex result;
        auto take = [&](const Expr& variable, int place, int64_t stride, int64_t extent) {
            auto factor = coefficient(affine, variable);
            if (!factor || *factor == 0) return;
            result.parts.push_back(
                {place, stride, extent, *factor, place != thread_place || is_fixed(buffer, variable)});
            erase_terms(affine, [&](const auto& term) { return term.first.same(variable); });
        };
        for (const ThreadCoordinate& coordinate : kernel_.thread_coordinates)
            take(coordinate.variable, thread_place, coordinate.stride, coordinate.extent);
        for (const GridCoordinate& coordinate : kernel_.grid_coordinates)
            take(coordinate.variable, coordinate.dimension, as_constant(coordinate.stride).value_or(0),
                 as_constant(coordinate.extent).value_or(0));
        std::sort(result.parts.begin(), result.parts.end());
        result.rest = simplify(to_expr(affine));
        close_gaps(result);
        return result;
    }

    /// rest = high * coefficient * extent + low, low < coefficient, where coordinates of the thread had their place
    /// between: high * coefficient + low. Without coordinates that stay the same while the buffer lives, indices are
    /// only shifted.
    static void close_gaps(SplitIndex& index) {
        std::vector<Part> descending = index.parts;
        std::sort(descending.begin(), descending.end(),
                  [](const Part& a, const Part& b) { return a.coefficient > b.coefficient; });
        for (const Part& part : descending) {
            int64_t period = part.coefficient * part.extent;
            auto lowest = bounds_of(index.rest).min;
            index.apart = index.apart && part.coefficient > 0 && part.extent > 0 && lowest && *lowest >= 0;
            if (!index.apart) return;
            if (part.fixed) continue;
            Expr low = simplify(index.rest % period);
            auto most = bounds_of(low).max;
            index.apart = most && *most < part.coefficient;
            index.rest = simplify(index.rest / period * part.coefficient + low);
        }
    }

    void collect(const TileOp& op) {
        for (const StoreTo& store : op.stores)
            if (!is_replicated(store.buffer)) collect(store.buffer, store.indices);
        visit_exprs(op, [&](const Expr& root) {
            visit(root, [&](const Expr& e) {
                const Load* load = e.as<Load>();
                if (load && !is_replicated(load->buffer)) collect(load->buffer, load->indices);
            });
        });
    }

    /// Written by every thread as a whole: each has all of it, and may read any part.
    bool is_replicated(const Buffer& buffer) {
        auto [found, fresh] = replicated_.try_emplace(buffer.get(), true);
        if (!fresh) return found->second;
        bool& replicated = found->second;
        visit_ops(kernel_.body, [&](const TileOp& op) {
            for (const StoreTo& store : op.stores)
                for (const Expr& index : store.indices)
                    if (store.buffer == buffer && !split(buffer, index).parts.empty()) replicated = false;
        });
        return replicated;
    }

    void collect(const Buffer& buffer, const std::vector<Expr>& indices) {
        if (buffer->memory != Memory::Registers) return;
        auto [found, fresh] = privates_.try_emplace(buffer.get());
        auto& dimensions = found->second.dimensions;
        dimensions.resize(indices.size());
        for (size_t d = 0; d < indices.size(); ++d) {
            SplitIndex index = split(buffer, indices[d]);
            if (fresh) dimensions[d].parts = index.parts;
            check_same_thread(buffer, index, dimensions[d]);
            int64_t whole = require_constant(buffer->shape[d]);
            int64_t extent = index.parts.empty() ? whole : bounds_of(index.rest).max.value_or(whole - 1) + 1;
            dimensions[d].extent = std::clamp(extent, dimensions[d].extent, whole);
        }
    }

    /// Each thread's part must be apart from the others', and the same for all accesses.
    void check_same_thread(const Buffer& buffer, const SplitIndex& index, const Dimension& dimension) const {
        if (index.parts != dimension.parts || !index.apart) refuse(buffer, {index.rest});
    }

    Buffer replacement(const Buffer& buffer) {
        auto found = privates_.find(buffer.get());
        if (found == privates_.end()) return buffer;
        Private& entry = found->second;
        if (entry.buffer) return entry.buffer;
        BufferNode node = *buffer;
        node.shape.clear();
        for (const Dimension& dimension : entry.dimensions)
            if (dimension.extent > 1) node.shape.push_back(constant(Type::I64, dimension.extent));
        entry.buffer = std::make_shared<const BufferNode>(node);
        return entry.buffer;
    }

    std::vector<Expr> private_indices(const Buffer& buffer, const std::vector<Expr>& indices) const {
        std::vector<Expr> result;
        const auto& dimensions = privates_.at(buffer.get()).dimensions;
        for (size_t d = 0; d < indices.size(); ++d)
            if (dimensions[d].extent > 1) result.push_back(split(buffer, indices[d]).rest);
        return result;
    }

    TileStmt rewrite(const TileStmt& stmt) {
        if (const TileOp* op = stmt.as<TileOp>()) return make_tile(rewrite(*op));
        if (const TileAllocate* allocate = stmt.as<TileAllocate>())
            return make_tile(TileAllocate{replacement(allocate->buffer), rewrite(allocate->body), allocate->around});
        return map_children(stmt, [&](const TileStmt& kid) { return rewrite(kid); });
    }

    TileOp rewrite(const TileOp& op) {
        TileOp result = map_exprs(op, [&](const Expr& root) {
            return transform(root, [&](const Expr& e) -> Expr {
                const Load* load = e.as<Load>();
                if (!load || !privates_.count(load->buffer.get())) return {};
                return make_expr(e.type(),
                                 Load{replacement(load->buffer), private_indices(load->buffer, load->indices)});
            });
        });
        for (StoreTo& store : result.stores) {
            if (!privates_.count(store.buffer.get())) continue;
            store.indices = private_indices(store.buffer, store.indices);
            store.buffer = replacement(store.buffer);
        }
        return result;
    }

    /// An array whose index is unknown to the compiler has an address: it is no registers.
    void note_local_memory(TileKernel& kernel) const {
        std::set<const BufferNode*> told;
        visit_ops(kernel.body, [&](const TileOp& op) {
            visit_exprs(op, [&](const Expr& root) {
                visit(root, [&](const Expr& e) {
                    const Load* load = e.as<Load>();
                    if (!load || load->buffer->memory != Memory::Registers) return;
                    if (std::none_of(load->indices.begin(), load->indices.end(),
                                     [&](const Expr& index) { return is_unknown_to_compiler(index); }))
                        return;
                    if (!told.insert(load->buffer.get()).second) return;
                    kernel.notes.push_back(fmt::format(
                        "{}: each thread holds all of '{}' and reads it at [{}], which the compiler does not know: it "
                        "lives in local memory; stage it in shared memory",
                        op.name, load->buffer->name, fmt::join(texts(load->indices), ", ")));
                });
            });
        });
    }

    bool is_unknown_to_compiler(const Expr& index) const {
        bool unknown = false;
        visit(index, [&](const Expr& e) {
            auto is_it = [&](const auto& coordinate) { return coordinate.variable.same(e); };
            unknown = unknown || e.as<Load>() ||
                      std::any_of(kernel_.thread_coordinates.begin(), kernel_.thread_coordinates.end(), is_it) ||
                      std::any_of(kernel_.grid_coordinates.begin(), kernel_.grid_coordinates.end(), is_it);
        });
        return unknown;
    }

    static std::vector<std::string> texts(const std::vector<Expr>& indices) {
        std::vector<std::string> result;
        for (const Expr& index : indices) result.push_back(to_string(index));
        return result;
    }

    const TileKernel& kernel_;
    const CiteStep& cite_;
    std::map<const BufferNode*, Private> privates_;
    std::map<const BufferNode*, bool> replicated_;
    std::map<const BufferNode*, std::vector<Expr>> fixed_;
    std::map<const BufferNode*, std::vector<Expr>> mixed_;  // where elements are stored
};

}  // namespace

TileKernel privatize_registers(const TileKernel& kernel, const CiteStep& cite) {
    return Privatizer(kernel, cite).run();
}

}  // namespace tw::codegen
