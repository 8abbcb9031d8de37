// Loops of a stage as the axes of copies: what is copied for a matrix instruction lies as its loops run.
#pragma once
#include <vector>

#include "dsl/edit.h"

namespace tw {

/// A stage's iterations in other axes than the declared ones: its loops, where what only splits have taken apart is
/// one again. After fuse({n, p, q}) into m, and splits of m, an axis m stands for the three.
class LoopAxes {
public:
    /// For an expression over the stage's declared axes. Where it depends on one of a split's loops alone (elements of
    /// groups), these stay apart.
    LoopAxes(const Schedule::State& state, int stage, const Expr& expr);

    struct Axis {
        int loop;       ///< of the stage
        Expr declared;  ///< a fresh variable; of a part that is kept apart along what is declared, so that quotients go
        Expr variable;  ///< along `extent`
        Expr extent;    ///< with what splits mask behind the end: rows of a result that nobody reads, terms that are 0
        Expr index;     ///< which iteration of `loop` a point of the stage's declared axes belongs to
        bool kept_apart = false;  ///< the inner part of a split, whose outer one is an axis, too
    };
    const std::vector<Axis>& axes() const { return axes_; }
    /// An expression over the stage's declared axes, over these.
    Expr over_axes(const Expr& expr) const;
    /// Where these axes reach outside of the declared ones, of which splits mask the rest: the conditions that terms
    /// hold for.
    std::vector<Expr> conditions_of_terms() const;

private:
    void join_splits();
    void keep_apart(const Expr& expr);
    Expr over_declared(const Expr& expr) const;
    Expr covering(const Expr& over_declared) const;
    Expr axis_along(int loop, const Expr& part) const;
    Expr covered(int loop) const;
    Expr whole(int loop, const Expr& part) const;
    Expr value(int loop) const;
    Expr index(int loop) const;

    const Schedule::State& state_;
    const StageRecord& record_;
    std::vector<Axis> axes_;
};

}  // namespace tw
