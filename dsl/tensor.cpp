#include "dsl/tensor.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "dsl/check_body.h"
#include "dsl/check_sizes.h"
#include "dsl/deep.h"
#include "dsl/distinct_names.h"
#include "dsl/simplify.h"
#include "support/error.h"

namespace tw {
namespace {

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

/// Of a reduction's axis also the element may decide.
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

/// The largest value of an index expression, as an expression of sizes: each axis at its end by the sign of its
/// coefficient. Exact for affine indices; non-affine parts keep their own bounds.
Expr extreme_of(const Expr& index, bool largest) { return at_ends(at_ends(index, largest, true), largest, false); }

bool reads_memory(const Expr& expr) {
    bool found = false;
    visit(expr, [&](const Expr& e) { found = found || e.as<Read>() || e.as<Cast>(); });
    return found;
}

/// Also what decides how long reductions are.
void visit_with_extents(const Expr& root, const std::function<void(const Expr&)>& see) {
    visit(root, [&](const Expr& e) {
        see(e);
        auto* reduce = e.as<Reduce>();
        if (!reduce) return;
        for (const Expr& axis : reduce->axes)
            if (axis.as<Variable>()->extent.defined()) visit_with_extents(axis.as<Variable>()->extent, see);
    });
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

Value lowest_of(Type type) {
    if (is_float(type)) return make_value(type, -std::numeric_limits<double>::infinity());
    switch (type) {
        case Type::I32: return make_value(type, int64_t{std::numeric_limits<int32_t>::min()});
        case Type::I64: return make_value(type, std::numeric_limits<int64_t>::min());
        default: return make_value(type, int64_t{0});
    }
}

Value highest_of(Type type) {
    if (is_float(type)) return make_value(type, std::numeric_limits<double>::infinity());
    switch (type) {
        case Type::I32: return make_value(type, int64_t{std::numeric_limits<int32_t>::max()});
        case Type::I64: return make_value(type, std::numeric_limits<int64_t>::max());
        case Type::U32: return make_value(type, int64_t{std::numeric_limits<uint32_t>::max()});
        default: return make_value(type, int64_t{1});
    }
}

Value number(Type type, int64_t value) {
    return is_float(type) ? make_value(type, static_cast<double>(value)) : make_value(type, value);
}

Expr reduce_with(const char* name, BinaryOp op, Value (*identity)(Type), const Operand& value,
                 const std::vector<Axis>& axes) {
    Type type = value.expr.type();
    user_check(type != Type::Bool && !info(type).is_storage_only, value.where,
               "{}: cannot accumulate in {}; cast the value first, e.g. cast(f32, x)", name, name_of(type));
    Reducer reducer =
        make_reducer(name, {constant(identity(type))}, [&](const std::vector<Expr>& a, const std::vector<Expr>& b) {
            return std::vector<Expr>{binary(op, a[0], b[0])};
        });
    return reduce(reducer, {value}, axes, value.where)[0];
}

}  // namespace

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

Tensor input(const std::string& name, Type type, const Shape& shape, const Shape& strides, std::source_location where) {
    auto operation = std::make_shared<Operation>();
    operation->name = name;
    operation->shape = exprs_of(shape);
    operation->outputs = {{type, {}}};
    operation->strides = exprs_of(strides);
    operation->where = where;
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

Expr sum(const Operand& value, const std::vector<Axis>& axes) {
    return reduce_with(
        "sum", BinaryOp::Add, [](Type t) { return number(t, 0); }, value, axes);
}
Expr prod(const Operand& value, const std::vector<Axis>& axes) {
    return reduce_with(
        "prod", BinaryOp::Mul, [](Type t) { return number(t, 1); }, value, axes);
}
Expr reduce_max(const Operand& value, const std::vector<Axis>& axes) {
    return reduce_with("max", BinaryOp::Max, lowest_of, value, axes);
}
Expr reduce_min(const Operand& value, const std::vector<Axis>& axes) {
    return reduce_with("min", BinaryOp::Min, highest_of, value, axes);
}
Expr sum(const Operand& value, const Axis& axis) { return sum(value, std::vector<Axis>{axis}); }
Expr prod(const Operand& value, const Axis& axis) { return prod(value, std::vector<Axis>{axis}); }
Expr reduce_max(const Operand& value, const Axis& axis) { return reduce_max(value, std::vector<Axis>{axis}); }
Expr reduce_min(const Operand& value, const Axis& axis) { return reduce_min(value, std::vector<Axis>{axis}); }

Reducer make_reducer(const std::string& name, const std::vector<Expr>& identity, const CombineTerms& combine,
                     bool commutative, std::source_location where) {
    auto reducer = std::make_shared<ReducerNode>();
    reducer->name = name;
    reducer->identity = identity;
    reducer->commutative = commutative;
    user_check(!identity.empty(), where, "reducer '{}': needs at least one component", name);
    for (size_t c = 0; c < identity.size(); ++c) {
        Type type = identity[c].type(where);
        user_check(identity[c].as<IntConstant>() || identity[c].as<FloatConstant>(), where,
                   "reducer '{}': identity {} must be a constant", name, c);
        for (auto* side : {&reducer->left, &reducer->right}) {
            Variable operand{.name = fmt::format("{}{}", side == &reducer->left ? "a" : "b", c),
                             .kind = VariableKind::Operand};
            side->push_back(make_expr(type, operand));
        }
    }
    user_check(combine != nullptr, where, "reducer '{}': combine is no function", name);
    reducer->combined = combine(reducer->left, reducer->right);
    user_check(reducer->combined.size() == identity.size(), where,
               "reducer '{}': combine returns {} components, the identity has {}", name, reducer->combined.size(),
               identity.size());
    std::vector<Expr> operands = reducer->left;
    operands.insert(operands.end(), reducer->right.begin(), reducer->right.end());
    for (const Expr& combined : reducer->combined) {
        user_check(combined.defined(), where, "reducer '{}': combine returns an undefined expression", name);
        check_combination(name, combined, operands, where);
    }
    for (size_t c = 0; c < identity.size(); ++c)
        user_check(reducer->combined[c].type() == identity[c].type(), where,
                   "reducer '{}': combine's component {} is {}, its identity {}", name, c,
                   name_of(reducer->combined[c].type()), name_of(identity[c].type()));
    return reducer;
}

std::vector<Expr> reduce(const Reducer& reducer, const std::vector<Operand>& values, const std::vector<Axis>& axes,
                         std::source_location where) {
    user_check(reducer != nullptr, where, "reduce: the reducer is undefined; make one with make_reducer()");
    user_check(values.size() == reducer->identity.size(), where, "reduce with '{}': {} values for {} components",
               reducer->name, values.size(), reducer->identity.size());
    user_check(!axes.empty(), where, "reduce with '{}': needs at least one reduce_axis", reducer->name);
    Reduce node{reducer, {}, {}, 0, where};
    for (size_t c = 0; c < values.size(); ++c) {
        Expr value = values[c].expr;
        user_check(value.type() == reducer->identity[c].type(), where,
                   "reduce with '{}': value {} is {}, the component {}; cast it", reducer->name, c,
                   name_of(value.type()), name_of(reducer->identity[c].type()));
        node.values.push_back(value);
    }
    for (const Axis& axis : axes)
        user_check(axis.variable.defined(), where, "reduce with '{}': an axis is undefined; make it with reduce_axis()",
                   reducer->name);
    for (const Axis& axis : axes) {
        const bool is_twice = std::count_if(axes.begin(), axes.end(),
                                            [&](const Axis& other) { return other.variable.same(axis.variable); }) > 1;
        user_check(!is_twice, where, "reduce with '{}': axis '{}' is given twice; each axis is one loop", reducer->name,
                   to_string(axis.variable));
        for (const Axis& other : axes)
            user_check(
                !contains(axis.extent, other.variable), where,
                "reduce with '{}': axis '{}' decides how long axis '{}' is; reduce over '{}' in a reduction inside",
                reducer->name, to_string(other.variable), to_string(axis.variable), to_string(axis.variable));
        node.axes.push_back(axis.variable);
    }
    std::vector<Expr> components;
    for (size_t c = 0; c < values.size(); ++c) {
        node.component = static_cast<int>(c);
        components.push_back(make_expr(reducer->identity[c].type(), node));
    }
    return components;
}

std::vector<Expr> argmax(const Operand& value, const Axis& axis) {
    Type type = value.expr.type();
    user_check(type != Type::Bool && !info(type).is_storage_only, value.where,
               "argmax: cannot compare {}; cast the value first, e.g. cast(f32, x)", name_of(type));
    Expr none = constant(Type::I64, std::numeric_limits<int64_t>::max());
    Reducer reducer = make_reducer("argmax", {constant(lowest_of(type)), none},
                                   [](const std::vector<Expr>& a, const std::vector<Expr>& b) {
                                       // Not so of a NaN in b; a is never one, as totals start from the identity.
                                       Expr better = b[0] > a[0] || (b[0] == a[0] && b[1] < a[1]);
                                       return std::vector<Expr>{select(better, b[0], a[0]), select(better, b[1], a[1])};
                                   });
    return reduce(reducer, {value, Operand(axis.variable, value.where)}, {axis}, value.where);
}

std::vector<Expr> welford(const Operand& value, const std::vector<Axis>& axes) {
    Type type = value.expr.type();
    user_check(type == Type::F32 || type == Type::F64, value.where,
               "welford: takes f32 or f64, not {}; cast the value first, e.g. cast(f32, x)", name_of(type));
    Expr zero = constant(type, 0.0), one = constant(type, 1.0);
    Reducer reducer =
        make_reducer("welford", {zero, zero, zero}, [&](const std::vector<Expr>& a, const std::vector<Expr>& b) {
            Expr count = a[2] + b[2], delta = b[0] - a[0];
            Expr share = select(count == zero, zero, b[2] / count);
            return std::vector<Expr>{a[0] + delta * share, a[1] + b[1] + delta * delta * a[2] * share, count};
        });
    return reduce(reducer, {value, Operand(zero), Operand(one)}, axes, value.where);
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

namespace {

struct Formula {
    std::vector<std::string> operands;
    std::string result;
};

Formula parse_formula(const std::string& formula, std::source_location where) {
    size_t arrow = formula.find("->");
    user_check(arrow != std::string::npos, where, "einsum \"{}\": needs an arrow, as in \"ik,kj->ij\"", formula);
    Formula parsed{{}, formula.substr(arrow + 2)};
    std::string left = formula.substr(0, arrow), part;
    for (char c : left + ",") {
        if (c != ',')
            part += c;
        else
            parsed.operands.push_back(std::exchange(part, ""));
    }
    return parsed;
}

}  // namespace

Tensor einsum(const std::string& name, const std::string& formula, const std::vector<Tensor>& operands,
              std::source_location where) {
    Formula parsed = parse_formula(formula, where);
    user_check(parsed.operands.size() == operands.size(), where, "einsum \"{}\": {} operands in the formula, {} given",
               formula, parsed.operands.size(), operands.size());
    std::map<char, Expr> extents;
    for (const Tensor& operand : operands)
        user_check(operand.defined(), where, "einsum \"{}\": an operand is an undefined tensor", formula);
    for (size_t o = 0; o < operands.size(); ++o) {
        const std::string& letters = parsed.operands[o];
        user_check(static_cast<int>(letters.size()) == operands[o].rank(), where,
                   "einsum \"{}\": '{}' names {} dimensions, but '{}' is {}", formula, letters, letters.size(),
                   operands[o].name(), shape_text(operands[o].shape()));
        for (size_t d = 0; d < letters.size(); ++d) {
            auto [entry, fresh] = extents.emplace(letters[d], operands[o].shape()[d]);
            user_check(fresh || equal(entry->second, operands[o].shape()[d]), where,
                       "einsum \"{}\": '{}' is {} elsewhere, but {} in '{}' {}", formula, letters[d],
                       to_string(entry->second), to_string(operands[o].shape()[d]), operands[o].name(),
                       shape_text(operands[o].shape()));
        }
    }
    Shape shape;
    for (char letter : parsed.result) {
        user_check(extents.count(letter), where, "einsum \"{}\": no operand has the letter '{}' of the result", formula,
                   letter);
        user_check(std::count(parsed.result.begin(), parsed.result.end(), letter) == 1, where,
                   "einsum \"{}\": the result has the letter '{}' more than once; give each dimension a letter of its "
                   "own, and use compute() with a select for a diagonal",
                   formula, letter);
        shape.push_back(extents.at(letter));
    }
    std::vector<Axis> reduced;
    std::map<char, Expr> index;
    for (const auto& [letter, extent] : extents) {
        if (parsed.result.find(letter) != std::string::npos) continue;
        reduced.push_back(reduce_axis(std::string(1, letter), extent, where));
        index[letter] = reduced.back().variable;
    }
    return compute(
        name, shape,
        [&](const std::vector<Expr>& axes) {
            for (size_t d = 0; d < parsed.result.size(); ++d) index[parsed.result[d]] = axes[d];
            Expr product;
            for (size_t o = 0; o < operands.size(); ++o) {
                std::vector<Operand> indices;
                for (char letter : parsed.operands[o]) indices.emplace_back(index.at(letter), where);
                Expr factor = operands[o].read(indices, where);
                if (info(factor.type()).is_storage_only) factor = cast(Type::F32, Operand(factor, where));
                product = product.defined() ? Operand(product, where) * Operand(factor, where) : factor;
            }
            return reduced.empty() ? product : sum(Operand(product, where), reduced);
        },
        where);
}

std::vector<std::shared_ptr<const Operation>> operations_of(const std::vector<Tensor>& outputs) {
    std::vector<std::shared_ptr<const Operation>> order;
    std::set<const Operation*> seen;
    std::function<void(const std::shared_ptr<const Operation>&)> add = [&](const auto& operation) {
        if (!seen.insert(operation.get()).second) return;
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
