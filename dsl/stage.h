// Stages: an operation in the form that schedules work on: at most one reduction, then an expression of its result.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dsl/tensor.h"

namespace tw {

/// For each point of the axes: accumulators = identity; for each point of the reduce axes: accumulators = update; then
/// outputs = finish. Without a reducer only finish.
struct StageDefinition {
    std::string name;
    std::shared_ptr<const Operation> operation;  ///< what Reads of this stage refer to
    std::vector<Expr> axes, reduce_axes;         ///< Variables
    Reducer reducer;                             ///< may be null
    std::vector<Expr> accumulators;              ///< Variables that stand for the accumulators in update and finish
    std::vector<Expr> update;                    ///< one a component
    std::vector<Expr> finish;                    ///< one an output of the operation
    std::vector<Expr> terms_where = {};          ///< conditions on all axes: other terms are left out
    std::vector<Expr> reduce_extents = {};       ///< one a reduce axis, over the data axes, if elements decide them
    /// Updates have a target: their only output is no element of their own, it is combined atomically with one of
    /// another stage, which stores the identity.
    std::shared_ptr<const Operation> target = {};
    BinaryOp combine = BinaryOp::Add;  ///< or Min, Max
    /// What the user declared, if axes of it are joined in `operation`.
    std::shared_ptr<const Operation> declared = {};
    std::vector<Expr> place = {};  ///< indices of the target's element, and behind them when it is updated
};

/// The operation that combines both operands of a reducer of one component, if it is one.
std::optional<BinaryOp> combining_operation(const ReducerNode& reducer);
/// The same if it is one of the operations that atomics offer for the component's type.
std::optional<BinaryOp> atomic_operation(const ReducerNode& reducer);

/// The stages that compute `outputs`, producers first. A reduction inside an expression belongs to that expression's
/// stage while it is the only one; otherwise each becomes a stage of its own, named parent_reducer.
std::vector<StageDefinition> stages_of(const std::vector<Tensor>& outputs);

/// Makes fused multiply-adds explicit: a*b + c becomes fma(a, b, c). Interpreter, emulator and GPU all evaluate this.
Expr contract(const Expr& expr);

}  // namespace tw
