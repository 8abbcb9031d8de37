// Terms of sums over windows: two elements that are multiplied, where conditions hold.
#pragma once
#include <optional>
#include <vector>

#include "dsl/tensor.h"

namespace tw::schedules {

/// Two elements that are multiplied where the conditions hold, and count nothing elsewhere.
struct WindowTerm {
    Expr expr;  ///< holds the reads
    std::vector<const Read*> reads;
    std::vector<Expr> conditions;
    std::vector<bool> padded;  ///< of each read: whether zeros stand around its tensor
};

/// Whether the expression holds a reduction.
bool reduces(const Expr& body);
/// With the other expression in the place of its reductions.
Expr with_reduction(const Expr& body, const Expr& reduction);
/// The expression with what a schedule of the outputs inlines: elements of stages that reduce nothing; of 2 bytes,
/// which may be operands that it stores, only with `inline_narrow`.
Expr with_elements(const Expr& expr, const std::vector<Tensor>& outputs, bool inline_narrow);
/// What the expression is where the conditions, which are taken, hold: elsewhere it is zero.
Expr guarded(Expr expr, std::vector<Expr>& conditions);
/// What is multiplied: bf16 or f16, as tensor cores do, or f32 as well.
enum class Factors { Halves, AnyFloats };
/// The term of a sum, in f32, of products of two tensors of one of these types.
std::optional<WindowTerm> term_of(const Reduce& sum, const std::vector<Tensor>& outputs,
                                  Factors factors = Factors::Halves);

/// Of an element of an operation: whether it reads the tensor, and at its own axes only.
struct ReadsOf {
    bool any = false, own = true;
};
ReadsOf reads_of(const Tensor& tensor, const Operation& operation, const Expr& body);
/// The output that alone reads the tensor, and makes each of its elements of the tensor's.
Tensor only_reader(const Tensor& tensor, const std::vector<Tensor>& outputs);

}  // namespace tw::schedules
