#include "schedules/scaled_blocks.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "dsl/simplify.h"
#include "dsl/stage.h"
#include "schedules/declared_as.h"
#include "schedules/free_names.h"
#include "schedules/product_cycles.h"
#include "schedules/register_product.h"
#include "schedules/replace_tensors.h"
#include "schedules/thin_product.h"
#include "schedules/unit_product.h"
#include "schedules/warp_space.h"
#include "schedules/whole_tiles.h"
#include "schedules/window_terms.h"

namespace tw::schedules {
namespace {

bool is_sum(const Reduce& reduction) {
    return reduction.values.size() == 1 && atomic_operation(*reduction.reducer) == BinaryOp::Add;
}

/// The only reduction that is in no other; undefined if there are several.
Expr outer_reduction(const Expr& body) {
    std::vector<Expr> found;  // outer ones first
    visit(body, [&](const Expr& e) {
        if (e.as<Reduce>()) found.push_back(e);
    });
    const bool has_all =
        !found.empty() && std::ranges::all_of(found, [&](const Expr& each) { return contains(found[0], each); });
    return has_all ? found[0] : Expr();
}

/// What is summed: factors of each term, and the axes of all sums.
struct SummedFactors {
    std::vector<Expr> factors, axes;
};

/// Sums in a product are sums of it.
void add_factors(const Expr& term, SummedFactors& found) {
    for (const Expr& factor : factors_of(term)) {
        const Cast* cast = factor.as<Cast>();
        const Reduce* sum = (cast ? cast->a : factor).as<Reduce>();
        if (!sum || !is_sum(*sum) || sum->values[0].type() == bf16 || sum->values[0].type() == f16) {
            found.factors.push_back(factor);
            continue;
        }
        found.axes.insert(found.axes.end(), sum->axes.begin(), sum->axes.end());
        add_factors(sum->values[0], found);
    }
}

std::optional<int64_t> extent_of_axis(const Expr& axis) {
    const Expr& extent = axis.as<Variable>()->extent;
    return extent.defined() ? as_constant(extent) : std::nullopt;
}

/// How many terms in turn the factor is the same for, as it knows of them only term / 128; 0 if it knows more.
int64_t terms_that_share(const Expr& factor, const Expr& term, int64_t all) {
    int64_t length = all;
    const Expr rest = transform(factor, [&](const Expr& e) -> Expr {
        const Binary* block = e.as<Binary>();
        if (!block || block->op != BinaryOp::Div || !block->a.same(term)) return {};
        const int64_t divisor = as_constant(block->b).value_or(0);
        if (divisor <= 0) return {};
        length = std::gcd(length, divisor);
        return integer(0);
    });
    return contains(rest, term) ? 0 : length;
}

/// The two factors of each term, as tensor cores multiply them, and what its block is multiplied by.
struct BlockProduct {
    std::vector<Expr> multiplied, scales;
    Expr block, inside;  ///< variables; without one for the block, that is inside / terms
    int64_t blocks = 0, terms = 0;
};

std::optional<BlockProduct> over_one_axis(const SummedFactors& sum) {
    const Expr& term = sum.axes[0];
    const int64_t all = extent_of_axis(term).value_or(0);
    BlockProduct found{{}, {}, {}, term, 0, all};
    for (const Expr& factor : sum.factors) {
        const int64_t length = terms_that_share(factor, term, all);
        (length > 0 ? found.scales : found.multiplied).push_back(factor);
        if (length > 0) found.terms = std::gcd(found.terms, length);
    }
    if (all == 0 || found.terms == all) return {};
    found.blocks = all / found.terms;
    return found;
}

std::optional<BlockProduct> over_blocks(const SummedFactors& sum, const Expr& block, const Expr& inside) {
    const auto blocks = extent_of_axis(block), terms = extent_of_axis(inside);
    if (!blocks || !terms) return {};
    BlockProduct found{{}, {}, block, inside, *blocks, *terms};
    bool differs = false;
    for (const Expr& factor : sum.factors) {
        const bool multiplied = contains(factor, inside);
        (multiplied ? found.multiplied : found.scales).push_back(factor);
        differs = differs || (!multiplied && contains(factor, block));
    }
    return differs ? std::optional(found) : std::nullopt;
}

/// An element as tensor cores take it; undefined if it is something else.
Expr unit_factor(const Expr& factor) {
    const Cast* cast = factor.as<Cast>();
    if (!cast || !cast->a.as<Read>()) return {};
    return cast->a.type() == i8 ? tw::cast(i32, cast->a) : factor;
}

std::optional<BlockProduct> block_product(const SummedFactors& sum) {
    constexpr int64_t bytes_of_step = 32, most_terms = 512;  // of an instruction; of a stage in shared memory
    std::vector<std::optional<BlockProduct>> ways;
    if (sum.axes.size() == 1) ways = {over_one_axis(sum)};
    if (sum.axes.size() == 2)
        ways = {over_blocks(sum, sum.axes[0], sum.axes[1]), over_blocks(sum, sum.axes[1], sum.axes[0])};
    for (std::optional<BlockProduct>& way : ways) {
        if (!way || way->multiplied.size() != 2 || way->scales.empty() || way->terms > most_terms) continue;
        for (Expr& factor : way->multiplied) factor = unit_factor(factor);
        const auto& both = way->multiplied;
        if (!both[0].defined() || !both[1].defined() || both[0].type() != both[1].type()) continue;
        if (way->terms * bytes_of(both[0].as<Cast>()->a.type()) % bytes_of_step == 0) return way;
    }
    return {};
}

double cycles_of(const RegisterProduct& product, const Target& target) {
    return std::visit([&](const auto& tiles) { return predicted_cycles(tiles, product.shape, target); },
                      best_tiling(product.shape, target));
}

class BlockSums {
public:
    BlockSums(const std::vector<Tensor>& outputs, const Target& target)
        : given_(outputs), target_(target), names_(outputs) {}

