#include "ops/check.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "dsl/simplify.h"
#include "support/error.h"

namespace tw {
namespace {

std::vector<int64_t> concrete(const std::vector<Expr>& shape, const Bindings& bindings) {
    std::vector<int64_t> extents;
    for (const Expr& extent : shape) {
        Expr value = transform(extent, [&](const Expr& e) -> Expr {
            const Variable* variable = e.as<Variable>();
            return variable ? constant(Type::I64, bindings.sizes.at(variable->name)) : Expr();
        });
        extents.push_back(require_constant(simplify(value)));
    }
    return extents;
}

/// The output at chosen points only: a computation over the points, whose coordinates are inputs.
Tensor at_points(const Tensor& output, const std::vector<std::vector<int64_t>>& points, Bindings& bindings) {
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
        return substitute(operation.outputs[output.output()].body, axes);
    });
}

double as_double(const Value& value) { return is_float(value.type) ? value.real : static_cast<double>(value.integer); }

}  // namespace

Bindings random_bindings(const std::vector<Tensor>& outputs, uint64_t seed) {
    Bindings bindings;
    std::vector<Expr> roots;
    for (const auto& operation : operations_of(outputs)) {
        roots.insert(roots.end(), operation->shape.begin(), operation->shape.end());
        roots.insert(roots.end(), operation->strides.begin(), operation->strides.end());
        for (const auto& output : operation->outputs)
            if (output.body.defined()) roots.push_back(output.body);
    }
    for (const Expr& root : roots)
        visit(root, [&](const Expr& e) {
            const Variable* v = e.as<Variable>();
            if (v && v->kind == VariableKind::Size) bindings.sizes[v->name] = v->max.value_or(1);
            if (v && v->kind == VariableKind::Scalar)
                bindings.scalars[v->name] = is_float(e.type()) ? make_value(e.type(), 0.75) : make_value(e.type(), int64_t{3});
        });
    for (const auto& operation : operations_of(outputs)) {
        if (!operation->is_input()) continue;
        HostArray array = host_array(operation->outputs[0].type, concrete(operation->shape, bindings),
                                     concrete(operation->strides, bindings));
        uint64_t own_seed = seed * 1000003 + bindings.inputs.size();
        if (is_float(array.type)) fill_uniform(array, -1, 1, own_seed);
        else fill_integers(array, 0, array.type == Type::Bool ? 1 : 7, own_seed);
        bindings.inputs[operation->name] = std::move(array);
    }
    return bindings;
}

CheckResult check_output(const Tensor& output, const Bindings& bindings, const HostArray& got, bool approximate,
                         int64_t samples, uint64_t seed) {
    CheckResult result;
    int64_t count = std::min(samples, got.num_elements());
    std::mt19937_64 random(seed);
    std::vector<std::vector<int64_t>> points;
    std::vector<int64_t> next(got.shape.size(), 0);
    for (int64_t p = 0; p < count; ++p) {
        if (count == got.num_elements()) {
            points.push_back(next);
            advance(next, got.shape);
            continue;
        }
        std::vector<int64_t> point;
        for (int64_t extent : got.shape) point.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(extent)));
        points.push_back(point);
    }
    Bindings sampled = bindings;
    Tensor sample = at_points(output, points, sampled);
    HostArray reference = interpret_plain({sample}, sampled, Precision::Float64)[0];
    HostArray plain = interpret_plain({sample}, sampled)[0];
    double largest = 0;
    for (int64_t p = 0; p < count; ++p) {
        double expected = as_double(reference.at({p})), value = as_double(got.at(points[p]));
        double declared = as_double(plain.at({p}));
        bool special = !std::isfinite(expected) || !std::isfinite(declared);
        double difference = special && (value == declared || (std::isnan(value) && std::isnan(declared))) ? 0 : std::abs(value - expected);
        result.error = std::max(result.error, std::isnan(difference) ? HUGE_VAL : difference);
        if (!special) result.plain_error = std::max(result.plain_error, std::abs(declared - expected));
        if (!special) largest = std::max(largest, std::abs(expected));
    }
    result.elements = count;
    if (largest > 0) {
        result.error /= largest;
        result.plain_error /= largest;
    }
    double roundings = got.type == Type::F64 ? 1e-15 : is_float(got.type) && bytes_of(got.type) == 4 ? 2.5e-7 : is_float(got.type) ? 0 : 0;
    result.ok = result.error <= std::max((approximate ? 4 : 1.5) * result.plain_error, roundings);
    result.text = fmt::format("max error {:.2g} against float64 (plain {}: {:.2g}), {} elements: {}", result.error,
                              name_of(got.type), result.plain_error, count, result.ok ? "ok" : "WRONG");
    return result;
}

}  // namespace tw
