#include "dsl/tensor.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "dsl/check_body.h"
#include "dsl/check_sizes.h"
#include "dsl/deep.h"
#include "dsl/distinct_names.h"
#include "dsl/extremes.h"
#include "dsl/simplify.h"
#include "support/error.h"

namespace tw {
namespace {

thread_local std::string scope_of_declarations;

std::vector<Expr> exprs_of(const Shape& shape) {
    std::vector<Expr> result;
    for (const Extent& extent : shape) result.push_back(extent.expr.defined() ? simplify(extent.expr) : extent.expr);
    return result;
}

/// Integers and named sizes, none of which is below 0: `what` is "extent" or "stride".
void check_numbers(const std::string& of, const char* what, const std::vector<Expr>& numbers,
                   std::source_location where) {
    for (size_t d = 0; d < numbers.size(); ++d) {
        user_check(numbers[d].defined() && numbers[d].type() == Type::I64, where,
                   "{}: {} {} must be an integer or a size made of tw::size(...)", of, what, d);
        Expr other = part_beyond_sizes(numbers[d]);
        user_check(!other.defined(), where,
                   "{}: {} {} is {}, and '{}' differs from element to element or is no size; {}s are made of integers "
                   "and tw::size(...)",
                   of, what, d, to_string(numbers[d]), to_string(other), what);
        auto bounds = bounds_of(numbers[d]);
        user_check(bounds.min && *bounds.min >= 0, where, "{}: {} {} of {} may be negative; {}s start at 0", of, what,
                   d, shape_text(numbers), what);
        user_check(*bounds.min <= most_iterations, where, "{}: {} {} is {}; the largest is 2^62", of, what, d,
                   to_string(numbers[d]));
    }
}

/// The extent of a reduction's axis may depend on the element too.
void check_axis(const std::string& name, const Expr& extent, std::source_location where) {
    user_check(extent.defined() && extent.type() == Type::I64, where,
               "reduce_axis '{}': the extent must be an integer, a size made of tw::size(...), or what the element "
               "decides",
               name);
    auto bounds = bounds_of(extent);
    user_check(bounds.min && *bounds.min >= 0, where,
               "reduce_axis '{}': the extent {} may be negative; extents start at 0", name, to_string(extent));
    user_check(*bounds.min <= most_iterations, where, "reduce_axis '{}': the extent is {}; the largest is 2^62", name,
               to_string(extent));
}

/// An index variable 0 <= v < extent.
Expr axis_variable(const std::string& name, const Expr& extent) {
    auto bounds = bounds_of(extent);
    Variable variable{.name = name, .min = 0, .extent = extent};
    if (bounds.max) variable.max = std::max<int64_t>(*bounds.max - 1, 0);
    return make_expr(Type::I64, variable);
}

/// The index with axes at their ends, by the sign of their coefficients: those whose ends depend on others, or the
/// others.
Expr at_ends(const Expr& index, bool largest, bool depend) {
    Affine affine = affine_of(index);
    Expr result = constant(Type::I64, affine.offset);
    for (const auto& [atom, coefficient] : affine.terms) {
        Expr value = atom;
        const Variable* variable = atom.as<Variable>();
        if (variable && variable->kind == VariableKind::Index && variable->extent.defined() &&
            mentions_index(variable->extent) == depend) {
            bool at_end = (coefficient > 0) == largest;
            value = at_end ? variable->extent - 1 : constant(Type::I64, int64_t{0});
        }
        result = result + value * constant(Type::I64, coefficient);
    }
    return simplify(result);
}

bool reads_memory(const Expr& expr) {
    bool found = false;
    visit(expr, [&](const Expr& e) { found = found || e.as<Read>() || e.as<Cast>(); });
    return found;
}

/// Whether it is an axis that ends where the dimension does, or before: most are, and the proof is longer.
bool is_axis_within(const Expr& index, const Expr& extent) {
    const Variable* axis = index.as<Variable>();
    if (!axis || axis->kind != VariableKind::Index || !axis->extent.defined() || axis->min != 0) return false;
    const std::optional<int64_t> end = as_constant(axis->extent), most = as_constant(extent);
    return end && most ? *end <= *most : axis->extent.same(extent);
}

/// Reads that may leave their tensor, without padded().
void check_reads(const std::string& name, const Expr& body, std::source_location where) {
    visit_with_extents(body, [&](const Expr& e) {
        const Read* read = e.as<Read>();
        if (!read || read->guarded) return;
        for (size_t d = 0; d < read->indices.size(); ++d) {
            const Expr& index = read->indices[d];
            if (reads_memory(index)) continue;  // a gather: its data decides
            const Expr& extent = read->operation->shape[d];
            if (is_axis_within(index, extent)) continue;
            Expr low = extreme_of(index, false), high = extreme_of(index, true);
            if (reads_memory(low) || reads_memory(high)) continue;
            bool inside = prove(low >= 0).value_or(false) && prove(high < extent).value_or(false);
            bool empty = false;  // an empty iteration space reads nothing
            visit(index, [&](const Expr& part) {
                const Variable* variable = part.as<Variable>();
                if (variable && variable->extent.defined() && is_constant(variable->extent, 0)) empty = true;
            });
            user_check(inside || empty, where,
                       "compute '{}': {}: index {} runs from {} to {}, but '{}' is {}; "
                       "padded({}, value) allows reads outside",
                       name, to_string(e), d, to_string(low), to_string(high), read->operation->name,
                       shape_text(read->operation->shape), read->operation->name);
        }
    });
}

}  // namespace

Expr extreme_of(const Expr& index, bool largest) { return at_ends(at_ends(index, largest, true), largest, false); }

void refuse_undefined_tensor(std::source_location where) {
    user_error(where, "an undefined tensor is used; declare it with input() or compute() first");
}

const Expr infinity = constant(Type::F32, std::numeric_limits<double>::infinity());

Expr Tensor::read(const std::vector<Operand>& indices, std::source_location where) const {
    if (!indices.empty()) where = indices[0].where;
    user_check(defined(), where, "an undefined tensor is read; declare it with input() or compute() first");
    user_check(static_cast<int>(indices.size()) == rank(), where, "'{}' has {} dimensions {}, but {} indices are given",
               name(), rank(), shape_text(shape()), indices.size());
    Read read{operation_, output_, {}};
    for (const Operand& index : indices) {
        user_check(is_integer(index.expr.type()), index.where,
                   "an index of '{}' is {} of type {}; indices are integers: cast(i64, x)", name(),
                   to_string(index.expr), name_of(index.expr.type()));
        read.indices.push_back(cast_unchecked(Type::I64, index.expr));
    }
    return make_expr(type(), std::move(read));
}

Expr Padded::read(const std::vector<Operand>& indices, std::source_location where) const {
    Expr inside = tensor_.read(indices, where);
    Read read = *inside.as<Read>();
    read.guarded = true;
    std::vector<Expr> conditions;
    for (size_t d = 0; d < read.indices.size(); ++d) {
        conditions.push_back(read.indices[d] >= 0);
        conditions.push_back(read.indices[d] < tensor_.shape()[d]);
    }
    Expr guarded = make_expr(tensor_.type(), std::move(read));
    return select_unchecked(simplify(all_of(conditions)), guarded, value_);
}

DeclaredIn::DeclaredIn(std::string scope) : outer_(std::exchange(scope_of_declarations, std::move(scope))) {}

DeclaredIn::~DeclaredIn() { scope_of_declarations = std::move(outer_); }

Tensor input(const std::string& name, Type type, const Shape& shape, const Shape& strides, std::source_location where) {
    auto operation = std::make_shared<Operation>();
    operation->name = name;
    operation->shape = exprs_of(shape);
    operation->outputs = {{type, {}}};
    operation->strides = exprs_of(strides);
    operation->where = where;
    operation->scope = scope_of_declarations;
    check_numbers(fmt::format("input '{}'", name), "extent", operation->shape, where);
    check_numbers(fmt::format("input '{}'", name), "stride", operation->strides, where);
    user_check(strides.empty() || strides.size() == shape.size(), where,
               "input '{}': {} strides for {} dimensions {}; give one stride a dimension, in elements", name,
               strides.size(), shape.size(), shape_text(operation->shape));
    check_bytes(fmt::format("input '{}'", name), operation->shape, operation->strides, type, where);
    return Tensor(operation, 0);
}

Padded padded(const Tensor& tensor, const Operand& value) {
    Type type = tensor.type(value.where);
    Expr padding = value.expr;
    if (auto* number = padding.as<IntConstant>()) {
        const int64_t literal = number->value;
        padding = is_float(type) ? constant(type, static_cast<double>(literal)) : constant(type, literal);
        user_check(is_float(type) || padding.as<IntConstant>()->value == literal, value.where,
                   "padded({}, ...): {} does not hold the literal {}", tensor.name(), name_of(type), literal);
    } else if (auto* real = padding.as<FloatConstant>(); real && is_float(type)) {
        padding = constant(type, real->value);
        user_check(!std::isfinite(real->value) || std::isfinite(padding.as<FloatConstant>()->value), value.where,
                   "padded: the literal {} is beyond the largest {}; write infinity if that is meant", real->value,
                   name_of(type));
    }
    user_check(padding.type() == type, value.where, "padded({}, ...): the padding is {}, the tensor {}; {}",
               tensor.name(), name_of(padding.type()), name_of(type),
               padding.as<FloatConstant>() ? "write a whole number" : "cast it");
    return Padded(tensor, padding);
}

Axis reduce_axis(const std::string& name, const Extent& extent, std::source_location where) {
    Expr simple = extent.expr.defined() ? simplify(extent.expr) : extent.expr;
    if (simple.defined() && is_integer(simple.type()) && reads_memory(simple))
        simple = simplify(max(cast_unchecked(Type::I64, simple), 0));
    check_axis(name, simple, where);
    Axis axis;
    axis.variable = axis_variable(name, simple);
    axis.extent = simple;
    return axis;
}

std::vector<Tensor> compute_tuple(const std::string& name, const Shape& shape, const Body& body,
                                  std::source_location where) {
    return compute_tuple(name, {}, shape, body, where);
}

std::vector<Tensor> compute_tuple(const std::string& name, const std::vector<std::string>& names, const Shape& shape,
                                  const Body& body, std::source_location where) {
    user_check(body != nullptr, where, "compute '{}': the body is no function", name);
    auto operation = std::make_shared<Operation>();
    operation->name = name;
    operation->shape = exprs_of(shape);
    operation->where = where;
    operation->scope = scope_of_declarations;
    check_numbers(fmt::format("compute '{}'", name), "extent", operation->shape, where);
    for (size_t d = 0; d < shape.size(); ++d)
        operation->axes.push_back(axis_variable(axis_name(d), operation->shape[d]));
    std::vector<Expr> bodies = body(operation->axes);
    user_check(!bodies.empty(), where, "compute '{}': the body returns nothing", name);
    user_check(names.empty() || names.size() == bodies.size(), where,
               "compute '{}': {} names for the {} expressions that the body returns; give one each", name, names.size(),
               bodies.size());
    for (const Expr& expr : bodies) {
        user_check(expr.defined(), where, "compute '{}': the body returns an undefined expression", name);
        user_check(
            depth_of(expr) <= deepest_expression, where,
            "compute '{}': the expression is {} operations deep; at most {} are taken: give what they compute in "
            "between a compute() of its own, or write a long sum as a tree",
            name, depth_of(expr), deepest_expression);
    }
    give_distinct_names(operation->axes, bodies, operation->shape);
    for (const Expr& expr : bodies) {
        check_body(name, expr, operation->axes, where);
        check_indices(fmt::format("compute '{}'", name), expr, where);
        check_reads(name, expr, where);
        check_bytes(fmt::format("compute '{}'", name), operation->shape, {}, expr.type(), where);
        size_t output = operation->outputs.size();
        operation->outputs.push_back({expr.type(), expr, names.empty() ? "" : names[output]});
    }
    std::vector<Tensor> tensors;
    for (size_t o = 0; o < bodies.size(); ++o) tensors.emplace_back(operation, static_cast<int>(o));
    return tensors;
}

void detail::check_arity(const std::string& name, size_t rank, size_t parameters, std::source_location where) {
    user_check(rank == parameters, where, "compute '{}': the shape has {} dimensions, the body takes {} indices", name,
               rank, parameters);
}

std::vector<std::shared_ptr<const Operation>> operations_of(
    const std::vector<Tensor>& outputs, const std::function<bool(const std::shared_ptr<const Operation>&)>& is_known) {
    std::vector<std::shared_ptr<const Operation>> order;
    std::set<const Operation*> seen;
    std::function<void(const std::shared_ptr<const Operation>&)> add = [&](const auto& operation) {
        if ((is_known && is_known(operation)) || !seen.insert(operation.get()).second) return;
        for (const auto& output : operation->outputs) {
            if (!output.body.defined()) continue;
            visit_with_extents(output.body, [&](const Expr& e) {
                if (const Read* read = e.as<Read>()) add(read->operation);
            });
        }
        order.push_back(operation);
    };
    for (const Tensor& output : outputs) {
        if (!output.defined())
            throw_error(Error, "one of the outputs is an undefined tensor; declare it with compute() first");
        add(output.operation());
    }
    return order;
}

std::string output_text(const Operation& operation, size_t output) {
    const std::string& own = operation.outputs[output].name;
    if (!own.empty()) return own;
    return operation.outputs.size() > 1 ? fmt::format("{}.{}", operation.name, output) : operation.name;
}

std::string to_string(const Operation& operation) {
    if (operation.is_input())
        return fmt::format("{}: {} {}", operation.name, name_of(operation.outputs[0].type),
                           shape_text(operation.shape));
    std::vector<std::string> axes, lines;
    for (const Expr& axis : operation.axes) axes.push_back(to_string(axis));
    for (size_t o = 0; o < operation.outputs.size(); ++o) {
        lines.push_back(fmt::format("{}[{}] = {}", output_text(operation, o), fmt::join(axes, ", "),
                                    to_string(operation.outputs[o].body)));
    }
    return fmt::format("{}", fmt::join(lines, "\n"));
}

}  // namespace tw
