// Programs: from a schedule to kernels that run. Joins the language, codegen and the runtime.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "codegen/lower.h"
#include "dsl/host_array.h"
#include "dsl/schedule.h"


namespace tw {

/// A schedule lowered to CUDA text: kernels in launch order and the workspaces between them.
class Program {
public:
    const std::vector<codegen::KernelText>& kernels() const { return lowered_.kernels; }
    /// All kernels' text, in launch order.
    std::string cuda() const;
    /// Defaults taken by the schedule and by codegen, in plain words.
    std::string explain() const;
    const Tree& tree() const { return tree_; }
    const Target& target() const { return target_; }
    /// Where a printed line comes from: "[7] s.stage(...) (user.cpp:31)", empty if nowhere in particular.
    std::vector<std::string> line_notes(size_t kernel) const;

private:
    friend Program build(const Schedule& schedule);
    Tree tree_;
    Target target_;
    codegen::Lowered lowered_;
    std::vector<Step> trace_;
    std::string schedule_notes_;
};

/// Lowers the schedule. Throws Error if the target's limits are exceeded.
Program build(const Schedule& schedule);

}  // namespace tw
