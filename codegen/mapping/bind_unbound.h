#pragma once
#include <string>
#include <vector>

#include "codegen/mapping/bindings.h"
#include "dsl/target.h"
#include "dsl/tree.h"

namespace tw::codegen {

/// Binds data loops that no schedule step bound, around a reduction whose accumulators are registers: each thread
/// computes elements of its own, instead of thread 0 all of them. (A nest around a single leaf is left to
/// `distribute`.)
///
///     for i, j                       for step
///       acc = 0                        for worker (thread)
///       for k                            acc = 0
///         acc += ...                     for k
///       c[i][j] = acc                      acc += ...
///                                        c[...][...] = acc
Nest bind_unbound(const Nest& nest, const Target& target, const CiteStep& cite, std::vector<std::string>& notes);

}  // namespace tw::codegen
