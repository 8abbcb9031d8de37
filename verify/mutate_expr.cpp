#include "verify/mutate_expr.h"

#include <fmt/format.h>

#include "codegen/access/access.h"
#include "codegen/thread_ir/thread_walk.h"
#include "verify/mutate_streams.h"

namespace tw::fuzz {
namespace {

bool is_comparison(BinaryOp op) {
    return op == BinaryOp::Less || op == BinaryOp::LessEqual || op == BinaryOp::Equal || op == BinaryOp::NotEqual;
}

/// Puts an expression in the place of the one that is being looked at, and gives the whole.
using Put = std::function<Expr(const Expr&)>;

class ExprMutator {
public:
    explicit ExprMutator(const std::vector<Expr>& rings) : rings_(rings) {}

    void mutate(const Expr& expr, ExprRole role, const Put& put) {
        switch (role) {
            case ExprRole::ReadIndex: index(MutationKind::ReadIndex, expr, put); break;
            case ExprRole::WriteIndex: index(MutationKind::WriteIndex, expr, put); break;
            case ExprRole::Mask: mask(expr, put); break;
            case ExprRole::Extent: one_off(MutationKind::Extent, expr, put); break;
            case ExprRole::Value: break;
            case ExprRole::Check: return;
        }
        inside(expr, role, put);
    }
    std::vector<MutatedExpr> take() { return std::move(found_); }

private:
    void add(MutationKind kind, const Expr& from, const Expr& to, const Put& put) {
        found_.push_back({kind, fmt::format("{} -> {}", to_string(from), to_string(to)), put(to)});
    }

    void one_off(MutationKind kind, const Expr& expr, const Put& put) {
        auto known = as_constant(expr);
        for (int change : {1, -1}) {
            Expr off = known ? constant(expr.type(), *known + change)
                             : binary(BinaryOp::Add, expr, constant(expr.type(), change));
            add(kind, expr, off, put);
        }
    }

    void index(MutationKind kind, const Expr& expr, const Put& put) {
        one_off(kind, expr, put);
        strides(kind, expr, put);
    }

    /// Sums of products: each constant factor one larger.
    void strides(MutationKind kind, const Expr& expr, const Put& put) {
        auto operation = expr.as<Binary>();
        if (!operation) return;
        if (operation->op == BinaryOp::Add || operation->op == BinaryOp::Sub) {
            strides(kind, operation->a, [&](const Expr& a) { return put(binary(operation->op, a, operation->b)); });
            strides(kind, operation->b, [&](const Expr& b) { return put(binary(operation->op, operation->a, b)); });
        }
        if (operation->op != BinaryOp::Mul) return;
        if (auto factor = as_constant(operation->b))
            add(kind, expr, binary(BinaryOp::Mul, operation->a, constant(operation->b.type(), *factor + 1)), put);
    }

    /// A condition as a whole, its conjuncts, and bounds that do not depend on data.
    void mask(const Expr& condition, const Put& put) {
        add(MutationKind::Mask, condition, constant(Type::Bool, 1), put);
        add(MutationKind::Mask, condition, unary(UnaryOp::Not, condition), put);
        parts_of_mask(condition, put);
    }

    void parts_of_mask(const Expr& condition, const Put& put) {
        auto operation = condition.as<Binary>();
        if (!operation) return;
        if (operation->op == BinaryOp::And || operation->op == BinaryOp::Or) {
            add(MutationKind::Mask, condition, operation->a, put);
            add(MutationKind::Mask, condition, operation->b, put);
            parts_of_mask(operation->a, [&](const Expr& a) { return put(binary(operation->op, a, operation->b)); });
            parts_of_mask(operation->b, [&](const Expr& b) { return put(binary(operation->op, operation->a, b)); });
        }
        bool of_indices = is_integer(operation->a.type()) && !codegen::reads_memory(condition);
        if (is_comparison(operation->op) && of_indices)
            one_off(MutationKind::Mask, operation->b,
                    [&](const Expr& b) { return put(binary(operation->op, operation->a, b)); });
    }

