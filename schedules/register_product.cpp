#include "schedules/register_product.h"

#include <algorithm>
#include <numeric>

#include "codegen/cost/known_nests.h"
#include "dsl/simplify.h"
#include "dsl/stage.h"
#include "schedules/declared_as.h"
#include "schedules/element_reads.h"
#include "schedules/joined_axes.h"
#include "schedules/unit_product.h"
#include "schedules/warpgroup_space.h"
#include "schedules/whole_tiles.h"
#include "schedules/window_terms.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

using OperationPointer = std::shared_ptr<const Operation>;

bool is_one_of(const std::vector<Tensor>& tensors, const OperationPointer& operation) {
    return std::ranges::any_of(tensors, [&](const Tensor& each) { return each.operation() == operation; });
}

bool reads(const Operation& operation, const OperationPointer& read) {
    bool found = false;
    for (const Operation::Output& output : operation.outputs)
        if (output.body.defined())
            visit_with_extents(output.body, [&](const Expr& e) {
                const Read* element = e.as<Read>();
                found = found || (element && element->operation == read);
            });
    return found;
}

bool is_inlined(const OperationPointer& operation, const std::vector<Tensor>& outputs) {
    return operation->outputs.size() == 1 && !is_one_of(outputs, operation) && !reduces(operation->outputs[0].body);
}

/// The tensor that alone reads it, or alone reads those that do, which are inlined; undefined if there are several.
Tensor only_reader_of(const Tensor& tensor, const std::vector<Tensor>& outputs) {
    const std::vector<OperationPointer> all = operations_of(outputs);
    auto readers_of = [&](const OperationPointer& read) {
        std::vector<OperationPointer> found;
        for (const OperationPointer& each : all)
            if (!each->is_input() && reads(*each, read)) found.push_back(each);
        return found;
    };
    std::vector<OperationPointer> readers = readers_of(tensor.operation());
    while (readers.size() > 1) {
        const OperationPointer first = readers.front();
        if (!is_inlined(first, outputs)) return {};
        readers.erase(readers.begin());
        for (const OperationPointer& next : readers_of(first))
            if (std::ranges::find(readers, next) == readers.end()) readers.push_back(next);
        std::ranges::sort(readers, {},
                          [&](const OperationPointer& each) { return std::ranges::find(all, each) - all.begin(); });
    }
    return readers.size() == 1 && readers[0]->outputs.size() == 1 ? Tensor(readers[0], 0) : Tensor();
}

/// Of columns that come in turns of `width`: 1 of p[i, 2 * width * (j / width) + j % width + width].
std::optional<int64_t> turn_of(const Expr& index, const Expr& column, int64_t width, int64_t turns) {
    const Expr group = index_variable("group", 0), place = index_variable("place", 0, width - 1);
    const Affine read = affine_of(simplify(substitute(index, {{column, group * width + place}})));
    if (read.terms.size() != 2 || coefficient(read, group) != turns * width || coefficient(read, place) != 1) return {};
    const int64_t turn = read.offset / width;
    return read.offset == turn * width && turn >= 0 && turn < turns ? std::optional(turn) : std::nullopt;
}

/// How many columns the product has for each of the tensor, which reads its own row alone; 0 if it does not.
int64_t turns_of(const Tensor& c, const Tensor& product) {
    const std::vector<Expr> own = c.shape(), read = product.shape();
    if (own.size() != read.size() || !std::equal(own.begin(), own.end() - 1, read.begin(), equal)) return 0;
    const int64_t columns = as_constant(own.back()).value_or(0), all = as_constant(read.back()).value_or(0);
    return columns > 0 && all > columns && all % columns == 0 ? all / columns : 0;
}

/// How many columns in turn are the product's for as many of the tensor's; 0 if it reads others, or another row.
int64_t columns_in_turns(const Tensor& c, const Tensor& product, std::vector<Tensor> stored) {
    const int64_t turns = turns_of(c, product);
    if (turns == 0) return 0;
    stored.push_back(product);
    const Expr body = with_elements(body_of(c), stored, true);
    const std::vector<Expr>& axes = c.operation()->axes;
    const Expr& column = axes.back();
    for (const int64_t width : {gated_columns, 2 * gated_columns, 4 * gated_columns, 8 * gated_columns}) {
        bool own = require_constant(c.shape().back()) % width == 0;
        visit(body, [&](const Expr& e) {
            const Read* read = e.as<Read>();
            if (!read || read->operation != product.operation()) return;
            own = own && !read->guarded && std::equal(axes.begin(), axes.end() - 1, read->indices.begin(), equal) &&
                  turn_of(read->indices.back(), column, width, turns);
        });
        if (own) return turns * width;
    }
    return 0;
}

