#include "schedules/choose_windows.h"

#include <algorithm>
#include <numeric>

#include "dsl/simplify.h"
#include "dsl/stage.h"
#include "schedules/unit_product.h"
#include "schedules/whole_tiles.h"
#include "schedules/window_terms.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

constexpr int64_t most_phases = 16;   // of few pixels, each of which has filters of its own
constexpr int64_t least_extent = 16;  // rows or terms of an instruction; less leaves most of it empty

/// A number of elements along the axis of which what they are divided by are divisors; 0: there is none.
int64_t period_of(const std::vector<Expr>& exprs, const Expr& axis) {
    int64_t period = 1;
    for (const Expr& expr : exprs)
        visit(expr, [&](const Expr& e) {
            const Binary* by = e.as<Binary>();
            if (!by || (by->op != BinaryOp::Div && by->op != BinaryOp::Mod) || !contains(by->a, axis)) return;
            const auto divisor = as_constant(by->b);
            period = divisor && *divisor > 0 ? std::lcm(period, *divisor) : 0;
        });
    return period;
}

/// An axis as outer * period + inner; without a period it is either.
struct Digits {
    int64_t extent, period;
    Expr outer, inner;

    Expr whole() const { return period == 1 ? outer : outer * period + inner; }
};

Digits digits_of(const Expr& axis, int64_t extent, int64_t period) {
    if (period <= 1) return {extent, period, axis, axis};
    return {extent, period, index_variable("outer", 0, divided(extent, period) - 1),
            index_variable("inner", 0, period - 1)};
}

/// Of the least such number: of what is divided twice, ((i + 1) / 2 + 1) % 2, it is a multiple of either divisor.
Digits digits_of(const std::vector<Expr>& exprs, const Expr& axis, int64_t extent) {
    constexpr int64_t most = 4;
    const int64_t period = period_of(exprs, axis);
    for (int64_t times = 1; period > 1 && times <= most; ++times) {
        const Digits digits = digits_of(axis, extent, period * times);
        bool begins_again = true;
        for (const Expr& expr : exprs)
            visit(simplify(substitute(expr, {{axis, digits.whole()}})), [&](const Expr& e) {
                const Binary* by = e.as<Binary>();
                const bool divides = by && (by->op == BinaryOp::Div || by->op == BinaryOp::Mod);
                if (divides && contains(e, digits.outer)) begins_again = false;
            });
        if (begins_again) return digits;
    }
    return digits_of(axis, extent, period);
}

/// An operand's indices over the digits of the result's axes.
struct Access {
    Tensor tensor;
    std::vector<Expr> indices;
    bool is_padded = false;  // as the declaration has it: zeros lie around it

    bool depends(const Expr& variable) const {
        return std::ranges::any_of(indices, [&](const Expr& index) { return contains(index, variable); });
    }
    /// Neighbours along the variable are neighbours in memory.
    bool runs_along(const Expr& variable) const { return coefficient(affine_of(indices.back()), variable) == 1; }
    /// Whether bounds leave open that an index is beyond an end.
    bool may_leave() const {
        for (size_t d = 0; d < indices.size(); ++d) {
            const Interval bounds = bounds_of(indices[d]);
            if (bounds.min.value_or(-1) < 0 || bounds.max.value_or(INT64_MAX) >= as_constant(tensor.shape()[d]))
                return true;
        }
        return false;
    }
    /// Of shapes that boxes take.
    bool has_whole_pieces() const {
        const auto extent = as_constant(tensor.shape().back());
        return extent && *extent % piece == 0 &&
               std::ranges::all_of(tensor.shape(), [](const Expr& e) { return as_constant(e).value_or(0) > 0; });
    }
};

struct SummedAxis {
    Expr variable;
    Interval extent;  // constant if both ends are the same
    Expr length;

