// Walking the thread IR: children, expressions, rewriting, bounds, the grammar check, and a plain-text dump.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "codegen/thread_ir/thread_ir.h"
#include "dsl/simplify.h"

namespace tw::codegen {

/// The statements directly inside, in order.
std::vector<ThreadStmt> children(const ThreadStmt& stmt);
/// The same statement around other children; the statement itself if none changed.
ThreadStmt with_children(const ThreadStmt& stmt, const std::vector<ThreadStmt>& kids);
/// Calls `see` on every statement, parents first, in program order.
void visit(const ThreadStmt& root, const std::function<void(const ThreadStmt&)>& see);
/// Bottom-up rewriting: `rule` sees each statement after its children and returns {} to keep it.
ThreadStmt transform(const ThreadStmt& root, const std::function<ThreadStmt(const ThreadStmt&)>& rule);

/// The expressions that the statement itself evaluates (not its children's): extents, conditions, indices, values.
std::vector<Expr> expressions(const ThreadStmt& stmt);
/// The statement with each of them mapped; children stay.
ThreadStmt map_expressions(const ThreadStmt& stmt, const std::function<Expr(const Expr&)>& map);
/// Replaces every expression of a whole tree; variables that loops and lets define are mapped as well.
ThreadStmt map_all_expressions(const ThreadStmt& root, const std::function<Expr(const Expr&)>& map);

/// A block of statements: nested blocks are flattened, undefined statements dropped, a single one stands alone.
ThreadStmt block_of(const std::vector<ThreadStmt>& stmts);
/// The statements of a block, or the statement itself.
std::vector<ThreadStmt> statements(const ThreadStmt& stmt);

/// Without lets whose variables nothing mentions.
ThreadStmt drop_unused_lets(const ThreadStmt& root);

/// Elements that a statement reads or writes. Reads come from the Loads of its expressions and from wide accesses.
struct MemoryAccess {
    Access place;
    int width;  ///< neighbouring elements of the last index
    bool writes;
    bool atomic = false;  ///< no conflict with another atomic update
    bool by_warp = false;  ///< at its lane's place, of which any lanes of the warp have the elements
    bool begins = false;  ///< of all of the array, see BeginArray: conflicts with those that had its bytes before
};
std::vector<MemoryAccess> memory_accesses(const ThreadStmt& stmt);
/// The array that is meant: that of the output which overwrites the buffer, or the buffer itself.
const BufferNode* array_of(const Buffer& buffer, const ThreadKernel& kernel);

bool reads_memory(const Expr& expr);
/// Whether the kernel is given the array, as a pointer or as a map of boxes.
bool is_argument(const ThreadKernel& kernel, const Buffer& buffer);
/// Whether it is the let of the loop's ticket, see ThreadLoop::next.
bool names_ticket(const ThreadLet& let, const ThreadLoop& loop);

/// All of its values are ones of 32 bits.
bool fits_i32(const Interval& bounds);

/// What is known about the values of a kernel's variables at one point: a walk adds loops and lets as it enters them.
class KnownBounds {
public:
    KnownBounds() = default;
    /// threads, blocks and sizes
    explicit KnownBounds(const ThreadKernel& kernel);
    void enter_loop(const ThreadLoop& loop);
    void define(const ThreadLet& let);
    Interval of(const Expr& expr) const;
    /// May an operation's result leave its type?
    bool may_wrap(const Expr& operation) const;
    const BoundsOverride& map() const { return map_; }

private:
    void set(const Expr& variable, Interval interval);
    BoundsOverride map_;
};

/// The grammar of the thread IR; an internal error names the statement that breaks it. Passes are checked in between.
void verify_thread_ir(const ThreadKernel& kernel);

/// The kernel as indented text, one statement a line.
std::string to_string(const ThreadKernel& kernel);
std::string to_string(const ThreadStmt& stmt);

}  // namespace tw::codegen
