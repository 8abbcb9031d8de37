#include "codegen/tile_passes/factors_of_product.h"

#include <utility>

#include "dsl/scaled_product.h"
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

std::vector<ProductOfLoads> factors_of_products(const TileOp& update, const Atom& atom, const Expr& column) {
    const StoreTo& store = update.stores[0];
    const Expr sums = make_expr(store.buffer->type, Load{store.buffer, store.indices});
    const auto added = sum_of_products(store.value, sums);
    internal_check(added && !added->scale.defined(), "{}: {} does not add {}", update.name, atom.name,
                   to_string(store.value));
    std::vector<ProductOfLoads> products;
    for (const SignedProduct& product : added->products) {
        const Load *rows = load_of(update, atom, product.a), *columns = load_of(update, atom, product.b);
        if (contains(product.a, column)) std::swap(rows, columns);
        products.push_back({rows, columns, product.negative});
    }
    return products;
}

}  // namespace tw::codegen
