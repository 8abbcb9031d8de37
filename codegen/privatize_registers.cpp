#include <algorithm>
#include <map>

#include "codegen/tile_passes.h"
#include "dsl/simplify.h"
#include "support/error.h"

namespace tw::codegen {
namespace {

/// Which digit of the thread or block, times what.
struct Part {
    int place;  // 0 to 2: a dimension of the grid, 3: the thread
    int64_t stride, extent, coefficient;
    auto operator<=>(const Part&) const = default;
};

/// An index as its digits' part and the rest, which stays.
struct SplitIndex {
    std::vector<Part> parts;
    Expr rest;
};

class Privatizer {
public:
    Privatizer(const TileKernel& kernel, const CiteStep& cite) : kernel_(kernel), cite_(cite) {}

    TileKernel run() {
        visit_ops(kernel_.body, [&](const TileOp& op) { collect(op); });
        TileKernel result = kernel_;
        result.body = rewrite(kernel_.body);
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

    SplitIndex split(const Expr& index) const {
        Affine affine = affine_of(index);
        SplitIndex result;
        auto take = [&](const Expr& variable, int place, int64_t stride, int64_t extent) {
            auto factor = coefficient(affine, variable);
            if (!factor || *factor == 0) return;
            result.parts.push_back({place, stride, extent, *factor});
            std::erase_if(affine.terms, [&](const auto& term) { return term.first.same(variable); });
        };
        for (const ThreadDigit& digit : kernel_.thread_digits) take(digit.variable, 3, digit.stride, digit.extent);
        for (const GridDigit& digit : kernel_.grid_digits)
            take(digit.variable, digit.dimension, as_constant(digit.stride).value_or(0),
                 as_constant(digit.extent).value_or(0));
        std::sort(result.parts.begin(), result.parts.end());
        result.rest = simplify(to_expr(affine));
        return result;
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
                    if (store.buffer == buffer && !split(index).parts.empty()) replicated = false;
        });
        return replicated;
    }

    void collect(const Buffer& buffer, const std::vector<Expr>& indices) {
        if (buffer->memory != Memory::Registers) return;
        auto [found, fresh] = privates_.try_emplace(buffer.get());
        auto& dimensions = found->second.dimensions;
        dimensions.resize(indices.size());
        for (size_t d = 0; d < indices.size(); ++d) {
            SplitIndex index = split(indices[d]);
            if (fresh) dimensions[d].parts = index.parts;
            check_same_thread(buffer, index, dimensions[d]);
            int64_t whole = require_constant(buffer->shape[d]);
            int64_t extent = index.parts.empty() ? whole : bounds_of(index.rest).max.value_or(whole - 1) + 1;
            dimensions[d].extent = std::clamp(extent, dimensions[d].extent, whole);
        }
    }

    /// Each thread's part must be apart from the others', and the same for all accesses.
    void check_same_thread(const Buffer& buffer, const SplitIndex& index, const Dimension& dimension) const {
        bool own = index.parts == dimension.parts;
        auto low = bounds_of(index.rest).min;
        for (const Part& part : index.parts) own = own && part.coefficient > 0 && low && *low >= 0;
        if (!own)
            throw_error(Error,
                        "{}'{}' lives in registers, but an element that one thread writes at [{}] is read by another; "
                        "use Memory::Shared",
                        cite_(buffer->step), buffer->name, to_string(index.rest));
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
            if (dimensions[d].extent > 1) result.push_back(split(indices[d]).rest);
        return result;
    }

    TileStmt rewrite(const TileStmt& stmt) {
        if (const TileOp* op = stmt.as<TileOp>()) return make_tile(rewrite(*op));
        if (const TileAllocate* allocate = stmt.as<TileAllocate>())
            return make_tile(TileAllocate{replacement(allocate->buffer), rewrite(allocate->body)});
        if (const TileLoop* loop = stmt.as<TileLoop>()) {
            TileLoop copy = *loop;
            copy.body = rewrite(loop->body);
            return make_tile(std::move(copy));
        }
        TileBlock block;
        for (const TileStmt& kid : stmt.as<TileBlock>()->stmts) block.stmts.push_back(rewrite(kid));
        return make_tile(std::move(block));
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

    const TileKernel& kernel_;
    const CiteStep& cite_;
    std::map<const BufferNode*, Private> privates_;
    std::map<const BufferNode*, bool> replicated_;
};

}  // namespace

TileKernel privatize_registers(const TileKernel& kernel, const CiteStep& cite) {
    return Privatizer(kernel, cite).run();
}

}  // namespace tw::codegen
