#include "dsl/delay.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "dsl/simplify.h"

namespace tw {
namespace {

bool among(const std::vector<BufferRef>& buffers, const BufferRef& buffer) {
    return std::find(buffers.begin(), buffers.end(), buffer) != buffers.end();
}

void add_once(std::vector<BufferRef>& buffers, const BufferRef& buffer) {
    if (!among(buffers, buffer)) buffers.push_back(buffer);
}

void visit_leaves(const Stmt& stmt, const std::function<void(const Leaf&)>& see,
                  const std::function<void(const Expr&)>& see_extent) {
    if (const For* loop = stmt.as<For>()) {
        see_extent(loop->extent);
        return visit_leaves(loop->body, see, see_extent);
    }
    if (const Allocate* allocate = stmt.as<Allocate>()) return visit_leaves(allocate->body, see, see_extent);
    if (const Sequence* block = stmt.as<Sequence>()) {
        for (const Stmt& kid : block->stmts) visit_leaves(kid, see, see_extent);
        return;
    }
    see(*stmt.as<Leaf>());
}

/// Each once.
std::vector<BufferRef> loaded_in(const Stmt& stmt) {
    std::vector<BufferRef> found;
    auto see = [&](const Expr& root) {
        if (!root.defined()) return;
        visit(root, [&](const Expr& e) {
            if (const Load* load = e.as<Load>()) add_once(found, load->buffer);
        });
    };
    auto see_leaf = [&](const Leaf& leaf) {
        see(leaf.mask);
        for (const StoreTo& store : leaf.stores) {
            see(store.value);
            for (const Expr& index : store.indices) see(index);
        }
    };
    visit_leaves(stmt, see_leaf, see);
    return found;
}

std::vector<BufferRef> stored_in(const Stmt& stmt) {
    std::vector<BufferRef> found;
    auto see_leaf = [&](const Leaf& leaf) {
        for (const StoreTo& store : leaf.stores) add_once(found, store.buffer);
    };
    visit_leaves(stmt, see_leaf, [](const Expr&) {});
    return found;
}

bool uses(const Stmt& part, const BufferRef& buffer) {
    return among(stored_in(part), buffer) || among(loaded_in(part), buffer);
}

Stmt allocated(const std::vector<BufferRef>& buffers, Stmt stmt) {
    for (const BufferRef& buffer : buffers) stmt = make_stmt(Allocate{buffer, std::move(stmt)});
    return stmt;
}

bool is_overwritten_early(const Delayed& delayed, const BufferRef& buffer) {
    return uses(delayed.late, buffer) &&
           (uses(delayed.first, buffer) || (delayed.iterations > 1 && uses(delayed.between, buffer)));
}

/// Whose leaves belong to the iteration.
Stmt of_iteration(const Stmt& stmt, const Expr& iteration) {
    if (const For* loop = stmt.as<For>()) {
        For copy = *loop;
        copy.body = of_iteration(loop->body, iteration);
        return make_stmt(std::move(copy));
    }
    if (const Allocate* allocate = stmt.as<Allocate>())
        return make_stmt(Allocate{allocate->buffer, of_iteration(allocate->body, iteration)});
    if (const Sequence* block = stmt.as<Sequence>()) {
        std::vector<Stmt> stmts;
        for (const Stmt& kid : block->stmts) stmts.push_back(of_iteration(kid, iteration));
        return make_stmt(Sequence{std::move(stmts)});
    }
    Leaf leaf = *stmt.as<Leaf>();
    leaf.iteration = iteration;
    return make_stmt(std::move(leaf));
}

class Skew {
public:
    Skew(const For& loop, const Delayed& delayed, const Segments& segments)
        : loop_(loop),
          segments_(segments),
          parts_(delayed),
          delay_(delayed.iterations),
          versions_(static_cast<size_t>(delay_) + 1) {
        for (const BufferRef& buffer : delayed.local) {
            const bool late = uses(delayed.late, buffer);
            if (is_overwritten_early(delayed, buffer))
                add_versions(buffer);
            else if (late && uses(delayed.between, buffer))
                added_.push_back(buffer);
            else if (late)
                parts_.late = make_stmt(Allocate{buffer, parts_.late});
            else if (uses(delayed.first, buffer) && uses(delayed.between, buffer))
                added_.push_back(buffer);
            else if (uses(delayed.first, buffer))
                parts_.first = make_stmt(Allocate{buffer, parts_.first});
            else if (uses(delayed.between, buffer))
                parts_.between = make_stmt(Allocate{buffer, parts_.between});
        }
    }