/// Whether it is the product's at a place of the sum and the element's own.
bool is_matrix_at(const Expr& factor, const Tensor& product, const Expr& place, const std::vector<Expr>& axes) {
    const Cast* cast = factor.as<Cast>();
    const Read* read = (cast ? cast->a : factor).as<Read>();
    if (!read || read->operation != product.operation() || read->guarded) return false;
    std::vector<Expr> others = read->indices;
    std::erase_if(others, [&](const Expr& index) { return index.same(place); });
    return others.size() + 1 == read->indices.size() && std::ranges::equal(others, axes, equal);
}

/// The tensors that belong to rows or to columns, each once, without single numbers; nothing if one belongs to both,
/// data choose its place, or it has no constant shape.
std::vector<Tensor> scales_in(const std::vector<Expr>& factors, const std::vector<Expr>& axes) {
    const Expr &row = axes[axes.size() - 2], &column = axes.back();
    std::vector<Tensor> found;
    bool separate = true;
    for (const Expr& factor : factors)
        visit(factor, [&](const Expr& e) {
            const Read* read = e.as<Read>();
            if (!read) return;
            const auto& shape = read->operation->shape;
            separate = separate && !(contains(e, row) && contains(e, column)) && !is_chosen_by_data(*read) &&
                       std::ranges::all_of(shape, [](const Expr& extent) { return as_constant(extent).has_value(); });
            if (!shape.empty() && !is_one_of(found, read->operation)) found.emplace_back(read->operation, read->output);
        });
    return separate ? found : std::vector<Tensor>();
}

/// What the tensor multiplies matrices of the product by, which it adds; nothing if it makes something else of them.
std::vector<Tensor> scales_of(const Tensor& c, const Tensor& product) {
    const Reduce* sum = only_reduction(body_of(c));
    if (!sum || sum->axes.size() != 1 || sum->values.size() != 1 || atomic_operation(*sum->reducer) != BinaryOp::Add ||
        c.rank() + 1 != product.rank() || sum->values[0].type() != f32 || extent_of(sum->axes[0]) == 0)
        return {};
    const Expr rest = with_reduction(body_of(c), constant(f32, 0.0));
    std::vector<Expr> factors = factors_of(sum->values[0]);
    const auto is_matrix = [&](const Expr& factor) {
        return is_matrix_at(factor, product, sum->axes[0], c.operation()->axes);
    };
    const auto matrix = std::ranges::find_if(factors, is_matrix);
    if (matrix == factors.end() || reads_of(product, *c.operation(), rest).any) return {};
    factors.erase(matrix);
    std::vector<Tensor> scales = scales_in(factors, c.operation()->axes);
    return is_one_of(scales, product.operation()) ? std::vector<Tensor>() : scales;
}

/// The best that keeps together what a tile has to have.
std::optional<WarpgroupTiles> best_of_warpgroups(const RegisterProduct& product, const Target& target) {
    std::optional<WarpgroupTiles> best;
    double least = 0;
    for (const WarpgroupTiles& tiles : warpgroup_space(product.shape, target)) {
        if (!suits(tiles, product)) continue;
        const double cycles = predicted_cycles(tiles, product.shape, target);
        if (best && cycles >= least) continue;
        best = tiles;
        least = cycles;
    }
    return best;
}

/// Tiles of warps as wide as what belongs together.
TensorTiles widened(TensorTiles tiles, int64_t columns) {
    const int64_t warps = tiles.block_n / tiles.warp_n;
    tiles.warp_n = rounded_up(tiles.warp_n, columns);
    tiles.block_n = warps * tiles.warp_n;
    return tiles;
}

