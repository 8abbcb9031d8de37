// 64-bit arithmetic costs registers and instructions: index expressions are computed in 32 bits where intervals prove
// that none of their parts overflows.
#include <algorithm>
#include <limits>

#include "codegen/thread_ir/thread_walk.h"
#include "codegen/thread_passes/thread_passes.h"
#include "support/error.h"

namespace tw::codegen {
namespace {

bool is_index(Type type) { return type == Type::I32 || type == Type::I64; }

/// The operands of what needs one integer type.
void unify(Expr& a, Expr& b) {
    if (!is_index(a.type()) || !is_index(b.type()) || a.type() == b.type()) return;
    a = cast_unchecked(Type::I64, a);
    b = cast_unchecked(Type::I64, b);
}

class Narrower {
public:
    explicit Narrower(const ThreadKernel& kernel) : kernel_(kernel), bounds_(kernel) {}

    ThreadKernel run() {
        ThreadKernel result = kernel_;
        // threadIdx and blockIdx have 31 bits at most
        result.thread = builtin(kernel_.thread);
        for (int dimension = 0; dimension < 3; ++dimension) result.block[dimension] = builtin(kernel_.block[dimension]);
        result.body = block(kernel_.body);
        return result;
    }

private:
    Expr builtin(const Expr& variable) {
        if (!variable.defined()) return variable;
        Interval bounds = bounds_.of(variable);
        constexpr int64_t most = std::numeric_limits<int32_t>::max();
        bounds.max = std::min(bounds.max.value_or(most), most);
        return rename(variable, Type::I32, bounds);
    }

    Expr rename(const Expr& variable, Type type, const Interval& bounds) {
        Variable narrow = *variable.as<Variable>();
        narrow.min = bounds.min;
        narrow.max = bounds.max;
        Expr fresh = make_expr(type, narrow);
        renamed_.push_back({variable, fresh});
        return fresh;
    }

    ThreadStmt block(const ThreadStmt& body) {
        KnownBounds outside = bounds_;
        size_t visible = renamed_.size();
        std::vector<ThreadStmt> stmts;
        for (const ThreadStmt& stmt : statements(body)) stmts.push_back(statement(stmt));
        renamed_.resize(visible);
        bounds_ = outside;
        return block_of(stmts);
    }

    ThreadStmt statement(const ThreadStmt& stmt) {
        if (auto loop = stmt.as<ThreadLoop>()) return make_thread(narrow(*loop), stmt.step());
        if (auto let = stmt.as<ThreadLet>()) return make_thread(narrow(*let), stmt.step());
        if (auto store = stmt.as<ThreadStore>()) {
            Expr value = cast_unchecked(store->value.type(), narrow(store->value));
            return make_thread(ThreadStore{narrow(store->to), value, store->atomic}, stmt.step());
        }
        if (auto branch = stmt.as<ThreadIf>())
            return make_thread(ThreadIf{narrow(branch->condition), block(branch->body)}, stmt.step());
        if (auto role = stmt.as<ThreadRole>()) return make_thread(narrow(*role), stmt.step());
        return map_expressions(stmt, [&](const Expr& expr) { return narrow(expr); });
    }

    Access narrow(const Access& access) {
        Access result{access.buffer, {}};
        for (const Expr& index : access.indices) result.indices.push_back(narrow(index));
        return result;
    }

    /// The variable reaches the extent when the loop ends.
    ThreadLoop narrow(const ThreadLoop& loop) {
        Expr extent = narrow(loop.extent);
        Type type = fits_i32(bounds_.of(loop.extent)) ? Type::I32 : Type::I64;
        KnownBounds outside = bounds_;
        size_t visible = renamed_.size();
        bounds_.enter_loop(loop);
        Expr variable = rename(loop.variable, type, bounds_.of(loop.variable));
        ThreadLoop result = loop;
        result.variable = variable;
        result.extent = cast_unchecked(type, extent);
        result.body = block(loop.body);
        renamed_.resize(visible);
        bounds_ = outside;
        return result;
    }

    ThreadRole narrow(const ThreadRole& role) {
        if (!role.thread.defined()) return {role.name, {}, role.first, role.threads, block(role.body)};
        size_t visible = renamed_.size();
        Expr thread = rename(role.thread, Type::I32, {0, role.threads / role.turns - 1});
        Expr turn = role.turn.defined() ? rename(role.turn, Type::I32, {0, role.turns - 1}) : Expr();
        ThreadRole result{role.name, thread, role.first, role.threads, block(role.body), turn, role.turns};
        renamed_.resize(visible);
        return result;
    }

    ThreadLet narrow(const ThreadLet& let) {
        Expr value = narrow(let.value);
        if (let.variable.type() != Type::I64) return {let.variable, value};
        bounds_.define(let);
        Type type = fits_i32(bounds_.of(let.variable)) ? Type::I32 : value.type();
        return {rename(let.variable, type, bounds_.of(let.variable)), cast_unchecked(type, value)};
    }

    Expr narrow(const Expr& expr) {
        if (expr.as<Variable>()) return variable(expr);
        if (auto constant = expr.as<IntConstant>())
            return expr.type() == Type::I64 && fits_i32({constant->value, constant->value})
                       ? tw::constant(Type::I32, constant->value)
                       : expr;
        std::vector<Expr> kids = children(expr);
        for (Expr& kid : kids) kid = narrow(kid);
        if (expr.as<Cast>()) return cast(expr, kids[0]);
        if (auto bits = expr.as<Bitcast>())  // of as many bytes as they were
            return make_expr(expr.type(), Bitcast{cast_unchecked(bits->a.type(), kids[0])});
        if (auto select = expr.as<Select>()) {
            unify(kids[1], kids[2]);
            return make_expr(select->yes.type() == kids[1].type() ? expr.type() : kids[1].type(),
                             Select{kids[0], kids[1], kids[2]});
        }
        if (auto operation = expr.as<Binary>()) return arithmetic(expr, *operation, kids);
        if (auto operation = expr.as<Unary>(); operation && expr.type() == Type::I64) {
            if (kids[0].type() == Type::I64 || !fits_i32(bounds_.of(expr)))
                kids[0] = cast_unchecked(Type::I64, kids[0]);
            return unary(operation->op, kids[0]);
        }
        return with_children(expr, kids);
    }

    /// A size keeps its identity, by which it is given at launch: a cast that prints nothing stands for its width.
    Expr variable(const Expr& expr) const {
        if (expr.as<Variable>()->kind == VariableKind::Size) return cast_unchecked(argument_type(expr), expr);
        for (auto known = renamed_.rbegin(); known != renamed_.rend(); ++known)
            if (known->first.same(expr)) return known->second;
        return expr;
    }

    static Expr cast(const Expr& expr, const Expr& kid) {
        Type to = expr.type();
        bool widens = to == Type::I64 && (is_index(kid.type()) || kid.type() == Type::I8 || kid.type() == Type::U8);
        return cast_unchecked(widens && kid.type() != Type::I64 ? Type::I32 : to, kid);
    }

    Expr arithmetic(const Expr& expr, const Binary& operation, std::vector<Expr>& kids) const {
        unify(kids[0], kids[1]);
        if (expr.type() == Type::I64 && !fits_i32(bounds_.of(expr)))
            for (Expr& kid : kids) kid = cast_unchecked(Type::I64, kid);
        return binary(operation.op, kids[0], kids[1]);
    }

    const ThreadKernel& kernel_;
    KnownBounds bounds_;
    Substitution renamed_;
};

}  // namespace

ThreadKernel narrow_indices(const ThreadKernel& kernel) { return Narrower(kernel).run(); }

}  // namespace tw::codegen
