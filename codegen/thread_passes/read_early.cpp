// What stands behind a product under way, or is worked into results by few warps, and reads memory that no one writes
// meanwhile, is read an iteration ahead; of shared memory, in front of the product.
#include <algorithm>
#include <map>
#include <set>

#include "codegen/access/access.h"
#include "codegen/thread_ir/thread_walk.h"
#include "codegen/thread_passes/thread_passes.h"
#include "dsl/simplify.h"

namespace tw::codegen {
namespace {

constexpr int64_t most_elements = 16;  // that wait in registers while the product is under way

class Reader {
public:
    explicit Reader(const ThreadKernel& kernel) {
        for (size_t k = 0; k < kernel.arguments.size(); ++k)
            if (!kernel.written[k]) constant_.insert(kernel.arguments[k].get());
        for (const auto& [out, in] : kernel.aliases) constant_.erase(in.get());
        for (const Buffer& array : kernel.shared) shared_.insert(array.get());
    }

    /// The loop, and what stands in front of it.
    ThreadStmt ahead_of_products(const ThreadLoop& loop, int step) const {
        std::vector<ThreadStmt> body = statements(loop.body);
        if (loop.unroll || std::ranges::none_of(body, holds<Wgmma>)) return {};
        const size_t moved = move_in_front(body);
        ThreadLoop rotated = loop;
        const bool is_short = std::ranges::count_if(body, holds<Wgmma>) == 1;  // else two take too many registers
        if (is_short) rotated.unroll_by = 2;
        ThreadStmt changed = ahead(rotated, body, step);
        if (changed.defined() || moved == 0) return changed;
        rotated = loop;
        rotated.body = block_of(body);
        return make_thread(std::move(rotated), step);
    }
    /// The same of an unrolled loop that makes results.
    ThreadStmt ahead_of_results(const ThreadLoop& loop, int step) const {
        const std::optional<int64_t> extent = as_constant(loop.extent);
        if (!loop.unroll || !extent || *extent < 2 || !writes_memory(loop.body)) return {};
        return ahead(loop, statements(loop.body), step);
    }

private:
    using Buffers = std::set<const BufferNode*>;

    static size_t product_of(const std::vector<ThreadStmt>& body) {
        return static_cast<size_t>(std::ranges::find_if(body, holds<Wgmma>) - body.begin());
    }

    /// What reads shared memory behind the product, as it was in front of it, reads it there; returns how many
    /// statements have moved.
    size_t move_in_front(std::vector<ThreadStmt>& body) const {
        const size_t product = product_of(body);
        size_t front = product;
        while (front > 0 && prepares_product(body[front - 1])) --front;
        std::vector<ThreadStmt> reads, others(body.begin() + static_cast<std::ptrdiff_t>(front), body.end());
        std::vector<Expr> defined;
        int64_t elements = 0;
        for (const ThreadStmt& stmt : others) add_definition(stmt, defined);
        for (size_t k = product - front + 1; k < others.size() && !may_change_shared(others[k]);) {
            const size_t count = reads_from(others, k, shared_);
            const int64_t own = count > 0 ? elements_of(others[k]) : 0;
            if (count == 0 || elements + own > most_elements || mentions(others, k, k + count, defined)) {
                ++k;
                continue;
            }
            elements += own;
            const auto begin = others.begin() + static_cast<std::ptrdiff_t>(k),
                       end = begin + static_cast<std::ptrdiff_t>(count);
            reads.insert(reads.end(), begin, end);
            others.erase(begin, end);
        }
        body.resize(front);
        body.insert(body.end(), reads.begin(), reads.end());
        body.insert(body.end(), others.begin(), others.end());
        return reads.size();
    }
    static bool prepares_product(const ThreadStmt& stmt) {
        return instruction_of<LeaveUndefined>(stmt) || instruction_of<WgmmaFenceOperand>(stmt) ||
               instruction_of<WgmmaFence>(stmt) || stmt.as<ThreadComment>();
    }
    /// Stores there, or waits for what others store.
    static bool may_change_shared(const ThreadStmt& root) {
        bool may = false;
        visit(root, [&](const ThreadStmt& stmt) {
            const bool waits = stmt.as<Instruction>() && !instruction_of<Wgmma>(stmt) &&
                               !instruction_of<WgmmaCommit>(stmt) && !instruction_of<WgmmaWait>(stmt) &&
                               !prepares_product(stmt);
            may = may || waits || stmt.as<ThreadBarrier>();
            for (const MemoryAccess& access : memory_accesses(stmt))
                may = may || (access.writes && access.place.buffer->memory == Memory::Shared);
        });
        return may;
    }

