// Reducers, those of users and those that come with the language, and reductions by them.
#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "dsl/check_body.h"
#include "dsl/tensor.h"
#include "support/error.h"

namespace tw {
namespace {

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

}  // namespace tw
