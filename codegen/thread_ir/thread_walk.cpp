#include "codegen/thread_ir/thread_walk.h"

#include <algorithm>
#include <limits>
#include <set>

#include "support/error.h"
#include "support/overloaded.h"

namespace tw::codegen {
namespace {

template <class... Cases>
auto match(const ThreadStmt& stmt, Cases... cases) {
    return std::visit(Overloaded{cases...}, (*stmt).kind);
}

bool same_exprs(const std::vector<Expr>& a, const std::vector<Expr>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Expr& x, const Expr& y) { return x.same(y); });
}

void append_reads(const Expr& expr, std::vector<MemoryAccess>& touches) {
    visit(expr, [&](const Expr& node) {
        if (auto load = node.as<Load>()) touches.push_back({place_of({load->buffer, load->indices}), 1, false});
    });
}

bool is_atomic(const Instruction& instruction, const WriteOperand& written) {
    return std::holds_alternative<TakeTicket>(instruction) && written.place.buffer->memory == Memory::Global;
}

}  // namespace

std::vector<ThreadStmt> children(const ThreadStmt& stmt) {
    if (auto block = stmt.as<ThreadBlock>()) return block->stmts;
    if (auto loop = stmt.as<ThreadLoop>()) return {loop->body};
    if (auto branch = stmt.as<ThreadIf>()) return {branch->body};
    if (auto role = stmt.as<ThreadRole>()) return {role->body};
    return {};
}

ThreadStmt with_children(const ThreadStmt& stmt, const std::vector<ThreadStmt>& kids) {
    auto old = children(stmt);
    internal_check(old.size() == kids.size(), "with_children: {} children instead of {}", kids.size(), old.size());
    bool same = std::equal(old.begin(), old.end(), kids.begin(),
                           [](const ThreadStmt& a, const ThreadStmt& b) { return &*a == &*b; });
    if (same) return stmt;
    if (stmt.as<ThreadBlock>()) return make_thread(ThreadBlock{kids}, stmt.step());
    if (auto loop = stmt.as<ThreadLoop>()) {
        ThreadLoop copy = *loop;
        copy.body = kids[0];
        return make_thread(std::move(copy), stmt.step());
    }
    if (auto role = stmt.as<ThreadRole>())
        return make_thread(
            ThreadRole{role->name, role->thread, role->first, role->threads, kids[0], role->turn, role->turns},
            stmt.step());
    return make_thread(ThreadIf{stmt.as<ThreadIf>()->condition, kids[0]}, stmt.step());
}

void visit(const ThreadStmt& root, const std::function<void(const ThreadStmt&)>& see) {
    see(root);
    for (const ThreadStmt& kid : children(root)) visit(kid, see);
}

ThreadStmt transform(const ThreadStmt& root, const std::function<ThreadStmt(const ThreadStmt&)>& rule) {
    std::vector<ThreadStmt> kids;
    for (const ThreadStmt& kid : children(root)) kids.push_back(transform(kid, rule));
    ThreadStmt rebuilt = with_children(root, kids);
    ThreadStmt replaced = rule(rebuilt);
    return replaced.defined() ? replaced : rebuilt;
}

std::vector<Expr> expressions(const ThreadStmt& stmt) {
    auto joined = [](std::vector<Expr> a, const std::vector<Expr>& b) {
        a.insert(a.end(), b.begin(), b.end());
        return a;
    };
    return match(
        stmt, [](const ThreadLoop& loop) { return std::vector{loop.extent}; },
        [](const ThreadIf& branch) { return std::vector{branch.condition}; },
        [](const ThreadLet& let) { return std::vector{let.value}; },
        [&](const ThreadStore& store) { return joined(store.to.indices, {store.value}); },
        [&](const ThreadWide& wide) {
            std::vector<Expr> found = joined(wide.to.indices, wide.from.indices);
            if (wide.where.defined()) found.push_back(wide.where);
            return found;
        },
        [&](const Instruction& instruction) {
            std::vector<Expr> all;
            visit_exprs(instruction, [&](const Expr& e) { all.push_back(e); });
            return all;
        },
        [](const ThreadAccess& access) { return access.to.indices; },
        [](const ThreadBarrier& barrier) {
            return barrier.turn.defined() ? std::vector{barrier.turn} : std::vector<Expr>{};
        },
        [](const auto&) { return std::vector<Expr>{}; });
}

