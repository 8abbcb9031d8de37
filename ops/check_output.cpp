#include <algorithm>
#include <cmath>
#include <random>

#include <fmt/format.h>

#include "ops/check.h"

namespace tw {
namespace {

using Point = std::vector<int64_t>;

std::vector<Point> all_points(const std::vector<int64_t>& shape) {
    std::vector<Point> points;
    Point next(shape.size(), 0);
    do points.push_back(next);
    while (advance(next, shape));
    return points;
}

std::vector<Point> random_points(const std::vector<int64_t>& shape, int64_t count, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<Point> points(static_cast<size_t>(count));
    for (Point& point : points)
        for (int64_t extent : shape) point.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(extent)));
    return points;
}

std::vector<Point> chosen_points(const HostArray& array, int64_t samples, uint64_t seed) {
    if (array.num_elements() == 0) return {};
    return array.num_elements() <= samples ? all_points(array.shape) : random_points(array.shape, samples, seed);
}

int64_t product_of(const std::vector<Expr>& extents) {
    int64_t product = 1;
    for (const Expr& extent : extents) product *= as_constant(extent).value_or(0);
    return product;
}

/// The expression, an element of a computation with these axes, reading less: instead of a computed tensor, one that
/// has only the elements which are read, if those are fewer. `around`: axes of the reductions around.
Expr reading_less(const Expr& e, const std::vector<Expr>& axes, const std::vector<Expr>& shape,
                  const std::vector<Expr>& around) {
    if (const Reduce* reduce = e.as<Reduce>()) {
        std::vector<Expr> inside = around;
        inside.insert(inside.end(), reduce->axes.begin(), reduce->axes.end());
        std::vector<Expr> values;
        for (const Expr& value : reduce->values) values.push_back(reading_less(value, axes, shape, inside));
        return with_children(e, values);
    }
    std::vector<Expr> kids;
    for (const Expr& kid : children(e)) kids.push_back(reading_less(kid, axes, shape, around));
    const Expr same = with_children(e, kids);
    const Read* read = same.as<Read>();
    if (!read || read->operation->is_input()) return same;
    std::vector<Expr> places = axes;
    std::vector<Expr> extents = shape;
    for (const Expr& axis : around) {
        if (std::none_of(kids.begin(), kids.end(), [&](const Expr& index) { return contains(index, axis); }))
            return same;
        places.push_back(axis);
        extents.push_back(axis.as<Variable>()->extent);
    }
    if (product_of(extents) == 0 || product_of(extents) >= product_of(read->operation->shape)) return same;
    const Operation& whole = *read->operation;
    Tensor part =
        compute(whole.name + "_read", Shape(extents.begin(), extents.end()), [&](const std::vector<Expr>& own) {
            Substitution to_own, indices;
            for (size_t p = 0; p < places.size(); ++p) to_own.emplace_back(places[p], own[p]);
            for (size_t d = 0; d < whole.axes.size(); ++d)
                indices.emplace_back(whole.axes[d], substitute(read->indices[d], to_own));
            return reading_less(substitute(whole.outputs[read->output].body, indices), own, extents, {});
        });
    return make_expr(same.type(), Read{part.operation(), 0, places});
}

/// The output at chosen points only: a computation over the points, whose coordinates are inputs.
Tensor at_points(const Tensor& output, const std::vector<Point>& points, Bindings& bindings) {
    const Operation& operation = *output.operation();
    int64_t count = static_cast<int64_t>(points.size());
    std::vector<Tensor> coordinates;
    for (size_t d = 0; d < operation.axes.size(); ++d) {
        std::string name = fmt::format("coordinate{}", d);
        coordinates.push_back(input(name, i64, {count}));
        HostArray values = host_array(i64, {count});
        for (int64_t p = 0; p < count; ++p) values.set({p}, make_value(i64, points[p][d]));
        bindings.inputs[name] = std::move(values);
    }
    return compute("sample", {count}, [&](Expr point) {
        Substitution axes;
        for (size_t d = 0; d < coordinates.size(); ++d) axes.emplace_back(operation.axes[d], coordinates[d](point));
        return reading_less(substitute(operation.outputs[output.output()].body, axes), {point},
                            {constant(Type::I64, count)}, {});
    });
}

double as_double(const Value& value) { return is_float(value.type) ? value.real : static_cast<double>(value.integer); }

/// The largest errors so far. An element whose value is not finite must be what the declaration gives in its own types.
struct Errors {
    double got = 0, plain = 0, largest = 0;

    void add(double value, double expected, double declared) {
        if (!std::isfinite(expected) || !std::isfinite(declared)) {
            bool same = value == declared || (std::isnan(value) && std::isnan(declared));
            if (!same) got = HUGE_VAL;
            return;
        }
        double error = std::abs(value - expected);
        got = std::max(got, std::isnan(error) ? HUGE_VAL : error);
        plain = std::max(plain, std::abs(declared - expected));
        largest = std::max(largest, std::abs(expected));
    }
};

/// A few roundings, relative to the largest element: where the plain computation happens to be exact.
double rounding_allowance(Type type) {
    if (type == Type::F64) return 1e-15;
    return type == Type::F32 ? 2.5e-7 : 0;
}

CheckResult verdict(const Errors& errors, Type type, int64_t elements, const CheckOptions& options) {
    double scale = errors.largest > 0 ? errors.largest : 1;
    CheckResult result;
    result.error = errors.got / scale;
    result.plain_error = errors.plain / scale;
    result.elements = elements;
    double allowed = std::max((options.approximate ? 4 : 1.5) * result.plain_error, rounding_allowance(type));
    for (Type rounded : options.roundings) allowed += unit_roundoff(rounded);
    result.ok = result.error <= allowed;
    result.text = fmt::format("max error {:.2g} against float64 (plain {}: {:.2g}), {} elements: {}", result.error,
                              name_of(type), result.plain_error, elements, result.ok ? "ok" : "WRONG");
    return result;
}

}  // namespace

CheckResult check_output(const Tensor& output, const Bindings& bindings, const HostArray& got,
                         const CheckOptions& options) {
    std::vector<Point> points = chosen_points(got, options.samples, options.seed);
    Bindings sampled = bindings;
    Tensor sample = at_points(output, points, sampled);
    HostArray reference = interpret_plain({sample}, sampled, Precision::Float64)[0];
    HostArray plain = interpret_plain({sample}, sampled)[0];
    Errors errors;
    for (size_t p = 0; p < points.size(); ++p) {
        int64_t at = static_cast<int64_t>(p);
        errors.add(as_double(got.at(points[p])), as_double(reference.at({at})), as_double(plain.at({at})));
    }
    return verdict(errors, got.type, static_cast<int64_t>(points.size()), options);
}

}  // namespace tw
