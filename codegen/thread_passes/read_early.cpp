// What stands behind a product under way, and reads memory that no one writes meanwhile, is read in front of it.
#include <algorithm>
#include <set>

#include "codegen/access/access.h"
#include "codegen/thread_ir/thread_walk.h"
#include "codegen/thread_passes/thread_passes.h"

namespace tw::codegen {
namespace {

constexpr int64_t most_elements = 16;  // that wait in registers while the product is under way

class Reader {
public:
    explicit Reader(const ThreadKernel& kernel) {
        for (size_t k = 0; k < kernel.arguments.size(); ++k)
            if (!kernel.written[k]) constant_.insert(kernel.arguments[k].get());
        for (const auto& [out, in] : kernel.aliases) constant_.erase(in.get());
    }

    /// The body of a loop, in other order.
    ThreadStmt reordered(const ThreadStmt& body) const {
        std::vector<ThreadStmt> stmts = statements(body);
        const auto multiplies = std::ranges::find_if(stmts, holds<Wgmma>);
        if (multiplies == stmts.end()) return body;
        const auto waits = std::find_if(stmts.begin(), multiplies, holds<MbarrierWait>);
        const auto place = static_cast<size_t>(waits - stmts.begin());
        std::vector<ThreadStmt> early, rest(waits, stmts.end()), late;
        std::vector<Expr> defined;
        int64_t elements = 0;
        for (size_t k = 0; k < rest.size();) {
            const size_t count = reads_from(rest, k), end = k + std::max<size_t>(count, 1);
            const bool is_behind = stmts.begin() + static_cast<std::ptrdiff_t>(place + k) > multiplies;
            const int64_t own = count > 0 ? elements_of(rest[k]) : 0;
            const bool moves =
                count > 0 && is_behind && elements + own <= most_elements && !mentions(rest, k, end, defined);
            if (moves) elements += own;
            for (; k < end; ++k) {
                if (const ThreadLet* let = rest[k].as<ThreadLet>(); let && !moves) defined.push_back(let->variable);
                (moves ? early : late).push_back(rest[k]);
            }
        }
        if (early.empty()) return body;
        stmts.resize(place);
        for (const auto* part : {&early, &late}) stmts.insert(stmts.end(), part->begin(), part->end());
        return block_of(stmts);
    }

private:
    template <class I>
    static bool holds(const ThreadStmt& root) {
        bool found = false;
        visit(root, [&](const ThreadStmt& stmt) { found = found || instruction_of<I>(stmt); });
        return found;
    }

    /// How many statements from there on define a value, or fill an array, by what lies in memory and stays: 0 if none.
    size_t reads_from(const std::vector<ThreadStmt>& stmts, size_t k) const {
        if (stmts[k].as<ThreadLet>()) return reads_constants(stmts[k], {}) ? 1 : 0;
        const ThreadDeclare* declare = stmts[k].as<ThreadDeclare>();
        if (!declare) return 0;
        size_t count = 1;
        bool reads = false;
        while (k + count < stmts.size() && fills(stmts[k + count], declare->buffer)) {
            reads = reads || reads_constants(stmts[k + count], declare->buffer);
            ++count;
        }
        return reads ? count : 0;
    }
    /// Writes this array, at least once, and nothing else, by memory that stays, or constants.
    bool fills(const ThreadStmt& root, const Buffer& array) const {
        bool writes = false, fits = true;
        visit(root, [&](const ThreadStmt& stmt) {
            fits = fits && !stmt.as<Instruction>() && !stmt.as<ThreadDeclare>() && !stmt.as<ThreadLet>() &&
                   !stmt.as<ThreadBarrier>() && !stmt.as<ThreadComment>();
            for (const MemoryAccess& access : memory_accesses(stmt)) {
                const bool own = access.place.buffer == array;
                writes = writes || (own && access.writes);
                fits = fits && (own ? access.writes && !access.atomic
                                    : !access.writes && constant_.count(access.place.buffer.get()) > 0);
            }
        });
        return writes && fits;
    }
    bool reads_constants(const ThreadStmt& root, const Buffer& array) const {
        bool reads = false, fits = true;
        visit(root, [&](const ThreadStmt& stmt) {
            for (const MemoryAccess& access : memory_accesses(stmt)) {
                if (access.place.buffer == array) continue;
                reads = true;
                fits = fits && !access.writes && constant_.count(access.place.buffer.get()) > 0;
            }
        });
        return reads && fits;
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

    std::set<const BufferNode*> constant_;
};

}  // namespace

ThreadKernel read_early(const ThreadKernel& kernel) {
    const Reader reader(kernel);
    ThreadKernel result = kernel;
    result.body = transform(kernel.body, [&](const ThreadStmt& stmt) -> ThreadStmt {
        const ThreadLoop* loop = stmt.as<ThreadLoop>();
        if (!loop || loop->unroll) return {};
        ThreadLoop other = *loop;
        other.body = reader.reordered(loop->body);
        return make_thread(std::move(other), stmt.step());
    });
    return result;
}

}  // namespace tw::codegen
