// Barriers as a hitting set: each pair of accesses that may meet must have one of the places between its two executions
// taken; of all choices, the one that is executed least often wins, and later places win ties.
#include <algorithm>
#include <set>

#include "codegen/barriers/barrier_needs.h"
#include "codegen/barriers/hitting_set.h"
#include "codegen/barriers/insert_barriers.h"
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
    BarrierPlacer(std::set<int> chosen, const ThreadBarrier& barrier) : chosen_(std::move(chosen)), barrier_(barrier) {}

    ThreadStmt place(const ThreadStmt& body) {
        std::vector<ThreadStmt> placed;
        bool after_lead = false;
        for (const ThreadStmt& stmt : statements(body)) {
            if (!after_lead) gap(placed);
            after_lead = leads_in(stmt);
            ++order_;
            if (auto loop = stmt.as<ThreadLoop>())
                placed.push_back(with_children(stmt, {place(loop->body)}));
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
        if (chosen_.count(++order_)) stmts.push_back(make_thread(ThreadBarrier(barrier_)));
    }

    std::set<int> chosen_;
    ThreadBarrier barrier_;
    int order_ = 0;
};

/// A condition that threads decide differently, opened so that barriers fit between its statements and into its loop:
///
///     if (c) {a; b}  ->  if (c) {a} if (c) {b}        if (c) for i {a}  ->  for i {if (c) {a}}
class Opening {
public:
    explicit Opening(const ThreadStmt& target) : target_(target), branch_(*target.as<ThreadIf>()) {
        for (const ThreadStmt& stmt : statements(branch_.body)) {
            if (stmt.as<ThreadDeclare>())
                opened_.push_back(stmt);  // registers live on behind the first part
            else if (auto let = stmt.as<ThreadLet>())
                add_let(stmt, *let);
            else
                rest_.push_back(stmt);
        }
        bool alone = rest_.size() - std::count_if(rest_.begin(), rest_.end(), is_comment) == 1;
        for (const ThreadStmt& stmt : rest_) opened_.push_back(is_comment(stmt) ? stmt : part(stmt, alone));
    }

    bool possible() const { return possible_ && !reads_memory(branch_.condition); }
    ThreadStmt result() const { return block_of(opened_); }

private:
    static bool is_comment(const ThreadStmt& stmt) { return stmt.as<ThreadComment>(); }

    void add_let(const ThreadStmt& stmt, const ThreadLet& let) {
        lets_.push_back(stmt);
        values_.insert(values_.begin(), {let.variable, substitute(let.value, values_)});
        possible_ = possible_ && !reads_memory(let.value);
    }

    ThreadStmt part(const ThreadStmt& stmt, bool alone) {
        if (!alone) return guarded(branch_.condition, stmt);
        if (auto loop = stmt.as<ThreadLoop>())
            return make_thread(ThreadLoop{loop->variable, substitute(loop->extent, values_), loop->unroll,
                                          guarded(branch_.condition, loop->body)},
                               stmt.step());
        auto inner = stmt.as<ThreadIf>();
        possible_ = possible_ && inner;
        if (!inner) return stmt;
        Expr both = binary(BinaryOp::And, branch_.condition, substitute(inner->condition, values_));
        return guarded(both, inner->body);
    }

    ThreadStmt guarded(const Expr& condition, const ThreadStmt& stmt) const {
        std::vector<ThreadStmt> body = lets_;
        body.push_back(stmt);
        return make_thread(ThreadIf{condition, block_of(body)}, target_.step());
    }

    const ThreadStmt& target_;
    const ThreadIf& branch_;
    std::vector<ThreadStmt> lets_, rest_, opened_;
    Substitution values_;
    bool possible_ = true;
};

/// The innermost region around both accesses that threads do not enter together.
ThreadStmt divergent_around(const Survey& survey, const OrderedAccess& x, const OrderedAccess& y) {
    ThreadStmt found;
    for (size_t r = 0; r < std::min(x.regions.size(), y.regions.size()) && x.regions[r] == y.regions[r]; ++r)
        if (survey.regions[x.regions[r]].divergent) found = survey.regions[x.regions[r]].stmt;
    return found;
}

/// The body where a barrier between the two has come closer; undefined if there is no way.
ThreadStmt with_room_between(const ThreadStmt& body, const Survey& survey, const OrderedAccess& x,
                             const OrderedAccess& y) {
    ThreadStmt target = divergent_around(survey, x, y);
    if (!target.as<ThreadIf>()) return {};
    Opening opening(target);
    if (!opening.possible()) return {};
    return transform(body, [&](const ThreadStmt& stmt) -> ThreadStmt {
        return stmt.as<ThreadIf>() && &*stmt == &*target ? opening.result() : ThreadStmt();
    });
}

bool is_empty(const ThreadStmt& stmt) {
    auto block = stmt.as<ThreadBlock>();
    return block && block->stmts.empty();
}

