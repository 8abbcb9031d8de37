// Expressions: immutable trees behind the handle `Expr`. All nodes stand on this page.
#pragma once
#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <variant>
#include <vector>

#include "dsl/type.h"

namespace tw {

struct ExprNode;
struct Operation;    // a tensor's definition: tensor.h
struct BufferNode;   // a piece of memory: tree.h
struct ReducerNode;  // a monoid: tensor.h

/// A handle to an immutable expression. Two handles are `same` if they denote the same node.
class Expr {
public:
    Expr() = default;
    /// Literals: integers are i64 (bool: bool), reals f32, until an operator gives them the other operand's type.
    template <std::integral T>
    Expr(T value) : Expr(literal(static_cast<int64_t>(value), std::same_as<T, bool>)) {}
    Expr(double value);
    explicit Expr(std::shared_ptr<const ExprNode> node) : node_(std::move(node)) {}

    bool defined() const { return node_ != nullptr; }
    const ExprNode& operator*() const { return *node_; }
    const ExprNode* id() const { return node_.get(); }
    bool same(const Expr& other) const { return node_ == other.node_; }
    /// The node as a T, or nullptr.
    template <class T>
    const T* as() const;
    /// Throws Error if undefined.
    Type type(std::source_location where = std::source_location::current()) const;

private:
    static Expr literal(int64_t value, bool is_bool);