ThreadStmt map_expressions(const ThreadStmt& stmt, const std::function<Expr(const Expr&)>& map) {
    auto old = expressions(stmt);
    std::vector<Expr> mapped;
    for (const Expr& expr : old) mapped.push_back(map(expr));
    if (same_exprs(old, mapped)) return stmt;
    auto part = [&](size_t first, size_t count) {
        return std::vector<Expr>(mapped.begin() + first, mapped.begin() + first + count);
    };
    return match(
        stmt,
        [&](const ThreadLoop& loop) {
            ThreadLoop copy = loop;
            copy.extent = mapped[0];
            return make_thread(std::move(copy), stmt.step());
        },
        [&](const ThreadIf& branch) {
            return make_thread(ThreadIf{mapped[0], branch.body}, stmt.step());
        },
        [&](const ThreadLet& let) {
            return make_thread(ThreadLet{let.variable, mapped[0]}, stmt.step());
        },
        [&](const ThreadStore& store) {
            size_t rank = store.to.indices.size();
            return make_thread(ThreadStore{{store.to.buffer, part(0, rank)}, mapped[rank], store.atomic}, stmt.step());
        },
        [&](const ThreadWide& wide) {
            size_t rank = wide.to.indices.size();
            return make_thread(ThreadWide{wide.width,
                                          {wide.to.buffer, part(0, rank)},
                                          {wide.from.buffer, part(rank, wide.from.indices.size())},
                                          wide.where.defined() ? mapped.back() : Expr()},
                               stmt.step());
        },
        [&](const Instruction& instruction) {
            size_t next = 0;
            return make_thread(map_exprs(instruction, [&](const Expr&) { return mapped[next++]; }), stmt.step());
        },
        [&](const ThreadAccess& access) {
            return make_thread(ThreadAccess{{access.to.buffer, mapped}, access.width, access.writes}, stmt.step());
        },
        [&](const ThreadBarrier& barrier) {
            return make_thread(ThreadBarrier{barrier.id, barrier.threads, mapped[0]}, stmt.step());
        },
        [&](const auto&) { return stmt; });
}

ThreadStmt map_all_expressions(const ThreadStmt& root, const std::function<Expr(const Expr&)>& map) {
    return transform(root, [&](const ThreadStmt& stmt) -> ThreadStmt {
        ThreadStmt mapped = map_expressions(stmt, map);
        if (auto loop = mapped.as<ThreadLoop>()) {
            ThreadLoop copy = *loop;
            copy.variable = map(loop->variable);
            return make_thread(std::move(copy), stmt.step());
        }
        if (auto let = mapped.as<ThreadLet>()) {
            return make_thread(ThreadLet{map(let->variable), let->value}, stmt.step());
        }
        return mapped;
    });
}

std::vector<ThreadStmt> statements(const ThreadStmt& stmt) {
    if (!stmt.defined()) return {};
    auto block = stmt.as<ThreadBlock>();
    if (!block) return {stmt};
    std::vector<ThreadStmt> flat;
    for (const ThreadStmt& kid : block->stmts) {
        auto inner = statements(kid);
        flat.insert(flat.end(), inner.begin(), inner.end());
    }
    return flat;
}

ThreadStmt block_of(const std::vector<ThreadStmt>& stmts) {
    auto flat = statements(make_thread(ThreadBlock{stmts}));
    return flat.size() == 1 ? flat[0] : make_thread(ThreadBlock{flat});
}

ThreadStmt drop_unused_lets(const ThreadStmt& root) {
    for (ThreadStmt kept = root;;) {
        std::set<const ExprNode*> used;
        visit(kept, [&](const ThreadStmt& stmt) {
            for (const Expr& expr : expressions(stmt))
                for (const Expr& variable : variables_of(expr)) used.insert(variable.id());
        });
        bool dropped = false;
        kept = transform(kept, [&](const ThreadStmt& stmt) -> ThreadStmt {
            auto let = stmt.as<ThreadLet>();
            bool drop = let && !used.count(let->variable.id());
            dropped = dropped || drop;
            if (drop) return make_thread(ThreadBlock{});
            return stmt.as<ThreadBlock>() ? block_of({stmt}) : ThreadStmt();
        });
        if (!dropped) return kept;
    }
}