    Redeclared run() {
        for (const auto& operation : operations_of(given_)) {
            if (operation->is_input() || operation->outputs.size() != 1 || operation->axes.size() < 2) continue;
            const Tensor given(operation, 0);
            if (const Tensor found = by_blocks(given); found.defined()) whole_.put(given, found);
        }
        for (const Tensor& output : given_) result_.outputs.push_back(whole_.of(output));
        return std::move(result_);
    }

private:
    /// With sums of blocks as a tensor; undefined if it has none, or such a tensor already.
    Tensor by_blocks(const Tensor& given) {
        const Tensor tensor = whole_.of(given);
        const Expr outer = outer_reduction(body_of(tensor));
        if (!outer.defined() || !is_sum(*outer.as<Reduce>()) || outer.type() != f32 || has_block_sums(given)) return {};
        SummedFactors sum{{}, outer.as<Reduce>()->axes};
        add_factors(with_sums_of_stages(tensor, outer.as<Reduce>()->values[0]), sum);
        const auto product = block_product(sum);
        if (!product) return {};
        const Tensor sums = sums_of_blocks(tensor, *product);
        if (!unit_product(sums)) return {};
        Tensor found = scaled_sum(tensor, sums, *product, outer);
        const auto in_registers = register_product(sums, {found});
        if (!in_registers || !can_be_built(*in_registers, target_)) return {};
        result_.notes.push_back(
            fmt::format("'{}': sums of {} terms each, which '{}' multiplies by what belongs to them", sums.name(),
                        product->terms, tensor.name()));
        return with_turned_scales(found, *in_registers);
    }

    bool has_block_sums(const Tensor& given) const {
        bool found = false;
        visit(body_of(given), [&](const Expr& e) {
            const Read* read = e.as<Read>();
            if (!read || read->operation->is_input()) return;
            const auto product = register_product({read->operation, read->output}, given_);
            found = found || (product && product->product.c.same(given));
        });
        return found;
    }

    /// The term with elements that are inlined, and with sums of others which this tensor alone reads.
    Expr with_sums_of_stages(const Tensor& tensor, const Expr& term) const {
        return transform(with_elements(term, given_, false), [&](const Expr& e) -> Expr {
            const Read* read = e.as<Read>();
            if (!read || read->operation->is_input() || read->operation->outputs.size() != 1 || read->guarded)
                return {};
            const Tensor stage(read->operation, 0);
            const Expr& body = body_of(stage);
            if (!body.as<Reduce>() || !is_alone_in_reading(tensor, stage)) return {};
            return over(read->operation->axes, with_elements(body, given_, false), read->indices);
        });
    }
    bool is_alone_in_reading(const Tensor& tensor, const Tensor& stage) const {
        if (std::ranges::any_of(given_, [&](const Tensor& each) { return each.same(stage); })) return false;
        for (const auto& operation : operations_of(given_))
            for (const Operation::Output& output : operation->outputs)
                if (output.body.defined() && operation->name != tensor.name() &&
                    reads_of(stage, *operation, output.body).any)
                    return false;
        return true;
    }

