// Reductions whose elements are made one from the other.
#include <algorithm>

#include "dsl/simplify.h"
#include "dsl/tree_builder.h"
#include "support/error.h"

namespace tw {

/// Each iteration adds its term, and stores its element before or after that.
Stmt TreeBuilder::scan(int stage, int outermost) {
    const PrivateLoops loops = private_loops(stage, outermost);
    if (!loops.bound.empty()) return scan_of_threads(stage, outermost);
    const StageRecord& r = record(stage);
    const int behind = state_.around_results(stage);
    const std::vector<int> rest(r.order.begin() + behind, r.order.end());
    make_accumulators(stage, loops.all);
    Stmt elements = nest(stage, outermost, behind, [&] {
        Stmt result = inside(rest, finish_leaf(stage));
        Stmt update = nest(stage, behind, [&] { return update_leaf(stage); });
        if (!r.scan->is_exclusive) std::swap(result, update);
        return sequence({result, update});
    });
    Stmt body = sequence({inside(loops.all, init_leaf(stage)), elements});
    for (const BufferRef& buffer : prepared_.at(stage).accumulators) body = make_stmt(Allocate{buffer, body});
    return body;
}

/// In each iteration of the loops around the threads: each thread runs through its terms and keeps what it has made at
/// each; then threads learn what those before them have made, and add that, and what came in iterations before, to what
/// they have kept. `accumulators` are the total so far, all threads have it.
Stmt TreeBuilder::scan_of_threads(int stage, int outermost) {
    const std::vector<int>& order = record(stage).order;
    Prepared& p = prepared_.at(stage);
    const PrivateLoops loops = private_loops(stage, outermost);
    const int first_bound = state_.around_results(stage);
    const std::vector<int> share(order.begin() + first_bound, order.end());
    std::vector<int> inner;
    std::ranges::copy_if(loops.all, std::back_inserter(inner),
                         [&](int l) { return state_.position(l) >= first_bound; });
    const bool steps = std::any_of(order.begin() + outermost, order.begin() + first_bound,
                                   [&](int l) { return state_.loops[l].reduces; });
    make_accumulators(stage, loops.all);
    const std::vector<BufferRef> total = p.accumulators;
    const std::vector<BufferRef> own = steps ? registers_like(stage, "_own", loops.all) : total;
    p.ahead = registers_like(stage, "_before", loops.all);
    p.kept = registers_like(stage, "_kept", share);
    p.kept_at.clear();
    for (int loop : share) p.kept_at.push_back(state_.loops[loop].variable);
    Stmt all = nest(stage, outermost, first_bound, [&] {
        p.accumulators = own;
        std::vector<Stmt> stmts{inside(inner, init_leaf(stage))};
        p.accumulators = p.ahead;
        stmts.push_back(inside(inner, init_leaf(stage)));
        p.accumulators = own;
        stmts.push_back(own_terms(stage, first_bound));
        for (Stmt& prefix : prefixes(stage, loops.bound, inner)) stmts.push_back(std::move(prefix));
        p.accumulators = total;
        if (steps) stmts.push_back(inside(inner, joined_leaf(stage, p.ahead, total, p.ahead)));
        stmts.push_back(inside(share, finish_leaf(stage, {}, kept_behind_others(stage))));
        if (steps) stmts.push_back(inside(inner, joined_leaf(stage, total, total, own)));
        Stmt step = sequence(std::move(stmts));
        for (const auto* buffers : {&p.kept, &p.ahead})
            for (const BufferRef& buffer : *buffers) step = make_stmt(Allocate{buffer, std::move(step)});
        for (const BufferRef& buffer : own)
            if (steps) step = make_stmt(Allocate{buffer, std::move(step)});
        return step;
    });
    Stmt body = steps ? sequence({inside(loops.all, init_leaf(stage)), all}) : all;
    for (const BufferRef& buffer : total) body = make_stmt(Allocate{buffer, std::move(body)});
    return body;
}

/// Registers of each thread, an element for each iteration of the loops.
std::vector<BufferRef> TreeBuilder::registers_like(int stage, const std::string& suffix,
                                                   const std::vector<int>& loops) const {
    std::vector<Expr> shape;
    for (int loop : loops) shape.push_back(state_.loops[loop].extent);
    std::vector<BufferRef> result;
    for (const BufferRef& as : prepared_.at(stage).accumulators) {
        BufferNode node = *as;
        node.name += suffix;
        node.shape = shape;
        result.push_back(std::make_shared<const BufferNode>(std::move(node)));
    }
    return result;
}

/// A thread's terms one by one; what is made with each is kept, or what was before it.
Stmt TreeBuilder::own_terms(int stage, int first_bound) {
    const std::vector<int>& order = record(stage).order;
    auto last = std::find_if(order.rbegin(), order.rend(), [&](int l) { return state_.loops[l].reduces; });
    const auto behind = order.rend() - last;
    const std::vector<int> rest(order.begin() + behind, order.end());
    return nest(stage, first_bound, static_cast<int>(behind), [&] {
        Stmt kept = inside(rest, keep_leaf(stage));
        Stmt update = nest(stage, static_cast<int>(behind), [&] { return update_leaf(stage); });
        if (!record(stage).scan->is_exclusive) std::swap(kept, update);
        return sequence({kept, update});
    });
}

Stmt TreeBuilder::keep_leaf(int stage) {
    const Prepared& p = prepared_.at(stage);
    Leaf keep = leaf(stage, Leaf::Kind::Finish, all_of({}));
    keep.purpose = "keep";
    for (size_t c = 0; c < p.kept.size(); ++c)
        keep.stores.push_back({p.kept[c], p.kept_at, make_expr(p.kept[c]->type, Load{p.accumulators[c], p.indices})});
    return make_stmt(std::move(keep));
}

/// combine(left, right), elements of the same indices.
Stmt TreeBuilder::joined_leaf(int stage, const std::vector<BufferRef>& into, const std::vector<BufferRef>& left,
                              const std::vector<BufferRef>& right) {
    const std::vector<Expr>& indices = prepared_.at(stage).indices;
    Leaf join = leaf(stage, Leaf::Kind::Finish, all_of({}));
    join.purpose = "join";
    const std::vector<Expr> values = combined_loads(stage, left, indices, right, indices);
    for (size_t c = 0; c < into.size(); ++c) join.stores.push_back({into[c], indices, values[c]});
    return make_stmt(std::move(join));
}

std::vector<Expr> TreeBuilder::combined_loads(int stage, const std::vector<BufferRef>& left,
                                              const std::vector<Expr>& left_at, const std::vector<BufferRef>& right,
                                              const std::vector<Expr>& right_at) const {
    const ReducerNode& reducer = *record(stage).definition.reducer;
    Substitution operands;
    for (size_t c = 0; c < left.size(); ++c) {
        operands.emplace_back(reducer.left[c], make_expr(left[c]->type, Load{left[c], left_at}));
        operands.emplace_back(reducer.right[c], make_expr(right[c]->type, Load{right[c], right_at}));
    }
    std::vector<Expr> values;
    for (const Expr& combined : reducer.combined) values.push_back(contract(simplify(substitute(combined, operands))));
    return values;
}

/// What stands for the accumulators in results.
Substitution TreeBuilder::kept_behind_others(int stage) const {
    const Prepared& p = prepared_.at(stage);
    const std::vector<Expr> values = combined_loads(stage, p.ahead, p.indices, p.kept, p.kept_at);
    Substitution results;
    for (size_t c = 0; c < values.size(); ++c)
        results.emplace_back(record(stage).definition.accumulators[c], values[c]);
    return results;
}

/// Along one bound loop after the other, the innermost first: all get the total, and what the iterations before theirs
/// have made.
std::vector<Stmt> TreeBuilder::prefixes(int stage, const std::vector<int>& bound, const std::vector<int>& around) {
    std::vector<Stmt> stmts;
    for (auto loop = bound.rbegin(); loop != bound.rend(); ++loop) {
        std::vector<int> others = around;
        std::erase(others, *loop);
        stmts.push_back(inside(others, prefix_leaf(stage, *loop)));
    }
    return stmts;
}

Stmt TreeBuilder::prefix_leaf(int stage, int loop) {
    const Prepared& p = prepared_.at(stage);
    const ReducerNode& reducer = *record(stage).definition.reducer;
    Stmt total = combine_leaf(stage, loop);
    Leaf combine = *total.as<Leaf>();
    Substitution before;
    for (size_t c = 0; c < p.ahead.size(); ++c)
        before.emplace_back(reducer.right[c], make_expr(p.ahead[c]->type, Load{p.ahead[c], p.indices}));
    for (size_t c = 0; c < p.ahead.size(); ++c)
        combine.stores.push_back({p.ahead[c], p.indices, contract(simplify(substitute(reducer.combined[c], before)))});
    return make_stmt(std::move(combine));
}

}  // namespace tw
