#include <algorithm>
#include <set>

#include "codegen/tile_ir/tile_ir.h"
#include "support/error.h"

namespace tw::codegen {
namespace {

class Verifier {
public:
    Verifier(const TileKernel& kernel, const std::string& pass) : kernel_(kernel), pass_(pass) {}

    void run() {
        for (const GridCoordinate& coordinate : kernel_.grid_coordinates) bind(coordinate.variable);
        for (const ThreadCoordinate& coordinate : kernel_.thread_coordinates) bind(coordinate.variable);
        for (const Expr& block : kernel_.block) bind(block);
        bind(kernel_.thread);
        if (kernel_.turn.defined()) bind(kernel_.turn);
        if (kernel_.persistent) bind(kernel_.persistent->tile);
        if (kernel_.persistent && kernel_.persistent->tickets) bind(kernel_.persistent->ticket);
        for (const Buffer& buffer : kernel_.arguments) buffers_.insert(buffer.get());
        for (const SharedBuffer& shared : kernel_.shared) buffers_.insert(shared.buffer.get());
        for (const SharedUnion& shared : kernel_.unions)
            for (const std::vector<Buffer>& alternative : shared.alternatives)
                for (const Buffer& buffer : alternative)
                    internal_check(
                        std::ranges::find(kernel_.shared, buffer, &SharedBuffer::buffer) != kernel_.shared.end(),
                        "after {}: {} takes turns, but is no array of {}", pass_, buffer->name, kernel_.name);
        check(kernel_.body);
    }

private:
    void bind(const Expr& variable) { bound_.insert(variable.id()); }

    void check(const TileStmt& stmt) {
        internal_check(stmt.defined(), "after {}: kernel {} has an empty statement", pass_, kernel_.name);
        if (const TileOp* op = stmt.as<TileOp>()) return check(*op);
        if (const TileLoop* loop = stmt.as<TileLoop>()) {
            check(loop->extent, "the extent of a loop");
            return with(loop->variable, [&] { check(loop->body); });
        }
        if (const TileAllocate* allocate = stmt.as<TileAllocate>()) {
            bool fresh = buffers_.insert(allocate->buffer.get()).second;
            internal_check(fresh, "after {}: {} is allocated twice", pass_, allocate->buffer->name);
            check(allocate->body);
            buffers_.erase(allocate->buffer.get());
            return;
        }
        for (const TileStmt& kid : stmt.as<TileBlock>()->stmts) check(kid);
    }

    template <class F>
    void with(const Expr& variable, const F& inner) {
        bool fresh = bound_.insert(variable.id()).second;
        inner();
        if (fresh) bound_.erase(variable.id());
    }

    void check(const TileOp& op) { check_loops(op, 0); }

    void check_loops(const TileOp& op, size_t depth) {
        if (depth < op.loops.size()) {
            check(op.loops[depth].extent, op.name);
            return with(op.loops[depth].variable, [&] { check_loops(op, depth + 1); });
        }
        for (const StoreTo& store : op.stores) {
            check_access(store.buffer, store.indices, op.name);
            check(store.value, op.name);
            internal_check(store.value.type() == store.buffer->type, "after {}: {} stores {} into {}, which is {}",
                           pass_, op.name, name_of(store.value.type()), store.buffer->name,
                           name_of(store.buffer->type));
        }
        for (const Expr& condition : {op.mask, op.active}) {
            check(condition, op.name);
            internal_check(condition.type() == Type::Bool, "after {}: a mask of {} is no bool: {}", pass_, op.name,
                           tw::to_string(condition));
        }
        if (op.otherwise.defined()) check(op.otherwise, op.name);
    }

    void check_access(const Buffer& buffer, const std::vector<Expr>& indices, const std::string& what) {
        check_place(buffer, indices, what);
        for (const Expr& index : indices) check(index, what);
    }

    void check_place(const Buffer& buffer, const std::vector<Expr>& indices, const std::string& what) {
        internal_check(buffers_.count(buffer.get()), "after {}: {} uses {}, which does not live there", pass_, what,
                       buffer->name);
        internal_check(indices.size() == buffer->shape.size(), "after {}: {} indexes {} by {} of {} dimensions", pass_,
                       what, buffer->name, indices.size(), buffer->shape.size());
    }

    void check(const Expr& root, const std::string& what) {
        internal_check(root.defined(), "after {}: {} lacks an expression", pass_, what);
        visit(root, [&](const Expr& e) {
            internal_check(!e.as<Read>() && !e.as<Reduce>(), "after {}: {} still reads a tensor", pass_, what);
            if (const Load* load = e.as<Load>()) check_place(load->buffer, load->indices, what);
            const Variable* variable = e.as<Variable>();
            if (!variable || variable->kind != VariableKind::Index) return;
            internal_check(bound_.count(e.id()), "after {}: {} uses '{}', which nothing binds there", pass_, what,
                           variable->name);
        });
    }

    const TileKernel& kernel_;
    const std::string& pass_;
    std::set<const ExprNode*> bound_;
    std::set<const BufferNode*> buffers_;
};

}  // namespace

void verify_tile_ir(const TileKernel& kernel, const std::string& pass) { Verifier(kernel, pass).run(); }

}  // namespace tw::codegen
