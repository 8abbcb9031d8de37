#include "ops/integer_ranges.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>

#include "dsl/check_bindings.h"
#include "dsl/integers.h"

namespace tw {
namespace {

constexpr int kDeepest = 64;      // of axes whose extents have axes, and of tensors that are indices of others
constexpr int kMostSteps = 2000;  // for one index: what takes more is not understood

/// A sum of terms with factors, and a constant.
struct Linear {
    int64_t constant = 0;
    struct Term {
        Expr expr;
        int64_t factor;
    };
    std::vector<Term> terms = {};
};

bool is_whole(Type type) { return is_integer(type) && type != Type::Bool; }

/// Products and sums beyond 64 bits wrap around: such an index is in no dimension anyway.
int64_t times(int64_t a, int64_t b) { return *apply_to_integers(BinaryOp::Mul, a, b); }
int64_t plus(int64_t a, int64_t b) { return *apply_to_integers(BinaryOp::Add, a, b); }
int64_t minus(int64_t a, int64_t b) { return *apply_to_integers(BinaryOp::Sub, a, b); }

class RangeFinder {
public:
    explicit RangeFinder(const Bindings& numbers) : numbers_(numbers) {}

    void look_at(const Operation& operation) {
        asked_.clear();
        for (const Operation::Output& output : operation.outputs)
            if (output.body.defined()) visit(output.body, [&](const Expr& expr) { look_for_conditions(expr); });
        for (const Operation::Output& output : operation.outputs)
            if (output.body.defined()) visit(output.body, [&](const Expr& expr) { look_at(expr, operation); });
    }

    std::map<std::string, IntegerRange> ranges() const {
        std::map<std::string, IntegerRange> result;
        for (const auto& [name, bounds] : bounds_) {
            IntegerRange& range = result[name];
            range.low = bounds.low.value_or(std::min<int64_t>(0, bounds.high.value_or(0)));
            range.high = std::max(range.low, bounds.high.value_or(plus(range.low, 7)));
            range.ascending = bounds.ascending;
        }
        return result;
    }

private:
    struct Bounds {
        std::optional<int64_t> low = {}, high = {};
        bool ascending = false;
    };

    void look_at(const Expr& expr, const Operation& operation) {
        if (const Read* read = expr.as<Read>()) look_at(*read);
        if (const Reduce* reduce = expr.as<Reduce>())
            for (const Expr& axis : reduce->axes) look_at_extent(axis.as<Variable>()->extent, operation);
        const Binary* compared = expr.as<Binary>();
        if (!compared || compared->op != BinaryOp::Equal || !is_whole(compared->a.type())) return;
        for (auto [element, place] : {std::pair(compared->a, compared->b), std::pair(compared->b, compared->a)})
            for (size_t d = 0; d < operation.axes.size(); ++d)
                if (operation.axes[d].same(without_casts(place))) lies_within(element, operation.shape[d], 0, 1);
    }

    void look_at(const Read& read) {
        for (size_t d = 0; d < read.indices.size(); ++d) {
            const int64_t beyond = read.guarded && is_asked_for(read.indices[d]) ? 1 : 0;
            lies_within(read.indices[d], read.operation->shape[d], -beyond, beyond);
        }
    }

    /// Notes which inputs' elements are compared with something else.
    void look_for_conditions(const Expr& expr) {
        const Binary* compared = expr.as<Binary>();
        if (!compared || !is_whole(compared->a.type())) return;
        if (compared->op != BinaryOp::Less && compared->op != BinaryOp::LessEqual) return;
        steps_ = 0;
        for (const Expr& side : {compared->a, compared->b})
            for (const Linear::Term& term : linear(side).terms)
                if (const Read* read = input_read(term.expr)) asked_.insert(read->operation.get());
    }
    /// Whether a condition may keep the index inside: what guards a read may ask for its other indices alone.
    bool is_asked_for(const Expr& index) {
        steps_ = 0;
        const Linear sum = linear(index);
        return std::ranges::all_of(sum.terms, [&](const Linear::Term& term) {
            const Read* read = input_read(term.expr);
            return !read || asked_.contains(read->operation.get());
        });
    }

