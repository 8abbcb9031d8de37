// What one thread of a kernel knows at a time: its variables and registers as terms, where its accesses go.
#pragma once
#include <array>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "codegen/thread_ir/thread_ir.h"
#include "dsl/interpret.h"
#include "verify/symbolic_memory.h"

namespace tw::fuzz {

/// A hash of numbers and names, one after another.
class Hash {
public:
    Hash& operator<<(int64_t number) {
        state_ = (state_ ^ static_cast<uint64_t>(number)) * 0x9e3779b97f4a7c15u;
        state_ ^= state_ >> 29;
        return *this;
    }
    Hash& operator<<(const std::string& text) { return *this << static_cast<int64_t>(std::hash<std::string>()(text)); }
    uint64_t value() const { return state_; }

private:
    uint64_t state_ = 0x2545f4914f6cdd1d;
};

/// An element of shared memory that a thread reads or writes: the place, and how many barriers it has passed before.
struct TracedAccess {
    uint64_t place;
    int32_t epoch;
    bool writes;
};

/// Throws Undecided where addresses depend on data, Misuse where an index of registers or of shared memory leaves its
/// array.
class ThreadValues {
public:
    ThreadValues(Terms& terms, const codegen::ThreadKernel& kernel, const Bindings& sizes)
        : terms_(terms), kernel_(kernel), sizes_(sizes) {}

    void start(const std::array<int64_t, 3>& block, int thread);
    void pass_barrier() { ++epoch_; }

    void define(const Expr& variable, Term value) { variables_[variable.id()] = value; }
    void define(const Expr& variable, int64_t value) { define(variable, terms_.integer(variable.type(), value)); }
    Term eval(const Expr& expr);
    /// Whether it is the same for all data.
    bool is_known(const Expr& expr) { return is_number(eval(expr)); }
    bool is_number(Term term) const { return terms_.value(term).has_value(); }
    Term integer(Type type, int64_t value) { return terms_.integer(type, value); }
    /// Throws Undecided, naming `what`, if it depends on data.
    int64_t number(const Expr& expr, const char* what) { return known(eval(expr), what); }

    void declare(const codegen::Buffer& registers);
    void set_registers(const codegen::Access& to, const std::vector<Term>& values);
    /// Registers that only a call knows from now on.
    void receive(const codegen::Access& to, int width);
    /// Nobody has written them.
    void forget(const codegen::Access& registers, int width);
    /// `width` neighbouring elements. Of memory: which they are and how many barriers the thread has passed; the trace
    /// tells what they hold then.
    std::vector<Term> read(const codegen::Access& from, int width);

    /// The same number for the same element of shared memory, in all threads of a block.
    uint64_t place_of(const codegen::Access& access, int elements);
    /// Notes the access, if it is one of shared memory, and gives the place of its first element.
    uint64_t touch(const codegen::Access& access, int elements, bool writes);
    std::vector<TracedAccess> take_accesses() { return std::move(accesses_); }
    /// Whether it has touched global memory since this was last asked.
    bool take_touch_of_global() { return std::exchange(touched_global_, false); }
    /// The first element's number in its array.
    int64_t where(const codegen::Access& access, int elements);

private:
    std::vector<Term>& registers_of(const codegen::Buffer& buffer);
    int64_t offset(const codegen::Access& access, int elements);
    int64_t known(Term term, const char* what) const;
    Term select(const Select& choice, Type type);
    Term binary(const Binary& operation, Type type);
    Term value_of(const Expr& expr, const Variable& variable) const;

    Terms& terms_;
    const codegen::ThreadKernel& kernel_;
    const Bindings& sizes_;
    std::array<int64_t, 3> block_ = {};
    int thread_ = 0;
    int32_t epoch_ = 0;
    int64_t received_ = 0;
    bool touched_global_ = false;
    std::vector<TracedAccess> accesses_;
    std::unordered_map<const ExprNode*, Term> variables_;
    std::unordered_map<const BufferNode*, std::vector<Term>> registers_;
};

}  // namespace tw::fuzz
