#include "ops/sample_elements.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <unordered_map>

#include "dsl/check_bindings.h"
#include "dsl/deep.h"
#include "dsl/integers.h"
#include "dsl/plain_arithmetic.h"
#include "dsl/stage.h"
#include "ops/unit_errors.h"
#include "support/error.h"

namespace tw {
namespace {

/// A value, and how far what a schedule makes may lie from it: of a condition 1 if it is open.
struct Number {
    Value value;
    double slack = 0;
};

Number integer(Type type, int64_t value, double slack = 0) { return {{type, 0, value}, slack}; }
Number truth(bool value, double slack = 0) { return integer(Type::Bool, value, slack); }

/// How far f moves from its value where each argument stays within its slack. NaN, as of a root beyond 0, is no move.
template <class F>
double moved(F f, double value, const Number& a, const Number& b) {
    double most = 0;
    for (double p : {a.value.real - a.slack, a.value.real + a.slack})
        for (double q : {b.value.real - b.slack, b.value.real + b.slack})
            most = std::fmax(most, std::abs(f(p, q) - value));
    return most;
}

/// The sums that a schedule may pass through on its way: of neighbours, or of every n-th term, n after n, as splits and
/// orders of the loop make them, they are differences of the running sums in that order; of terms picked whatever their
/// values are, within four standard deviations; of any, at most what is positive or what is negative.
class RunningSums {
public:
    void add(double term) { terms_.push_back(term); }
    double largest() const {
        double positive = 0, negative = 0, squares = 0;
        for (double term : terms_) {
            (term > 0 ? positive : negative) += std::abs(term);
            squares += term * term;
        }
        double most = std::max(positive, negative), spread = 0;
        for (size_t distance = 1; distance < terms_.size(); distance += distance < all_below ? 1 : distance)
            spread = std::max(spread, spread_of_every(distance));
        return std::min(most, spread + 4 * std::sqrt(squares));
    }
    int64_t terms() const { return static_cast<int64_t>(terms_.size()); }

private:
    static constexpr size_t all_below = 16;  ///< distances; beyond, powers of two

    /// Between the running sums of the terms 0, n, 2 n, ..., 1, n + 1, ...
    double spread_of_every(size_t n) const {
        double sum = 0, least = 0, most = 0;
        for (size_t first = 0; first < n; ++first)
            for (size_t k = first; k < terms_.size(); k += n) {
                sum += terms_[k];
                least = std::min(least, sum);
                most = std::max(most, sum);
            }
        return most - least;
    }

    std::vector<double> terms_;
};

/// Each of so many terms once, in steps of this many around: another order for each number, the declared one for 0.
int64_t stride_of(int64_t count, int order) {
    if (order == 0 || count < 3) return 1;
    const double golden = order * 0.6180339887498949;  // no two of its multiples leave like fractions
    int64_t stride =
        std::max<int64_t>(static_cast<int64_t>((golden - std::floor(golden)) * static_cast<double>(count)), 2);
    while (std::gcd(stride, count) != 1) ++stride;
    return stride;
}

/// The operator that takes what is on the left and on the right as they are, where that is all that reduces.
const Binary* plain_operator(const ReducerNode& reducer) {
    const Binary* all = reducer.combined.size() == 1 ? reducer.combined[0].as<Binary>() : nullptr;
    bool plain = all && all->op != BinaryOp::And && all->op != BinaryOp::Or && all->a.id() == reducer.left[0].id() &&
                 all->b.id() == reducer.right[0].id();
    return plain ? all : nullptr;
}

class Sampler {
public:
    Sampler(const Bindings& bindings, const SampleOptions& options) : bindings_(bindings), options_(options) {}

    SampledElement element(const Tensor& output, const std::vector<int64_t>& point) {
        const int64_t before = places_;
        read_at_ = point;
        Number number = element_of(*output.operation(), output.output(), 0);
        return {number.value, number.slack, places_ - before};
    }

private:
    struct Known {
        std::vector<int64_t> shape;
        const HostArray* input = nullptr;
        std::unordered_map<int64_t, Number> elements;  // of a computed tensor; by number and output
    };

    bool exact() const { return options_.precision == Precision::Float64; }
    Type numbers_of(Type type) const { return exact() && is_float(type) ? Type::F64 : type; }
    Value rounded(Type type, double real) const { return make_value(numbers_of(type), real); }

    Known& known(const Operation& operation) {
        auto [found, is_new] = known_.try_emplace(&operation);
        if (!is_new) return found->second;
        if (operation.is_input()) found->second.input = &bound_input(operation, bindings_);
        found->second.shape = extents_of(operation.shape, bindings_);
        for (const auto& output : operation.outputs)
            if (output.body.defined()) note_shared(output.body);
        return found->second;
    }