/// Loops and conditions around nothing are nothing.
ThreadStmt without_hollow(const ThreadStmt& root) {
    return transform(root, [](const ThreadStmt& stmt) -> ThreadStmt {
        if (stmt.as<ThreadBlock>()) return block_of({stmt});
        bool hollow = (stmt.as<ThreadLoop>() || stmt.as<ThreadIf>()) && is_empty(children(stmt)[0]);
        return hollow ? make_thread(ThreadBlock{}) : ThreadStmt();
    });
}

/// Without the marks, what stood only around them, and the names that only they used.
ThreadStmt without_marks(const ThreadStmt& root) {
    bool any = false;
    ThreadStmt rest = transform(root, [&](const ThreadStmt& stmt) -> ThreadStmt {
        any = any || stmt.as<ThreadAccess>();
        return stmt.as<ThreadAccess>() ? make_thread(ThreadBlock{}) : ThreadStmt();
    });
    return any ? without_hollow(drop_unused_lets(rest)) : root;
}

/// Barriers of all threads of the kernel, which has one role.
ThreadKernel with_barriers(const ThreadKernel& kernel, const ThreadBarrier& barrier) {
    ThreadKernel result = kernel;
    result.body = without_barriers(kernel.body);
    if (kernel.threads == 1) {
        result.body = without_marks(result.body);
        return result;
    }
    while (true) {
        Survey places = survey(result);
        BarrierNeeds needs = barrier_needs(result, places);
        if (!needs.unmet.empty()) {
            auto [x, y] = needs.unmet[0];
            ThreadStmt roomier = with_room_between(result.body, places, *x, *y);
            if (!roomier.defined())
                throw_error(Error,
                            "kernel {}: two threads may access an element of '{}' at one time, and no barrier fits "
                            "between; bind the loops around to threads, or leave a cut out",
                            kernel.name, x->placed.access.place.buffer->name);
            result.body = roomier;
            continue;
        }
        std::vector<double> weights;
        for (const Gap& gap : places.gaps) weights.push_back(gap.weight);
        std::set<int> orders;
        for (int gap : cheapest_hitting_set(needs.sets, weights)) orders.insert(places.gaps[gap].order);
        result.body = without_marks(BarrierPlacer(orders, barrier).place(result.body));
        return result;
    }
}

/// The body without those in front of it.
ThreadStmt without_lets(const ThreadStmt& body, const std::vector<ThreadStmt>& lets) {
    std::vector<ThreadStmt> kept;
    for (const ThreadStmt& stmt : statements(body)) {
        const ThreadLet* let = stmt.as<ThreadLet>();
        bool in_front = let && std::any_of(lets.begin(), lets.end(), [&](const ThreadStmt& other) {
                            return other.as<ThreadLet>()->variable.same(let->variable);
                        });
        if (!in_front) kept.push_back(stmt);
    }
    return block_of(kept);
}

}  // namespace

namespace {

/// Who has its turn would wait for those who wait for theirs.
void check_sections(const ThreadKernel& kernel) {
    int open = 0;
    visit(kernel.body, [&](const ThreadStmt& stmt) {
        if (instruction_of<BarrierSync>(stmt)) ++open;
        if (instruction_of<BarrierArrive>(stmt)) open = std::max(0, open - 1);  // the first opens the first turn
        if (stmt.as<ThreadBarrier>() && open > 0)
            throw_error(
                Error,
                "kernel {}: all threads meet at a barrier inside of an exclusive section, where warpgroups come "
                "one after the other, and would wait for ever; leave stages out of exclusive({{...}}) that "
                "share memory with other warpgroups",
                kernel.name);
    });
}

}  // namespace

/// Roles meet where the barriers of their pipelines say; what one role's threads share with each other needs its own.
ThreadKernel insert_barriers(const ThreadKernel& kernel) {
    ThreadKernel result = kernel;
    bool has_roles = false;
    std::vector<ThreadStmt> lets;  // around the roles: what their threads share depends on these
    for (const ThreadStmt& stmt : statements(kernel.body))
        if (stmt.as<ThreadLet>()) lets.push_back(stmt);
    result.body = transform(kernel.body, [&](const ThreadStmt& stmt) -> ThreadStmt {
        const ThreadRole* role = stmt.as<ThreadRole>();
        if (!role) return {};
        has_roles = true;
        if (role->first > 0) return with_children(stmt, {without_marks(role->body)});  // one thread works
        ThreadKernel own = kernel;
        own.threads = role->threads / role->turns;
        if (role->thread.defined()) own.thread = role->thread;
        own.body = block_of({make_thread(ThreadBlock{lets}), role->body});
        return with_children(stmt, {without_lets(with_barriers(own, {1, own.threads, role->turn}).body, lets)});
    });
    if (!has_roles) result = with_barriers(kernel, {});
    check_sections(result);
    return result;
}

}  // namespace tw::codegen
