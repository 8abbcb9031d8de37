// What was counted of nests, which are lowered once: of equal ones of several schedules, by their keys.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "codegen/cost/count_work.h"
#include "dsl/cite.h"
#include "dsl/tree.h"

namespace tw::codegen {

struct CountedKernel {
    std::string name;
    KernelWork work;
};

/// Of all kernels of a schedule, in launch order. Throws Error as lower() does. What is known of equal nests, which
/// this thread has had lowered for the target before, is not made again: an Error is not remembered.
std::vector<CountedKernel> counted_kernels(const Tree& tree, const Target& target, const CiteStep& cite = {});

/// Whether one equal to it has been lowered, so that it can be.
bool is_known_to_lower(const Tree& tree, const Nest& nest, const Target& target);

}  // namespace tw::codegen
