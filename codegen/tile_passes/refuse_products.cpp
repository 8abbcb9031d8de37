#include "codegen/tile_passes/refuse_products.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "dsl/simplify.h"
#include "support/error.h"

namespace tw::codegen {
namespace {

/// What products read, each once: from shared memory, or from elsewhere.
std::vector<std::string> operands_in(const std::vector<ProductOfLoads>& products, bool shared) {
    std::vector<std::string> names;
    for (const ProductOfLoads& product : products)
        for (const Load* load : {product.rows, product.columns}) {
            const std::string name = "'" + load->buffer->name + "'";
            if ((load->buffer->memory == Memory::Shared) == shared && std::ranges::find(names, name) == names.end())
                names.push_back(name);
        }
    return names;
}

std::string remedy_of_mask(const std::vector<ProductOfLoads>& products) {
    const std::vector<std::string> outside = operands_in(products, false), shared = operands_in(products, true);
    if (!outside.empty())
        return fmt::format(
            "stage {} in shared memory, where zeros take the place of what is missing, or let the "
            "splits divide",
            fmt::join(outside, " and "));
    return fmt::format(
        "{} are in shared memory, but not {} are copies that zeros can fill up to whole "
        "tiles: what is computed there keeps its edges, and so does what data or other loops end. "
        "Let the splits divide, cut the loop whose last tile is partial off there (s.cut(loop, "
        "where_partial(tensor))), or have a kernel before store what is computed and stage a copy of it",
        fmt::join(shared, " and "), shared.size() == 2 ? "both" : "all");
}

}  // namespace

void refuse_mask(const TileOp& update, const Atom& atom, const std::vector<ProductOfLoads>& products,
                 const CiteStep& cite) {
    if (is_constant(update.mask, 1)) return;
    throw_error(Error, "{}{}: of the tiles that {} computes, some elements are masked by {}; {}", cite(update.step),
                update.name, atom.name, to_string(update.mask), remedy_of_mask(products));
}

void refuse_rows_in_registers(const TileOp& update, const Atom& atom, const std::vector<ProductOfLoads>& products,
                              const CiteStep& cite) {
    const auto kept = std::ranges::find_if(
        products, [](const ProductOfLoads& product) { return product.rows->buffer->memory == Memory::Registers; });
    internal_check(kept != products.end(), "{}: no rows of its products are in registers", update.name);
    throw_error(Error,
                "{}{}: {} sums several products, of which one has its rows, '{}', in registers, where lanes have "
                "terms in an order of their own; keep them in shared memory",
                cite(update.step), update.name, atom.name, kept->rows->buffer->name);
}

}  // namespace tw::codegen
