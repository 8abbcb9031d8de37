// Whole numbers that unrolled loops count become floats once: what the copies differ by is a constant.
#include <algorithm>

#include "codegen/thread_ir/thread_walk.h"
#include "codegen/thread_passes/thread_passes.h"

namespace tw::codegen {
namespace {

constexpr int64_t largest = 1 << 24;  // f32 has all whole numbers up to it

class Splitter {
public:
    explicit Splitter(const ThreadKernel& kernel) : bounds_(kernel) {}

    ThreadStmt operator()(const ThreadStmt& stmt) {
        const KnownBounds outside = bounds_;
        const std::vector<Expr> around = unrolled_;
        ThreadStmt changed = stmt.as<ThreadStore>() ? split_in(stmt) : stmt;
        if (const ThreadLoop* loop = stmt.as<ThreadLoop>()) {
            bounds_.enter_loop(*loop);
            if (loop->unroll) unrolled_.push_back(loop->variable);
        }
        std::vector<ThreadStmt> kids;
        for (const ThreadStmt& kid : children(stmt)) {
            kids.push_back((*this)(kid));
            if (const ThreadLet* let = kid.as<ThreadLet>()) bounds_.define(*let);
        }
        bounds_ = outside, unrolled_ = around;
        return with_children(changed, kids);
    }

private:
    ThreadStmt split_in(const ThreadStmt& stmt) const {
        if (unrolled_.empty()) return stmt;
        const ThreadStore& store = *stmt.as<ThreadStore>();
        const Expr value = transform(store.value, [&](const Expr& node) -> Expr {
            const Cast* cast = node.as<Cast>();
            return cast && node.type() == Type::F32 && cast->a.type() == Type::I64 ? split(cast->a) : Expr();
        });
        return value.same(store.value) ? stmt : make_thread(ThreadStore{store.to, value, store.atomic}, stmt.step());
    }

    /// Undefined where loops change nothing, or all of it, or numbers may be large.
    Expr split(const Expr& number) const {
        const Affine all = affine_of(number);
        Affine outer, copies;
        copies.offset = all.offset;
        for (const auto& term : all.terms) (counts_copies(term.first) ? copies : outer).terms.push_back(term);
        if (outer.terms.empty() || copies.terms.empty()) return {};
        const Expr base = to_expr(outer), steps = to_expr(copies);
        if (!is_exact(number) || !is_exact(base) || !is_exact(steps)) return {};
        return cast(f32, base) + cast(f32, steps);
    }

    bool counts_copies(const Expr& atom) const {
        return std::ranges::any_of(unrolled_, [&](const Expr& variable) { return variable.same(atom); });
    }

    bool is_exact(const Expr& number) const {
        const Interval interval = bounds_.of(number);
        return interval.min && interval.max && *interval.min >= -largest && *interval.max <= largest;
    }

    KnownBounds bounds_;
    std::vector<Expr> unrolled_;
};

}  // namespace

ThreadKernel split_casts(const ThreadKernel& kernel) {
    ThreadKernel result = kernel;
    result.body = Splitter(kernel)(kernel.body);
    return result;
}

}  // namespace tw::codegen
