// The declaration, evaluated element by element: the oracle. It has its own arithmetic, so that it checks the compiled
// expressions too.
#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "dsl/check_bindings.h"
#include "dsl/deep.h"
#include "dsl/interpret.h"
#include "dsl/plain_arithmetic.h"
#include "support/error.h"

namespace tw {
namespace {

class PlainInterpreter {
public:
    PlainInterpreter(const Bindings& bindings, Precision precision)
        : bindings_(bindings), exact_reals_(precision == Precision::Float64) {}

    std::vector<HostArray> run(const std::vector<Tensor>& outputs) {
        for (const auto& operation : operations_of(outputs)) {
            if (operation->is_input())
                arrays_[operation.get()] = {bound_input(*operation, bindings_)};
            else
                compute(*operation);
        }
        std::vector<HostArray> results;
        for (const Tensor& output : outputs) results.push_back(arrays_.at(output.operation().get())[output.output()]);
        return results;
    }

private:
    Type numbers_of(Type type) const { return exact_reals_ && is_float(type) ? Type::F64 : type; }
    Value rounded(Type type, double real) const { return make_value(numbers_of(type), real); }

    void compute(const Operation& operation) {
        std::vector<int64_t> shape = extents_of(operation.shape, bindings_);
        std::vector<HostArray> results;
        for (const auto& output : operation.outputs) results.push_back(host_array(numbers_of(output.type), shape));
        name_ = operation.name;
        int depth = find_shared(operation);
        std::vector<int64_t> point(shape.size());
        if (results[0].num_elements() > 0) {
            with_room_for(depth, [&] {
                do {
                    index_.clear();
                    for (size_t d = 0; d < point.size(); ++d)
                        index_.emplace_back(operation.axes[d].id(), integer(point[d]));
                    known_.clear();
                    for (size_t o = 0; o < results.size(); ++o)
                        results[o].set(point, (*this)(operation.outputs[o].body));
                } while (advance(point, shape));
            });
        }
        arrays_[&operation] = std::move(results);
    }

    static Value integer(int64_t value) { return {Type::I64, 0, value}; }
    static Value truth(bool value) { return {Type::Bool, 0, value}; }

    /// Nodes that stand in several places have one value at a point. The depth of the deepest body.
    int find_shared(const Operation& operation) {
        std::unordered_set<const ExprNode*> seen;
        int depth = 0;
        shared_.clear();
        for (const auto& output : operation.outputs) {
            depth = std::max(depth, depth_of(output.body));
            visit(output.body, [&](const Expr& node) {
                for (const Expr& kid : children(node))
                    if (depth_of(kid) > 1 && !seen.insert(kid.id()).second) shared_.insert(kid.id());
            });
        }
        return depth;
    }

    Value operator()(const Expr& expr) {
        bool is_shared = shared_.count(expr.id()) > 0;
        if (is_shared)
            if (auto known = known_.find(expr.id()); known != known_.end()) return known->second;
        Value value = std::visit([&](const auto& node) { return evaluate(node, expr); }, (*expr).kind);
        if (is_shared) known_.emplace(expr.id(), value);
        return value;
    }
    // One case a node type.
    Value evaluate(const IntConstant& node, const Expr& expr) { return {expr.type(), 0, node.value}; }
    Value evaluate(const FloatConstant& node, const Expr& expr) { return {numbers_of(expr.type()), node.value, 0}; }
    Value evaluate(const Variable& node, const Expr& expr) {
        for (auto known = index_.rbegin(); known != index_.rend(); ++known)
            if (known->first == expr.id()) return known->second;
        internal_check(node.kind != VariableKind::Index, "interpret '{}': index '{}' has no value", name_, node.name);
        if (node.kind == VariableKind::Size) return integer(bound_size(expr, bindings_));
        return convert(numbers_of(expr.type()), bound_scalar(expr, bindings_));
    }
    Value evaluate(const Cast& node, const Expr& expr) { return convert(numbers_of(expr.type()), (*this)(node.a)); }
    Value evaluate(const Select& node, const Expr&) {
        return (*this)(node.condition).integer ? (*this)(node.yes) : (*this)(node.no);
    }
    Value evaluate(const Load&, const Expr&) {
        internal_check(false, "interpret '{}': a declaration reads tensors, not buffers", name_);
        return {};
    }
    Value evaluate(const Fma& node, const Expr& expr) {
        double a = (*this)(node.a).real, b = (*this)(node.b).real, c = (*this)(node.c).real;
        if (numbers_of(expr.type()) == Type::F64) return rounded(Type::F64, std::fma(a, b, c));
        return {expr.type(), std::fmaf(static_cast<float>(a), static_cast<float>(b), static_cast<float>(c)), 0};
    }

    Value evaluate(const Unary& node, const Expr& expr) {
        Value a = (*this)(node.a);
        if (node.op == UnaryOp::Not) return truth(!a.integer);
        if (!is_float(a.type)) {
            bool negate = node.op == UnaryOp::Negate || (node.op == UnaryOp::Abs && a.integer < 0);
            auto value = static_cast<int64_t>(negate ? 0 - static_cast<uint64_t>(a.integer) : a.integer);
            return {expr.type(), 0, wrap_to_type(expr.type(), value)};
        }
        if (node.op == UnaryOp::Rsqrt)  // two operations, each rounded
            return rounded(expr.type(), 1 / rounded(expr.type(), std::sqrt(a.real)).real);
        return rounded(expr.type(), apply_plainly(node.op, a.real));
    }