    /// Each array is declared in front of what mentions it first.
    static std::vector<ThreadStmt> declared_late(const std::vector<ThreadStmt>& body) {
        std::vector<ThreadStmt> result, waiting;
        auto mentions_array = [](const ThreadStmt& root, const Buffer& array) {
            bool found = false;
            visit(root, [&](const ThreadStmt& stmt) {
                for (const MemoryAccess& access : memory_accesses(stmt)) found |= access.place.buffer == array;
            });
            return found;
        };
        for (const ThreadStmt& stmt : body) {
            if (stmt.as<ThreadDeclare>()) {
                waiting.push_back(stmt);
                continue;
            }
            std::erase_if(waiting, [&](const ThreadStmt& declare) {
                const bool now = mentions_array(stmt, declare.as<ThreadDeclare>()->buffer);
                if (now) result.push_back(declare);
                return now;
            });
            result.push_back(stmt);
        }
        result.insert(result.begin(), waiting.begin(), waiting.end());
        return result;
    }

    /// Moves what reads.
    ThreadStmt ahead(const ThreadLoop& loop, const std::vector<ThreadStmt>& stmts, int step) const {
        if (loop.ends_at > 0 || loop.next) return {};
        const std::vector<ThreadStmt> body = declared_late(stmts);
        std::vector<ThreadStmt> reads, others;
        std::vector<Expr> defined;
        int64_t elements = 0;
        for (size_t k = 0; k < body.size();) {
            const size_t count = reads_from(body, k, constant_), end = k + std::max<size_t>(count, 1);
            const int64_t own = count > 0 ? elements_of(body[k]) : 0;
            const bool moves = count > 0 && elements + own <= most_elements && !mentions(body, k, end, defined);
            if (moves) elements += own;
            if (moves && !others.empty() && others.back().as<ThreadComment>() && end < body.size() &&
                others.back().step() != body[end].step()) {  // it says what is read
                reads.push_back(others.back());
                others.pop_back();
            }
            for (; k < end; ++k) {
                if (!moves) add_definition(body[k], defined);
                (moves ? reads : others).push_back(body[k]);
            }
        }
        if (reads.empty()) return {};
        return with_reads(loop, reads, others, step);
    }

    static bool writes_memory(const ThreadStmt& root) {
        bool writes = false;
        visit(root, [&](const ThreadStmt& stmt) {
            for (const MemoryAccess& access : memory_accesses(stmt))
                writes = writes || (access.writes && access.place.buffer->memory != Memory::Registers);
        });
        return writes;
    }

    template <class I>
    static bool holds(const ThreadStmt& root) {
        bool found = false;
        visit(root, [&](const ThreadStmt& stmt) { found = found || instruction_of<I>(stmt); });
        return found;
    }

    /// How many statements from there on define a value, or fill an array, by what lies in memory and stays: 0 if none.
    static size_t reads_from(const std::vector<ThreadStmt>& stmts, size_t k, const Buffers& stays) {
        if (stmts[k].as<ThreadLet>()) return reads_what_stays(stmts[k], {}, stays) ? 1 : 0;
        const ThreadDeclare* declare = stmts[k].as<ThreadDeclare>();
        if (!declare) return 0;
        size_t count = 1;
        bool reads = false;
        while (k + count < stmts.size() && fills(stmts[k + count], declare->buffer, stays)) {
            reads = reads || reads_what_stays(stmts[k + count], declare->buffer, stays);
            ++count;
        }
        return reads ? count : 0;
    }
    /// Writes this array, at least once, and nothing else, by memory that stays, or constants.
    static bool fills(const ThreadStmt& root, const Buffer& array, const Buffers& stays) {
        bool writes = false, fits = true;
        visit(root, [&](const ThreadStmt& stmt) {
            fits = fits && !stmt.as<Instruction>() && !stmt.as<ThreadDeclare>() && !stmt.as<ThreadLet>() &&
                   !stmt.as<ThreadBarrier>() && !stmt.as<ThreadComment>();
            for (const MemoryAccess& access : memory_accesses(stmt)) {
                const bool own = access.place.buffer == array;
                writes = writes || (own && access.writes);
                fits = fits && (own ? access.writes && !access.atomic
                                    : !access.writes && stays.contains(access.place.buffer.get()));
            }
        });
        return writes && fits;
    }
    static bool reads_what_stays(const ThreadStmt& root, const Buffer& array, const Buffers& stays) {
        bool reads = false, fits = true;
        visit(root, [&](const ThreadStmt& stmt) {
            for (const MemoryAccess& access : memory_accesses(stmt)) {
                if (access.place.buffer == array) continue;
                reads = true;
                fits = fits && !access.writes && stays.contains(access.place.buffer.get());
            }
        });
        return reads && fits;
    }

    static void add_definition(const ThreadStmt& stmt, std::vector<Expr>& defined) {
        if (const ThreadLet* let = stmt.as<ThreadLet>()) defined.push_back(let->variable);
    }

