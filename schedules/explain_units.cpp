#include "schedules/explain_units.h"

#include <algorithm>

#include <fmt/format.h>

#include "dsl/simplify.h"
#include "dsl/stage.h"
#include "schedules/unit_product.h"
#include "schedules/whole_tiles.h"
#include "schedules/window_terms.h"

namespace tw::schedules {
namespace {

constexpr int64_t least_extent = 16;  // of rows, columns and terms

/// An element as it is multiplied: `type` is that in which it is stored, tf32 of what is truncated.
struct Factor {
    const Read* read;
    Type type;
    Expr on_data = {};  ///< the condition under which it counts that reads data, if there is one
};

struct Factors {
    Factor a, b;
    std::vector<Expr> conditions;  ///< under which it counts
};

bool reads_data(const Expr& expr) {
    bool found = false;
    visit(expr, [&](const Expr& e) { found = found || e.as<Read>(); });
    return found;
}

std::optional<Factor> factor_of(const Expr& given, std::vector<Expr>& conditions) {
    const auto outside = static_cast<std::ptrdiff_t>(conditions.size());
    Expr expr = guarded(given, conditions);
    const Unary* function = expr.as<Unary>();
    const bool truncates = function && function->op == UnaryOp::TruncateTf32;
    if (truncates) expr = guarded(function->a, conditions);
    if (const Cast* cast = expr.as<Cast>()) expr = guarded(cast->a, conditions);
    const Read* read = expr.as<Read>();
    if (!read) return {};
    const auto on_data = std::find_if(conditions.begin() + outside, conditions.end(), reads_data);
    return Factor{read, truncates && expr.type() == f32 ? tf32 : expr.type(),
                  on_data == conditions.end() ? Expr() : *on_data};
}

bool reads_along(const Factor& factor, const Expr& axis) {
    return std::ranges::any_of(factor.read->indices, [&](const Expr& index) { return contains(index, axis); });
}

/// Of a sum of them; the expression holds what it points to.
std::optional<Factors> product_of(const Expr& term) {
    Factors product;
    const Expr value = guarded(term, product.conditions);
    const Binary* times = value.as<Binary>();
    if (!times || times->op != BinaryOp::Mul) return {};
    const auto a = factor_of(times->a, product.conditions), b = factor_of(times->b, product.conditions);
    if (!a || !b || a->read->operation == b->read->operation) return {};
    product.a = *a, product.b = *b;
    return product;
}

/// Whether each has an axis of the result to itself.
bool is_of_matrices(const Factors& product, const std::vector<Expr>& axes) {
    auto has_own = [&](const Factor& one, const Factor& other) {
        return std::ranges::any_of(
            axes, [&](const Expr& axis) { return reads_along(one, axis) && !reads_along(other, axis); });
    };
    return has_own(product.a, product.b) && has_own(product.b, product.a);
}

bool indexes(const Factor& factor, const Expr& index) {
    return std::ranges::any_of(factor.read->indices, [&](const Expr& own) { return equal(own, index); });
}

/// Whether a factor is read at windows: where an axis of the result, which is none of the other's indices, and one of
/// the sum meet.
bool has_windows(const Factor& factor, const Factor& other, const std::vector<Expr>& axes,
                 const std::vector<Expr>& summed) {
    return std::ranges::any_of(factor.read->indices, [&](const Expr& index) {
        auto is_within = [&](const Expr& axis) { return contains(index, axis); };
        return !indexes(other, index) && std::ranges::any_of(summed, is_within) &&
               std::ranges::any_of(axes, [&](const Expr& axis) { return is_within(axis) && !indexes(other, axis); });
    });
}

/// Whether they are windows, and both factors lie along another axis of the result: channels with sums of their own.
bool is_of_channels(const Factors& product, const std::vector<Expr>& axes, const std::vector<Expr>& summed) {
    const auto& [a, b, conditions] = product;
    return (has_windows(a, b, axes, summed) || has_windows(b, a, axes, summed)) &&
           std::ranges::any_of(axes, [&](const Expr& axis) { return indexes(a, axis) && indexes(b, axis); });
}

std::string text_of(const Factor& factor) {
    return fmt::format("'{}' is {}", factor.read->operation->name, name_of(factor.type));
}

std::optional<std::string> because_of_types(const Factors& p, Type sum, bool over_windows) {
    auto multiplies = [&](Type type) {
        const bool halves = type == bf16 || type == f16;
        return halves || (!over_windows && (type == tf32 || type == e4m3 || type == e5m2 || type == i8));
    };
    const std::string both = text_of(p.a) + ", " + text_of(p.b);
    if (!multiplies(p.a.type) || !multiplies(p.b.type))
        return fmt::format("{}; {}", both,
                           over_windows ? "over windows they multiply bf16 and f16: store operands as one of these"
                                        : "they multiply bf16, f16, fp8 and i8, and f32 that is truncated: "
                                          "truncate_tf32(..) of both operands, or store them as one of these");
    if (p.a.type != p.b.type) return both + "; store both as one type";
    const Type wanted = p.a.type == i8 ? i32 : f32;
    if (sum != wanted)
        return fmt::format("products of {} are summed in {}; cast the operands to {}", name_of(p.a.type), name_of(sum),
                           name_of(wanted));
    return {};
}

std::optional<std::string> because_of_sizes(const Tensor& c, const Reduce& sum) {
    for (const Expr& extent : c.shape())
        if (!as_constant(extent))
            return fmt::format(
                "the extent {} of '{}' is a named size; schedules by rule tile constant extents: declare "
                "it for each size, or schedule it by hand",
                to_string(extent), c.name());
    for (const Expr& axis : sum.axes) {
        const Expr& extent = axis.as<Variable>()->extent;
        if (!extent.defined() || (!as_constant(extent) && sum.axes.size() == 1))
            return fmt::format("the sum over {} has no constant length; schedules by rule tile constant ones",
                               to_string(axis));
    }
    return {};
}

/// Of a tensor whose rows boxes bring.
std::optional<std::string> because_of_rows(const Factor& factor) {
    const auto row = as_constant(factor.read->operation->shape.back());
    if (row && *row % piece == 0) return {};
    return fmt::format(
        "rows of '{}' have {} elements, no multiple of {} (16 bytes), as boxes need; fill them up with "
        "zeros",
        factor.read->operation->name, to_string(factor.read->operation->shape.back()), piece);
}

/// Of an operand that a condition on data makes on the way, as the gradient behind a ReLU is: d where y > 0.
std::optional<std::string> because_of_data(const Factor& factor) {
    if (!factor.on_data.defined()) return {};
    std::string decides;
    visit(factor.on_data, [&](const Expr& e) {
        if (const Read* read = e.as<Read>(); read && decides.empty()) decides = read->operation->name;
    });
    return fmt::format(
        "a factor is '{}' only where '{}' has it so, {}, and is made on the way; boxes bring what is stored: declare "
        "the "
        "factor behind the condition as a tensor of its own, cast to {}",
        factor.read->operation->name, decides, to_string(factor.on_data), name_of(factor.type));
}

std::optional<std::string> because_of_gathers(const Factors& p) {
    for (const Factor& factor : {p.a, p.b})
        for (const Expr& index : factor.read->indices) {
            bool gathers = false;
            visit(index, [&](const Expr& e) { gathers = gathers || e.as<Read>(); });
            if (gathers)
                return fmt::format("'{}' is read where data say, {}, and boxes have their places by indices alone",
                                   factor.read->operation->name, to_string(index));
        }
    return {};
}

std::optional<std::string> because_of_windows(const Tensor& c, const Factors& p, const Target& target) {
    if (!target.has_wgmma || !target.has_tma)
        return fmt::format("sums over windows take wgmma and boxes of the tensor memory accelerator, which {} lacks",
                           target.arch);
    for (const Factor& factor : {p.a, p.b})
        if (auto reason = because_of_data(factor)) return reason;
    for (const Factor& factor : {p.a, p.b})
        if (auto reason = because_of_rows(factor)) return reason;
    const Expr& column = c.operation()->axes.back();
    for (const Expr& condition : p.conditions)
        if (contains(condition, column))
            return fmt::format(
                "the condition {} around the product depends on a column, {}, and no copy can take it; "
                "make it a condition of the result, or of an operand that is stored",
                to_string(condition), to_string(column));
    return because_of_gathers(p);
}

}  // namespace

std::optional<std::string> why_without_units(const Tensor& c, const std::vector<Tensor>& outputs, const Target& target,
                                             const std::string& refusal) {
    const Operation& operation = *c.operation();
    if (operation.is_input() || operation.outputs.size() != 1) return {};
    const Reduce* sum = only_reduction(operation.outputs[0].body);
    if (!sum || sum->values.size() != 1 || atomic_operation(*sum->reducer) != BinaryOp::Add) return {};
    const Expr term = with_elements(sum->values[0], outputs, false);
    const auto product = product_of(term);
    if (!product || !is_of_matrices(*product, operation.axes)) return {};
    const bool over_windows = sum->axes.size() > 1 || !product->conditions.empty();
    std::optional<std::string> reason = because_of_types(*product, sum->values[0].type(), over_windows);
    if (!reason) reason = because_of_sizes(c, *sum);
    if (!reason && over_windows) reason = because_of_windows(c, *product, target);
    if (!reason && !refusal.empty())
        reason = fmt::format("none of the tilings that were tried can be built: {}", refusal);
    if (!reason && !over_windows)
        reason = fmt::format(
            "an instruction has {} rows, columns and terms at least, and axes of the result that are "
            "its rows and columns are the last two",
            least_extent);
    if (!reason)
        reason =
            "neither last dimension runs along terms, as those of images and filters whose channels come last do, "
            "or along rows and columns; or there are too few pixels or terms";
    return fmt::format("'{}' is not computed by tensor cores: {}", c.name(), *reason);
}

std::optional<std::string> why_one_by_one(const Tensor& c, const std::vector<Tensor>& outputs, const Target& target) {
    const Operation& operation = *c.operation();
    if (operation.is_input() || operation.outputs.size() != 1) return {};
    const Expr body = with_elements(operation.outputs[0].body, outputs, false);
    const Reduce* sum = only_reduction(body);
    if (!sum || sum->values.size() != 1 || atomic_operation(*sum->reducer) != BinaryOp::Add) return {};
    const auto product = product_of(sum->values[0]);
    if (!product || is_of_matrices(*product, operation.axes) || !is_of_channels(*product, operation.axes, sum->axes))
        return {};
    auto is_taken = [](Type type) { return type == bf16 || type == f16 || type == f32; };
    const Type a = product->a.type, b = product->b.type;
    std::optional<std::string> reason;
    if (!is_taken(a) || a != b)
        reason = fmt::format("{}, {}; it takes two of bf16, of f16 or of f32: store both as one of these",
                             text_of(product->a), text_of(product->b));
    else if (sum->values[0].type() != f32)
        reason = fmt::format("products are summed in {}; cast the operands to f32", name_of(sum->values[0].type()));
    else if (!target.has_tma)
        reason = fmt::format("it takes boxes of the tensor memory accelerator, which {} lacks", target.arch);
    if (!reason) reason = because_of_sizes(c, *sum);
    if (!reason) reason = because_of_gathers(*product);
    if (!reason)
        reason =
            "it takes images [images, height, width, channels] or [images, width, channels] with zeros around, a "
            "filter for each channel, more than one tap, strides and dilations of at most 8, and their gradients as "
            "gradients() derives them";
    return fmt::format("'{}' is no depthwise convolution with windows in registers: {}", c.name(), *reason);
}

}  // namespace tw::schedules