    Stmt run() const {
        int64_t extent = require_constant(loop_.extent), count = delay_ + 1, rounds = (extent - delay_) / count;
        std::vector<Stmt> stmts, body;
        for (int64_t i = 0; i < delay_; ++i)
            for (const Stmt* part : {&parts_.first, &parts_.between}) stmts.push_back(at(*part, integer(i), i));
        For around = loop_;
        around.is_part = true;
        around.variable = index_variable(loop_.variable.as<Variable>()->name, 0, std::max<int64_t>(rounds - 1, 0));
        around.extent = integer(rounds);
        for (int64_t u = 0; u < count; ++u) add(body, simplify(around.variable * count + u), u, true);
        around.body = sequence(body);
        stmts.push_back(make_stmt(std::move(around)));
        for (int64_t i = rounds * count; i < extent; ++i) add(stmts, integer(i), i, i + delay_ < extent);
        return allocated(added_, sequence(stmts));
    }

private:
    void add(std::vector<Stmt>& stmts, const Expr& late, int64_t place, bool early) const {
        const Expr ahead = simplify(late + delay_);
        if (early) stmts.push_back(at(parts_.first, ahead, place + delay_));
        stmts.push_back(at(parts_.late, late, place));
        if (early) stmts.push_back(at(parts_.between, ahead, place + delay_));
    }

    void add_versions(const BufferRef& buffer) {
        for (size_t v = 0; v < versions_.size(); ++v) {
            BufferNode version = *buffer;
            version.name = fmt::format("{}_{}", buffer->name, v);
            added_.push_back(std::make_shared<const BufferNode>(std::move(version)));
            versions_[v][buffer.get()] = added_.back();
        }
    }

    /// The part in the iteration of this number, which is `place` but for multiples of the number of versions.
    Stmt at(const Stmt& part, const Expr& iteration, int64_t place) const {
        const Buffers& own = versions_[static_cast<size_t>(place) % versions_.size()];
        const Expr of_loop = segments_.iteration(iteration);
        return with_own_registers(in_buffers(of_iteration(in_iteration(part, loop_.variable, of_loop), of_loop), own));
    }

    const For& loop_;
    const Segments& segments_;
    Delayed parts_;
    int64_t delay_;
    std::vector<Buffers> versions_;
    std::vector<BufferRef> added_;
};

}  // namespace

BufferRef needs_versions(const Delayed& delayed) {
    for (const BufferRef& buffer : delayed.local)
        if (is_overwritten_early(delayed, buffer)) return buffer;
    return nullptr;
}

Stmt in_parts(const For& loop, const Delayed& delayed, const Segments& segments) {
    const auto& [first, late, between, delay, local] = delayed;
    std::vector<BufferRef> across, early_only, late_only;
    for (const BufferRef& buffer : local) {
        const bool is_early = uses(first, buffer) || uses(between, buffer), is_late = uses(late, buffer);
        if (is_early || is_late) (is_early && is_late ? across : is_early ? early_only : late_only).push_back(buffer);
    }
    const Expr extent = segments.extent(), ahead = smaller(integer(delay), extent), both = simplify(extent - ahead);
    auto early_at = [&](const Stmt& part, const Expr& number) {
        const Expr iteration = segments.iteration(number);
        return of_iteration(in_iteration(part, loop.variable, iteration), iteration);
    };
    std::vector<Stmt> parts;
    parts.push_back(part_of_loop(loop, ahead, [&](const Expr& number) {
        return allocated(early_only, sequence({early_at(first, number), early_at(between, number)}));
    }));
    Expr begin = integer(0);
    auto add_both = [&](const Expr& end) {
        parts.push_back(part_of_loop(loop, simplify(end - begin), [&](const Expr& number) {
            const Expr done = simplify(begin + number), next = simplify(done + delay);
            Stmt body = sequence({early_at(first, next), early_at(late, done), early_at(between, next)});
            return allocated(late_only, allocated(early_only, std::move(body)));
        }));
        begin = end;
    };
    for (const Expr& cut : segments.cuts) add_both(larger(begin, smaller(simplify(cut - delay), both)));
    add_both(both);
    parts.push_back(part_of_loop(loop, ahead, [&](const Expr& number) {
        return allocated(late_only, early_at(late, simplify(both + number)));
    }));
    return allocated(across, sequence(std::move(parts)));
}

Stmt with_versions(const For& loop, const Delayed& delayed, const Segments& segments) {
    return Skew(loop, delayed, segments).run();
}

BufferRef used_by_both(const Stmt& before, const Stmt& behind, const std::vector<BufferRef>& local,
                       const std::function<bool(const BufferRef&, const BufferRef&)>& alike) {
    auto common = [&](const std::vector<BufferRef>& some, const std::vector<BufferRef>& others) {
        auto met = std::ranges::find_if(some, [&](const BufferRef& one) {
            return !among(local, one) &&
                   std::ranges::any_of(others, [&](const BufferRef& other) { return alike(one, other); });
        });
        return met == some.end() ? nullptr : *met;
    };
    std::vector<BufferRef> early = stored_in(before), late = stored_in(behind);
    for (const BufferRef& met :
         {common(early, loaded_in(behind)), common(early, late), common(loaded_in(before), late)})
        if (met) return met;
    return nullptr;
}

}  // namespace tw