/// Steps of warpgroups are whole matrices, with as many bytes under way; those of warps lie within one.
void step_by_matrices(WarpgroupTiles& tiles, int64_t terms) {
    constexpr int64_t most_stages = 12;
    tiles.stages = static_cast<int>(std::clamp<int64_t>(tiles.stages * tiles.block_k / terms, 2, most_stages));
    tiles.block_k = terms;
}
void step_by_matrices(TensorTiles& tiles, int64_t terms) { tiles.block_k = std::gcd(tiles.block_k, terms); }
void step_by_matrices(ThinTiles&, int64_t) {}

}  // namespace

std::vector<Expr> factors_of(const Expr& product) {
    const Binary* times = product.as<Binary>();
    if (!times || times->op != BinaryOp::Mul) return {product};
    std::vector<Expr> factors = factors_of(times->a), more = factors_of(times->b);
    factors.insert(factors.end(), more.begin(), more.end());
    return factors;
}

std::optional<RegisterProduct> register_product(const Tensor& sums, const std::vector<Tensor>& outputs) {
    const auto unit = is_one_of(outputs, sums.operation()) ? std::nullopt : unit_product(sums);
    if (!unit || unit->rows_of_matrix > 0 || !unit->more.empty()) return {};
    const Tensor c = only_reader_of(sums, outputs);
    if (!c.defined() || c.rank() < 2) return {};
    const Tensor &a = unit->a, &b = unit->b;
    RegisterProduct found{{.a = a, .b = b, .bias = {}, .c = c, .left = a, .right = b, .product = sums}, unit->shape};
    found.shape.result = c.type();
    if (!reduces(body_of(c))) {
        found.columns_together = columns_in_turns(c, sums, outputs);
        found.shape.activation = Activation::SwiGlu;
        if (found.columns_together == 0 || exact_terms(found.shape) > 0) return {};  // or parts of sums are read
        return found;
    }
    found.product.scales = scales_of(c, sums);
    if (found.product.scales.empty()) return {};
    const int64_t matrices = extent_of(only_reduction(body_of(c))->axes[0]);
    found.terms_of_matrix = found.shape.k;
    found.shape.k *= matrices;
    found.shape.batch = c.rank() > 2 ? found.shape.batch / matrices : 0;
    found.shape.block_scales = true;
    return found;
}

bool suits(const ProductTiling& tiling, const RegisterProduct& product) {
    const int64_t columns = product.columns_together, terms = product.terms_of_matrix;
    if (const WarpgroupTiles* tiles = std::get_if<WarpgroupTiles>(&tiling))
        return tiles->block_n % columns == 0 && (terms == 0 || tiles->block_k == terms);
    const TensorTiles* tiles = std::get_if<TensorTiles>(&tiling);
    return tiles && tiles->warp_n % columns == 0 && (terms == 0 || terms % tiles->block_k == 0);
}

std::vector<ProductTiling> tilings_of(const RegisterProduct& product, const Target& target) {
    const TensorProductShape& shape = product.shape;
    std::vector<ProductTiling> tilings{best_tiling(shape, target)};
    const bool is_wider = product.columns_together > 2 * gated_columns;
    if (is_wider) tilings.clear();
    if (is_wider && takes_warpgroups(shape, target))
        if (const auto best = best_of_warpgroups(product, target)) tilings.push_back(*best);
    if (tilings.empty() || !std::holds_alternative<TensorTiles>(tilings[0]))
        tilings.push_back(widened(tensor_tiles(shape, target), product.columns_together));
    if (product.terms_of_matrix > 0)
        for (ProductTiling& tiling : tilings)
            std::visit([&](auto& tiles) { step_by_matrices(tiles, product.terms_of_matrix); }, tiling);
    return tilings;
}

bool can_be_built(const RegisterProduct& product, const Target& target) {
    auto is_legal = [&](const ProductTiling& tiling) {
        try {
            Schedule s({product.product.c}, target);
            std::visit([&](const auto& tiles) { schedule_tensor_product(s, product.product, tiles); }, tiling);
            codegen::counted_kernels(s.tree(), target);
            return true;
        } catch (const Error&) {
            return false;
        }
    };
    return std::ranges::any_of(tilings_of(product, target), is_legal);
}

}  // namespace tw::schedules
