#include "schedules/declaration_text.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "dsl/deep.h"
#include "runtime/compile/cubin_format.h"

namespace tw::schedules {
namespace {

/// Numbers nodes in the order in which they are met.
class Writer {
public:
    Writer(const std::vector<Tensor>& outputs, bool is_of_bucket)
        : operations_(operations_of(outputs)), is_of_bucket_(is_of_bucket) {
        for (const auto& operation : operations_) write(*operation);
        text_ += "outputs";
        for (const Tensor& output : outputs)
            text_ += fmt::format(" {}.{}", number_of(output.operation()), output.output());
        text_ += '\n';
    }
    std::string text() && { return std::move(text_); }

private:
    void write(const Operation& operation) {
        std::string line = fmt::format("operation {}:{}", operation.name.size(), operation.name);
        line += list("shape", operation.shape);
        line += list("axes", operation.axes);
        line += list("strides", operation.strides);
        for (const Operation::Output& output : operation.outputs) {
            line += fmt::format(" {} {}:{}", name_of(output.type), output.name.size(), output.name);
            if (output.body.defined()) line += fmt::format(" {}", number(output.body));
        }
        text_ += line + "\n";
    }

    std::string list(const char* what, const std::vector<Expr>& exprs) {
        std::string line = fmt::format(" {}", what);
        for (const Expr& expr : exprs) line += fmt::format(" {}", number(expr));
        return line;
    }

    size_t number_of(const std::shared_ptr<const Operation>& operation) const {
        return static_cast<size_t>(std::ranges::find(operations_, operation) - operations_.begin());
    }

    /// Of the node; what it is made of stands in lines before its own.
    size_t number(const Expr& expr) {
        if (!expr.defined()) return 0;
        if (const auto known = numbers_.find(expr.id()); known != numbers_.end()) return known->second;
        const std::string line = with_kids(expr);
        const size_t own = numbers_.size() + 1;
        numbers_[expr.id()] = own;
        text_ += fmt::format("{} {} {}\n", own, name_of(expr.type()), line);
        return own;
    }

    std::string with_kids(const Expr& expr) {
        std::string line = own_text(expr);
        for (const Expr& kid : children(expr)) line += fmt::format(" {}", number(kid));
        return line;
    }

    std::string own_text(const Expr& expr) {
        if (const IntConstant* n = expr.as<IntConstant>()) return is_of_bucket_ ? like(n->value) : exactly(n->value);
        if (const FloatConstant* n = expr.as<FloatConstant>())
            return is_of_bucket_ ? "float" : fmt::format("float {:x}", std::bit_cast<uint64_t>(n->value));
        if (const Variable* n = expr.as<Variable>()) return variable_text(*n);
        if (const Unary* n = expr.as<Unary>()) return fmt::format("unary {}", static_cast<int>(n->op));
        if (const Binary* n = expr.as<Binary>()) return fmt::format("binary {}", static_cast<int>(n->op));
        if (const Read* n = expr.as<Read>())
            return fmt::format("read {}.{}{}", number_of(n->operation), n->output, n->guarded ? " guarded" : "");
        if (const Reduce* n = expr.as<Reduce>())
            return fmt::format("reduce {} of {}", n->component, reducer_text(*n->reducer)) + list("over", n->axes);
        if (expr.as<Fma>()) return "fma";
        return expr.as<Select>() ? "select" : "cast";
    }

    static std::string exactly(int64_t value) { return fmt::format("int {}", value); }
    static std::string like(int64_t value) {
        constexpr int64_t least = 16, most_divisor = 16;
        if (value < least) return exactly(value);
        const int64_t divisor = std::min(int64_t{1} << std::countr_zero(static_cast<uint64_t>(value)), most_divisor);
        return fmt::format("int about 2^{} by {}", std::lround(std::log2(static_cast<double>(value))), divisor);
    }

    /// Axes are told apart by their numbers; scalars and sizes are given by name.
    std::string variable_text(const Variable& variable) {
        const bool is_told = is_of_bucket_ && variable.extent.defined();  // an index ends where its extent says
        auto bound = [&](const std::optional<int64_t>& value) {
            return value && !is_told ? std::to_string(*value) : "-";
        };
        const std::string name = variable.kind == VariableKind::Index ? "" : variable.name;
        return fmt::format("variable {} {}:{} {} {} {} {}", static_cast<int>(variable.kind), name.size(), name,
                           bound(variable.min), bound(variable.max), variable.multiple_of, number(variable.extent));
    }

    std::string reducer_text(const ReducerNode& reducer) {
        std::string text = reducer.commutative ? "commutative" : "ordered";
        text += list("from", reducer.identity);
        text += list("left", reducer.left);
        text += list("right", reducer.right);
        return text + list("to", reducer.combined);
    }

    std::vector<std::shared_ptr<const Operation>> operations_;
    const bool is_of_bucket_;
    std::map<const ExprNode*, size_t> numbers_;
    std::string text_;
};

int depth_of_all(const std::vector<Tensor>& outputs) {
    int depth = 0;
    for (const auto& operation : operations_of(outputs))
        for (const Operation::Output& output : operation->outputs)
            if (output.body.defined()) depth = std::max(depth, depth_of(output.body));
    return depth;
}

std::string written(const std::vector<Tensor>& outputs, bool is_of_bucket) {
    std::string text;
    with_room_for(depth_of_all(outputs), [&] { text = Writer(outputs, is_of_bucket).text(); });
    return text;
}

}  // namespace

std::string declaration_text(const std::vector<Tensor>& outputs) { return written(outputs, false); }
std::string bucket_text(const std::vector<Tensor>& outputs) { return written(outputs, true); }

std::string declaration_name(const std::vector<Tensor>& outputs, const std::string& text) {
    std::vector<std::string> names;
    for (const Tensor& output : outputs) names.push_back(output.name());
    return fmt::format("{} #{}", fmt::join(names, ", "), entry_file_name(text).substr(0, 32));
}

}  // namespace tw::schedules