    void look_at_extent(const Expr& extent, const Operation& operation) {
        if (!extent.defined()) return;
        visit(extent, [&](const Expr& expr) { look_at(expr, operation); });
        steps_ = 0;
        const Linear count = iterations(extent);
        for (const Linear::Term& one : count.terms)
            for (const Linear::Term& other : count.terms) {
                const Read *begin = input_read(one.expr), *end = input_read(other.expr);
                if (begin && end && begin->operation == end->operation && one.factor < 0 && other.factor > 0)
                    bounds_[begin->operation->name].ascending = true;
            }
    }

    /// first <= expr < extent + beyond
    void lies_within(const Expr& expr, const Expr& extent, int64_t first, int64_t beyond) {
        steps_ = 0;
        at_least(expr, first, 0);
        at_most(expr, minus(plus(extent_of(extent, numbers_), beyond), 1), 0);
    }

    void at_most(const Expr& expr, int64_t limit, int depth) {
        if (gives_up(depth) || decided_inside(expr, [&](const Expr& part, int64_t divisor) {
                at_most(part, plus(times(limit, divisor), divisor - 1), depth + 1);
            }))
            return;
        auto sum = bounded(expr, true, depth);
        if (!sum) return;
        const int64_t room = minus(limit, sum->constant);  // for what is added, beyond what is taken away
        if (sum->factors > 0 && (room >= 0 || sum->taken.empty()))
            for (const Expr& term : sum->added) term_at_most(term, floor_div(room, sum->factors), depth);
        if (sum->added.empty() && room < 0)
            for (const Expr& term : sum->taken) term_at_least(term, -floor_div(room, sum->taken_factors), depth);
    }

    void at_least(const Expr& expr, int64_t limit, int depth) {
        if (gives_up(depth) || decided_inside(expr, [&](const Expr& part, int64_t divisor) {
                at_least(part, times(limit, divisor), depth + 1);
            }))
            return;
        auto sum = bounded(expr, false, depth);
        if (!sum) return;
        const int64_t room = minus(sum->constant, limit);  // for what is taken away, beyond what is added
        if (sum->taken_factors > 0 && (room >= 0 || sum->added.empty()))
            for (const Expr& term : sum->taken) term_at_most(term, floor_div(room, sum->taken_factors), depth);
        if (sum->taken.empty())
            for (const Expr& term : sum->added) term_at_least(term, -floor_div(room, sum->factors), depth);
    }

    void term_at_most(const Expr& term, int64_t most, int depth) {
        const Read* read = input_read(term);
        if (!read) return at_most(term, most, depth + 1);
        std::optional<int64_t>& high = bounds_[read->operation->name].high;
        high = std::min(high.value_or(most), most);
    }

    void term_at_least(const Expr& term, int64_t least, int depth) {
        const Read* read = input_read(term);
        if (!read) return at_least(term, least, depth + 1);
        std::optional<int64_t>& low = bounds_[read->operation->name].low;
        low = std::max(low.value_or(least), least);
    }

    /// Calls also(part, divisor) for the parts that decide the value of a node that is no sum; false if it is another.
    template <class Also>
    bool decided_inside(const Expr& expr, const Also& also) const {
        const Expr bare = without_casts(expr);
        if (const Select* select = bare.as<Select>()) return also(select->yes, 1), also(select->no, 1), true;
        if (const Read* read = bare.as<Read>(); read && !read->operation->is_input()) {
            const Expr& body = read->operation->outputs[static_cast<size_t>(read->output)].body;
            if (is_whole(body.type())) also(body, 1);
            return true;
        }
        const Binary* binary = bare.as<Binary>();
        if (!binary) return false;
        if (binary->op == BinaryOp::Min || binary->op == BinaryOp::Max) {
            const bool clamped = linear(binary->a).terms.empty() || linear(binary->b).terms.empty();
            if (!clamped) also(binary->a, 1), also(binary->b, 1);
            return true;
        }
        if (binary->op == BinaryOp::Mod || is_of_bits(binary->op)) return true;
        const Linear divisor = binary->op == BinaryOp::Div ? linear(binary->b) : Linear{};
        if (!divisor.terms.empty() || divisor.constant <= 0) return false;
        also(binary->a, divisor.constant);
        return true;
    }

