// Barriers as a hitting set: each pair of accesses that may meet must have one of the places between its two executions
// taken; of all choices, the one that is executed least often wins, and later places win ties.
#include <algorithm>
#include <set>

#include "codegen/barrier_needs.h"
#include "codegen/hitting_set.h"
#include "codegen/passes.h"
#include "support/error.h"

namespace tw::codegen {
namespace {

ThreadStmt without_barriers(const ThreadStmt& root) {
    return transform(root, [](const ThreadStmt& stmt) -> ThreadStmt {
        if (stmt.as<ThreadBarrier>()) return make_thread(ThreadBlock{});
        return stmt.as<ThreadBlock>() ? block_of({stmt}) : ThreadStmt();
    });
}

/// Walks as Survey does, so that the orders agree.
class BarrierPlacer {
public:
    explicit BarrierPlacer(std::set<int> chosen) : chosen_(std::move(chosen)) {}

    ThreadStmt place(const ThreadStmt& body) {
        std::vector<ThreadStmt> placed;
        bool after_lead = false;
        for (const ThreadStmt& stmt : statements(body)) {
            if (!after_lead) gap(placed);
            after_lead = leads_in(stmt);
            ++order_;
            if (auto loop = stmt.as<ThreadLoop>())
                placed.push_back(make_thread(ThreadLoop{loop->variable, loop->extent, loop->unroll, place(loop->body)},
                                             stmt.step()));
            else if (auto branch = stmt.as<ThreadIf>())
                placed.push_back(make_thread(ThreadIf{branch->condition, place(branch->body)}, stmt.step()));
            else
                placed.push_back(stmt);
        }
        gap(placed);
        return block_of(placed);
    }

private:
    void gap(std::vector<ThreadStmt>& stmts) {
        if (chosen_.count(++order_)) stmts.push_back(make_thread(ThreadBarrier{}));
    }

    std::set<int> chosen_;
    int order_ = 0;
};

/// if (c) {a; b} as if (c) {a} if (c) {b}, so that a barrier fits between; registers move in front.
ThreadStmt split_condition(const ThreadStmt& root, const ThreadStmt& target) {
    const ThreadIf& branch = *target.as<ThreadIf>();
    std::vector<ThreadStmt> result, lets;
    for (const ThreadStmt& stmt : statements(branch.body)) {
        if (stmt.as<ThreadDeclare>())
            result.insert(result.begin(), stmt);
        else if (stmt.as<ThreadComment>())
            result.push_back(stmt);
        else if (stmt.as<ThreadLet>())
            lets.push_back(stmt);
        else {
            std::vector<ThreadStmt> body = lets;
            body.push_back(stmt);
            result.push_back(make_thread(ThreadIf{branch.condition, block_of(body)}, target.step()));
        }
    }
    return transform(root, [&](const ThreadStmt& stmt) -> ThreadStmt {
        auto same = stmt.as<ThreadIf>();
        return same && &*stmt == &*target ? block_of(result) : ThreadStmt();
    });
}

/// The innermost condition around both accesses that threads decide differently, if it may be split.
ThreadStmt splittable(const Survey& survey, const PlacedAccess& x, const PlacedAccess& y) {
    ThreadStmt found;
    for (size_t r = 0; r < std::min(x.regions.size(), y.regions.size()) && x.regions[r] == y.regions[r]; ++r) {
        const Region& region = survey.regions[x.regions[r]];
        if (!region.divergent) continue;
        auto branch = region.stmt.as<ThreadIf>();
        if (!branch || reads_memory(branch->condition)) return {};
        auto stmts = statements(branch->body);
        bool pure = std::none_of(stmts.begin(), stmts.end(), [](const ThreadStmt& stmt) {
            auto let = stmt.as<ThreadLet>();
            return let && reads_memory(let->value);
        });
        if (!pure || found.defined()) return {};
        found = region.stmt;
    }
    return found;
}

}  // namespace

ThreadKernel insert_barriers(const ThreadKernel& kernel) {
    ThreadKernel result = kernel;
    result.body = without_barriers(kernel.body);
    if (kernel.threads == 1) return result;
    while (true) {
        Survey places = survey(result);
        BarrierNeeds needs = barrier_needs(result, places);
        if (!needs.unmet.empty()) {
            auto [x, y] = needs.unmet[0];
            ThreadStmt branch = x->order < y->order ? splittable(places, *x, *y) : ThreadStmt();
            internal_check(branch.defined(), "kernel {}: no barrier fits between two accesses of '{}'", kernel.name,
                           x->placed.touch.access.buffer->name);
            result.body = split_condition(result.body, branch);
            continue;
        }
        std::vector<double> weights;
        for (const Gap& gap : places.gaps) weights.push_back(gap.weight);
        std::set<int> orders;
        for (int gap : cheapest_hitting_set(needs.sets, weights)) orders.insert(places.gaps[gap].order);
        result.body = BarrierPlacer(orders).place(result.body);
        return result;
    }
}

}  // namespace tw::codegen
