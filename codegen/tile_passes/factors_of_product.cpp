#include "codegen/tile_passes/factors_of_product.h"

#include <utility>

#include "support/error.h"

namespace tw::codegen {
namespace {

/// Tensor cores truncate f32 themselves.
const Load* load_of(const TileOp& update, const Atom& atom, const Expr& factor) {
    const Unary* truncation = factor.as<Unary>();
    const Expr& element = truncation ? truncation->a : factor;
    const Cast* cast = element.as<Cast>();
    const Load* load = (cast ? cast->a : element).as<Load>();
    const bool truncates = truncation && atom.operand == tf32;
    internal_check(load && (load->buffer->type == atom.operand || truncates), "{}: {} does not multiply {}",
                   update.name, atom.name, to_string(factor));
    return load;
}

}  // namespace

std::array<const Load*, 2> factors_of_product(const TileOp& update, const Atom& atom, const Expr& column) {
    const Expr& value = update.stores[0].value;
    Expr a, b;
    if (const Fma* fma = value.as<Fma>()) {
        a = fma->a, b = fma->b;
    } else {
        const Binary* sum = value.as<Binary>();
        const Binary* product = sum->b.as<Binary>() ? sum->b.as<Binary>() : sum->a.as<Binary>();
        a = product->a, b = product->b;
    }
    if (contains(a, column)) std::swap(a, b);
    return {load_of(update, atom, a), load_of(update, atom, b)};
}

}  // namespace tw::codegen