    /// A bound of a sum: what is known of it, and the open terms, which share what is left by their factors.
    struct Bounded {
        int64_t constant = 0;
        int64_t factors = 0, taken_factors = 0;  // of each list together, positive
        std::vector<Expr> added = {}, taken = {};
        bool is_known() const { return added.empty() && taken.empty(); }
    };

    /// A bound of the sum's largest value, or else of its smallest; axes take the values that make it so. Nothing where
    /// that is not understood.
    std::optional<Bounded> bounded(const Expr& expr, bool largest, int depth) const {
        Linear sum = linear(expr);
        while (true) {
            auto axis = std::find_if(sum.terms.begin(), sum.terms.end(),
                                     [](const Linear::Term& term) { return term.expr.as<Variable>() != nullptr; });
            if (axis == sum.terms.end()) break;
            if (gives_up(++depth)) return {};
            const Linear::Term term = *axis;
            sum.terms.erase(axis);
            const Variable& variable = *term.expr.as<Variable>();
            if ((term.factor > 0) != largest) {
                sum.constant = plus(sum.constant, times(term.factor, variable.min.value_or(0)));
            } else if (variable.extent.defined()) {
                add(sum, iterations(variable.extent), term.factor);
                sum.constant = minus(sum.constant, term.factor);
            } else if (variable.max) {
                sum.constant = plus(sum.constant, times(term.factor, *variable.max));
            } else {
                return {};
            }
        }
        Bounded result{.constant = sum.constant};
        for (const Linear::Term& term : sum.terms) {
            if (auto known = extreme(term.expr, (term.factor > 0) == largest, depth + 1)) {
                result.constant = plus(result.constant, times(term.factor, *known));
            } else if (term.factor > 0) {
                result.factors = plus(result.factors, term.factor);
                result.added.push_back(term.expr);
            } else {
                result.taken_factors = minus(result.taken_factors, term.factor);
                result.taken.push_back(term.expr);
            }
        }
        return result;
    }

    /// The largest or smallest value of a remainder, or of a quotient that no input decides.
    std::optional<int64_t> extreme(const Expr& expr, bool largest, int depth) const {
        const Binary* binary = expr.as<Binary>();
        if (!binary || (binary->op != BinaryOp::Mod && binary->op != BinaryOp::Div)) return {};
        const Linear divisor = linear(binary->b);
        if (!divisor.terms.empty() || divisor.constant <= 0) return {};
        if (binary->op == BinaryOp::Mod) return largest ? divisor.constant - 1 : 0;
        auto divided = bounded(binary->a, largest, depth);
        if (!divided || !divided->is_known()) return {};
        return floor_div(divided->constant, divisor.constant);
    }

    static Expr without_casts(Expr expr) {
        for (const Cast* cast = expr.as<Cast>(); cast && is_whole(cast->a.type()); cast = expr.as<Cast>())
            expr = cast->a;
        return expr;
    }

    const Read* input_read(const Expr& expr) const {
        const Read* read = expr.as<Read>();
        return read && read->operation->is_input() && is_whole(expr.type()) ? read : nullptr;
    }

    void add(Linear& sum, const Linear& more, int64_t factor) const {
        sum.constant = plus(sum.constant, times(more.constant, factor));
        for (const Linear::Term& term : more.terms) {
            auto same = std::find_if(sum.terms.begin(), sum.terms.end(),
                                     [&](const Linear::Term& known) { return equal(known.expr, term.expr); });
            if (same == sum.terms.end()) same = sum.terms.insert(same, {term.expr, 0});
            same->factor = plus(same->factor, times(term.factor, factor));
        }
        std::erase_if(sum.terms, [](const Linear::Term& term) { return term.factor == 0; });
    }

