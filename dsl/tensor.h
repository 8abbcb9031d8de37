// Tensors: what to compute. A tensor is an input or an output of an operation, declared by expressions over axes.
#pragma once
#include <concepts>
#include <initializer_list>
#include <memory>
#include <source_location>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "dsl/expr.h"

namespace tw {

/// An extent: a constant, or an expression of named sizes.
struct Extent {
    template <std::integral T>
    Extent(T value) : expr(constant(Type::I64, static_cast<int64_t>(value))) {}
    Extent(const Expr& expr) : expr(expr) {}
    Expr expr;
};
using Shape = std::vector<Extent>;

/// A reduction axis. Used inside expressions as its index.
struct Axis {
    Axis() = default;  // no aggregate: in sum(x, {r, k}), the braces are a list of axes
    Expr variable;
    Expr extent;
    operator Expr() const { return variable; }
};

struct GradientRule;  // a derivative of the user's own: differentiate.h
struct OwnSchedule;   // a schedule of the user's own: own_schedule.h

/// Where an operation came from and what it computes.
struct Operation {
    struct Output {
        Type type;
        Expr body;              ///< undefined for inputs
        std::string name = {};  ///< a tuple's output has one if it was given one
    };
    std::string name;
    std::vector<Expr> shape;  ///< extents of all outputs
    std::vector<Expr> axes;   ///< one Variable a dimension; empty for inputs
    std::vector<Output> outputs;
    std::vector<Expr> strides;  ///< inputs: elements between neighbours, a dimension; dense row-major if empty
    std::shared_ptr<const GradientRule> gradient;          ///< nullptr: differentiation derives it
    std::shared_ptr<const OwnSchedule> own_schedule = {};  ///< if it is a result of a part that has one,
    int own_result = 0;                                    ///< and which of them
    std::source_location where;
    std::string scope = {};  ///< what it belongs to, "blocks.3.up"; no part of what it computes, nor of texts of that
    bool is_input() const { return !outputs[0].body.defined(); }
};

/// What this thread declares while it lives, inputs too, belongs to that scope, in place of an outer one's.
class [[nodiscard]] DeclaredIn {
public:
    explicit DeclaredIn(std::string scope);
    ~DeclaredIn();
    DeclaredIn(const DeclaredIn&) = delete;
    DeclaredIn& operator=(const DeclaredIn&) = delete;

private:
    std::string outer_;
};

[[noreturn]] void refuse_undefined_tensor(std::source_location where);

/// A handle to one output of an operation. Indexing gives the element's expression.
class Tensor {
public:
    Tensor() = default;
    Tensor(std::shared_ptr<const Operation> operation, int output)
        : operation_(std::move(operation)), output_(output) {}

    Expr operator()(std::source_location where = std::source_location::current()) const { return read({}, where); }
    Expr operator()(const Operand& a) const { return read({a}); }
    Expr operator()(const Operand& a, const Operand& b) const { return read({a, b}); }
    Expr operator()(const Operand& a, const Operand& b, const Operand& c) const { return read({a, b, c}); }
    Expr operator()(const Operand& a, const Operand& b, const Operand& c, const Operand& d) const {
        return read({a, b, c, d});
    }
    Expr operator()(const Operand& a, const Operand& b, const Operand& c, const Operand& d, const Operand& e) const {
        return read({a, b, c, d, e});
    }
    Expr operator()(const Operand& a, const Operand& b, const Operand& c, const Operand& d, const Operand& e,
                    const Operand& f) const {
        return read({a, b, c, d, e, f});
    }
    /// The element at `indices`, one a dimension, integers within the shape. Throws Error if the number or a type is
    /// wrong, or an index provably may leave the tensor (padded() allows that).
    Expr read(const std::vector<Operand>& indices, std::source_location where = std::source_location::current()) const;