    int64_t most() const { return extent.max.value_or(0); }
    bool is_constant() const { return extent.min == extent.max; }
    /// Of all places that decide the length.
    double average() const {
        const std::vector<Expr> places = variables_of(length);
        const Interval of_place = places.size() == 1 ? bounds_of(places[0]) : Interval{};
        if (!of_place.min || !of_place.max) return as_double(extent.min.value_or(0) + most()) / 2;
        double total = 0;
        for (int64_t place = *of_place.min; place <= *of_place.max; ++place)
            total += as_double(as_constant(simplify(substitute(length, {{places[0], integer(place)}}))).value_or(0));
        return total / as_double(*of_place.max - *of_place.min + 1);
    }
};

/// Of operands: whole pieces as boxes take them, or any number of elements, along an axis that units take.
enum class Rows { WholePieces, AlongUnits };

class Classifier {
public:
    Classifier(const Tensor& result, const Reduce& sum, const WindowTerm& term, Rows rows)
        : result_(result), rows_(rows) {
        for (const Expr& axis : sum.axes) {
            const Expr& extent = axis.as<Variable>()->extent;
            if (extent.defined()) summed_.push_back({axis, bounds_of(extent), extent});
        }
        is_known_ = summed_.size() == sum.axes.size();
        split_axes(term);
    }

    std::optional<WindowProduct> run() {
        const bool has_scalar = std::ranges::any_of(accesses_, [](const Access& a) { return a.indices.empty(); });
        if (!is_known_ || has_scalar || reads_any(conditions_)) return {};
        for (int turn = 0; turn < 2; ++turn) {
            std::swap(accesses_[0], accesses_[1]);
            const Access &a = accesses_[0], &b = accesses_[1];
            if (rows_ == Rows::WholePieces && (!a.has_whole_pieces() || !b.has_whole_pieces())) return {};
            if (auto found = windows(a, b)) return found;
            if (auto found = sum_of_pixels(a, b)) return found;
        }
        return {};
    }

private:
    static bool reads_any(const std::vector<Expr>& exprs) {
        bool found = false;
        for (const Expr& expr : exprs) visit(expr, [&](const Expr& e) { found = found || e.as<Read>(); });
        return found;
    }

    void split_axes(const WindowTerm& term) {
        std::vector<Expr> exprs = term.conditions;
        for (const Read* read : term.reads) exprs.insert(exprs.end(), read->indices.begin(), read->indices.end());
        for (const SummedAxis& axis : summed_) exprs.push_back(axis.length);
        Substitution digits;
        const auto& axes = result_.operation()->axes;
        for (size_t d = 0; d < axes.size(); ++d) {
            const Digits each = digits_of(exprs, axes[d], as_constant(result_.shape()[d]).value_or(0));
            is_known_ = is_known_ && each.extent > 0 && each.period > 0;
            if (!is_known_) return;
            axes_.push_back(each);
            if (each.period > 1) digits.emplace_back(axes[d], each.whole());
        }
        auto over_digits = [&](const Expr& e) { return simplify(substitute(e, digits)); };
        for (size_t k = 0; k < 2; ++k) {
            const Read& read = *term.reads[k];
            accesses_[k].tensor = Tensor(read.operation, read.output);
            accesses_[k].is_padded = term.padded[k];
            for (const Expr& index : read.indices) accesses_[k].indices.push_back(over_digits(index));
        }
        for (const Expr& condition : term.conditions) conditions_.push_back(over_digits(condition));
        for (SummedAxis& axis : summed_) axis.length = over_digits(axis.length);
    }

    std::vector<Digits> pixels() const { return {axes_.begin(), axes_.end() - 1}; }
    const Digits& columns() const { return axes_.back(); }

