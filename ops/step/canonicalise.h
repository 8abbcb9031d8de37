// A step in fewer and simpler operations, of the same bits.
#pragma once
#include <string>
#include <vector>

#include "ops/made_between.h"
#include "schedules/declared.h"

namespace tw {

struct CanonicalStep {
    schedules::Declared step;
    std::vector<MadeBetween> regions;     ///< the given ones, in it
    std::vector<std::string> simplified;  ///< what was found, a line each: "b is a"
};

/// The step, where
/// - of operations that compute the same of the same tensors the first one stays, and is read in place of the others;
/// - a constant tensor stands as a number in those who read it, and what that makes of them is computed: products by
///   one, choices, operations on numbers. No bit of a result is another one: x + 0 stays, which -0 tells;
/// - a view of a view is one view, and what shows a tensor just as it is, is that tensor. What puts all elements into
///   another shape stays as it is, since it needs no place;
/// - elements that nobody reads, of an operation that makes several, are not computed.
/// Results stay operations of their own, under their names, and so do those called as `keep` says; what overwrites an
/// input is read by nobody else than before. A part with a schedule of its own is declared anew over what its operands
/// are. What is made again, inside of a region, does not stand for what is kept, nor the other way around. A step that
/// can have no plan, by what step_graph() says, is returned as it is.
CanonicalStep canonicalise(const schedules::Declared& step, const std::vector<MadeBetween>& regions = {},
                           const std::vector<std::string>& keep = {});

}  // namespace tw
