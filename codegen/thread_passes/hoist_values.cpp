// Quotients and functions behind a condition move out of the unrolled loops that would compute them for each element:
// compilers take a branch for each, and see no value twice.
#include <algorithm>
#include <map>
#include <set>

#include "codegen/access/access.h"
#include "codegen/thread_ir/thread_walk.h"
#include "codegen/thread_passes/evaluation.h"
#include "codegen/thread_passes/thread_passes.h"

namespace tw::codegen {
namespace {

constexpr int64_t least_copies = 4;  // of a value, for an array to pay

bool is_function(const Expr& expr) {
    const Unary* unary = expr.as<Unary>();
    return unary && unary->op >= UnaryOp::Sqrt;
}

/// Several instructions, or a branch.
bool is_long(const Expr& expr) {
    const Binary* binary = expr.as<Binary>();
    return is_float(expr.type()) && (is_function(expr) || (binary && binary->op == BinaryOp::Div));
}

bool is_unrolled(const ThreadStmt& stmt) {
    const ThreadLoop* loop = stmt.as<ThreadLoop>();
    return loop && loop->unroll && loop->ends_at == 0 && as_constant(loop->extent);
}

/// Loops that are unrolled, and what stands in them.
class UnrolledNest {
public:
    UnrolledNest(const ThreadStmt& root, const KnownBounds& bounds) : bounds_(bounds) {
        visit(root, [&](const ThreadStmt& stmt) { changes(stmt); });
    }

    ThreadStmt rewritten(const ThreadStmt& stmt) {
        if (const ThreadStore* store = stmt.as<ThreadStore>()) {
            known_.clear(), parts_.clear();
            return make_thread(ThreadStore{store->to, value(store->value, false), store->atomic}, stmt.step());
        }
        const KnownBounds outside = bounds_;
        if (const ThreadLoop* loop = stmt.as<ThreadLoop>()) bounds_.enter_loop(*loop);
        if (is_unrolled(stmt)) loops_.push_back(stmt);
        std::vector<ThreadStmt> kids;
        for (const ThreadStmt& kid : children(stmt)) kids.push_back(rewritten(kid));
        if (is_unrolled(stmt)) loops_.pop_back();
        bounds_ = outside;
        return with_children(stmt, kids);
    }

    /// What stands in front of the loops.
    std::vector<ThreadStmt> arrays() const {
        std::vector<ThreadStmt> all;
        for (const Hoisted& each : hoisted_) {
            all.push_back(make_thread(ThreadDeclare{each.array}));
            ThreadStmt made = make_thread(ThreadStore{each.place(), each.value});
            for (auto loop = each.loops.rbegin(); loop != each.loops.rend(); ++loop)
                made = with_children(*loop, {made});
            all.push_back(made);
        }
        return all;
    }

private:
    struct Hoisted {
        Expr value;
        std::vector<ThreadStmt> loops;  // whose variables it mentions
        Buffer array;
        Access place() const {
            Access access{array, {}};
            for (const ThreadStmt& loop : loops) access.indices.push_back(loop.as<ThreadLoop>()->variable);
            return access;
        }
    };

    /// Registers that the statement may change, or that are its own, and variables that it defines.
    void changes(const ThreadStmt& stmt) {
        if (const ThreadDeclare* declare = stmt.as<ThreadDeclare>()) changed_.insert(declare->buffer.get());
        if (const ThreadStore* store = stmt.as<ThreadStore>()) changed_.insert(store->to.buffer.get());
        if (const ThreadWide* wide = stmt.as<ThreadWide>()) changed_.insert(wide->to.buffer.get());
        if (const Instruction* instruction = stmt.as<Instruction>())
            for (const Operand& operand : operands(*instruction))
                if (const Access* place = operand_place(operand)) changed_.insert(place->buffer.get());
        if (const ThreadLet* let = stmt.as<ThreadLet>()) own_.push_back(let->variable);
        if (const ThreadLoop* loop = stmt.as<ThreadLoop>(); loop && !is_unrolled(stmt)) own_.push_back(loop->variable);
    }

    Expr value(const Expr& expr, bool guarded) {
        const std::pair<const ExprNode*, bool> key{expr.id(), guarded};
        if (auto known = known_.find(key); known != known_.end()) return known->second;
        Expr result = is_long(expr) && (guarded || parts(expr).calls) ? hoisted(expr) : Expr();
        if (!result.defined()) {
            std::vector<Expr> kids = children(expr);
            for (size_t k = 0; k < kids.size(); ++k) kids[k] = value(kids[k], guarded || is_guarded(expr, k));
            result = with_children(expr, kids);
        }
        return known_[key] = result;
    }

