#include "dsl/delay.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "dsl/simplify.h"

namespace tw {
namespace {

using Versions = std::map<const BufferNode*, BufferRef>;

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

/// The statement with other buffers in the places of these.
Stmt in_buffers(const Stmt& stmt, const Versions& versions) {
    if (const For* loop = stmt.as<For>()) {
        For copy = *loop;
        copy.body = in_buffers(loop->body, versions);
        return make_stmt(std::move(copy));
    }
    if (const Allocate* allocate = stmt.as<Allocate>())
        return make_stmt(Allocate{allocate->buffer, in_buffers(allocate->body, versions)});
    if (const Sequence* block = stmt.as<Sequence>()) {
        std::vector<Stmt> stmts;
        for (const Stmt& kid : block->stmts) stmts.push_back(in_buffers(kid, versions));
        return make_stmt(Sequence{std::move(stmts)});
    }
    Leaf leaf = *stmt.as<Leaf>();
    for (StoreTo& store : leaf.stores)
        if (auto found = versions.find(store.buffer.get()); found != versions.end()) store.buffer = found->second;
    return make_stmt(std::move(leaf));
}

class Skew {
public:
    Skew(const For& loop, const Stmt& before, const Stmt& behind, const std::vector<BufferRef>& local, int64_t delay)
        : loop_(loop), before_(before), behind_(behind), delay_(delay), versions_(static_cast<size_t>(delay) + 1) {
        auto uses = [](const Stmt& part, const BufferRef& buffer) {
            return among(stored_in(part), buffer) || among(loaded_in(part), buffer);
        };
        for (const BufferRef& buffer : local) {
            bool early = uses(before, buffer), late = uses(behind, buffer);
            if (early && late)
                add_versions(buffer);
            else if (early)
                before_ = make_stmt(Allocate{buffer, before_});
            else if (late)
                behind_ = make_stmt(Allocate{buffer, behind_});
        }
    }

    Stmt run() const {
        int64_t extent = require_constant(loop_.extent), count = delay_ + 1, rounds = (extent - delay_) / count;
        std::vector<Stmt> stmts, body;
        for (int64_t i = 0; i < delay_; ++i) stmts.push_back(at(before_, integer(i), i));
        For around = loop_;
        around.variable = index_variable(loop_.variable.as<Variable>()->name, 0, std::max<int64_t>(rounds - 1, 0));
        around.extent = integer(rounds);
        for (int64_t u = 0; u < count; ++u) {
            Expr first = simplify(around.variable * count + u);
            body.push_back(at(before_, simplify(first + delay_), u + delay_));
            body.push_back(at(behind_, first, u));
        }
        around.body = sequence(body);
        stmts.push_back(make_stmt(std::move(around)));
        for (int64_t i = rounds * count; i < extent; ++i) {
            if (i + delay_ < extent) stmts.push_back(at(before_, integer(i + delay_), i + delay_));
            stmts.push_back(at(behind_, integer(i), i));
        }
        Stmt result = sequence(stmts);
        for (const BufferRef& buffer : added_) result = make_stmt(Allocate{buffer, result});
        return result;
    }

private:
    void add_versions(const BufferRef& buffer) {
        for (size_t v = 0; v < versions_.size(); ++v) {
            BufferNode version = *buffer;
            version.name = fmt::format("{}_{}", buffer->name, v);
            added_.push_back(std::make_shared<const BufferNode>(std::move(version)));
            versions_[v][buffer.get()] = added_.back();
        }
    }

    /// The part in this iteration, whose number is `place` but for multiples of the number of versions.
    Stmt at(const Stmt& part, const Expr& iteration, int64_t place) const {
        const Versions& own = versions_[static_cast<size_t>(place) % versions_.size()];
        Stmt moved = map_exprs(part, [&](const Expr& root) {
            if (!root.defined()) return root;
            Expr in_place = transform(root, [&](const Expr& e) -> Expr {
                const Load* load = e.as<Load>();
                auto found = load ? own.find(load->buffer.get()) : own.end();
                return found == own.end() ? Expr() : make_expr(e.type(), Load{found->second, load->indices});
            });
            return simplify(substitute(in_place, {{loop_.variable, iteration}}));
        });
        return in_buffers(moved, own);
    }

    const For& loop_;
    Stmt before_, behind_;
    int64_t delay_;
    std::vector<Versions> versions_;
    std::vector<BufferRef> added_;
};

}  // namespace

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

Stmt delayed_loop(const For& loop, const Stmt& before, const Stmt& behind, const std::vector<BufferRef>& local,
                  int64_t iterations) {
    return Skew(loop, before, behind, local, iterations).run();
}

}  // namespace tw
