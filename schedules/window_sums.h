// Sums of products over windows, as they are compared with one that is known.
#pragma once
#include <optional>
#include <random>
#include <vector>

#include "dsl/evaluate.h"
#include "dsl/tensor.h"
#include "schedules/window_terms.h"

namespace tw::schedules {

/// A sum over windows, its term with what schedules inline.
struct WindowSum {
    std::vector<Expr> around, axes;  ///< of the elements, of the sum
    WindowTerm term;
};
/// The tensor's only sum, in f32.
std::optional<WindowSum> window_sum(const Tensor& tensor, const std::vector<Tensor>& outputs);
/// The same for threads: of f32, too, and loops of one iteration are left out of its axes.
std::optional<WindowSum> window_sum_of_threads(const Tensor& tensor, const std::vector<Tensor>& outputs);
/// Whether the two are one, if their variables are called alike.
bool is_same_sum(const WindowSum& a, const WindowSum& b);

/// A rule's adjoint is a tensor of its own, which the gradient casts.
Tensor behind_casts(const Tensor& gradient);

/// Draws terms of a sum, and tells what they read.
class DrawnTerms {
public:
    explicit DrawnTerms(const WindowSum& sum);

    /// Of `count` terms for which the conditions hold, the values of the expressions, one behind the other; fewer where
    /// these are hard to find.
    std::vector<std::vector<int64_t>> values(const std::vector<Expr>& exprs, size_t count);

private:
    struct Drawn {
        size_t slot;
        CompiledExpr extent;
    };

    void add(const Expr& axis);
    CompiledExpr compiled(const Expr& expr);
    bool draw_axes();

    SlotMap slots_;
    std::vector<Drawn> axes_;
    std::vector<CompiledExpr> conditions_;
    std::vector<Register> registers_;
    std::mt19937_64 random_{1};
};

}  // namespace tw::schedules
