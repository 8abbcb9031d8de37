// Children of a node without an allocation, for the passes inside dsl that run often.
#pragma once
#include <utility>
#include <variant>

#include "dsl/expr.h"
#include "support/overloaded.h"

namespace tw {

/// Calls see(child) for every child, in order.
template <class See>
void for_each_child(const ExprNode& node, See&& see) {
    auto see_all = [&](const std::vector<Expr>& exprs) {
        for (const Expr& expr : exprs) see(expr);
    };
    std::visit(Overloaded{
                   [](const IntConstant&) {},
                   [](const FloatConstant&) {},
                   [](const Variable&) {},
                   [&](const Unary& n) { see(n.a); },
                   [&](const Binary& n) { see(n.a), see(n.b); },
                   [&](const Fma& n) { see(n.a), see(n.b), see(n.c); },
                   [&](const Select& n) { see(n.condition), see(n.yes), see(n.no); },
                   [&](const Cast& n) { see(n.a); },
                   [&](const Bitcast& n) { see(n.a); },
                   [&](const Read& n) { see_all(n.indices); },
                   [&](const Load& n) { see_all(n.indices); },
                   [&](const Reduce& n) { see_all(n.values); },
                   [&](const Exchange& n) { see(n.a); },
               },
               node.kind);
}

/// The node with change(child) in place of every child; the expression itself if none changed.
template <class Change>
Expr map_children(const Expr& expr, Change&& change) {
    bool changed = false;
    auto map = [&](const Expr& child) {
        Expr result = change(child);
        changed = changed || !result.same(child);
        return result;
    };
    auto map_all = [&](const std::vector<Expr>& exprs) {
        std::vector<Expr> result;
        result.reserve(exprs.size());
        for (const Expr& e : exprs) result.push_back(map(e));
        return result;
    };
    // A changed node, or nothing: large nodes are copied only when needed.
    auto rebuilt = [&](auto node) { return changed ? make_expr(expr.type(), std::move(node)) : expr; };
    return std::visit(Overloaded{
                          [&](const IntConstant&) { return expr; },
                          [&](const FloatConstant&) { return expr; },
                          [&](const Variable&) { return expr; },
                          [&](const Unary& n) {
                              return rebuilt(Unary{n.op, map(n.a)});
                          },
                          [&](const Binary& n) {
                              Expr a = map(n.a), b = map(n.b);
                              return rebuilt(Binary{n.op, std::move(a), std::move(b)});
                          },
                          [&](const Fma& n) {
                              Expr a = map(n.a), b = map(n.b), c = map(n.c);
                              return rebuilt(Fma{std::move(a), std::move(b), std::move(c)});
                          },
                          [&](const Select& n) {
                              Expr condition = map(n.condition), yes = map(n.yes), no = map(n.no);
                              return rebuilt(Select{std::move(condition), std::move(yes), std::move(no)});
                          },
                          [&](const Cast& n) { return rebuilt(Cast{map(n.a)}); },
                          [&](const Bitcast& n) { return rebuilt(Bitcast{map(n.a)}); },
                          [&](const Read& n) {
                              return rebuilt(Read{n.operation, n.output, map_all(n.indices), n.guarded});
                          },
                          [&](const Load& n) {
                              return rebuilt(Load{n.buffer, map_all(n.indices)});
                          },
                          [&](const Reduce& n) {
                              return rebuilt(Reduce{n.reducer, map_all(n.values), n.axes, n.component, n.where});
                          },
                          [&](const Exchange& n) {
                              return rebuilt(Exchange{map(n.a), n.lane_bits});
                          },
                      },
                      (*expr).kind);
}

}  // namespace tw
