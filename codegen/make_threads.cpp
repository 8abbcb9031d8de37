#include <algorithm>
#include <functional>
#include <set>

#include "codegen/lower_op.h"
#include "codegen/thread_walk.h"
#include "codegen/tile_passes.h"
#include "dsl/simplify.h"

namespace tw::codegen {
namespace {

/// A comment that repeats the one before says nothing.
bool repeats(const std::vector<ThreadStmt>& list, const ThreadComment& comment) {
    for (size_t s = list.size(); s-- > 0;)
        if (const ThreadComment* last = list[s].as<ThreadComment>()) return last->text == comment.text;
    return false;
}

void append(std::vector<ThreadStmt>& list, const ThreadStmt& stmt) {
    if (!stmt.defined()) return;
    const ThreadBlock* block = stmt.as<ThreadBlock>();
    for (const ThreadStmt& kid : block ? block->stmts : std::vector<ThreadStmt>{stmt}) {
        const ThreadComment* comment = kid.as<ThreadComment>();
        if (!comment || !repeats(list, *comment)) list.push_back(kid);
    }
}

class ThreadMaker {
public:
    ThreadMaker(const TileKernel& kernel, std::vector<std::string>& notes)
        : kernel_(kernel), placement_(kernel), notes_(notes) {}

    ThreadKernel run() {
        ThreadKernel result;
        result.name = kernel_.name;
        result.arguments = kernel_.arguments;
        result.sizes = kernel_.sizes;
        result.scalars = kernel_.scalars;
        result.shared = placement_.shared();
        result.grid = kernel_.grid;
        result.threads = kernel_.threads;
        result.thread = kernel_.thread;
        result.block = kernel_.block;
        result.written = written();
        result.body = body();
        result.maps = kernel_.maps;
        drop_mapped(result);
        return result;
    }

private:
    /// Tensors that are read through their maps alone need no pointer.
    static void drop_mapped(ThreadKernel& kernel) {
        std::set<const BufferNode*> touched;
        visit(kernel.body, [&](const ThreadStmt& stmt) {
            for (const Touch& touch : touches(stmt)) touched.insert(touch.access.buffer.get());
        });
        for (const TensorMapUse& use : kernel.maps) {
            auto found = std::find(kernel.arguments.begin(), kernel.arguments.end(), use.tensor);
            if (found == kernel.arguments.end() || touched.count(use.tensor.get())) continue;
            kernel.written.erase(kernel.written.begin() + (found - kernel.arguments.begin()));
            kernel.arguments.erase(found);
        }
    }

    std::vector<bool> written() const {
        std::vector<bool> result(kernel_.arguments.size());
        visit_ops(kernel_.body, [&](const TileOp& op) {
            for (const StoreTo& store : op.stores)
                for (size_t a = 0; a < result.size(); ++a)
                    result[a] = result[a] || kernel_.arguments[a] == store.buffer;
        });
        return result;
    }

    /// The values of bound loops, then the block's work.
    ThreadStmt body() {
        ThreadBlock block;
        auto let = [&](const Expr& variable, const Expr& value) {
            if (used(kernel_.body, variable)) block.stmts.push_back(make_thread(ThreadLet{variable, simplify(value)}));
        };
        for (const GridDigit& digit : kernel_.grid_digits)
            let(digit.variable, kernel_.block[digit.dimension] / digit.stride % digit.extent);
        for (const ThreadDigit& digit : kernel_.thread_digits)
            let(digit.variable, kernel_.thread / digit.stride % digit.extent);
        append(block.stmts, convert(kernel_.body));
        return make_thread(std::move(block));
    }

    static bool used(const TileStmt& stmt, const Expr& variable) {
        if (const TileOp* op = stmt.as<TileOp>()) return mentions(*op, variable);
        if (const TileLoop* loop = stmt.as<TileLoop>())
            return contains(loop->extent, variable) || used(loop->body, variable);
        if (const TileAllocate* allocate = stmt.as<TileAllocate>()) return used(allocate->body, variable);
        const auto& stmts = stmt.as<TileBlock>()->stmts;
        return std::any_of(stmts.begin(), stmts.end(), [&](const TileStmt& kid) { return used(kid, variable); });
    }

    ThreadStmt convert(const TileStmt& stmt) {
        if (const TileOp* op = stmt.as<TileOp>()) return lower_op(*op, placement_, notes_);
        if (const TileLoop* loop = stmt.as<TileLoop>()) {
            ThreadStmt body = convert(loop->body);
            return make_thread(ThreadLoop{loop->variable, placement_.physical(loop->extent), loop->unroll, body});
        }
        ThreadBlock block;
        if (const TileAllocate* allocate = stmt.as<TileAllocate>()) {
            block.stmts.push_back(make_thread(ThreadDeclare{allocate->buffer}, allocate->buffer->step));
            append(block.stmts, convert(allocate->body));
        } else {
            for (const TileStmt& kid : stmt.as<TileBlock>()->stmts) append(block.stmts, convert(kid));
        }
        return make_thread(std::move(block));
    }

    const TileKernel& kernel_;
    Placement placement_;
    std::vector<std::string>& notes_;
};

}  // namespace

ThreadKernel make_threads(const TileKernel& kernel, std::vector<std::string>& notes) {
    return ThreadMaker(kernel, notes).run();
}

}  // namespace tw::codegen