std::vector<MemoryAccess> memory_accesses(const ThreadStmt& stmt) {
    std::vector<MemoryAccess> result;
    for (const Expr& expr : expressions(stmt)) append_reads(expr, result);
    if (auto store = stmt.as<ThreadStore>())
        result.push_back({place_of(store->to), 1, true, store->atomic.has_value()});
    if (auto wide = stmt.as<ThreadWide>()) {
        result.push_back({place_of(wide->from), wide->width, false});
        result.push_back({place_of(wide->to), wide->width, true});
    }
    if (auto begin = instruction_of<BeginArray>(stmt))
        result.push_back({place_of(begin->array.place), 1, true, false, false, true});
    if (auto instruction = stmt.as<Instruction>()) {
        const bool of_rows =
            std::holds_alternative<LdMatrix>(*instruction) || std::holds_alternative<StMatrix>(*instruction);
        auto by_warp = [&](const Access& place) { return of_rows && place.buffer->memory == Memory::Shared; };
        for (const Operand& operand : operands(*instruction)) {
            if (auto read = std::get_if<ReadOperand>(&operand))
                result.push_back({place_of(read->place), read->elements, false, false, by_warp(read->place)});
            if (auto write = std::get_if<WriteOperand>(&operand))
                result.push_back({place_of(write->place), write->elements, true, is_atomic(*instruction, *write),
                                  by_warp(write->place)});
        }
    }
    if (auto access = stmt.as<ThreadAccess>()) result.push_back({access->to, access->width, access->writes});
    return result;
}

const BufferNode* array_of(const Buffer& buffer, const ThreadKernel& kernel) {
    for (const auto& [out, in] : kernel.aliases)
        if (in == buffer) return out.get();
    return buffer.get();
}

bool is_argument(const ThreadKernel& kernel, const Buffer& buffer) {
    return std::ranges::find(kernel.arguments, buffer) != kernel.arguments.end() ||
           std::ranges::any_of(kernel.maps, [&](const TensorMapUse& use) { return use.tensor == buffer; });
}

bool reads_memory(const Expr& expr) {
    bool found = false;
    visit(expr, [&](const Expr& node) { found = found || node.as<Load>(); });
    return found;
}

KnownBounds::KnownBounds(const ThreadKernel& kernel) {
    set(kernel.thread, {0, kernel.threads - 1});
    for (int dimension = 0; dimension < 3; ++dimension) {
        if (!kernel.block[dimension].defined()) continue;
        Interval interval{0, {}};
        if (kernel.grid[dimension].defined()) {
            if (auto blocks = bounds_of(kernel.grid[dimension]).max) interval.max = std::max<int64_t>(*blocks - 1, 0);
        }
        set(kernel.block[dimension], interval);
    }
}

Interval KnownBounds::of(const Expr& expr) const { return bounds_of(expr, map_); }

bool KnownBounds::may_wrap(const Expr& operation) const { return tw::may_wrap(operation, map_); }

void KnownBounds::enter_loop(const ThreadLoop& loop) {
    Interval interval{0, {}};
    if (auto extent = of(loop.extent).max) interval.max = std::max<int64_t>(*extent - 1, 0);
    set(loop.variable, interval);
}

void KnownBounds::define(const ThreadLet& let) {
    if (is_integer(let.variable.type())) set(let.variable, of(let.value));
}

// A variable's own bounds hold as well.
void KnownBounds::set(const Expr& variable, Interval interval) {
    if (!variable.defined()) return;
    const Variable& known = *variable.as<Variable>();
    if (known.min && (!interval.min || *interval.min < *known.min)) interval.min = known.min;
    if (known.max && (!interval.max || *interval.max > *known.max)) interval.max = known.max;
    map_[variable.id()] = interval;
}

bool names_ticket(const ThreadLet& let, const ThreadLoop& loop) {
    const Cast* cast = let.value.as<Cast>();
    const Load* load = (cast ? cast->a : let.value).as<Load>();
    return load && loop.next && load->buffer == loop.next;
}

bool fits_i32(const Interval& bounds) {
    constexpr int64_t least = std::numeric_limits<int32_t>::min(), most = std::numeric_limits<int32_t>::max();
    return bounds.min && bounds.max && *bounds.min >= least && *bounds.max <= most;
}

Type argument_type(const Expr& argument) {
    const Variable& variable = *argument.as<Variable>();
    if (variable.kind != VariableKind::Size) return argument.type();
    return fits_i32({variable.min, variable.max}) ? Type::I32 : Type::I64;
}

}  // namespace tw::codegen
