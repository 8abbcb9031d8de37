// The declaration, evaluated element by element: the oracle. It has its own arithmetic, so that it checks the compiled
// expressions too.
#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <boost/container/small_vector.hpp>

#include "dsl/check_bindings.h"
#include "dsl/deep.h"
#include "dsl/interpret.h"
#include "dsl/plain_arithmetic.h"
#include "support/error.h"

namespace tw {
namespace {

class PlainInterpreter {
    using Values = boost::container::small_vector<Value, 4>;

public:
    PlainInterpreter(const Bindings& bindings, Precision precision)
        : bindings_(bindings), exact_reals_(precision == Precision::Float64) {}

    std::vector<HostArray> run(const std::vector<Tensor>& outputs) {
        for (const auto& operation : operations_of(outputs)) {
            if (operation->is_input())
                arrays_.emplace_back(operation.get(), std::vector{bound_input(*operation, bindings_)});
            else
                compute(*operation);
        }
        std::vector<HostArray> results;
        for (const Tensor& output : outputs) results.push_back(array(output.operation().get(), output.output()));
        return results;
    }

private:
    const HostArray& array(const Operation* operation, int output) const {
        for (auto known = arrays_.rbegin(); known != arrays_.rend(); ++known)
            if (known->first == operation) return known->second[output];
        internal_check(false, "interpret '{}': '{}' has not been computed", name_, operation->name);
        return arrays_[0].second[0];
    }

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
                    begin_known();
                    for (size_t o = 0; o < results.size(); ++o)
                        results[o].set(point, (*this)(operation.outputs[o].body));
                } while (advance(point, shape));
            });
        }
        arrays_.emplace_back(&operation, std::move(results));
    }

    static Value integer(int64_t value) { return {Type::I64, 0, value}; }
    static Value truth(bool value) { return {Type::Bool, 0, value}; }

    /// Nodes that stand in several places have one value at a point. The depth of the deepest body.
    int find_shared(const Operation& operation) {
        std::unordered_set<const ExprNode*> seen;
        int depth = 0;
        shared_.clear();
        known_.clear();
        for (const auto& output : operation.outputs) {
            depth = std::max(depth, depth_of(output.body));
            visit(output.body, [&](const Expr& node) {
                for (const Expr& kid : children(node))
                    if (depth_of(kid) > 1 && !seen.insert(kid.id()).second) shared_.emplace(kid.id(), shared_.size());
            });
        }
        known_.resize(shared_.size());
        return depth;
    }

    /// What is known so far is known no more.
    void begin_known() { round_ = ++last_round_; }

    Value operator()(const Expr& expr) {
        auto compute = [&] { return std::visit([&](const auto& node) { return evaluate(node, expr); }, (*expr).kind); };
        if (shared_.empty() || expr.as<Variable>()) return compute();
        auto shared = shared_.find(expr.id());
        if (shared == shared_.end()) return compute();
        Known& known = known_[shared->second];
        if (known.round == round_) return known.value;
        Value value = compute();
        known = {round_, value};
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
            case BinaryOp::BitAnd: return a & b;
            case BinaryOp::BitOr: return a | b;
            case BinaryOp::BitXor: return a ^ b;
            case BinaryOp::ShiftLeft: return b < 32 ? wrapped(static_cast<uint64_t>(a) << b) : 0;
            case BinaryOp::ShiftRight: return b < 32 ? a >> b : 0;
            case BinaryOp::MulHigh: return wrapped(static_cast<uint64_t>(a) * static_cast<uint64_t>(b) >> 32);
            default: break;
        }
        internal_check(false, "no integer operation {}", static_cast<int>(op));
        return 0;
    }

    Value evaluate(const Read& node, const Expr& expr) {
        const HostArray& array = this->array(node.operation.get(), node.output);
        int64_t offset = 0;
        for (size_t d = 0; d < node.indices.size(); ++d) {
            int64_t index = (*this)(node.indices[d]).integer;
            if (index < 0 || index >= array.shape[d]) fail_outside(node, array, expr);
            offset += index * array.strides[d];
        }
        return convert(numbers_of(expr.type()), load_element(array.type, &array.bytes[offset * bytes_of(array.type)]));
    }
    [[noreturn]] void fail_outside(const Read& node, const HostArray& array, const Expr& expr) {
        std::vector<int64_t> place;
        for (const Expr& index : node.indices) place.push_back((*this)(index).integer);
        throw_error(Error, "interpret '{}': {} reads {}{}, which has shape {}", name_, to_string(expr),
                    node.operation->name, indices_text(place), indices_text(array.shape));
    }

    Value evaluate(const Exchange&, const Expr& expr) {
        internal_check(false, "a tensor's expression has no threads: {}", to_string(expr));
        return {};
    }
    Value evaluate(const Reduce& node, const Expr&) {
        std::vector<int64_t> shape, point(node.axes.size());
        for (const Expr& axis : node.axes) shape.push_back((*this)(axis.as<Variable>()->extent).integer);
        Values total;
        for (const Expr& identity : node.reducer->identity) total.push_back((*this)(identity));
        bool empty = std::find(shape.begin(), shape.end(), 0) != shape.end();
        if (empty) return total[node.component];
        const uint64_t outside = round_;
        do {
            combine(node, total, point);
        } while (advance(point, shape));
        round_ = outside;
        return total[node.component];
    }

    void combine(const Reduce& node, Values& total, const std::vector<int64_t>& point) {
        size_t depth = index_.size();
        for (size_t d = 0; d < point.size(); ++d) index_.emplace_back(node.axes[d].id(), integer(point[d]));
        begin_known();
        Values term;
        for (const Expr& value : node.values) term.push_back((*this)(value));
        index_.resize(depth);
        for (size_t c = 0; c < total.size(); ++c) {
            index_.emplace_back(node.reducer->left[c].id(), total[c]);
            index_.emplace_back(node.reducer->right[c].id(), term[c]);
        }
        begin_known();
        for (size_t c = 0; c < total.size(); ++c) total[c] = (*this)(node.reducer->combined[c]);
        index_.resize(depth);
    }

    struct Known {
        uint64_t round = 0;
        Value value;
    };

    const Bindings& bindings_;
    bool exact_reals_;
    std::string name_;  ///< of the operation being computed
    std::vector<std::pair<const Operation*, std::vector<HostArray>>> arrays_;
    std::unordered_map<const ExprNode*, size_t> shared_;    ///< their numbers
    std::vector<Known> known_;                              ///< of shared nodes
    uint64_t round_ = 0, last_round_ = 0;                   ///< of values of variables: what is known belongs to one
    std::vector<std::pair<const ExprNode*, Value>> index_;  ///< variables that have a value, inner ones last
};

}  // namespace

std::vector<HostArray> interpret_plain(const std::vector<Tensor>& outputs, const Bindings& bindings,
                                       Precision precision) {
    return PlainInterpreter(bindings, precision).run(outputs);
}

}  // namespace tw
