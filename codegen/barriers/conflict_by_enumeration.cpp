#include <algorithm>
#include <functional>
#include <numeric>

#include "codegen/barriers/conflict_question.h"
#include "dsl/evaluate.h"

namespace tw::codegen {
namespace {

constexpr int64_t kLargestEnumeration = int64_t{1} << 20;  // points; about 50 ms
constexpr int64_t kLargestTable = int64_t{1} << 22;        // elements with an owner each

/// All points of both sides, for each value of the variables that they share.
class Enumeration {
public:
    explicit Enumeration(const ConflictQuestion& question) : q_(question) {}

    Conflict run() {
        if (!choose_variables() || !choose_table()) return Conflict::Possible;
        compile(q_.a, a_);
        compile(q_.b, b_);
        values_.resize(slots_.size());
        bool met = false;
        each_point(outer_, [&] {
            each_point(a_.loops, [&] { return own_elements(), true; });
            each_point(b_.loops, [&] { return !(met = met || meets()); });
            for (const int64_t element : owned_) owner_[element] = kNobody;  // few of a large table
            owned_.clear();
            return !met;
        });
        bool certain = q_.all_conditions && num_dropped_ == 0;
        return !met ? Conflict::Never : certain ? Conflict::Certain : Conflict::Possible;
    }

private:
    static constexpr int kNobody = -1, kSeveral = -2;
    struct Code {
        std::vector<Ranged> loops;
        std::vector<Expr> guards;
        std::vector<CompiledExpr> indices, conditions;
        int thread_slot, width;
    };

    /// The variables that indices mention, and those of conditions while there are few enough points; false if there
    /// are too many, or an unknown number.
    bool choose_variables() {
        for (const Side* side : {&q_.a, &q_.b}) {
            code_of(*side).loops = {side->own[0]};
            for (const Affine& index : side->indices) add_variables(to_expr(index), *side);
        }
        if (!num_points()) return false;
        for (const Side* side : {&q_.a, &q_.b})
            for (const Expr& condition : side->conditions) add_condition(condition, *side);
        return true;
    }

    Code& code_of(const Side& side) { return &side == &q_.a ? a_ : b_; }

    void add_condition(const Expr& condition, const Side& side) {
        Code& code = code_of(side);
        auto loops = code.loops, outer = outer_;
        add_variables(condition, side);
        if (num_points()) return code.guards.push_back(condition);
        code.loops = loops;
        outer_ = outer;
        ++num_dropped_;
    }

    void add_variables(const Expr& expr, const Side& side) {
        Code& code = code_of(side);
        for (const Expr& variable : variables_of(expr)) {
            if (among(code.loops, variable) || among(outer_, variable)) continue;
            auto own = std::find_if(side.own.begin(), side.own.end(),
                                    [&](const Ranged& r) { return r.variable.same(variable); });
            if (own != side.own.end())
                code.loops.push_back(*own);
            else
                add_outer(variable);
        }
    }

    void add_outer(const Expr& variable) {
        auto bounds = q_.known.find(variable.id());
        outer_.push_back({variable, bounds == q_.known.end() ? bounds_of(variable) : bounds->second});
        if (!shrink_to_weakest(outer_.back())) shrink_to_period(outer_.back());
    }

    /// Empty if there are too many, or an unknown number.
    std::optional<int64_t> num_points() const {
        int64_t own = 0, total = 1;
        for (const Code* code : {&a_, &b_}) {
            int64_t points = 1;
            for (const Ranged& loop : code->loops)
                if (!multiply(points, count(loop.bounds))) return {};
            own += points;
        }
        for (const Ranged& loop : outer_)
            if (!multiply(total, count(loop.bounds))) return {};
        if (!multiply(total, own)) return {};
        return total;
    }

    // 64 * block + row < 1000: if a shared variable stands in such conditions only, its smallest value allows the most.
    bool shrink_to_weakest(Ranged& ranged) const {
        bool smallest = true, largest = true;
        for (const Side* side : {&q_.a, &q_.b}) {
            for (const Affine& index : side->indices)
                if (contains(to_expr(index), ranged.variable)) return false;
            for (const Expr& condition : side->conditions) {
                if (!contains(condition, ranged.variable)) continue;
                auto compared = condition.as<Binary>();
                if (!compared || (compared->op != BinaryOp::Less && compared->op != BinaryOp::LessEqual)) return false;
                auto factor = coefficient(affine_of(compared->a) - affine_of(compared->b), ranged.variable);
                smallest = smallest && factor && *factor >= 0;
                largest = largest && factor && *factor <= 0;
            }
        }
        if (smallest && ranged.bounds.min)
            ranged.bounds.max = ranged.bounds.min;
        else if (largest && ranged.bounds.max)
            ranged.bounds.min = ranged.bounds.max;
        else
            return false;
        return true;
    }