    const std::shared_ptr<const Operation>& operation() const { return operation_; }
    int output() const { return output_; }
    // The functions from here on throw Error if the tensor is undefined.
    const std::string& name(std::source_location where = std::source_location::current()) const {
        const std::string& own = declared(where).outputs[output_].name;
        return own.empty() ? operation_->name : own;
    }
    const std::vector<Expr>& shape(std::source_location where = std::source_location::current()) const {
        return declared(where).shape;
    }
    int rank(std::source_location where = std::source_location::current()) const {
        return static_cast<int>(declared(where).shape.size());
    }
    Type type(std::source_location where = std::source_location::current()) const {
        return declared(where).outputs[output_].type;
    }
    bool defined() const { return operation_ != nullptr; }
    bool same(const Tensor& other) const { return operation_ == other.operation_ && output_ == other.output_; }

private:
    const Operation& declared(std::source_location where) const {
        if (!operation_) refuse_undefined_tensor(where);
        return *operation_;
    }

    std::shared_ptr<const Operation> operation_;
    int output_ = 0;
};

/// A view of a tensor that has `value` everywhere outside.
class Padded {
public:
    Padded(Tensor tensor, Expr value) : tensor_(std::move(tensor)), value_(std::move(value)) {}
    Expr operator()(const Operand& a) const { return read({a}); }
    Expr operator()(const Operand& a, const Operand& b) const { return read({a, b}); }
    Expr operator()(const Operand& a, const Operand& b, const Operand& c) const { return read({a, b, c}); }
    Expr operator()(const Operand& a, const Operand& b, const Operand& c, const Operand& d) const {
        return read({a, b, c, d});
    }
    Expr operator()(const Operand& a, const Operand& b, const Operand& c, const Operand& d, const Operand& e) const {
        return read({a, b, c, d, e});
    }
    Expr operator()(const Operand& a, const Operand& b, const Operand& c, const Operand& d, const Operand& e,
                    const Operand& f) const {
        return read({a, b, c, d, e, f});
    }
    Expr read(const std::vector<Operand>& indices, std::source_location where = std::source_location::current()) const;

private:
    Tensor tensor_;
    Expr value_;
};

/// A tensor given at launch. `strides` are in elements, constants or named sizes; dense row-major if empty.
Tensor input(const std::string& name, Type type, const Shape& shape, const Shape& strides = {},
             std::source_location where = std::source_location::current());

/// Reads outside `tensor` give `value` (of the tensor's type; a literal adapts).
Padded padded(const Tensor& tensor, const Operand& value);

/// An axis to reduce over, 0 <= index < extent. The element may decide, by its place, reduce_axis("r", i + 1), or by
/// data, reduce_axis("r", length(i)), where below 0 is empty.
Axis reduce_axis(const std::string& name, const Extent& extent,
                 std::source_location where = std::source_location::current());

// Reductions. The order of summation over several axes is row-major in the order given, until a schedule changes it.
Expr sum(const Operand& value, const std::vector<Axis>& axes);
Expr sum(const Operand& value, const Axis& axis);
Expr prod(const Operand& value, const std::vector<Axis>& axes);
Expr prod(const Operand& value, const Axis& axis);
Expr reduce_max(const Operand& value, const std::vector<Axis>& axes);
Expr reduce_max(const Operand& value, const Axis& axis);
Expr reduce_min(const Operand& value, const std::vector<Axis>& axes);
Expr reduce_min(const Operand& value, const Axis& axis);

/// A monoid over tuples: `combine(a, b)` must be associative with `identity`; schedules may reorder only if it is also
/// commutative.
struct ReducerNode {
    std::string name;
    std::vector<Expr> identity;     ///< constants, one a component
    std::vector<Expr> left, right;  ///< Variables that stand for the operands
    std::vector<Expr> combined;
    bool commutative = true;
};
using Reducer = std::shared_ptr<const ReducerNode>;
using CombineTerms = std::function<std::vector<Expr>(const std::vector<Expr>& a, const std::vector<Expr>& b)>;
/// A monoid of the user's own, e.g. argmax over (value, index) or Welford over (mean, m2, count).
Reducer make_reducer(const std::string& name, const std::vector<Expr>& identity, const CombineTerms& combine,
                     bool commutative = true, std::source_location where = std::source_location::current());
/// All components of the reduction of a tuple.
std::vector<Expr> reduce(const Reducer& reducer, const std::vector<Operand>& values, const std::vector<Axis>& axes,
                         std::source_location where = std::source_location::current());
/// (value, index as i64): the smallest index among equals, NaN never the largest; no terms: (-infinity, 2^63 - 1).
std::vector<Expr> argmax(const Operand& value, const Axis& axis);
/// (mean, sum of squared deviations, number of terms) by Welford's method (pairwise: Chan, Golub, LeVeque 1983).
std::vector<Expr> welford(const Operand& value, const std::vector<Axis>& axes);

/// -infinity and infinity as f32.
extern const Expr infinity;

using Body = std::function<std::vector<Expr>(const std::vector<Expr>& indices)>;
/// Several tensors of one shape computed together (argmax: value and index). Their buffers are called name_0, name_1
/// and so on, or as `names` says, one for each.
std::vector<Tensor> compute_tuple(const std::string& name, const Shape& shape, const Body& body,
                                  std::source_location where = std::source_location::current());
std::vector<Tensor> compute_tuple(const std::string& name, const std::vector<std::string>& names, const Shape& shape,
                                  const Body& body, std::source_location where = std::source_location::current());

namespace detail {
template <class F>
struct Arity : Arity<decltype(&F::operator())> {};
template <class C, class R, class... A>
struct Arity<R (C::*)(A...) const> {
    static constexpr size_t value = sizeof...(A);
};
template <class F, size_t... I>
auto call(const F& f, const std::vector<Expr>& indices, std::index_sequence<I...>) {
    return f(indices[I]...);
}
void check_arity(const std::string& name, size_t rank, size_t parameters, std::source_location where);
}  // namespace detail

/// The tensor whose element (i, j, ...) is body(i, j, ...).
template <class F>
Tensor compute(const std::string& name, const Shape& shape, const F& body,
               std::source_location where = std::source_location::current()) {
    if constexpr (std::is_invocable_v<F, const std::vector<Expr>&>) {
        return compute_tuple(
            name, shape, [&](const std::vector<Expr>& i) { return std::vector<Expr>{body(i)}; }, where)[0];
    } else {
        constexpr size_t parameters = detail::Arity<F>::value;
        detail::check_arity(name, shape.size(), parameters, where);
        return compute_tuple(
            name, shape,
            [&](const std::vector<Expr>& i) {
                return std::vector<Expr>{detail::call(body, i, std::make_index_sequence<parameters>{})};
            },
            where)[0];
    }
}

/// Einstein summation: einsum("y", "bik,bkj->bij", {x, w}). Letters that the result lacks are summed, in f32 if the
/// operands are of a storage type. Three operands and more are multiplied in pairs, in the order of the fewest
/// multiplications, where that halves those of one sum at least; what a pair makes is a tensor of its own then,
/// NAME_LETTERS, rounded to the operands' type if all are bf16 or all f16. Throws Error on unknown letters or on
/// extents that differ (both shapes are shown).
Tensor einsum(const std::string& name, const std::string& formula, const std::vector<Tensor>& operands,
              std::source_location where = std::source_location::current());

/// Operations that the outputs need, producers first, inputs included; without those that are known, and what only
/// these read.
std::vector<std::shared_ptr<const Operation>> operations_of(
    const std::vector<Tensor>& outputs,
    const std::function<bool(const std::shared_ptr<const Operation>&)>& is_known = {});
/// "c" or, of a tuple's output, its own name or "c.1".
std::string output_text(const Operation& operation, size_t output);
/// "c[i, j] = sum_k a[i, k] * b[k, j]", a line an output.
std::string to_string(const Operation& operation);

}  // namespace tw