    /// What stands inside has a role of its own.
    void inside(const Expr& expr, ExprRole role, const Put& put) {
        if (role == ExprRole::Value) operators(expr, put);
        if (auto ring = expr.as<Binary>(); ring && ring->op == BinaryOp::Mod && turns(ring->a)) {
            Expr next = binary(BinaryOp::Add, ring->a, constant(ring->a.type(), 1));
            add(MutationKind::Stage, expr, binary(BinaryOp::Mod, next, ring->b), put);
        }
        std::vector<Expr> kids = children(expr);
        for (size_t k = 0; k < kids.size(); ++k) {
            auto put_kid = [&](const Expr& replaced) {
                std::vector<Expr> others = kids;
                others[k] = replaced;
                return put(with_children(expr, others));
            };
            mutate_kid(expr, kids[k], k, role, put_kid);
        }
    }

    static ExprRole role_of(const codegen::Access& access, size_t index) {
        return index < codegen::place_of(access).indices.size() ? ExprRole::ReadIndex : ExprRole::Check;
    }

    void mutate_kid(const Expr& expr, const Expr& kid, size_t k, ExprRole role, const Put& put) {
        if (auto load = expr.as<Load>()) return mutate(kid, role_of({load->buffer, load->indices}, k), put);
        if (expr.as<Select>() && k == 0) return mutate(kid, ExprRole::Mask, put);
        // Parts of indices and masks were altered with the whole; what they load and select is looked at.
        inside(kid, role, put);
    }

    bool turns(const Expr& expr) const {
        for (const Expr& variable : variables_of(expr))
            for (const Expr& ring : rings_)
                if (ring.same(variable)) return true;
        return false;
    }

    void operators(const Expr& expr, const Put& put) {
        auto replace = [&](const Expr& by) { add(MutationKind::Operator, expr, by, put); };
        if (auto operation = expr.as<Binary>()) {
            auto as = [&](BinaryOp op) { replace(binary(op, operation->a, operation->b)); };
            switch (operation->op) {
                case BinaryOp::Add: as(BinaryOp::Sub); break;
                case BinaryOp::Sub:
                    as(BinaryOp::Add), replace(binary(BinaryOp::Sub, operation->b, operation->a));
                    break;
                case BinaryOp::Mul: as(BinaryOp::Add); break;
                case BinaryOp::Div:
                case BinaryOp::DivShared:
                    as(BinaryOp::Mul), replace(binary(BinaryOp::Div, operation->b, operation->a));
                    break;
                case BinaryOp::Min: as(BinaryOp::Max); break;
                case BinaryOp::Max: as(BinaryOp::Min); break;
                case BinaryOp::BitAnd: as(BinaryOp::BitOr); break;
                case BinaryOp::BitOr: as(BinaryOp::BitXor); break;
                case BinaryOp::BitXor: as(BinaryOp::BitAnd); break;
                case BinaryOp::ShiftLeft: as(BinaryOp::ShiftRight); break;
                case BinaryOp::ShiftRight: as(BinaryOp::ShiftLeft); break;
                case BinaryOp::MulHigh: as(BinaryOp::Mul); break;
                default: break;
            }
        }
        if (auto product = expr.as<Fma>()) {
            replace(fma(product->a, product->b, unary(UnaryOp::Negate, product->c)));
            replace(binary(BinaryOp::Mul, product->a, product->b));
        }
        if (auto operation = expr.as<Unary>(); operation && operation->op != UnaryOp::Not) replace(operation->a);
        if (auto choice = expr.as<Select>(); choice && is_guard_of_none(*choice))
            add(MutationKind::Stream, expr, choice->no, put);
        if (auto choice = expr.as<Select>()) replace(select_unchecked(choice->condition, choice->no, choice->yes));
        if (auto exchange = expr.as<Exchange>()) {
            int bits = exchange->lane_bits == 1 ? 2 : exchange->lane_bits / 2;
            add(MutationKind::Exchange, expr, make_expr(expr.type(), Exchange{exchange->a, bits}), put);
            add(MutationKind::Exchange, expr, exchange->a, put);
        }
    }

    const std::vector<Expr>& rings_;
    std::vector<MutatedExpr> found_;
};

}  // namespace

std::vector<MutatedExpr> mutants_of(const Expr& expr, ExprRole role, const std::vector<Expr>& rings) {
    ExprMutator mutator(rings);
    mutator.mutate(expr, role, [](const Expr& whole) { return whole; });
    return mutator.take();
}

}  // namespace tw::fuzz
