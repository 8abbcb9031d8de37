// Loops of a stage as the axes of copies: what is copied for a matrix instruction lies as its loops run.
#pragma once
#include <vector>

#include "dsl/edit.h"

namespace tw {

/// A stage's iterations in other axes than the declared ones, for an element over these: its loops, where what only
/// splits have taken apart is one again. After fuse({n, p, q}) into m, and splits of m, an axis m stands for the three.
/// Apart remain the loops of a split of which the element depends on the outer one alone, as on a group of columns.
class LoopAxes {
public:
    LoopAxes(const Schedule::State& state, int stage, const Expr& element);

    struct Axis {
        int loop;       ///< of the stage
        Expr variable;  ///< fresh
        Expr extent;    ///< with what splits mask behind the end: rows of a result that nobody reads, terms that are 0
        Expr index;     ///< which iteration of `loop` a point of the stage's declared axes belongs to
    };
    const std::vector<Axis>& axes() const { return axes_; }
    /// An expression over the stage's declared axes, over these.
    Expr over_axes(const Expr& expr) const;
    /// Where these axes reach outside of the declared ones, of which splits mask the rest: the conditions that terms
    /// hold for.
    std::vector<Expr> conditions_of_terms() const;

private:
    Axis axis_of(int loop) const;
    void join_splits(const Expr& element);
    Expr covered(int loop) const;
    Expr whole(int loop, const Expr& part) const;
    Expr value(int loop) const;
    Expr index(int loop) const;

    const Schedule::State& state_;
    const StageRecord& record_;
    std::vector<Axis> axes_;
};

}  // namespace tw