    /// How many iterations a loop has, if it has any: max(extent, 0) is then the extent.
    Linear iterations(const Expr& extent) const {
        const Binary* larger = without_casts(extent).as<Binary>();
        const bool bounded_below = larger && larger->op == BinaryOp::Max && is_constant(larger->b, 0);
        return linear(bounded_below ? larger->a : extent);
    }

    bool gives_up(int depth) const { return depth > kDeepest || ++steps_ > kMostSteps; }

    Linear linear(const Expr& with_casts) const {
        const Expr expr = without_casts(with_casts);
        if (gives_up(0)) return {.terms = {{expr, 1}}};
        if (!is_whole(expr.type())) return {.terms = {{expr, 1}}};
        if (auto value = as_constant(expr)) return {.constant = *value};
        if (const Variable* variable = expr.as<Variable>()) {
            auto size = numbers_.sizes.find(variable->name);
            if (variable->kind == VariableKind::Size && size != numbers_.sizes.end()) return {.constant = size->second};
            auto scalar = numbers_.scalars.find(variable->name);
            if (variable->kind == VariableKind::Scalar && scalar != numbers_.scalars.end())
                return {.constant = scalar->second.integer};
        }
        Linear result;
        if (const Unary* unary = expr.as<Unary>(); unary && unary->op == UnaryOp::Negate)
            return add(result, linear(unary->a), -1), result;
        const Binary* binary = expr.as<Binary>();
        if (!binary) return {.terms = {{expr, 1}}};
        Linear a = linear(binary->a), b = linear(binary->b);
        if (binary->op == BinaryOp::Add || binary->op == BinaryOp::Sub) {
            add(a, b, binary->op == BinaryOp::Add ? 1 : -1);
            return a;
        }
        if (!a.terms.empty()) std::swap(a, b);
        if (binary->op == BinaryOp::Mul && a.terms.empty()) return add(result, b, a.constant), result;
        return {.terms = {{expr, 1}}};
    }

    const Bindings& numbers_;
    std::map<std::string, Bounds> bounds_;
    std::set<const Operation*> asked_;  // of one operation: inputs, elements of which it compares
    mutable int steps_ = 0;             // taken for this index
};

/// The least and the largest number of a type of integers.
std::pair<int64_t, int64_t> limits_of(Type type) {
    const int64_t ones = wrap_to_type(type, -1);
    if (ones > 0) return {0, ones};
    const int bits = 8 * static_cast<int>(bytes_of(type));
    const int64_t most = std::numeric_limits<int64_t>::max() >> (64 - bits);
    return {-most - 1, most};
}

}  // namespace

std::map<std::string, IntegerRange> integer_ranges(const std::vector<Tensor>& outputs, const Bindings& numbers) {
    RangeFinder finder(numbers);
    for (const auto& operation : operations_of(outputs)) finder.look_at(*operation);
    return finder.ranges();
}

void fill_integers(HostArray& array, const IntegerRange& range, uint64_t seed) {
    if (array.type == Type::Bool) return fill_integers(array, 0, 1, seed);
    auto [least, most] = limits_of(array.type);
    fill_integers(array, std::clamp(range.low, least, most), std::clamp(range.high, least, most), seed);
    if (!range.ascending || array.shape.size() != 1) return;
    std::vector<int64_t> numbers;
    for (int64_t i = 0; i < array.shape[0]; ++i) numbers.push_back(array.at({i}).integer);
    std::sort(numbers.begin(), numbers.end());
    for (int64_t i = 0; i < array.shape[0]; ++i)
        array.set({i}, make_value(array.type, numbers[static_cast<size_t>(i)]));
}

}  // namespace tw