    std::shared_ptr<const ExprNode> node_;
};

enum class VariableKind {
    Index,   ///< a loop or an axis
    Size,    ///< a named size: a kernel argument of type i64
    Scalar,  ///< a scalar parameter (alpha)
    Operand  ///< what a reducer combines
};

enum class UnaryOp {
    Negate,
    Not,
    Abs,
    Floor,
    Ceil,
    Round,
    TruncateTf32,
    Sqrt,
    Rsqrt,
    Exp,
    Exp2,
    Log,
    Log2,
    Tanh,
    TanhApprox,
    Erf,
    Sigmoid,
    // What passes make of these for the GPU, of f32.
    ErfUnbranched,   ///< the same bit for bit, without a branch
    NormalCdf,       ///< (1 + erf(x / sqrt(2))) / 2, to the error of that sum
    ExpNonpositive,  ///< exp(x), x being no more than 0; 0 in the place of subnormal numbers
    Logistic2        ///< 1 / (1 + 2^x)
};
/// Div and Mod of integers round toward minus infinity; Mod has the sign of the divisor. From BitAnd on: of u32.
enum class BinaryOp {
    Add,
    Sub,
    Mul,
    Div,
    Mod,
    Min,
    Max,
    Less,
    LessEqual,
    Equal,
    NotEqual,
    And,
    Or,
    DivShared,  ///< Div of f32 by what many elements are divided by; kernels have it
    BitAnd,
    BitOr,
    BitXor,
    ShiftLeft,
    ShiftRight,
    MulHigh
};
inline bool is_of_bits(BinaryOp op) { return op >= BinaryOp::BitAnd; }

struct IntConstant {
    int64_t value;
};
struct FloatConstant {
    double value;
};
/// Identity is the node itself. Bounds are inclusive and hold for sizes and for indices alike.
struct Variable {
    std::string name;
    VariableKind kind = VariableKind::Index;
    std::optional<int64_t> min = {}, max = {};
    int64_t multiple_of = 1;
    Expr extent = {};  ///< an index has one when it is known: 0 <= value < extent, also where that is no constant
};
struct Unary {
    UnaryOp op;
    Expr a;
};
struct Binary {
    BinaryOp op;
    Expr a, b;
};
/// a * b + c, rounded once.
struct Fma {
    Expr a, b, c;
};
/// Only the chosen side is evaluated.
struct Select {
    Expr condition, yes, no;
};
struct Cast {
    Expr a;
};
/// The bits of `a`, taken for those of another type of as many bytes.
struct Bitcast {
    Expr a;
};
/// An element of a tensor. `guarded`: the indices may leave the tensor where an enclosing Select never evaluates it.
struct Read {
    std::shared_ptr<const Operation> operation;
    int output;
    std::vector<Expr> indices;
    bool guarded = false;
};
/// An element of a buffer: what a Read becomes in the schedule tree.
struct Load {
    std::shared_ptr<const BufferNode> buffer;
    std::vector<Expr> indices;
};
/// The value of `a` in the thread of the warp whose lane differs from this one's in `lane_bits`. Codegen makes it.
struct Exchange {
    Expr a;
    int lane_bits;
};
/// Component `component` of a reduction of a tuple of values over axes (Variables).
struct Reduce {
    std::shared_ptr<const ReducerNode> reducer;
    std::vector<Expr> values;
    std::vector<Expr> axes;
    int component;
    std::source_location where;
};

struct ExprNode {
    using Kind = std::variant<IntConstant, FloatConstant, Variable, Unary, Binary, Fma, Select, Cast, Read, Load,
                              Reduce, Exchange, Bitcast>;
    Type type;
    Kind kind;
};

template <class T>
const T* Expr::as() const {
    return node_ ? std::get_if<T>(&node_->kind) : nullptr;
}
[[noreturn]] void refuse_undefined_expr(std::source_location where);
inline Type Expr::type(std::source_location where) const {
    if (!node_) refuse_undefined_expr(where);
    return node_->type;
}

/// A parameter of an operator: an expression, or a literal, and the user's line. Throws Error if undefined.
struct Operand {
    template <class T>
    requires(std::convertible_to<const T&, Expr>)  // an Expr, a literal, an Axis
        Operand(const T& value, std::source_location where = std::source_location::current())
        : expr(value), where(where) {
        if (!expr.defined()) refuse_undefined_expr(where);
    }
    Expr expr;
    std::source_location where;
};

// Construction without checks, for passes.
Expr make_expr(Type type, ExprNode::Kind kind);
Expr constant(Type type, int64_t value);
Expr constant(Type type, double value);
inline Expr constant(Type type, int value) { return constant(type, int64_t{value}); }
/// An i64 constant, as indices and extents are.
inline Expr integer(int64_t value) { return constant(Type::I64, value); }
/// A constant of any type from a scalar.
Expr constant(const Value& value);
/// A fresh index variable with values min..max (inclusive, when known).
Expr index_variable(const std::string& name, std::optional<int64_t> min = {}, std::optional<int64_t> max = {});
Expr unary(UnaryOp op, Expr a);
/// Both sides must have one type; comparisons give bool.
Expr binary(BinaryOp op, Expr a, Expr b);
Expr fma(Expr a, Expr b, Expr c);
Expr select_unchecked(Expr condition, Expr yes, Expr no);
/// The conversion, or the expression itself if it has the type.
Expr cast_unchecked(Type type, Expr a);
Expr all_of(const std::vector<Expr>& conditions);  // true when empty

// What users write. Literals take the other operand's type; i32 meets i64 as i64; other mixtures, and arithmetic on
// storage types, are errors that say which cast is missing.
Expr operator+(const Operand& a, const Operand& b);
Expr operator-(const Operand& a, const Operand& b);
Expr operator*(const Operand& a, const Operand& b);
Expr operator/(const Operand& a, const Operand& b);
Expr operator%(const Operand& a, const Operand& b);
Expr operator-(const Operand& a);
Expr operator<(const Operand& a, const Operand& b);
Expr operator<=(const Operand& a, const Operand& b);
Expr operator>(const Operand& a, const Operand& b);
Expr operator>=(const Operand& a, const Operand& b);
Expr operator==(const Operand& a, const Operand& b);
Expr operator!=(const Operand& a, const Operand& b);
Expr operator&&(const Operand& a, const Operand& b);
Expr operator||(const Operand& a, const Operand& b);
Expr operator!(const Operand& a);
// Bits of u32; other types are cast. A shift by 32 or more gives 0.
Expr operator&(const Operand& a, const Operand& b);
Expr operator|(const Operand& a, const Operand& b);
Expr operator^(const Operand& a, const Operand& b);
Expr operator<<(const Operand& a, const Operand& b);
Expr operator>>(const Operand& a, const Operand& b);
Expr mul_high(const Operand& a, const Operand& b);  ///< the upper 32 of the 64 bits of a product
Expr min(const Operand& a, const Operand& b);       ///< floats: the number if the other is NaN
Expr max(const Operand& a, const Operand& b);       ///< floats: the number if the other is NaN
Expr abs(const Operand& a);
Expr floor(const Operand& a);
Expr ceil(const Operand& a);
Expr round(const Operand& a);  ///< ties to even
Expr sqrt(const Operand& a);
Expr rsqrt(const Operand& a);  ///< 1 / sqrt(a), each rounded
Expr exp(const Operand& a);
Expr exp2(const Operand& a);
Expr log(const Operand& a);
Expr log2(const Operand& a);
Expr tanh(const Operand& a);
/// tanh to a relative 2^-11 in one instruction; of f32.
Expr tanh_approx(const Operand& a);
Expr erf(const Operand& a);
Expr select(const Operand& condition, const Operand& yes, const Operand& no);
Expr cast(Type type, const Operand& a);
/// The number with the bits of `a`, of a type of as many bytes: f32, i32 and u32 among each other, f64 and i64, e4m3,
/// e5m2, i8 and u8, f16 and bf16. Its gradient is zero.
Expr bitcast(Type type, const Operand& a);
/// x rounded to what a float type can hold, kept in its own type: cast(x's type, cast(type, x)).
Expr round_to(Type type, const Operand& x);
/// An f32 without the last 13 bits of its fraction: what a tensor core makes of f32 operands. See tf32 in
/// docs/language.md; round_to(tf32, x) is the nearest such number.
Expr truncate_tf32(const Operand& x);
Expr relu(const Operand& a);
Expr sigmoid(const Operand& a);
Expr gelu(const Operand& a);  ///< x/2 * (1 + erf(x / sqrt 2))
Expr gelu_tanh(
    const Operand& a);  ///< x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))), Hendrycks and Gimpel's other form
Expr silu(const Operand& a);

/// A scalar parameter, given at launch.
Expr scalar(const std::string& name, Type type, std::source_location where = std::source_location::current());
struct SizeBounds {
    int64_t min = 0;
    int64_t max = 0;
    int64_t multiple_of = 1;
};
/// A named size, given at launch; one kernel serves all values within the bounds.
Expr size(const std::string& name, SizeBounds bounds, std::source_location where = std::source_location::current());

// Walking.
/// The node's children, in order; of a Reduce its values: the axes are bound in it.
std::vector<Expr> children(const Expr& expr);
/// The same node with other children; the node itself if none changed.
Expr with_children(const Expr& expr, const std::vector<Expr>& kids);
/// Bottom-up rewriting: `rule` sees each node after its children and returns {} to keep it. Shared nodes once.
Expr transform(const Expr& root, const std::function<Expr(const Expr&)>& rule);
/// The same, also in what decides the extents of reductions.
Expr transform_with_extents(const Expr& root, const std::function<Expr(const Expr&)>& rule);
/// Calls `see` on every node, each shared node once, parents first.
void visit(const Expr& root, const std::function<void(const Expr&)>& see);
/// The same, also in what decides the extents of reductions.
void visit_with_extents(const Expr& root, const std::function<void(const Expr&)>& see);
/// Replaces variables (by identity).
using Substitution = std::vector<std::pair<Expr, Expr>>;
Expr substitute(const Expr& root, const Substitution& replacements);
bool equal(const Expr& a, const Expr& b);  ///< structurally
bool contains(const Expr& root, const Expr& part);
std::vector<Expr> variables_of(const Expr& expr);  ///< each once
bool mentions_index(const Expr& expr);             ///< a loop or an axis
std::optional<int64_t> as_constant(const Expr& expr);
inline bool is_constant(const Expr& expr, int64_t value) { return as_constant(expr) == value; }
/// A constant 0 of any type.
bool is_zero(const Expr& expr);
/// The name of a Variable.
const std::string& name_of(const Expr& variable);
int64_t require_constant(const Expr& expr);  ///< an internal error otherwise

/// The expression as a user would write it, with as few parentheses as the precedence allows.
std::string to_string(const Expr& expr);

inline Value value_of(const IntConstant& c, Type type) { return {type, 0, c.value}; }
inline Value value_of(const FloatConstant& c, Type type) { return {type, c.value, 0}; }

}  // namespace tw
