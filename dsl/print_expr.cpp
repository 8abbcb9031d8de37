// Expressions as text, in the user's notation.
#include <cmath>
#include <variant>

#include <fmt/format.h>

#include "dsl/deep.h"
#include "dsl/tensor.h"
#include "dsl/tree.h"
#include "dsl/walk.h"

namespace tw {
namespace {

/// Stronger binding is larger. A sum binds like an addend: "sum_k a * b + c" adds c once.
enum Precedence {
    Lowest,
    OrLevel,
    AndLevel,
    BitOrLevel,
    BitXorLevel,
    BitAndLevel,
    EqualLevel,
    LessLevel,
    ShiftLevel,
    AddLevel,
    ReduceLevel,
    MulLevel,
    UnaryLevel,
    Primary
};

struct Text {
    std::string text;
    Precedence precedence;
};

struct BinaryNotation {
    const char* name;
    Precedence precedence;  // Primary: written as a function
};

BinaryNotation notation_of(BinaryOp op) {
    switch (op) {
        case BinaryOp::Add: return {"+", AddLevel};
        case BinaryOp::Sub: return {"-", AddLevel};
        case BinaryOp::Mul: return {"*", MulLevel};
        case BinaryOp::Div: return {"/", MulLevel};
        case BinaryOp::DivShared: return {"divided", Primary};
        case BinaryOp::Mod: return {"%", MulLevel};
        case BinaryOp::Min: return {"min", Primary};
        case BinaryOp::Max: return {"max", Primary};
        case BinaryOp::Less: return {"<", LessLevel};
        case BinaryOp::LessEqual: return {"<=", LessLevel};
        case BinaryOp::Equal: return {"==", EqualLevel};
        case BinaryOp::NotEqual: return {"!=", EqualLevel};
        case BinaryOp::And: return {"&&", AndLevel};
        case BinaryOp::Or: return {"||", OrLevel};
        case BinaryOp::BitAnd: return {"&", BitAndLevel};
        case BinaryOp::BitOr: return {"|", BitOrLevel};
        case BinaryOp::BitXor: return {"^", BitXorLevel};
        case BinaryOp::ShiftLeft: return {"<<", ShiftLevel};
        case BinaryOp::ShiftRight: return {">>", ShiftLevel};
        case BinaryOp::MulHigh: return {"mul_high", Primary};
    }
    return {"?", Primary};
}

const char* symbol_of(UnaryOp op) {
    switch (op) {
        case UnaryOp::Negate: return "-";
        case UnaryOp::Not: return "!";
        case UnaryOp::Abs: return "abs";
        case UnaryOp::Floor: return "floor";
        case UnaryOp::Ceil: return "ceil";
        case UnaryOp::Round: return "round";
        case UnaryOp::TruncateTf32: return "truncate_tf32";
        case UnaryOp::Sqrt: return "sqrt";
        case UnaryOp::Rsqrt: return "rsqrt";
        case UnaryOp::Exp: return "exp";
        case UnaryOp::Exp2: return "exp2";
        case UnaryOp::Log: return "log";
        case UnaryOp::Log2: return "log2";
        case UnaryOp::Tanh: return "tanh";
        case UnaryOp::TanhApprox: return "tanh_approx";
        case UnaryOp::Erf: return "erf";
        case UnaryOp::Sigmoid: return "sigmoid";
        case UnaryOp::ErfUnbranched: return "erf_unbranched";
        case UnaryOp::NormalCdf: return "normal_cdf";
        case UnaryOp::ExpNonpositive: return "exp_nonpositive";
        case UnaryOp::Logistic2: return "logistic2";
    }
    return "?";
}

std::string real_text(double value, Type type) {
    if (std::isnan(value)) return "nan";
    if (std::isinf(value)) return value > 0 ? "infinity" : "-infinity";
    std::string text = type == Type::F64 ? fmt::format("{}", value) : fmt::format("{}", static_cast<float>(value));
    return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

constexpr int most_nodes = 500;  // of a text; what stands deeper in larger expressions is left out

/// Nodes of the text down to that level, up to `most`.
int nodes_within(const Expr& expr, int levels, int most) {
    int count = 1;
    if (levels > 0)
        for_each_child(*expr, [&](const Expr& kid) {
            if (count < most) count += nodes_within(kid, levels - 1, most - count);
        });
    return count;
}

/// All, or as many as make a text that can be read.
int levels_shown(const Expr& expr) {
    int depth = depth_of(expr), shown = 0;
    while (shown < depth && nodes_within(expr, shown + 1, most_nodes) < most_nodes) ++shown;
    return shown;
}

struct Printer {
    Type type;
    int levels;  // that are shown below the node

    Text print(const Expr& expr) const {
        if (levels == 0 && depth_of(expr) > 1) return {"...", Primary};
        return std::visit(Printer{expr.type(), levels - 1}, (*expr).kind);
    }

    /// The text, in parentheses if it binds weaker than its place asks for.
    std::string at_least(const Expr& expr, Precedence needed) const {
        Text printed = print(expr);
        return printed.precedence < needed ? "(" + printed.text + ")" : printed.text;
    }

    /// The left side: few know how operators of bits bind, so that only a chain of one of them has no parentheses.
    std::string beside_bits(const Expr& expr, BinaryOp op) const {
        auto* node = expr.as<Binary>();
        return at_least(expr, node && node->op == op ? Lowest : UnaryLevel);
    }

    std::string list(const std::vector<Expr>& exprs) const {
        std::string text;
        for (const Expr& expr : exprs) text += (text.empty() ? "" : ", ") + print(expr).text;
        return text;
    }

    Text number(std::string text) const {
        bool negative = text.starts_with('-');
        return {std::move(text), negative ? UnaryLevel : Primary};
    }
    Text operator()(const IntConstant& n) const {
        if (type == Type::Bool) return {n.value ? "true" : "false", Primary};
        return number(fmt::format("{}", n.value));
    }
    Text operator()(const FloatConstant& n) const { return number(real_text(n.value, type)); }
    Text operator()(const Variable& n) const { return {n.name, Primary}; }
    Text operator()(const Unary& n) const {
        bool prefix = n.op == UnaryOp::Negate || n.op == UnaryOp::Not;
        if (!prefix) return {fmt::format("{}({})", symbol_of(n.op), print(n.a).text), Primary};
        return {symbol_of(n.op) + at_least(n.a, Primary), UnaryLevel};
    }
    Text operator()(const Binary& n) const {
        auto [name, level] = notation_of(n.op);
        if (level == Primary) return {fmt::format("{}({}, {})", name, print(n.a).text, print(n.b).text), Primary};
        // The right side of a chain keeps its parentheses, but where no rounding can tell: && and ||.
        Precedence right = level == AndLevel || level == OrLevel ? level : Precedence(level + 1);
        if (level == AddLevel) right = ReduceLevel;
        if (is_of_bits(n.op))
            return {fmt::format("{} {} {}", beside_bits(n.a, n.op), name, at_least(n.b, UnaryLevel)), level};
        return {fmt::format("{} {} {}", at_least(n.a, level), name, at_least(n.b, right)), level};
    }
    Text operator()(const Fma& n) const {
        return {fmt::format("fma({}, {}, {})", print(n.a).text, print(n.b).text, print(n.c).text), Primary};
    }
    Text operator()(const Select& n) const {
        return {fmt::format("select({}, {}, {})", print(n.condition).text, print(n.yes).text, print(n.no).text),
                Primary};
    }
    Text operator()(const Cast& n) const {
        return {fmt::format("cast({}, {})", name_of(type), print(n.a).text), Primary};
    }
    Text operator()(const Bitcast& n) const {
        return {fmt::format("bitcast({}, {})", name_of(type), print(n.a).text), Primary};
    }
    Text operator()(const Read& n) const {
        return {fmt::format("{}[{}]", output_text(*n.operation, static_cast<size_t>(n.output)), list(n.indices)),
                Primary};
    }
    Text operator()(const Load& n) const { return {fmt::format("{}[{}]", n.buffer->name, list(n.indices)), Primary}; }
    Text operator()(const Exchange& n) const {
        return {fmt::format("exchange({}, {})", print(n.a).text, n.lane_bits), Primary};
    }
    Text operator()(const Reduce& n) const {
        std::string axes;
        bool is_bounded = false;  // where the element says how far
        for (const Expr& axis : n.axes) {
            const Variable* variable = axis.as<Variable>();
            const bool bounded = variable && variable->extent.defined() && !as_constant(variable->extent);
            axes += (axes.empty() ? "" : ", ") + print(axis).text;
            if (bounded) axes += " < " + at_least(variable->extent, AddLevel);
            is_bounded = is_bounded || bounded;
        }
        if (n.axes.size() > 1 || is_bounded) axes = "{" + axes + "}";
        std::string head = fmt::format("{}_{}", n.reducer->name, axes);
        if (n.values.size() == 1) return {head + " " + at_least(n.values[0], MulLevel), ReduceLevel};
        return {fmt::format("{}({}).{}", head, list(n.values), n.component), Primary};
    }
};

}  // namespace

std::string to_string(const Expr& expr) {
    if (!expr.defined()) return "undefined";
    return std::visit(Printer{expr.type(), levels_shown(expr)}, (*expr).kind).text;
}

}  // namespace tw
