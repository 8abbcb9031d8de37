#include "codegen/mapping/bind_unbound.h"

#include <algorithm>
#include <limits>

#include "codegen/mapping/remove_unit_loops.h"
#include "dsl/simplify.h"
#include "support/error.h"

namespace tw::codegen {
namespace {

constexpr int64_t default_threads = 256;

/// What a statement does to memory.
struct Effects {
    std::vector<const Leaf*> leaves;
    std::vector<const For*> loops;
    bool allocates_shared = false;

    explicit Effects(const Stmt& stmt) { see(stmt); }

    void see(const Stmt& stmt) {
        if (const For* loop = stmt.as<For>()) {
            loops.push_back(loop);
            see(loop->body);
        } else if (const Allocate* allocate = stmt.as<Allocate>()) {
            allocates_shared = allocates_shared || allocate->buffer->memory != Memory::Registers;
            see(allocate->body);
        } else if (const Sequence* sequence = stmt.as<Sequence>()) {
            for (const Stmt& kid : sequence->stmts) see(kid);
        } else {
            leaves.push_back(stmt.as<Leaf>());
        }
    }

    bool stores(const Buffer& buffer) const {
        return std::any_of(leaves.begin(), leaves.end(), [&](const Leaf* leaf) {
            return std::any_of(leaf->stores.begin(), leaf->stores.end(),
                               [&](const StoreTo& store) { return store.buffer == buffer; });
        });
    }

    bool reads_what_it_stores() const {
        bool found = false;
        for (const Leaf* leaf : leaves)
            for (const StoreTo& store : leaf->stores)
                visit(store.value, [&](const Expr& e) {
                    const Load* load = e.as<Load>();
                    found = found || (load && load->buffer->memory != Memory::Registers && stores(load->buffer));
                });
        return found;
    }

    bool has_registers() const {
        return std::any_of(leaves.begin(), leaves.end(),
                           [](const Leaf* leaf) { return leaf->stores[0].buffer->memory == Memory::Registers; });
    }

    bool mentions(const Expr& variable) const {
        bool found =
            std::any_of(loops.begin(), loops.end(), [&](const For* loop) { return contains(loop->extent, variable); });
        for (const Leaf* leaf : leaves) {
            found = found || contains(leaf->mask, variable);
            for (const StoreTo& store : leaf->stores) {
                found = found || contains(store.value, variable);
                for (const Expr& index : store.indices) found = found || contains(index, variable);
            }
        }
        return found;
    }

    /// Every element of memory that is stored belongs to one value of the loop, or is updated by any.
    bool stores_apart(const For& loop) const {
        return std::all_of(leaves.begin(), leaves.end(), [&](const Leaf* leaf) {
            return std::all_of(leaf->stores.begin(), leaf->stores.end(), [&](const StoreTo& store) {
                return store.buffer->memory == Memory::Registers || store.atomic ||
                       std::any_of(store.indices.begin(), store.indices.end(),
                                   [&](const Expr& index) { return contains(index, loop.variable); });
            });
        });
    }
};

class Binder {
public:
    Binder(const Nest& nest, const Target& target, const CiteStep& cite, std::vector<std::string>& notes)
        : nest_(nest), target_(target), notes_(notes) {
        std::vector<LeafPath> paths = leaf_paths(nest.body);
        threads_ = threads_of(thread_coordinates(paths, target, cite));
    }

    Nest run() {
        std::vector<const For*> outer;
        Nest result = nest_;
        result.body = rewrite(nest_.body, outer);
        return result;
    }

private:
    Stmt rewrite(const Stmt& stmt, std::vector<const For*>& outer) {
        if (const For* loop = stmt.as<For>()) {
            std::vector<const For*> chain = free_chain(stmt, outer);
            if (!chain.empty()) return bind(chain);
            outer.push_back(loop);
            For copy = *loop;
            copy.body = rewrite(loop->body, outer);
            outer.pop_back();
            return make_stmt(std::move(copy));
        }
        if (const Allocate* allocate = stmt.as<Allocate>())
            return make_stmt(Allocate{allocate->buffer, rewrite(allocate->body, outer)});
        const Sequence* block = stmt.as<Sequence>();
        if (!block) return stmt;
        std::vector<Stmt> stmts;
        for (const Stmt& kid : block->stmts) stmts.push_back(rewrite(kid, outer));
        return make_stmt(Sequence{std::move(stmts)});
    }

    /// The longest row of nested loops from here on that can be bound together; empty if this one cannot.
    static std::vector<const For*> free_chain(const Stmt& stmt, const std::vector<const For*>& outer) {
        Effects effects(stmt);
        if (effects.leaves.size() < 2 || !effects.has_registers() || effects.allocates_shared ||
            effects.reads_what_it_stores())
            return {};
        for (const For* loop : outer)
            if (is_thread(loop->level) && effects.mentions(loop->variable)) return {};
        for (const For* loop : effects.loops)
            if (is_thread(loop->level) || is_grid(loop->level)) return {};
        std::vector<const For*> chain;
        for (const For* loop = stmt.as<For>(); loop; loop = loop->body.as<For>()) {
            bool depends = std::any_of(chain.begin(), chain.end(),
                                       [&](const For* other) { return contains(loop->extent, other->variable); });
            if (loop->reduces || loop->level != Level::Serial || depends || !effects.stores_apart(*loop)) break;
            if (registers_outlive(stmt, *loop)) break;
            chain.push_back(loop);
        }
        return chain;
    }