    /// Nodes with several uses are evaluated once in each place.
    void note_shared(const Expr& body) {
        std::unordered_map<const ExprNode*, int> uses;
        visit(body, [&](const Expr& e) {
            for (const Expr& kid : children(e))
                if (!children(kid).empty() && ++uses[kid.id()] == 2) shared_.try_emplace(kid.id());
        });
    }

    /// The indices are the last ones of read_at_, from `first` on.
    Number element_of(const Operation& operation, int output, size_t first) {
        Known& of = known(operation);
        const size_t rank = read_at_.size() - first;
        const int64_t* place = read_at_.data() + first;
        for (size_t d = 0; d < rank; ++d)
            if (place[d] < 0 || place[d] >= of.shape[d])
                throw_error(Error, "check '{}': element {} is read, but its shape is {}; correct the index",
                            operation.name, indices_text({place, place + rank}), indices_text(of.shape));
        if (of.input) return {convert(numbers_of(of.input->type), input_at(*of.input, place)), 0};
        int64_t number = output;
        int64_t step = static_cast<int64_t>(operation.outputs.size());
        for (size_t d = rank; d-- > 0; step *= of.shape[d]) number += place[d] * step;
        if (auto found = of.elements.find(number); found != of.elements.end()) return found->second;
        const size_t outer_begin = std::exchange(begin_, index_.size());
        for (size_t d = 0; d < rank; ++d) index_.emplace_back(operation.axes[d].id(), integer(Type::I64, place[d]));
        int64_t outer = std::exchange(place_, ++places_);
        const Expr& body = operation.outputs[static_cast<size_t>(output)].body;
        Number result = with_room_for(body, [&] { return (*this)(body); });
        place_ = outer;
        index_.resize(begin_);
        begin_ = outer_begin;
        of.elements.emplace(number, result);
        return result;
    }

    /// Of a place that lies inside.
    static Value input_at(const HostArray& array, const int64_t* place) {
        int64_t offset = 0;
        for (size_t d = 0; d < array.strides.size(); ++d) offset += place[d] * array.strides[d];
        return load_element(array.type, &array.bytes[static_cast<size_t>(offset * bytes_of(array.type))]);
    }

    Number operator()(const Expr& expr) {
        if (const Variable* variable = expr.as<Variable>()) return evaluate(*variable, expr);  // most are, none shared
        auto shared = shared_.find(expr.id());
        if (shared == shared_.end()) return value_of_node(expr);
        if (shared->second.place != place_) {
            Number result = value_of_node(expr);
            shared_[expr.id()] = {place_, result};
            return result;
        }
        return shared->second.number;
    }
    Number value_of_node(const Expr& expr) {
        return std::visit([&](const auto& node) { return evaluate(node, expr); }, (*expr).kind);
    }

    // One case a node type.
    Number evaluate(const IntConstant& node, const Expr& expr) { return integer(expr.type(), node.value); }
    Number evaluate(const FloatConstant& node, const Expr& expr) { return {{numbers_of(expr.type()), node.value, 0}}; }
    Number evaluate(const Variable& node, const Expr& expr) {
        for (size_t known = index_.size(); known-- > begin_;)
            if (index_[known].first == expr.id()) return index_[known].second;
        internal_check(node.kind != VariableKind::Index, "check: index '{}' has no value", node.name);
        if (node.kind == VariableKind::Size) return integer(Type::I64, bound_size(expr, bindings_));
        return {convert(numbers_of(expr.type()), bound_scalar(expr, bindings_))};
    }
    Number evaluate(const Load&, const Expr& expr) { return no_declaration(expr); }
    Number evaluate(const Exchange&, const Expr& expr) { return no_declaration(expr); }
    static Number no_declaration(const Expr& expr) {
        internal_check(false, "a declaration reads tensors, not buffers or threads: {}", to_string(expr));
        return {};
    }

    Number evaluate(const Read& node, const Expr& expr) {
        const size_t first = read_at_.size();
        for (const Expr& index : node.indices) {
            int64_t place = (*this)(index).value.integer;  // which reads on its own
            read_at_.push_back(place);
        }
        Number result = element_of(*node.operation, node.output, first);
        read_at_.resize(first);
        result.value = convert(numbers_of(expr.type()), result.value);
        return result;
    }

    Number evaluate(const Cast& node, const Expr& expr) {
        Number a = (*this)(node.a);
        bool keeps = is_float(expr.type()) && is_float(node.a.type());
        return {convert(numbers_of(expr.type()), a.value), keeps ? a.slack : 0};
    }

