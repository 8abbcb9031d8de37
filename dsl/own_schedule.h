// A part of a computation that is scheduled as its author says, wherever it stands in a larger one.
//
//   const std::vector<Tensor> made = with_schedule("scores", {q, k}, declare, schedule);
//   // declare({q, k}) -> results; schedule({a, b}, target) -> a schedule of declare({a, b})
#pragma once
#include <functional>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include "dsl/schedule.h"

namespace tw {

/// The results of a part over these operands: the given ones, or others of their shapes, which may have other types.
using PartResults = std::function<std::vector<Tensor>(const std::vector<Tensor>& operands)>;
/// A schedule whose outputs are the results over these operands, in their order. Operands are inputs, or views of
/// inputs: elements of these as they are, at other places. Throws Error where it has none: of such types, say.
using PartSchedule = std::function<Schedule(const std::vector<Tensor>& operands, const Target& target)>;

/// What a part's schedule is of: of just what it declares, which is checked; or of the same computation in another
/// declaration, as with a value kept that is made twice else. That these are the same is the author's word alone.
enum class ScheduleOf { Declared, Equivalent };

/// What results of such a part know of it.
struct OwnSchedule {
    std::string name;  ///< tells apart what is declared alike and scheduled differently
    std::vector<Tensor> operands;
    PartResults declare;
    PartSchedule schedule;
    ScheduleOf schedules;
    std::source_location where;
    std::vector<Tensor> results;  ///< as declared: copies of these are the part's
};

/// declare(operands). What plans a graph in which these stand (ops/step/step_plan.h) has `schedule` for all of them in
/// place of a schedule that it would find, as long as that has one; everything else sees what is declared. Equal names
/// promise equal functions. Throws Error if the name is empty, a function is none, an operand is undefined, or results
/// are inputs, are one tensor twice, components of a tuple, or made of an input that is no operand; and what `declare`
/// throws.
std::vector<Tensor> with_schedule(const std::string& name, const std::vector<Tensor>& operands,
                                  const PartResults& declare, const PartSchedule& schedule,
                                  ScheduleOf schedules = ScheduleOf::Declared, TW_HERE);

}  // namespace tw
