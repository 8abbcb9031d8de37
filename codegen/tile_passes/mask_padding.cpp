// Copies of padded tensors: select(there, element, 0) is the element under a mask, with zeros elsewhere, which boxes
// and asynchronous copies store themselves.
#include <algorithm>
#include <map>

#include "codegen/access/conditions.h"
#include "codegen/tile_passes/stored_elements.h"
#include "codegen/tile_passes/tile_passes.h"
#include "dsl/simplify.h"

namespace tw::codegen {
namespace {

bool is_number_zero(const Expr& e) {
    const FloatConstant* real = e.as<FloatConstant>();
    return real ? real->value == 0 : is_constant(e, 0);
}

class Masker {
public:
    explicit Masker(const TileKernel& kernel) {
        visit_ops(kernel.body, [&](const TileOp& op) {
            for (const StoreTo& store : op.stores) ++writers_[store.buffer.get()];
        });
    }

    TileOp masked(const TileOp& op) const {
        const bool copies = op.is<CopyOp>() && op.stores.size() == 1 && op.stores[0].buffer->memory == Memory::Shared;
        const Select* choice = copies ? op.stores[0].value.as<Select>() : nullptr;
        if (!choice || !choice->yes.as<Load>() || !is_number_zero(choice->no)) return op;
        if (!may_store_everywhere(op)) return op;
        TileOp result = op;
        std::vector<Expr> parts = conjuncts_of(choice->condition);
        for (const Expr& part : conjuncts_of(op.mask))
            if (std::ranges::none_of(parts, [&](const Expr& known) { return follows_from(part, known); }))
                parts.push_back(part);
        result.mask = all_of(parts);
        result.otherwise = choice->no;
        result.stores[0].value = choice->yes;
        return result;
    }

private:
    /// Also where its mask is false: zeros there harm nobody.
    bool may_store_everywhere(const TileOp& op) const {
        if (op.otherwise.defined()) return is_number_zero(op.otherwise);
        if (is_constant(op.mask, 1)) return true;
        const StoreTo& store = op.stores[0];
        return writers_.at(store.buffer.get()) == 1 && box_stored(op, store) && masks_whole_elements(op, store);
    }

    std::map<const BufferNode*, int> writers_;
};

}  // namespace

TileKernel mask_padding(const TileKernel& kernel) {
    TileKernel result = kernel;
    const Masker masker(kernel);
    result.body = map_ops(kernel.body, [&](const TileOp& op) { return masker.masked(op); });
    return result;
}

}  // namespace tw::codegen
