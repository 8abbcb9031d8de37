#include <algorithm>
#include <set>

#include "codegen/tile_passes/tile_passes.h"
#include "support/error.h"

namespace tw::codegen {
namespace {

constexpr int64_t most_unrolled_copies = 1024;  // beyond this an array in local memory is the lesser evil
constexpr int64_t longest_short_loop = 16;

class Marker {
public:
    explicit Marker(const TileKernel& kernel) : kernel_(kernel) {}

    TileKernel run() {
        visit_ops(kernel_.body, [&](const TileOp& op) { collect(op); });
        TileKernel result = kernel_;
        result.body = mark(kernel_.body);
        return result;
    }

private:
    void collect(const TileOp& op) {
        auto see = [&](const Buffer& buffer, const std::vector<Expr>& indices) {
            if (buffer->memory != Memory::Registers) return;
            for (const Expr& index : indices)
                visit(index, [&](const Expr& e) {
                    if (e.as<Variable>()) in_registers_.insert(e.id());
                });
        };
        for (const StoreTo& store : op.stores) see(store.buffer, store.indices);
        visit_exprs(op, [&](const Expr& root) {
            visit(root, [&](const Expr& e) {
                if (const Load* load = e.as<Load>()) see(load->buffer, load->indices);
            });
        });
    }

    TileStmt mark(const TileStmt& stmt) {
        if (const TileOp* op = stmt.as<TileOp>()) return make_tile(mark(*op));
        TileStmt marked = map_children(stmt, [&](const TileStmt& kid) { return mark(kid); });
        const TileLoop* loop = marked.as<TileLoop>();
        if (!loop) return marked;
        TileLoop copy = *loop;
        copy.unroll = loop->unroll || indexes_registers(loop->variable, loop->extent);
        return make_tile(std::move(copy));
    }

    bool indexes_registers(const Expr& variable, const Expr& extent) {
        return in_registers_.count(variable.id()) && as_constant(extent);
    }

    TileOp mark(const TileOp& op) {
        TileOp result = op;
        int64_t copies = 1;
        for (OpLoop& loop : result.loops) {
            if (loop.execution != Execution::Serial || !indexes_registers(loop.variable, loop.extent)) continue;
            copies *= require_constant(loop.extent);
            if (copies <= most_unrolled_copies) {
                loop.execution = Execution::Unroll;
                continue;
            }
            result.notes.push_back(
                fmt::format("{}: '{}' is not unrolled, since that would make more than {} copies: its "
                            "registers live in local memory",
                            op.name, to_string(loop.variable), most_unrolled_copies));
        }
        mark_short_innermost(result);
        return result;
    }

    /// Only where neighbours in some buffer are visited.
    void mark_short_innermost(TileOp& op) const {
        if (op.loops.empty()) return;
        OpLoop& inner = op.loops.back();
        auto extent = as_constant(inner.extent);
        if (inner.execution != Execution::Serial || inner.reduces || !extent || *extent > longest_short_loop) return;
        bool along_memory = false;
        auto see = [&](const Buffer& buffer, const std::vector<Expr>& indices) {
            if (buffer->memory == Memory::Global)
                along_memory = along_memory || wide_elements(flat_access(buffer, indices), inner.variable, *extent) > 1;
        };
        for (const StoreTo& store : op.stores) see(store.buffer, store.indices);
        visit_exprs(op, [&](const Expr& root) {
            visit(root, [&](const Expr& e) {
                if (const Load* load = e.as<Load>()) see(load->buffer, load->indices);
            });
        });
        if (along_memory) inner.execution = Execution::Unroll;
    }

    const TileKernel& kernel_;
    std::set<const ExprNode*> in_registers_;
};

}  // namespace

TileKernel mark_unrolled(const TileKernel& kernel) { return Marker(kernel).run(); }

}  // namespace tw::codegen
