// Where outputs lie: in the memory of inputs, or in parts of larger arrays.
#include <algorithm>

#include <fmt/ranges.h>

#include "dsl/check_sizes.h"
#include "dsl/edit.h"
#include "dsl/operand.h"
#include "support/error.h"

namespace tw {

using State = Schedule::State;

namespace {

/// The stage that writes the output, which may be a copy of what computes it; -1 if it is none.
int stage_of_output(const State& state, const Tensor& out) {
    for (size_t k = 0; k < state.outputs.size(); ++k)
        if (state.outputs[k].same(out)) return state.stage_of(state.result[k]);
    return -1;
}

}  // namespace

void Schedule::in_place(const Tensor& out, const Tensor& in, std::source_location where) {
    Edit edit(state_, where);
    State& state = edit.state;
    user_check(in.defined(), where, "in_place: the input is an undefined tensor");
    user_check(out.defined() && stage_of_output(state, out) >= 0, where,
               "in_place({}, {}): '{}' is no output of the schedule", out.defined() ? out.name() : "", in.name(),
               out.defined() ? out.name() : "");
    user_check(in.operation()->is_input(), where, "in_place({}, {}): '{}' is no input", out.name(), in.name(),
               in.name());
    user_check(in.type() == out.type() && in.rank() == out.rank() &&
                   std::equal(in.shape().begin(), in.shape().end(), out.shape().begin(), equal) &&
                   in.operation()->strides.empty(),
               where, "in_place({}, {}): both must have one type, shape and dense rows", out.name(), in.name());
    auto operations = operations_of(state.outputs);
    user_check(std::find(operations.begin(), operations.end(), in.operation()) != operations.end(), where,
               "in_place({}, {}): nothing here reads '{}'; name an input of the schedule", out.name(), in.name(),
               in.name());
    for (const auto& [taken_out, taken_in] : state.in_place)
        user_check(!taken_out.same(out) && !taken_in.same(in), where, "in_place({}, {}): '{}' already overwrites '{}'",
                   out.name(), in.name(), taken_out.name(), taken_in.name());
    user_check(std::ranges::none_of(state.strides, [&](const auto& laid) { return laid.first.same(out); }), where,
               "in_place({}, {}): '{}' has strides of its own; both must have dense rows", out.name(), in.name(),
               out.name());
    state.in_place.emplace_back(out, in);
    const HandleNames& names = state.handle_names;
    edit.commit(fmt::format("s.in_place({}, {});", names.tensor(out.operation().get(), out.output()),
                            names.tensor(in.operation().get(), in.output())),
                fmt::format("in_place {} {}", saved_tensor(out), saved_tensor(in)));
}

void Schedule::strides(const Tensor& out, const std::vector<int64_t>& strides, std::source_location where) {
    Edit edit(state_, where);
    State& state = edit.state;
    user_check(out.defined(), where, "strides: the output is an undefined tensor");
    const int stage = stage_of_output(state, out);
    const std::string asked = fmt::format("strides({}, {{{}}})", out.name(), fmt::join(strides, ", "));
    user_check(stage >= 0, where, "{}: '{}' is no output of the schedule", asked, out.name());
    user_check(strides.size() == out.shape().size(), where, "{}: '{}' has {} dimensions; give one stride a dimension",
               asked, out.name(), out.shape().size());
    user_check(state.stages[stage].definition.operation->shape.size() == strides.size(), where,
               "{}: dimensions of '{}' are joined; give its strides instead of join_axes", asked, out.name());
    user_check(std::ranges::none_of(state.in_place, [&](const auto& pair) { return pair.first.same(out); }), where,
               "{}: '{}' overwrites an input (in_place), as dense as that", asked, out.name());
    int64_t least = 1;  // elements that what is inside of a dimension takes
    for (size_t d = strides.size(); d-- > 0;) {
        const Expr& extent = out.shape()[d];
        user_check(strides[d] >= least, where,
                   "{}: neighbours along dimension {} must be {} elements apart at least, all that is inside of one; "
                   "dimensions lie around each other in the order in which they are declared",
                   asked, d, least);
        const auto known = as_constant(extent);
        user_check(known || d == 0, where,
                   "{}: dimension {} of '{}' is {}, which is not known; only that of the first may be given at launch",
                   asked, d, out.name(), tw::to_string(extent));
        if (known) least = strides[d] * std::max<int64_t>(*known, 1);
    }
    std::vector<Expr> exprs;
    for (const int64_t stride : strides) exprs.push_back(integer(stride));
    check_bytes(asked, out.shape(), exprs, out.type(), where);
    std::erase_if(state.strides, [&](const auto& laid) { return laid.first.same(out); });
    state.strides.emplace_back(out, exprs);
    edit.commit(fmt::format("s.strides({}, {{{}}});", state.handle_names.tensor(out.operation().get(), out.output()),
                            fmt::join(strides, ", ")),
                fmt::format("strides {} {} {}", saved_tensor(out), strides.size(), fmt::join(strides, " ")));
}

}  // namespace tw
