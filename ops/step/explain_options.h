// What explain() is to tell of a step.
#pragma once

namespace tw {

struct ExplainOptions {
    bool sorted = false;           ///< the kernels that take longest first, else in launch order
    int runs = 5;                  ///< of the step, where it is measured, of which the median is taken
    bool with_neighbours = false;  ///< which groups are not one, and why
};

}  // namespace tw
