// The order of a plan's groups in which less lies between them.
#pragma once

namespace tw {

struct StepPlan;

/// Groups in an order in which those that free more memory than they take come as soon as they can: products for the
/// gradients of parameters right behind their adjoints; small ones that others wait for and that depend on inputs
/// alone, as the number of an optimizer's steps, at once; and those that overwrite something for nobody as late as they
/// can. The others stay in the plan's order. Places are not changed.
void order_for_memory(StepPlan& plan);

/// The same with places, if these take less of the arena than in the order as it is; else places in that order.
void order_where_smaller(StepPlan& plan);

}  // namespace tw