    /// Bits move by nothing that slack is a measure of.
    Number evaluate(const Bitcast& node, const Expr& expr) {
        const Number a = (*this)(node.a);
        return {convert(numbers_of(expr.type()), bits_as(expr.type(), convert(node.a.type(), a.value)))};
    }

    Number evaluate(const Select& node, const Expr&) {
        Number condition = (*this)(node.condition);
        const Expr &chosen = condition.value.integer ? node.yes : node.no,
                   &other = condition.value.integer ? node.no : node.yes;
        Number result = (*this)(chosen);
        if (condition.slack == 0 || !is_float(chosen.type()) || reads_guarded(other)) return result;
        Number left_out = (*this)(other);
        result.slack = std::max(result.slack, std::abs(left_out.value.real - result.value.real) + left_out.slack);
        return result;
    }

    static bool reads_guarded(const Expr& expr) {
        bool found = false;
        visit(expr, [&](const Expr& e) { found = found || (e.as<Read>() && e.as<Read>()->guarded); });
        return found;
    }

    Number evaluate(const Unary& node, const Expr& expr) {
        Number a = (*this)(node.a);
        if (node.op == UnaryOp::Not) return truth(!a.value.integer, a.slack);
        if (!is_float(a.value.type)) {
            bool negate = node.op == UnaryOp::Negate || (node.op == UnaryOp::Abs && a.value.integer < 0);
            auto value = static_cast<int64_t>(negate ? 0 - static_cast<uint64_t>(a.value.integer) : a.value.integer);
            return integer(expr.type(), wrap_to_type(expr.type(), value));
        }
        auto apply = [&](double x, double) {
            if (node.op == UnaryOp::Rsqrt) return 1 / rounded(expr.type(), std::sqrt(x)).real;
            return apply_plainly(node.op, x);
        };
        double value = apply(a.value.real, 0);
        return {rounded(expr.type(), value), a.slack > 0 ? moved(apply, value, a, {}) : 0};
    }

    Number evaluate(const Binary& node, const Expr& expr) {
        Number a = (*this)(node.a);
        if (node.op == BinaryOp::And || node.op == BinaryOp::Or) {
            if (a.value.integer == (node.op == BinaryOp::Or)) return a;
            Number b = (*this)(node.b);
            return truth(b.value.integer, std::max(a.slack, b.slack));
        }
        return of_both(node, a, (*this)(node.b), expr);
    }

    Number of_both(const Binary& node, const Number& a, const Number& b, const Expr& expr) const {
        if (!is_float(a.value.type)) {
            auto value = apply_to_integers(node.op, a.value.integer, b.value.integer);
            if (!value) throw_error(Error, "check: division by zero in {}; correct the expression", to_string(expr));
            return integer(expr.type(), wrap_to_type(expr.type(), *value));
        }
        return expr.type() == Type::Bool ? compared(node.op, a, b) : of_reals(node.op, a, b, expr.type());
    }

    static Number compared(BinaryOp op, const Number& a, const Number& b) {
        auto holds = [&](double x, double y) {
            switch (op) {
                case BinaryOp::Less: return x < y;
                case BinaryOp::LessEqual: return x <= y;
                case BinaryOp::Equal: return x == y;
                default: return x != y;
            }
        };
        bool open = a.slack + b.slack > 0 && std::abs(a.value.real - b.value.real) <= a.slack + b.slack;
        return truth(holds(a.value.real, b.value.real), open);
    }

    Number of_reals(BinaryOp op, const Number& a, const Number& b, Type type) const {
        double value = apply_plainly(op, a.value.real, b.value.real);
        Number result{rounded(type, value)};
        if (a.slack + b.slack == 0) return result;
        // Long sums have exactly this slack.
        if (op == BinaryOp::Add || op == BinaryOp::Sub)
            result.slack = a.slack + b.slack;
        else
            result.slack = moved([&](double x, double y) { return apply_plainly(op, x, y); }, value, a, b);
        return result;
    }

    Number evaluate(const Fma& node, const Expr& expr) {
        Number a = (*this)(node.a), b = (*this)(node.b), c = (*this)(node.c);
        double x = a.value.real, y = b.value.real, z = c.value.real;
        double value = exact() || expr.type() == Type::F64
                           ? std::fma(x, y, z)
                           : double{std::fmaf(static_cast<float>(x), static_cast<float>(y), static_cast<float>(z))};
        auto multiply = [](double p, double q) { return p * q; };
        double product = a.slack + b.slack > 0 ? moved(multiply, x * y, a, b) : 0;
        return {rounded(expr.type(), value), product + c.slack};
    }