    /// result[pixel.., column] = sum windows[pixel and tap.., term] * filters[column, tap.., term], in any layout.
    std::optional<WindowProduct> windows(const Access& windows, const Access& filters) const {
        const Expr& column = columns().inner;
        if (axes_.size() < 2 || windows.depends(column) || !filters.depends(column)) return {};
        WindowProduct found{result_, windows.tensor, filters.tensor};
        ConvolutionForm& form = found.form;
        form.result = result_.type();
        form.extents = {1, columns().extent, 0, 1, 1};
        for (const Digits& pixel : pixels()) {
            const bool own_filters = pixel.extent <= most_phases && filters.depends(pixel.outer),
                       one_period = pixel.period > 1 && pixel.period >= pixel.extent;
            if (own_filters || one_period) {  // few pixels: none has the taps of another
                form.extents.rows *= pixel.extent;
                form.phases.push_back(pixel.extent);
                continue;
            }
            const bool has_own_taps = std::ranges::any_of(
                summed_, [&](const SummedAxis& axis) { return contains(axis.length, pixel.outer); });
            if (!windows.depends(pixel.outer) || filters.depends(pixel.outer) || has_own_taps) return {};
            form.extents.rows *= pixel.extent;
            form.phases.push_back(pixel.period);
        }
        if (columns().period > 1 && !take_groups(columns(), form, form.extents.columns)) return {};
        if (!take_terms(windows, filters, form)) return {};
        const bool along_units =
            filters.runs_along(column) || filters.runs_along(summed_[static_cast<size_t>(form.terms_axis)].variable);
        if (rows_ == Rows::AlongUnits && !along_units) return {};
        form.pads_filters = filters.is_padded && filters.may_leave();
        const bool is_matrix = axes_.size() < 3 || columns().extent < least_extent;
        if (summed_.size() < 2 && !form.has_phases() && is_matrix) return {};
        for (const Expr& condition : conditions_)
            if (contains(condition, column)) return {};
        return found;
    }

    /// The axis along which windows lie in memory: that of terms; all others are taps.
    bool take_terms(const Access& windows, const Access& filters, ConvolutionForm& form) const {
        for (size_t k = 0; k < summed_.size(); ++k) {
            const SummedAxis& axis = summed_[k];
            const bool has_terms = form.extents.terms == 0 && axis.is_constant() && windows.runs_along(axis.variable);
            if (!has_terms) {
                if (contains(windows.indices.back(), axis.variable)) return false;
                form.extents.taps *= axis.average();
                continue;
            }
            form.extents.terms = axis.most();
            form.terms_axis = static_cast<int>(k);
            form.terms_are_neighbours = filters.runs_along(axis.variable);
            if (!filters.depends(axis.variable)) return false;
        }
        const auto along = std::ranges::any_of(
            pixels(), [&](const Digits& pixel) { return contains(windows.indices.back(), pixel.outer); });
        return form.extents.terms > 0 && !along;
    }

    /// Columns or rows of a group have operands of their own.
    static bool take_groups(const Digits& axis, ConvolutionForm& form, int64_t& extent) {
        form.group = extent = axis.period;
        form.extents.products *= axis.extent / axis.period;
        return axis.extent % axis.period == 0;
    }

    /// result[row, tap.., column] = sum a[pixel.., row] * b[pixel and tap.., column], dimensions in any order.
    std::optional<WindowProduct> sum_of_pixels(const Access& a, const Access& b) const {
        const Expr& column = columns().outer;
        if (columns().period > 1 || !b.runs_along(column) || a.depends(column)) return {};
        WindowProduct found{result_, a.tensor, b.tensor};
        ConvolutionForm& form = found.form;
        form.sums_pixels = true;
        form.result = result_.type();
        form.extents = {0, columns().extent, 1, 1, 1};
        for (size_t d = 0; d + 1 < axes_.size(); ++d) {
            const Digits& axis = axes_[d];
            if (form.extents.rows == 0 && a.runs_along(axis.inner) && !b.depends(axis.inner)) {
                form.rows_axis = static_cast<int>(d);
                form.extents.rows = axis.extent;
                if (axis.period > 1 && !take_groups(axis, form, form.extents.rows)) return {};
                continue;
            }
            if (axis.period > 1) return {};
            form.extents.products *= axis.extent;
            if (a.depends(axis.outer))
                form.taps.clear();  // a block sums only those together that do not change rows
            else
                form.taps.push_back(axis.extent);
        }
        if (!has_pixels_of_taps(b)) form.taps.clear();  // they would be a side of its box
        for (const SummedAxis& axis : summed_) {
            const bool is_pixel =
                axis.is_constant() && (axis.most() == 1 || (a.depends(axis.variable) && b.depends(axis.variable)));
            if (!is_pixel || contains(a.indices.back(), axis.variable) || contains(b.indices.back(), axis.variable))
                return {};
            form.extents.terms *= axis.most();
        }
        if (summed_.size() < 2 && axes_.size() < 3) return {};  // a product of matrices
        return found;
    }

