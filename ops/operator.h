// Operators: a declared expression is all that one needs. Gradient and schedules follow from it and can be replaced.
//
//   nn::Operator square("square", [](const std::vector<tw::Tensor>& in) {
//       return compute("square", {in[0].shape()[0]}, [&](Expr i) { return in[0](i) * in[0](i); });
//   });
//   nn::Tensor y = square({x});
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <source_location>
#include <string>
#include <vector>

#include "dsl/schedule.h"
#include "ops/attributes.h"
#include "ops/tensor.h"

namespace tw::nn {

/// The result's expression over inputs of the types and shapes of a call; with_gradient() inside replaces the derived
/// gradient. It is the place to refuse shapes.
using Expression = std::function<tw::Tensor(const std::vector<tw::Tensor>& inputs)>;
/// The same of a call with attributes, which it asks for by name.
using AttributedExpression =
    std::function<tw::Tensor(const std::vector<tw::Tensor>& inputs, const Attributes& attributes)>;
/// A schedule of the outputs: of the result, or of the gradients (d_<input>).
using ScheduleFunction = std::function<Schedule(const std::vector<tw::Tensor>& outputs, const Target& target)>;

struct OperatorState {
    std::string name;
    uint64_t serial = 0;  ///< tells operators of one name apart
    Expression expression;
    ScheduleFunction forward, backward;

    /// `where`: the call.
    Tensor call(const std::vector<Tensor>& inputs, const std::source_location& where) const;
    /// Gradients of the inputs that require them, undefined for the others.
    std::vector<Tensor> gradients_of(const std::vector<Tensor>& inputs, const Buffer& adjoint,
                                     const std::source_location& where) const;
    /// The output, made by this call.
    static Tensor link(const Tensor& output, std::shared_ptr<Node> creator);

private:
    template <class Build>
    BuiltCall& known_call(bool is_backward, const std::vector<Tensor>& inputs, const Build& build) const;
    BuiltCall build_forward(const std::vector<Tensor>& inputs, const std::source_location& where) const;
    BuiltCall build_backward(const std::vector<Tensor>& inputs, const std::source_location& where) const;
    std::string key(const char* what, const std::vector<Tensor>& inputs) const;
    std::vector<tw::Tensor> declare_inputs(const std::vector<Tensor>& inputs) const;
};

/// What an operator is for attributes, each its own state.
struct OperatorVariants {
    std::string name;
    AttributedExpression expression;
    ScheduleFunction forward, backward;

    std::shared_ptr<const OperatorState> of(const Attributes& attributes);

private:
    std::mutex mutex_;
    std::map<std::string, std::shared_ptr<const OperatorState>> known_;  // by their text
};

/// A differentiable operation. Kernels are built once for each backend, list of input types and shapes, and attributes.
class Operator {
public:
    /// Schedules default to schedules::choose_schedule, in whose place the backend's registry is asked.
    Operator(std::string name, Expression expression, ScheduleFunction forward = {}, ScheduleFunction backward = {});
    Operator(std::string name, AttributedExpression expression, ScheduleFunction forward = {},
             ScheduleFunction backward = {});

    /// Enqueues the kernels and, if an input requires a gradient and the result is a float, records the call. Throws
    /// Error without inputs, if they are of several backends, and what the expression and the schedule throw, with the
    /// line of the call, also in backward().
    Tensor operator()(const std::vector<Tensor>& inputs, TW_HERE) const;
    /// The same with attributes. Throws Error if the expression takes none, or does not ask for one of these.
    Tensor operator()(const std::vector<Tensor>& inputs, const Attributes& attributes, TW_HERE) const;

private:
    std::shared_ptr<const OperatorState> state_;  // without attributes
    std::shared_ptr<OperatorVariants> variants_;  // nullptr if the expression takes none
};

/// The operator of this name with these options, made of the expression by the first call: the later ones share its
/// kernels. The text has to say all that the expression depends on.
const Operator& operator_with(const std::string& name, const std::string& options, const Expression& expression);

}  // namespace tw::nn