    /// Registers allocated further out would have to hold the elements of all threads.
    static bool registers_outlive(const Stmt& stmt, const For& loop) {
        std::vector<Buffer> inside;
        std::function<void(const Stmt&)> collect = [&](const Stmt& s) {
            if (const Allocate* allocate = s.as<Allocate>()) {
                inside.push_back(allocate->buffer);
                collect(allocate->body);
            } else if (const For* inner = s.as<For>()) {
                collect(inner->body);
            } else if (const Sequence* sequence = s.as<Sequence>()) {
                for (const Stmt& kid : sequence->stmts) collect(kid);
            }
        };
        collect(loop.body);
        bool outlives = false;
        auto see = [&](const Buffer& buffer) {
            bool local = std::find(inside.begin(), inside.end(), buffer) != inside.end();
            outlives = outlives || (buffer->memory == Memory::Registers && !local);
        };
        for (const Leaf* leaf : Effects(stmt).leaves)
            for (const StoreTo& store : leaf->stores) {
                see(store.buffer);
                visit(store.value, [&](const Expr& e) {
                    if (const Load* load = e.as<Load>()) see(load->buffer);
                });
            }
        return outlives;
    }

    Stmt bind(const std::vector<const For*>& chain) {
        Expr count = integer(1);
        for (const For* loop : chain) count = count * cast_unchecked(Type::I64, loop->extent);
        count = simplify(count);
        int64_t workers = threads_ > 1 ? threads_ : std::min(default_threads, int64_t{target_.max_threads});
        if (auto known = as_constant(count)) workers = std::min(workers, std::max<int64_t>(*known, 1));
        Expr steps = simplify((count + (workers - 1)) / workers);
        auto most = bounds_of(steps).max;
        Expr step = index_variable("step", 0, most ? std::optional(std::max<int64_t>(*most - 1, 0)) : std::nullopt);
        Expr worker = index_variable("worker", 0, workers - 1);
        Expr position = simplify(step * workers + worker);

        Substitution values;
        Expr rest = position;
        for (size_t l = chain.size(); l-- > 0;) {
            Expr extent = cast_unchecked(Type::I64, chain[l]->extent);
            values.emplace_back(chain[l]->variable, simplify(l == 0 ? rest : rest % extent));
            rest = simplify(rest / extent);
        }
        Stmt body = map_exprs(chain.back()->body, [&](const Expr& e) { return simplify(substitute(e, values)); });
        body = masked(body, simplify(position < count));
        notes_.push_back(fmt::format("{}: its loops are bound to no threads: {} threads compute elements of their own",
                                     Effects(body).leaves.back()->name, workers));
        constexpr int last = std::numeric_limits<int>::max();
        Stmt threads = make_stmt(For{worker, integer(workers), Level::Thread, last, -1, false, body});
        Nest loops{"", make_stmt(For{step, steps, Level::Serial, -1, -1, false, threads})};
        return remove_unit_loops(loops).body;
    }

    /// Whether an element decides how long the loop is, by data or by its place: behind the last element there are no
    /// data, and places would make the loop longer than its variable's bounds say, by which masks of reads are dropped.
    static bool is_of_element(const Expr& extent, const Expr& condition) {
        bool decides = false;
        visit(extent, [&](const Expr& e) {
            const Variable* variable = e.as<Variable>();
            decides = decides || e.as<Load>() ||
                      (variable && variable->kind == VariableKind::Index && contains(condition, e));
        });
        return decides;
    }

    static Stmt masked(const Stmt& stmt, const Expr& condition) {
        if (const For* loop = stmt.as<For>()) {
            For copy = *loop;
            if (is_of_element(loop->extent, condition))
                copy.extent = simplify(select_unchecked(condition, loop->extent, integer(0)));
            copy.body = masked(loop->body, condition);
            return make_stmt(std::move(copy));
        }
        if (const Allocate* allocate = stmt.as<Allocate>())
            return make_stmt(Allocate{allocate->buffer, masked(allocate->body, condition)});
        if (const Sequence* block = stmt.as<Sequence>()) {
            std::vector<Stmt> stmts;
            for (const Stmt& kid : block->stmts) stmts.push_back(masked(kid, condition));
            return make_stmt(Sequence{std::move(stmts)});
        }
        Leaf leaf = *stmt.as<Leaf>();
        // First, since masks may read data at an element that is there only for those that work.
        leaf.mask = simplify(all_of({condition, leaf.mask}));
        if (leaf.readers_mask.defined()) leaf.readers_mask = simplify(all_of({condition, leaf.readers_mask}));
        return make_stmt(std::move(leaf));
    }

    const Nest& nest_;
    const Target& target_;
    std::vector<std::string>& notes_;
    int threads_ = 1;
};

}  // namespace

Nest bind_unbound(const Nest& nest, const Target& target, const CiteStep& cite, std::vector<std::string>& notes) {
    return Binder(nest, target, cite, notes).run();
}

}  // namespace tw::codegen
