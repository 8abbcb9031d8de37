// Of a comparison between two places in unrolled loops, compilers keep a sum for each iteration. What the loops add to
// it are constants, so one threshold in front of them does for all.
#include <algorithm>

#include <fmt/format.h>

#include "codegen/thread_ir/thread_walk.h"
#include "codegen/thread_passes/divisions.h"
#include "codegen/thread_passes/thread_passes.h"
#include "dsl/simplify.h"

namespace tw::codegen {
namespace {

/// Computed where it is not asked for, it reads nothing and divides by no zero.
bool is_harmless(const Expr& expr) {
    bool harmless = true;
    visit(expr, [&](const Expr& node) {
        if (node.as<Load>()) harmless = false;
        if (is_division(node)) harmless = harmless && bounds_of(node.as<Binary>()->b).min.value_or(0) > 0;
    });
    return harmless;
}

/// Whether all sums and products that it is made of are those of the integers: so is a difference of exact sides then.
bool is_exact(const Expr& expr) {
    bool exact = true;
    visit(expr, [&](const Expr& node) { exact = exact && (!node.as<Binary>() || !may_wrap(node, {})); });
    return exact;
}

bool mentions_any(const Expr& expr, const std::vector<Expr>& variables) {
    return std::ranges::any_of(variables, [&](const Expr& variable) { return contains(expr, variable); });
}

/// The terms of an index in two parts: what unrolled loops add, and the rest.
struct Parts {
    Affine unrolled, rest;
};
Parts parts_of(const Affine& sum, const std::vector<Expr>& unrolled) {
    Parts parts;
    for (const auto& term : sum.terms)
        (mentions_any(term.first, unrolled) ? parts.unrolled : parts.rest).terms.push_back(term);
    parts.rest.offset = sum.offset;
    return parts;
}

bool is_unrolled(const ThreadStmt& stmt) {
    const ThreadLoop* loop = stmt.as<ThreadLoop>();
    return loop && loop->unroll && as_constant(loop->extent);
}

/// Unrolled loops, the outermost of which no other is around.
class Thresholds {
public:
    /// The statement, behind the thresholds that are asked for inside.
    ThreadStmt in_front_of(const ThreadStmt& stmt) {
        std::vector<ThreadStmt> stmts{changed(stmt)};
        stmts.insert(stmts.begin(), lets_.begin(), lets_.end());
        return block_of(stmts);
    }

private:
    ThreadStmt changed(const ThreadStmt& stmt) {
        if (auto let = stmt.as<ThreadLet>()) inside_.push_back(let->variable);
        if (auto loop = stmt.as<ThreadLoop>()) {
            const bool is_one = is_unrolled(stmt);
            (is_one ? unrolled_ : inside_).push_back(loop->variable);
            ThreadStmt result = changed_children(stmt);
            if (is_one) unrolled_.pop_back();
            return result;
        }
        const ThreadStore* store = stmt.as<ThreadStore>();
        if (!store || store->atomic) return changed_children(stmt);
        const Expr value = transform(store->value, [&](const Expr& node) -> Expr {
            const Select* choice = node.as<Select>();
            const Expr condition = choice ? with_thresholds(choice->condition) : Expr();
            return condition.defined() ? select(condition, choice->yes, choice->no) : Expr();
        });
        return make_thread(ThreadStore{store->to, value}, stmt.step());
    }

    ThreadStmt changed_children(const ThreadStmt& stmt) {
        std::vector<ThreadStmt> kids;
        for (const ThreadStmt& kid : children(stmt)) kids.push_back(changed(kid));
        return with_children(stmt, kids);
    }

    /// Undefined if nothing changes.
    Expr with_thresholds(const Expr& condition) {
        bool any = false;
        Expr result = transform(condition, [&](const Expr& node) -> Expr {
            const Binary* compared = node.as<Binary>();
            const bool less = compared && (compared->op == BinaryOp::Less || compared->op == BinaryOp::LessEqual) &&
                              compared->a.type() == Type::I64 && is_harmless(compared->a) && is_harmless(compared->b);
            const Expr other = less ? by_threshold(*compared) : Expr();
            any = any || other.defined();
            return other;
        });
        return any ? result : Expr();
    }

    /// a + u < b + v as u - v < b - a, where u and v are what loops add; of sums that both have more than that.
    Expr by_threshold(const Binary& compared) {
        const Parts left = parts_of(affine_of(compared.a), unrolled_),
                    right = parts_of(affine_of(compared.b), unrolled_);
        if (left.rest.terms.empty() || right.rest.terms.empty()) return {};
        const Affine by_loops = left.unrolled - right.unrolled;
        const Expr threshold = simplify(to_expr(right.rest - left.rest));
        if (!is_exact(threshold) || !is_exact(compared.a) || !is_exact(compared.b)) return {};
        if (by_loops.terms.empty() || mentions_any(threshold, inside_) || mentions_any(threshold, unrolled_)) return {};
        return binary(compared.op, to_expr(by_loops), named(threshold));
    }

    Expr named(const Expr& threshold) {
        for (const ThreadStmt& let : lets_)
            if (equal(let.as<ThreadLet>()->value, threshold)) return let.as<ThreadLet>()->variable;
        const Interval bounds = bounds_of(threshold);
        const std::string number = lets_.empty() ? "" : fmt::format("_{}", lets_.size() + 1);
        const Expr name =
            make_expr(threshold.type(), Variable{.name = "threshold" + number, .min = bounds.min, .max = bounds.max});
        lets_.push_back(make_thread(ThreadLet{name, threshold}));
        return name;
    }

    std::vector<Expr> unrolled_;  // variables of the loops around
    std::vector<Expr> inside_;    // of what is defined inside, beside
    std::vector<ThreadStmt> lets_;
};

ThreadStmt with_thresholds(const ThreadStmt& stmt) {
    if (is_unrolled(stmt)) return Thresholds().in_front_of(stmt);
    std::vector<ThreadStmt> kids;
    for (const ThreadStmt& kid : children(stmt)) kids.push_back(with_thresholds(kid));
    if (stmt.as<ThreadBlock>()) return block_of(kids);
    return with_children(stmt, kids);
}

}  // namespace

ThreadKernel name_thresholds(const ThreadKernel& kernel) {
    ThreadKernel result = kernel;
    result.body = with_thresholds(kernel.body);
    return result;
}

}  // namespace tw::codegen
