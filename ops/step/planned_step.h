// A planned step on a device: one launch.
#pragma once
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dsl/host_array.h"
#include "ops/executable.h"
#include "ops/step/explain_options.h"
#include "ops/step/step_hazards.h"
#include "ops/step/step_plan.h"

namespace tw {

/// Not for several threads at once.
class PlannedStep {
public:
    /// Compiles the kernels of all distinct groups at once, allocates the arena, and records the launches of a step as
    /// one graph, with branches where the plan asks for them. `given` has memory of the caller's for inputs and
    /// results, by name, of at least their bytes, as weights that several steps share; all others get some. Throws
    /// Error if a name there is none of the step's or that of a result which takes an input's place, if memory is too
    /// small, or that of a result overlaps what its group uses, and what Executable throws.
    PlannedStep(StepPlan plan, std::shared_ptr<Device> device, const std::map<std::string, Buffer>& given = {},
                TW_HERE);

    /// Memory of an input or a result; of a result that overwrites an input, that of the input. Throws Error, with the
    /// names that there are, if there is none.
    const Buffer& buffer(const std::string& name, TW_HERE) const;
    /// Copies the array, of the declared type, shape and strides. Throws Error as buffer() does, and if they differ.
    void set(const std::string& name, const HostArray& array, TW_HERE) const;
    /// Waits for the device.
    HostArray get(const std::string& name, TW_HERE) const;

    /// All launches of a step, without waiting. Throws LaunchError while a step is recorded or captured.
    void run(TW_HERE) const {
        graph_.run(where);
        *has_run_ = true;
    }
    void run(const Stream& stream, TW_HERE) const {
        graph_.run(stream, where);
        *has_run_ = true;
    }
    /// Whether it has run, from now on.
    std::shared_ptr<const bool> has_run() const { return has_run_; }

    const StepPlan& plan() const { return plan_; }
    /// In launch order.
    const std::vector<Launch>& launches() const { return launches_; }
    /// For each launch those, in front of it, that have ended when it begins; one that waits for another waits for what
    /// that waits for. The one in front of it alone, unless the plan has branches.
    const std::vector<std::vector<size_t>>& after() const { return after_; }
    /// Those of a group of the plan.
    std::span<const Launch> launches_of(size_t group) const;
    /// Where a value of the plan lies; one in the arena holds it from the group that makes it to the last that reads
    /// it.
    const Buffer& memory_of(size_t value) const { return buffers_[value]; }
    /// What each kernel costs, as predicted and as measured (explain_step.h).
    std::string explain(const ExplainOptions& options = {}, TW_HERE) const;

private:
    void find_memory(const std::map<std::string, Buffer>& given, std::source_location where);
    void prepare(const std::vector<Executable>& executables, const std::map<const Selection*, size_t>& places);
    Launch memory_launch(const StepGroup& group) const;
    void order_launches();
    std::vector<StepAccess> accesses_of_memory(const StepGroup& group) const;
    Buffer in_arena(int64_t offset, int64_t bytes, const std::string& name) const;
    int named(const std::string& name, std::source_location where) const;

    StepPlan plan_;
    std::shared_ptr<Device> device_;
    Buffer arena_;
    std::vector<Buffer> buffers_;  // one for each value
    std::vector<Launch> launches_;
    std::vector<size_t> first_launches_;  // of each group, and behind the last one
    std::vector<std::vector<size_t>> after_;
    Graph graph_;
    std::shared_ptr<bool> has_run_ = std::make_shared<bool>(false);
};

}  // namespace tw