    /// Whether the operand is read, along a dimension that taps move, by several pixels.
    bool has_pixels_of_taps(const Access& b) const {
        auto moves = [](const Expr& index, const Expr& variable) { return contains(index, variable); };
        return std::ranges::any_of(b.indices, [&](const Expr& index) {
            const bool has_taps =
                std::ranges::any_of(pixels(), [&](const Digits& axis) { return moves(index, axis.outer); });
            return has_taps && std::ranges::any_of(summed_, [&](const SummedAxis& axis) {
                       return axis.most() > 1 && moves(index, axis.variable);
                   });
        });
    }

    const Tensor result_;
    const Rows rows_;
    bool is_known_ = true;
    std::vector<Digits> axes_;
    std::vector<SummedAxis> summed_;
    std::vector<Expr> conditions_;
    Access accesses_[2];
};

/// Of pixels: of the columns of a result units of tensor cores may well have few.
bool is_worth_units(const ConvolutionForm& form) {
    if (form.sums_pixels) return form.extents.rows >= piece && form.extents.terms >= least_extent;
    int64_t rows = form.extents.rows;
    for (int64_t phase : form.phases) rows = divided(rows, phase);
    return rows >= least_extent && as_double(form.extents.terms) * form.extents.taps >= least_extent;
}

std::optional<WindowProduct> classified(const Tensor& result, const std::vector<Tensor>& outputs, Rows rows) {
    const Operation& operation = *result.operation();
    if (operation.is_input() || operation.outputs.size() != 1 || result.rank() < 2) return {};
    const Reduce* sum = only_reduction(operation.outputs[0].body);
    if (!sum || sum->values.size() != 1 || sum->values[0].type() != f32 ||
        atomic_operation(*sum->reducer) != BinaryOp::Add)
        return {};
    if (sum->axes.size() == 1 && unit_product(result)) return {};  // matrices, one or for each of the dimensions around
    const auto term = term_of(*sum, outputs);
    if (!term) return {};
    return Classifier(result, *sum, *term, rows).run();
}

/// The output that alone reads the tensor, as a copy with its last dimension second.
Tensor turned_reader(const Tensor& tensor, const std::vector<Tensor>& outputs) {
    Tensor found;
    for (const auto& operation : operations_of(outputs))
        for (const Operation::Output& output : operation->outputs) {
            if (!output.body.defined() || !reads_of(tensor, *operation, output.body).any) continue;
            const Read* read = output.body.as<Read>();
            const bool turns =
                read && tensor.rank() > 2 && operation->outputs.size() == 1 &&
                std::ranges::equal(read->indices, with_channels_last(Layout::ChannelsFirst, operation->axes), equal);
            if (found.defined() || !turns) return {};
            found = Tensor(operation, 0);
        }
    const bool is_output =
        std::ranges::any_of(outputs, [&](const Tensor& t) { return found.defined() && t.same(found); });
    return is_output ? found : Tensor();
}

int64_t pixels_of_image(const Tensor& turned) {
    int64_t pixels = 1;
    for (int d = 2; d < turned.rank(); ++d) pixels *= as_constant(turned.shape()[static_cast<size_t>(d)]).value_or(0);
    return pixels;
}

/// Whether boxes of pixels take the result so.
bool may_turn(const ConvolutionForm& form, const Tensor& turned) {
    return !form.sums_pixels && !form.has_phases() && form.group == 0 && bytes_of(turned.type()) == 2 &&
           pixels_of_image(turned) % piece == 0;
}

