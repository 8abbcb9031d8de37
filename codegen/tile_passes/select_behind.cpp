#include <algorithm>
#include <set>

#include "codegen/tile_passes/stored_elements.h"
#include "codegen/tile_passes/tile_passes.h"
#include "dsl/simplify.h"

namespace tw::codegen {
namespace {

bool is_literal(const Expr& e) { return e.as<IntConstant>() || e.as<FloatConstant>(); }

bool has_loads(const Expr& index) {
    bool found = false;
    visit(index, [&](const Expr& e) { found = found || e.as<Load>(); });
    return found;
}

class Behind {
public:
    explicit Behind(const TileKernel& kernel) {
        visit_ops(kernel.body, [&](const TileOp& op) {
            for (const StoreTo& store : op.stores) {
                stored_.insert(store.buffer.get());
                if (!op.is<TmaCopyOp>()) computed_.insert(store.buffer.get());
            }
        });
    }

    TileStmt apart(const TileOp& op) const {
        const Select* choice = choice_of(op);
        if (!choice || !may_be_made(choice->yes, op.lanes.has_value())) return make_tile(TileOp(op));
        const StoreTo& store = op.stores[0];
        if (store.buffer->memory == Memory::Shared) return reading_ahead(op);
        TileOp made = op, chosen = op;
        made.action = chosen.action = MapOp{};
        made.stores[0].value = choice->yes;
        const Expr there = make_expr(store.buffer->type, Load{store.buffer, store.indices});
        chosen.stores[0].value = select_unchecked(choice->condition, there, choice->no);
        chosen.name.clear();
        chosen.notes.clear();
        return make_tile(TileBlock{{make_tile(std::move(made)), make_tile(std::move(chosen))}});
    }

private:
    /// Of what lanes make for a matrix instruction, or threads in shared memory, from memory by some computation.
    static const Select* choice_of(const TileOp& op) {
        const bool makes = op.is<CopyOp>() || op.is<MapOp>();
        if (!makes || op.stores.size() != 1 || op.otherwise.defined()) return nullptr;
        const StoreTo& store = op.stores[0];
        const Select* choice = store.value.as<Select>();
        const Memory memory = store.buffer->memory;
        const bool is_made = choice && is_literal(choice->no) && !choice->yes.as<Load>();
        return is_made && (op.lanes ? memory == Memory::Registers : memory == Memory::Shared) ? choice : nullptr;
    }

    static TileStmt reading_ahead(const TileOp& op) {
        TileOp ahead = op;
        visit(op.stores[0].value, [&](const Expr& e) {
            const Load* load = e.as<Load>();
            ahead.reads_ahead = ahead.reads_ahead || (load && load->buffer->memory == Memory::Shared);
        });
        return make_tile(std::move(ahead));
    }

    /// Whether it can be computed for elements that are not chosen: all that it reads is there, and nothing traps.
    /// Registers are read where they are chosen, if what is made stays in memory.
    bool may_be_made(const Expr& value, bool in_registers) const {
        bool reads = false, safe = true;
        visit(value, [&](const Expr& e) {
            const Load* load = e.as<Load>();
            const Binary* binary = e.as<Binary>();
            if (binary && (binary->op == BinaryOp::Div || binary->op == BinaryOp::Mod) && !is_float(e.type()))
                safe = safe && binary->b.as<IntConstant>();
            if (!load || (!in_registers && load->buffer->memory == Memory::Registers)) return;
            reads = true;
            safe = safe && is_there(*load);
        });
        return reads && safe;
    }

    /// Boxes give every element of theirs a value; what the kernel does not write has one.
    bool is_there(const Load& load) const {
        const BufferNode* buffer = load.buffer.get();
        if (buffer->memory == Memory::Registers || computed_.contains(buffer)) return false;
        if (buffer->memory == Memory::Shared && !stored_.contains(buffer)) return false;
        for (size_t d = 0; d < load.indices.size(); ++d)
            if (has_loads(load.indices[d]) || prove(load.indices[d] >= 0) != true ||
                prove(load.indices[d] < buffer->shape[d]) != true)
                return false;
        return load.indices.size() == buffer->shape.size();
    }

    std::set<const BufferNode*> stored_, computed_;  // by whomever; not by boxes
};

}  // namespace

TileKernel select_behind(const TileKernel& kernel) {
    TileKernel result = kernel;
    const Behind behind(kernel);
    result.body = replace_ops(kernel.body, [&](const TileOp& op) { return behind.apart(op); });
    return result;
}

}  // namespace tw::codegen