    Value evaluate(const Binary& node, const Expr& expr) {
        Value a = (*this)(node.a);
        if (node.op == BinaryOp::And && !a.integer) return truth(false);
        if (node.op == BinaryOp::Or && a.integer) return truth(true);
        Value b = (*this)(node.b);
        bool reals = is_float(a.type);
        switch (node.op) {
            case BinaryOp::And:
            case BinaryOp::Or: return truth(b.integer);
            case BinaryOp::Less: return truth(reals ? a.real < b.real : a.integer < b.integer);
            case BinaryOp::LessEqual: return truth(reals ? a.real <= b.real : a.integer <= b.integer);
            case BinaryOp::Equal: return truth(reals ? a.real == b.real : a.integer == b.integer);
            case BinaryOp::NotEqual: return truth(reals ? a.real != b.real : a.integer != b.integer);
            default: break;
        }
        if (reals) return rounded(expr.type(), apply_plainly(node.op, a.real, b.real));
        return {expr.type(), 0, wrap_to_type(expr.type(), apply(node.op, a.integer, b.integer, expr))};
    }

    int64_t apply(BinaryOp op, int64_t a, int64_t b, const Expr& expr) const {
        auto wrapped = [](uint64_t value) { return static_cast<int64_t>(value); };
        bool divides = op == BinaryOp::Div || op == BinaryOp::Mod;
        if (divides && b == 0) throw_error(Error, "interpret '{}': division by zero in {}", name_, to_string(expr));
        if (divides && b == -1) return op == BinaryOp::Div ? wrapped(0 - static_cast<uint64_t>(a)) : 0;
        switch (op) {
            case BinaryOp::Add: return wrapped(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
            case BinaryOp::Sub: return wrapped(static_cast<uint64_t>(a) - static_cast<uint64_t>(b));
            case BinaryOp::Mul: return wrapped(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
            case BinaryOp::Div: return a / b - (a % b != 0 && (a < 0) != (b < 0));
            case BinaryOp::Mod: return a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0);
            case BinaryOp::Min: return std::min(a, b);
            case BinaryOp::Max: return std::max(a, b);
            default: break;
        }
        internal_check(false, "no integer operation {}", static_cast<int>(op));
        return 0;
    }

    Value evaluate(const Read& node, const Expr& expr) {
        std::vector<int64_t> place;
        for (const Expr& index : node.indices) place.push_back((*this)(index).integer);
        const HostArray& array = arrays_.at(node.operation.get())[node.output];
        for (size_t d = 0; d < place.size(); ++d)
            if (place[d] < 0 || place[d] >= array.shape[d])
                throw_error(Error, "interpret '{}': {} reads {}{}, which has shape {}", name_, to_string(expr),
                            node.operation->name, indices_text(place), indices_text(array.shape));
        return convert(numbers_of(expr.type()), array.at(place));
    }

    Value evaluate(const Exchange&, const Expr& expr) {
        internal_check(false, "a tensor's expression has no threads: {}", to_string(expr));
        return {};
    }
    Value evaluate(const Reduce& node, const Expr&) {
        std::vector<int64_t> shape, point(node.axes.size());
        for (const Expr& axis : node.axes) shape.push_back((*this)(axis.as<Variable>()->extent).integer);
        std::vector<Value> total;
        for (const Expr& identity : node.reducer->identity) total.push_back((*this)(identity));
        bool empty = std::find(shape.begin(), shape.end(), 0) != shape.end();
        if (empty) return total[node.component];
        do {
            total = combined(node, total, point);
        } while (advance(point, shape));
        return total[node.component];
    }

    std::vector<Value> combined(const Reduce& node, const std::vector<Value>& total,
                                const std::vector<int64_t>& point) {
        size_t depth = index_.size();
        auto outside = std::exchange(known_, {});
        for (size_t d = 0; d < point.size(); ++d) index_.emplace_back(node.axes[d].id(), integer(point[d]));
        std::vector<Value> term, result;
        for (const Expr& value : node.values) term.push_back((*this)(value));
        index_.resize(depth);
        for (size_t c = 0; c < total.size(); ++c) {
            index_.emplace_back(node.reducer->left[c].id(), total[c]);
            index_.emplace_back(node.reducer->right[c].id(), term[c]);
        }
        known_.clear();
        for (const Expr& expr : node.reducer->combined) result.push_back((*this)(expr));
        index_.resize(depth);
        known_ = std::move(outside);
        return result;
    }

    const Bindings& bindings_;
    bool exact_reals_;
    std::string name_;  ///< of the operation being computed
    std::map<const Operation*, std::vector<HostArray>> arrays_;
    std::unordered_set<const ExprNode*> shared_;
    std::unordered_map<const ExprNode*, Value> known_;      ///< of shared nodes, where the variables have their values
    std::vector<std::pair<const ExprNode*, Value>> index_;  ///< variables that have a value, inner ones last
};

}  // namespace

std::vector<HostArray> interpret_plain(const std::vector<Tensor>& outputs, const Bindings& bindings,
                                       Precision precision) {
    return PlainInterpreter(bindings, precision).run(outputs);
}

}  // namespace tw
