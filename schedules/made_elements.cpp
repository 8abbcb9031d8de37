#include "schedules/made_elements.h"

#include <algorithm>

#include "dsl/simplify.h"
#include "schedules/unit_product.h"
#include "schedules/whole_tiles.h"
#include "schedules/window_terms.h"

namespace tw::schedules {
namespace {

/// What an expression over a tensor's axes reads: one tensor at these, and others at the last.
struct Reads {
    Tensor own;
    std::vector<Tensor> by_column;
};

bool is_like(const Tensor& a, const Tensor& b) {
    return a.type() == b.type() && std::ranges::equal(a.shape(), b.shape(), equal);
}

/// Nothing if it reads anything else.
std::optional<Reads> reads_among(const Expr& expr, const Tensor& tensor) {
    Reads found;
    const auto& axes = tensor.operation()->axes;
    bool only = true;
    visit(expr, [&](const Expr& e) {
        const Read* read = e.as<Read>();
        if (!read || !only) return;
        const Tensor of(read->operation, read->output);
        if (read->indices.size() == 1 && read->indices[0].same(axes.back())) {
            if (std::ranges::none_of(found.by_column, [&](const Tensor& known) { return known.same(of); }))
                found.by_column.push_back(of);
            return;
        }
        only = std::ranges::equal(read->indices, axes, equal) && is_like(of, tensor) &&
               (!found.own.defined() || found.own.same(of));
        found.own = of;
    });
    return only ? std::optional(found) : std::nullopt;
}

/// f32, before it is rounded to the tensor's type.
Expr unrounded(const Tensor& tensor, const Expr& body) {
    const Cast* cast = body.as<Cast>();
    return cast && cast->a.type() == f32 && bytes_of(tensor.type()) == 2 ? cast->a : Expr();
}

/// With `value` in the place of the tensor's element as f32; undefined where others than f32 are made of it.
Expr with_element(const Expr& expr, const Tensor& of, const Expr& value) {
    auto is_it = [&](const Expr& e) {
        const Read* read = e.as<Read>();
        return read && of.defined() && read->operation == of.operation();
    };
    const Expr result = transform(expr, [&](const Expr& e) {
        const Cast* cast = e.as<Cast>();
        return cast && e.type() == f32 && is_it(cast->a) ? value : Expr();
    });
    bool any = false;
    visit(result, [&](const Expr& e) { any = any || is_it(e); });
    return any ? Expr() : result;
}

/// Whether places decide nothing but what is read.
bool is_same_everywhere(const Expr& expr) {
    const Expr rest = transform(expr, [](const Expr& e) -> Expr {
        if (!e.as<Read>()) return {};
        return is_float(e.type()) ? constant(e.type(), 0.0) : constant(e.type(), 0);
    });
    return variables_of(rest).empty();
}

}  // namespace

std::optional<MadeImage> made_image(const Tensor& image, const std::vector<Tensor>& outputs) {
    const Operation& operation = *image.operation();
    const bool is_output = std::ranges::any_of(outputs, [&](const Tensor& t) { return t.same(image); });
    if (operation.is_input() || is_output || operation.outputs.size() != 1 || reduces(operation.outputs[0].body))
        return {};
    const Expr made = unrounded(image, with_elements(operation.outputs[0].body, outputs, false));
    if (!made.defined() || !is_same_everywhere(made)) return {};
    const auto reads = reads_among(made, image);
    if (!reads || !reads->own.defined()) return {};
    const Expr channel = operation.axes.back();
    const Tensor x = reads->own;
    if (!with_element(made, x, constant(f32, 0.0)).defined()) return {};
    auto of = [=](const Expr& value, const Expr& at) {
        return transform(with_element(made, x, value), [&](const Expr& e) {
            const Read* read = e.as<Read>();  // channels behind the last, which fill up a piece, have none
            const bool is_own = read && read->indices.size() == 1 && read->indices[0].same(channel);
            return is_own ? padded(Tensor(read->operation, read->output), 0)(at) : Expr();
        });
    };
    return MadeImage{x, reads->by_column, of};
}

std::optional<MadeResult> made_result(const Tensor& result, const std::vector<Tensor>& outputs) {
    const Operation& operation = *result.operation();
    if (operation.outputs.size() != 1) return {};
    const Expr body = with_elements(operation.outputs[0].body, outputs, false);
    const Expr made = unrounded(result, body);
    if (!made.defined() || !only_reduction(body)) return {};
    const Expr around = with_reduction(made, constant(f32, 0.0));
    const auto reads = reads_among(around, result);
    const Expr column = operation.axes.back();
    if (!reads || !is_same_everywhere(around)) return {};
    if (reads->own.defined() && !with_element(around, reads->own, constant(f32, 0.0)).defined()) return {};
    const Tensor beside = reads->own;
    auto of = [=](const Expr& value, const Expr& at, const Expr& element) {
        // Sums may read the tensor that is beside them as well.
        return with_element(substitute(with_reduction(made, value), {{column, at}}), beside, element);
    };
    return MadeResult{beside, of, !made.as<Reduce>()};
}

double ConvolutionNeighbours::cycles_before() const {
    constexpr double bytes_a_cycle = 1500;
    if (!image) return 0;
    double bytes = 2 * bytes_of(image->x.type());
    for (const Expr& extent : image->x.shape()) bytes *= as_double(*as_constant(extent));
    return bytes / bytes_a_cycle;
}

HaloNeighbours ConvolutionNeighbours::of_halo() const {
    HaloNeighbours halo{.zeros_beside = !sums.empty()};
    if (image) halo.image = image->made, halo.by_channel = image->by_channel;
    if (has_beside())
        halo.beside = result->beside, halo.behind = result->made;
    else if (result->has_more)
        halo.sum = [made = result->made](const Expr& value, const Expr& column) { return made(value, column, {}); };
    return halo;
}

}  // namespace tw::schedules