    // (ko + 1) % 3 repeats after three iterations: no others need to be tried. The distance likewise, from 2 on.
    void shrink_to_period(Ranged& ranged) const {
        int64_t period = 1;
        for (const Side* side : {&q_.a, &q_.b})
            for (const Affine& index : side->indices)
                visit(to_expr(index), [&](const Expr& node) {
                    auto binary = node.as<Binary>();
                    if (!binary || binary->op != BinaryOp::Mod || !contains(node, ranged.variable)) return;
                    if (auto modulus = as_constant(binary->b); modulus && *modulus > 0 && *modulus < 1024)
                        period = std::lcm(period, *modulus);
                });
        auto all = count(ranged.bounds);
        if ((all && *all <= period) || period == 1 || period > 4096) return;
        Expr shifted = ranged.variable + period;
        for (const Side* side : {&q_.a, &q_.b})
            for (const Affine& index : side->indices) {
                Expr now = simplify(to_expr(index)), then = simplify(substitute(now, {{ranged.variable, shifted}}));
                if (!equal(now, then)) return;
            }
        ranged.bounds.max = *ranged.bounds.min + period - 1;
    }

    static bool multiply(int64_t& product, std::optional<int64_t> factor) {
        if (!factor || (*factor != 0 && product > kLargestEnumeration / *factor)) return false;
        product *= *factor;
        return true;
    }

    /// A place in a table for every element that either side may access.
    bool choose_table() {
        int64_t size = 1;
        BoundsOverride known = q_.known;
        for (const Ranged& ranged : outer_) known[ranged.variable.id()] = ranged.bounds;
        for (size_t d = q_.a.indices.size(); d-- > 0;) {
            Interval x = bounds_of(to_expr(q_.a.indices[d]), known), y = bounds_of(to_expr(q_.b.indices[d]), known);
            if (!count(x) || !count(y)) return false;
            int64_t low = std::min(*x.min, *y.min),
                    high = std::max(*x.max + q_.a.width_in(d), *y.max + q_.b.width_in(d));
            lows_.insert(lows_.begin(), low);
            strides_.insert(strides_.begin(), size);
            if (high - low > kLargestTable / size) return false;
            size *= high - low;
        }
        owner_.resize(size, kNobody);
        return true;
    }

    void compile(const Side& side, Code& code) {
        auto none = [](const ExprNode&) -> const MemoryView* { return nullptr; };
        for (const Ranged& ranged : outer_) slots_.slot(ranged.variable);
        for (const Ranged& ranged : code.loops) slots_.slot(ranged.variable);
        code.thread_slot = slots_.slot(side.thread);
        code.width = side.width;
        for (const Affine& index : side.indices) code.indices.emplace_back(to_expr(index), slots_, none);
        for (const Expr& guard : code.guards) code.conditions.emplace_back(guard, slots_, none);
    }

    /// Calls `at` at every point until it returns false.
    void each_point(const std::vector<Ranged>& loops, const std::function<bool()>& at) {
        std::vector<int> slots;
        for (const Ranged& loop : loops) {
            if (*loop.bounds.max < *loop.bounds.min) return;
            slots.push_back(slots_.slot(loop.variable));
            values_[slots.back()].integer = *loop.bounds.min;
        }
        while (at()) {
            size_t l = 0;
            for (; l < loops.size(); ++l) {
                if (++values_[slots[l]].integer <= *loops[l].bounds.max) break;
                values_[slots[l]].integer = *loops[l].bounds.min;
            }
            if (l == loops.size()) return;
        }
    }

    bool runs(const Code& code) const {
        return std::all_of(code.conditions.begin(), code.conditions.end(),
                           [&](const CompiledExpr& condition) { return condition.run_integer(values_) != 0; });
    }

    int64_t place(const Code& code) const {
        int64_t element = 0;
        for (size_t d = 0; d < code.indices.size(); ++d)
            element += (code.indices[d].run_integer(values_) - lows_[d]) * strides_[d];
        return element;
    }

    void own_elements() {
        if (!runs(a_)) return;
        int64_t first = place(a_);
        int thread = static_cast<int>(values_[a_.thread_slot].integer);
        for (int w = 0; w < a_.width; ++w) {
            int& owner = owner_[first + w];
            if (owner == kNobody) owned_.push_back(first + w);
            owner = owner == kNobody || owner == thread ? thread : kSeveral;
        }
    }

    bool meets() {
        if (!runs(b_)) return false;
        int64_t first = place(b_);
        int thread = static_cast<int>(values_[b_.thread_slot].integer);
        return std::any_of(owner_.begin() + first, owner_.begin() + first + b_.width,
                           [&](int owner) { return owner != kNobody && owner != thread; });
    }

    const ConflictQuestion& q_;
    SlotMap slots_;
    std::vector<Register> values_;
    std::vector<Ranged> outer_;
    std::vector<int64_t> lows_, strides_;
    std::vector<int> owner_;      // of each element
    std::vector<int64_t> owned_;  // elements that have one
    Code a_, b_;
    int num_dropped_ = 0;  // conditions that were taken as true
};

}  // namespace

Conflict conflict_by_enumeration(const ConflictQuestion& question) { return Enumeration(question).run(); }

}  // namespace tw::codegen