    Tensor sums_of_blocks(const Tensor& tensor, const BlockProduct& product) {
        const std::vector<Expr>& axes = tensor.operation()->axes;
        Shape shape{product.blocks};
        for (const Expr& extent : tensor.shape()) shape.emplace_back(extent);
        const Axis inside = reduce_axis("inside", product.terms);
        const Expr term = product.multiplied[0] * product.multiplied[1];
        return compute(
            names_.take(tensor.name() + "_product"), shape,
            [&](const std::vector<Expr>& at) {
                const Expr place = product.block.defined() ? Expr(inside) : at[0] * product.terms + inside;
                Substitution to_block{{product.inside, place}};
                if (product.block.defined()) to_block.emplace_back(product.block, at[0]);
                return sum(over(axes, substitute(term, to_block), {at.begin() + 1, at.end()}), inside);
            },
            tensor.operation()->where);
    }

    static Tensor scaled_sum(const Tensor& tensor, const Tensor& sums, const BlockProduct& product, const Expr& outer) {
        const Axis part = reduce_axis("part", product.blocks);
        auto of_block = [&](const Expr& e) -> Expr {
            if (product.block.defined()) return e.same(product.block) ? Expr(part) : Expr();
            const Binary* block = e.as<Binary>();
            if (!block || block->op != BinaryOp::Div || !block->a.same(product.inside)) return {};
            const int64_t blocks = require_constant(block->b) / product.terms;
            return blocks == 1 ? Expr(part) : part / blocks;
        };
        Expr scale;
        for (const Expr& each : product.scales) {
            const Expr own = transform(each, of_block);
            scale = scale.defined() ? scale * own : own;
        }
        std::vector<Operand> at{part};
        for (const Expr& axis : tensor.operation()->axes) at.emplace_back(axis);
        const Expr matrix = sums.read(at);
        const Expr scaled = sum((matrix.type() == f32 ? matrix : cast(f32, matrix)) * scale, part);
        return declared_as(
            tensor, transform(body_of(tensor), [&](const Expr& e) { return equal(e, outer) ? scaled : Expr(); }));
    }

    /// Scales by boxes take 4 % less of the time (on an H200), and a copy its own.
    Tensor with_turned_scales(const Tensor& tensor, const RegisterProduct& product) {
        constexpr double saved = 0.04;
        const std::vector<Expr>& axes = tensor.operation()->axes;
        const double most = saved * cycles_of(product, target_);
        if (!takes_warpgroups(product.shape, target_)) return tensor;
        const Expr body = transform(body_of(tensor), [&](const Expr& e) -> Expr {
            const Read* read = e.as<Read>();
            if (!read || read->indices.size() != 2 || read->guarded || e.type() != f32) return {};
            const bool lies_across =
                std::any_of(axes.end() - 2, axes.end(), [&](const Expr& axis) { return axis.same(read->indices[0]); });
            const Tensor scales(read->operation, read->output);
            const auto rows = as_constant(scales.shape()[0]), blocks = as_constant(scales.shape()[1]);
            if (!lies_across || !rows || !blocks || *rows * bytes_of(f32) % piece_bytes != 0) return {};
            if (copied_cycles(as_double(*rows * *blocks * bytes_of(f32))) > most) return {};
            return turned(scales).read({read->indices[1], read->indices[0]});
        });
        return declared_as(tensor, body);
    }
    Tensor turned(const Tensor& scales) {
        for (const auto& [given, copy] : turned_)
            if (given.same(scales)) return copy;
        result_.notes.push_back(fmt::format("'{}' is copied, with what boxes bring side by side", scales.name()));
        const Tensor copy = compute(names_.take(scales.name() + "_turned"), {scales.shape()[1], scales.shape()[0]},
                                    [&](Expr block, Expr row) { return scales(row, block); });
        turned_.emplace_back(scales, copy);
        return copy;
    }

    const std::vector<Tensor>& given_;
    const Target& target_;
    FreeNames names_;
    std::vector<std::pair<Tensor, Tensor>> turned_;
    Replacement whole_;
    Redeclared result_;
};

}  // namespace

Redeclared scaled_blocks(const std::vector<Tensor>& outputs, const Target& target) {
    return BlockSums(outputs, target).run();
}

}  // namespace tw::schedules