    /// What an expression is made of.
    struct Parts {
        bool may_stand_ahead = true, calls = false;
        std::set<size_t> loops = {};  // by their variables
    };

    const Parts& parts(const Expr& expr) {
        if (auto known = parts_.find(expr.id()); known != parts_.end()) return known->second;
        const Load* load = expr.as<Load>();
        auto is_own = [&](const Expr& variable) { return variable.same(expr); };
        Parts all{is_pure_by_itself(expr, bounds_) && !(load && changed_.count(load->buffer.get())) &&
                      std::ranges::none_of(own_, is_own),
                  is_function(expr)};
        for (size_t n = 0; n < loops_.size(); ++n)
            if (loops_[n].as<ThreadLoop>()->variable.same(expr)) all.loops.insert(n);
        for (const Expr& kid : children(expr)) {
            const Parts& part = parts(kid);
            all.may_stand_ahead = all.may_stand_ahead && part.may_stand_ahead;
            all.calls = all.calls || part.calls;
            all.loops.insert(part.loops.begin(), part.loops.end());
        }
        return parts_[expr.id()] = all;
    }

    /// Its element of an array; undefined if the loops change it, or do not repeat it.
    Expr hoisted(const Expr& expr) {
        const Parts& made_of = parts(expr);
        if (!made_of.may_stand_ahead) return {};
        Hoisted found{expr, {}, {}};
        int64_t copies = 1;
        for (size_t n = 0; n < loops_.size(); ++n) {
            if (made_of.loops.count(n))
                found.loops.push_back(loops_[n]);
            else
                copies *= require_constant(loops_[n].as<ThreadLoop>()->extent);
        }
        if (copies < least_copies) return {};
        auto same = std::ranges::find_if(hoisted_, [&](const Hoisted& other) { return equal(other.value, expr); });
        if (same == hoisted_.end()) {
            found.array = array_for(found);
            same = hoisted_.insert(hoisted_.end(), std::move(found));
        }
        const Access place = same->place();
        return make_expr(expr.type(), Load{place.buffer, place.indices});
    }

    static Buffer array_for(const Hoisted& hoisted) {
        std::string read = "value";
        visit(hoisted.value, [&](const Expr& node) {
            if (const Load* load = node.as<Load>()) read = load->buffer->name;
        });
        std::vector<int64_t> shape;
        for (const ThreadStmt& loop : hoisted.loops) shape.push_back(require_constant(loop.as<ThreadLoop>()->extent));
        const Binary* quotient = hoisted.value.as<Binary>();
        const FloatConstant* divided = quotient ? quotient->a.as<FloatConstant>() : nullptr;
        const char* what = divided && divided->value == 1 ? "_reciprocal" : quotient ? "_quotient" : "_function";
        return register_array(read + what, hoisted.value.type(), shape);
    }

    KnownBounds bounds_;
    std::vector<ThreadStmt> loops_;
    std::set<const BufferNode*> changed_;
    std::vector<Expr> own_;
    std::vector<Hoisted> hoisted_;
    std::map<std::pair<const ExprNode*, bool>, Expr> known_;  // of one statement, as are:
    std::map<const ExprNode*, Parts> parts_;
};

class Walk {
public:
    explicit Walk(const ThreadKernel& kernel) : bounds_(kernel) {}

    ThreadStmt operator()(const ThreadStmt& stmt) {
        if (is_unrolled(stmt)) {
            UnrolledNest nest(stmt, bounds_);
            const ThreadStmt loops = nest.rewritten(stmt);
            std::vector<ThreadStmt> all = nest.arrays();
            all.push_back(loops);
            return block_of(all);
        }
        const KnownBounds outside = bounds_;
        if (const ThreadLoop* loop = stmt.as<ThreadLoop>()) bounds_.enter_loop(*loop);
        std::vector<ThreadStmt> kids;
        for (const ThreadStmt& kid : children(stmt)) {
            kids.push_back((*this)(kid));
            if (const ThreadLet* let = kid.as<ThreadLet>()) bounds_.define(*let);
        }
        bounds_ = outside;
        return stmt.as<ThreadBlock>() ? block_of(kids) : with_children(stmt, kids);
    }

private:
    KnownBounds bounds_;
};

}  // namespace

ThreadKernel hoist_values(const ThreadKernel& kernel) {
    ThreadKernel result = kernel;
    result.body = Walk(kernel)(kernel.body);
    return result;
}

}  // namespace tw::codegen