    /// Each iteration takes what the one before has read, and reads for the next.
    static ThreadStmt with_reads(const ThreadLoop& loop, const std::vector<ThreadStmt>& reads,
                                 const std::vector<ThreadStmt>& others, int step) {
        std::vector<ThreadStmt> in_front, body, fills;
        std::map<const BufferNode*, Buffer> next;
        for (const ThreadStmt& stmt : reads) {
            if (const ThreadDeclare* declare = stmt.as<ThreadDeclare>()) {
                const Buffer array = next_of(declare->buffer->name, declare->buffer->type, *declare->buffer);
                next[declare->buffer.get()] = array;
                in_front.push_back(make_thread(ThreadDeclare{array}, stmt.step()));
                body.push_back(stmt);
                body.push_back(copied(declare->buffer, array, stmt.step()));
            } else if (const ThreadLet* let = stmt.as<ThreadLet>()) {
                const Buffer value =
                    register_array(let->variable.as<Variable>()->name + "_next", let->value.type(), {});
                in_front.push_back(make_thread(ThreadDeclare{value}, stmt.step()));
                body.push_back(
                    make_thread(ThreadLet{let->variable, make_expr(value->type, Load{value, {}})}, stmt.step()));
                fills.push_back(make_thread(ThreadStore{{value, {}}, let->value}, stmt.step()));
            } else
                fills.push_back(into(stmt, next));
        }
        const Expr& variable = loop.variable;
        auto at = [&](const Expr& iteration) {
            return map_all_expressions(block_of(fills), [&](const Expr& e) {
                return contains(e, variable) ? simplify(substitute(e, {{variable, iteration}})) : e;
            });
        };
        const ThreadStmt first = at(constant(variable.type(), 0));
        const Expr runs = simplify(constant(variable.type(), 0) < loop.extent);
        in_front.push_back(prove(runs) == true ? first : make_thread(ThreadIf{runs, first}, step));
        body.push_back(make_thread(ThreadIf{variable + 1 < loop.extent, at(variable + 1)}, step));
        body.insert(body.end(), others.begin(), others.end());
        ThreadLoop changed = loop;
        changed.body = block_of(body);
        in_front.push_back(make_thread(std::move(changed), step));
        return block_of(in_front);
    }
    static Buffer next_of(const std::string& name, Type type, const BufferNode& like) {
        std::vector<int64_t> shape;
        for (const Expr& extent : like.shape) shape.push_back(require_constant(extent));
        return register_array(name + "_next", type, shape);
    }
    static ThreadStmt copied(const Buffer& to, const Buffer& from, int step) {
        std::vector<Expr> place;
        for (const Expr& extent : to->shape)
            place.push_back(index_variable("element", 0, require_constant(extent) - 1));
        ThreadStmt stmt = make_thread(ThreadStore{{to, place}, make_expr(from->type, Load{from, place})}, step);
        for (size_t d = place.size(); d-- > 0;)
            stmt = make_thread(ThreadLoop{place[d], to->shape[d], true, stmt}, step);
        return stmt;
    }
    /// The statement with others of its arrays.
    static ThreadStmt into(const ThreadStmt& root, const std::map<const BufferNode*, Buffer>& arrays) {
        return transform(root, [&](const ThreadStmt& stmt) -> ThreadStmt {
            if (const ThreadStore* store = stmt.as<ThreadStore>(); store && arrays.contains(store->to.buffer.get()))
                return make_thread(ThreadStore{{arrays.at(store->to.buffer.get()), store->to.indices}, store->value},
                                   stmt.step());
            const ThreadWide* wide = stmt.as<ThreadWide>();
            if (!wide || !arrays.contains(wide->to.buffer.get())) return {};
            ThreadWide other = *wide;
            other.to.buffer = arrays.at(wide->to.buffer.get());
            return make_thread(std::move(other), stmt.step());
        });
    }

    static int64_t elements_of(const ThreadStmt& stmt) {
        const ThreadDeclare* declare = stmt.as<ThreadDeclare>();
        int64_t elements = 1;
        if (declare)
            for (const Expr& extent : declare->buffer->shape) elements *= require_constant(extent);
        return elements;
    }
    static bool mentions(const std::vector<ThreadStmt>& stmts, size_t from, size_t end,
                         const std::vector<Expr>& variables) {
        bool found = false;
        for (size_t k = from; k < end; ++k)
            visit(stmts[k], [&](const ThreadStmt& stmt) {
                for (const Expr& expr : expressions(stmt))
                    for (const Expr& variable : variables) found = found || contains(expr, variable);
            });
        return found;
    }

    Buffers constant_, shared_;
};

}  // namespace

ThreadKernel read_early(const ThreadKernel& kernel) {
    const Reader reader(kernel);
    ThreadKernel result = kernel;
    result.body = transform(kernel.body, [&](const ThreadStmt& stmt) -> ThreadStmt {
        const ThreadLoop* loop = stmt.as<ThreadLoop>();
        if (!loop) return {};
        ThreadStmt changed = reader.ahead_of_products(*loop, stmt.step());
        if (!changed.defined() && kernel.producer_threads > 0) changed = reader.ahead_of_results(*loop, stmt.step());
        return changed;
    });
    return result;
}

}  // namespace tw::codegen