/// Whether the pixels beyond images' ends, in tiles that end with an image, cost an H200 less than copying the result.
bool pays_turned(const WindowProduct& product, const ConvolutionTiles& tiles) {
    constexpr double sums_a_second = 600e12, bytes_a_second = 2.5e12, launch = 2e-6;
    const ConvolutionExtents& e = product.form.extents;
    const int64_t pixels = pixels_of_image(product.result);
    const double flops = 2 * as_double(e.rows) * as_double(e.columns) * as_double(e.terms) * e.taps,
                 beyond = as_double(rounded_up(pixels, tiles.rows)) / as_double(pixels) - 1,
                 copy = as_double(e.rows) * as_double(e.columns) * 4 / bytes_a_second + launch;
    return beyond * flops / sums_a_second < copy;
}

}  // namespace

std::optional<WindowProduct> window_product(const Tensor& result, const std::vector<Tensor>& outputs) {
    return classified(result, outputs, Rows::WholePieces);
}

std::optional<ConvolutionForm> form_of_windows(const Tensor& sums, const std::vector<Tensor>& outputs) {
    const auto product = classified(sums, outputs, Rows::AlongUnits);
    return product ? std::optional(product->form) : std::nullopt;
}

bool is_made_of_windows(const Tensor& tensor, const std::vector<Tensor>& outputs) {
    const Operation& operation = *tensor.operation();
    if (reduces(operation.outputs[0].body)) return window_product(tensor, outputs).has_value();
    bool any = false;
    visit(with_elements(operation.outputs[0].body, outputs, false), [&](const Expr& e) {
        const Read* read = e.as<Read>();
        if (!read || any || read->operation->is_input() || read->operation->outputs.size() != 1) return;
        any = reduces(read->operation->outputs[0].body) && std::ranges::equal(read->indices, operation.axes, equal) &&
              window_product({read->operation, 0}, outputs).has_value();
    });
    return any;
}

std::vector<WindowProduct> window_products(const Tensor& sums, const std::vector<Tensor>& outputs) {
    const auto alone = window_product(sums, outputs);
    if (!alone || !is_worth_units(alone->form)) return {};
    std::vector<WindowProduct> products{*alone};
    if (const Tensor turned = turned_reader(sums, outputs); turned.defined() && may_turn(alone->form, turned)) {
        products.insert(products.begin(), *alone);
        products[0].result = turned;
        products[0].sums = sums;
        products[0].form.turns_result = true;
        products[0].form.takes_parts = false;
    }
    const Tensor reader = only_reader(sums, outputs);
    if (reader.defined() && !alone->form.sums_pixels && !alone->form.has_phases()) {
        products.insert(products.begin(), *alone);
        products[0].result = reader;
        products[0].sums = sums;
        products[0].form.result = reader.type();
        products[0].form.takes_parts = false;
    }
    return products;
}

std::vector<ConvolutionTiles> tilings_of(const WindowProduct& product, const Target& target) {
    if (!target.has_wgmma || !target.has_tma) return {};
    const auto tiles = convolution_tiles(product.form, target);
    if (!tiles) return {};
    if (product.form.turns_result)
        return pays_turned(product, *tiles) ? std::vector<ConvolutionTiles>{*tiles} : std::vector<ConvolutionTiles>();
    std::vector<ConvolutionTiles> tilings{*tiles};
    if (product.form.sums_pixels && tiles->parts > 1) {  // none of which ends before the others
        const int64_t steps = divided(product.form.extents.terms, tiles->terms);
        ConvolutionTiles even = *tiles;
        while (steps % even.parts != 0) --even.parts;
        if (even.parts < tiles->parts) tilings.push_back(even);
    }
    if (tiles->box_columns > 0 || (!product.form.sums_pixels && tiles->parts > 1)) {
        tilings.push_back(*tiles);
        tilings.back().box_columns = 0, tilings.back().parts = 1;
    }
    return tilings;
}

void schedule_window_product(Schedule& s, const WindowProduct& p, const ConvolutionTiles& tiles,
                             std::source_location where) {
    CalledFrom caller(where);
    if (p.form.sums_pixels)
        schedule_sum_of_pixels(s, p, tiles);
    else
        schedule_windows(s, p, tiles);
}

}  // namespace tw::schedules
