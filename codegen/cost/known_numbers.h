// What a compiler knows of a thread's values.
#pragma once
#include <set>

#include "dsl/tree.h"

namespace tw::codegen {

/// Variables and registers in which nothing but constants is: counts of a loop that is unrolled, say.
class KnownNumbers {
public:
    /// Whether the expression is made of such alone: a compiler computes it.
    bool holds(const Expr& expr) const;
    void define(const Expr& variable, const Expr& value);
    void store(const BufferNode* registers, const Expr& value);
    void forget(const BufferNode* registers) { registers_.erase(registers); }

private:
    std::set<const ExprNode*> variables_;
    std::set<const BufferNode*> registers_;
};

}  // namespace tw::codegen