    // Reductions.

    Number evaluate(const Reduce& node, const Expr& expr) {
        std::vector<int64_t> shape;
        for (const Expr& axis : node.axes) shape.push_back((*this)(axis.as<Variable>()->extent).value.integer);
        std::vector<Number> total;
        for (const Expr& identity : node.reducer->identity) total.push_back((*this)(identity));
        auto component = static_cast<size_t>(node.component);
        if (std::any_of(shape.begin(), shape.end(), [](int64_t extent) { return extent <= 0; }))
            return total[component];
        const std::optional<UnitErrors>& unit = unit_of(node, expr);
        const Binary* plain = plain_operator(*node.reducer);
        std::vector<Expr> values = node.values;
        if (unit) values.insert(values.end(), unit->products.begin(), unit->products.end());
        RunningSums sums;
        std::vector<Number> terms, both;
        int64_t outer = place_;
        const int64_t count = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
        const int64_t stride = node.reducer->commutative ? stride_of(count, options_.order) : 1;
        for (int64_t term = 0, place = 0; term < count; ++term, place = (place + stride) % count) {
            place_ = ++places_;
            find_terms(node, place, shape, values, terms);
            if (plain)
                total[0] = of_both(*plain, total[0], terms[0], node.reducer->combined[0]);
            else
                combine(node, total, terms, both);
            const size_t products = unit ? std::max<size_t>(unit->products.size(), 1) : 0;
            for (size_t p = 0; p < products; ++p) sums.add(terms[values.size() - products + p].value.real);
        }
        place_ = outer;
        if (unit) {
            double instructions = static_cast<double>(sums.terms() / unit->terms + 1);
            total[0].slack += instructions * unit->instruction * sums.largest();
        }
        return total[component];
    }

    void find_terms(const Reduce& node, int64_t place, const std::vector<int64_t>& shape,
                    const std::vector<Expr>& values, std::vector<Number>& terms) {
        size_t depth = index_.size();
        index_.resize(depth + shape.size());
        for (size_t d = shape.size(); d-- > 0; place /= shape[d])
            index_[depth + d] = {node.axes[d].id(), integer(Type::I64, place % shape[d])};
        terms.clear();
        for (const Expr& value : values) terms.push_back((*this)(value));
        index_.resize(depth);
    }

    /// Into `total`; `both` is room for it.
    void combine(const Reduce& node, std::vector<Number>& total, const std::vector<Number>& terms,
                 std::vector<Number>& both) {
        size_t depth = index_.size();
        for (size_t c = 0; c < total.size(); ++c) {
            index_.emplace_back(node.reducer->left[c].id(), total[c]);
            index_.emplace_back(node.reducer->right[c].id(), terms[c]);
        }
        both.clear();
        for (const Expr& expr : node.reducer->combined) both.push_back((*this)(expr));
        index_.resize(depth);
        std::swap(total, both);
    }

    /// Whether a tensor core can compute the sum, where errors are asked for.
    const std::optional<UnitErrors>& unit_of(const Reduce& node, const Expr& expr) {
        auto [found, is_new] = units_.try_emplace(expr.id());
        if (!is_new || !exact() || node.values.size() != 1) return found->second;
        if (atomic_operation(*node.reducer) == BinaryOp::Add && node.values[0].type() == f32)
            found->second = unit_errors(node.values[0], options_.rounds_operands, options_.few_bits);
        return found->second;
    }

    struct Shared {
        int64_t place = -1;
        Number number;
    };

    const Bindings& bindings_;
    SampleOptions options_;
    std::unordered_map<const Operation*, Known> known_;
    std::unordered_map<const ExprNode*, std::optional<UnitErrors>> units_;
    std::unordered_map<const ExprNode*, Shared> shared_;
    std::vector<std::pair<const ExprNode*, Number>> index_;  ///< variables that have a value, inner ones last
    size_t begin_ = 0;                                       ///< of the variables of the element that is being computed
    std::vector<int64_t> read_at_;                           ///< indices of the reads under way, inner ones last
    int64_t place_ = 0, places_ = 0;  ///< an element or an iteration: where nodes keep their values
};

}  // namespace

std::vector<SampledElement> sample_elements(const Tensor& output, const std::vector<std::vector<int64_t>>& points,
                                            const Bindings& bindings, const SampleOptions& options) {
    Sampler sampler(bindings, options);
    std::vector<SampledElement> elements;
    for (const std::vector<int64_t>& point : points) elements.push_back(sampler.element(output, point));
    return elements;
}

}  // namespace tw
