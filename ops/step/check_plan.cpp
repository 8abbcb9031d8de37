#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "ops/step/step_hazards.h"
#include "ops/step/step_plan.h"

namespace tw {
namespace {

class Checking {
public:
    explicit Checking(const StepPlan& plan) : plan_(plan) {}

    std::vector<std::string> faults() && {
        for (size_t v = 0; v < plan_.values.size(); ++v) check_place(plan_.values[v]);
        for (size_t g = 0; g < plan_.groups.size(); ++g) check_group(static_cast<int>(g));
        check_order();
        check_memory();
        return std::move(faults_);
    }

private:
    template <class... Args>
    void fault(fmt::format_string<Args...> text, Args&&... args) {
        faults_.push_back(fmt::format(text, std::forward<Args>(args)...));
    }
    const StepValue& value(int index) const { return plan_.values[static_cast<size_t>(index)]; }

    void check_place(const StepValue& value) {
        if (value.place == StepValue::Place::Arena &&
            (value.offset < 0 || value.offset + value.bytes > plan_.arena_bytes))
            fault("'{}' lies outside of the arena", value.name);
        if (value.place == StepValue::Place::Arena && value.offset % 256 != 0)
            fault("'{}' lies at byte {}, which is no multiple of 256", value.name, value.offset);
        if (value.part_of >= 0 && value.offset + value.bytes > this->value(value.part_of).bytes)
            fault("'{}' lies outside of '{}'", value.name, this->value(value.part_of).name);
        if (value.place == StepValue::Place::Replaced && this->value(value.replaces).bytes != value.bytes)
            fault("'{}' replaces '{}' of another size", value.name, this->value(value.replaces).name);
    }

    void check_group(int index) {
        const StepGroup& group = plan_.groups[static_cast<size_t>(index)];
        for (int before : group.after)
            if (before < 0 || before >= index)
                fault("group {} waits for group {}, which is not before it", index, before);
        for (int read : group.reads)
            if (value(read).made >= index) fault("group {} reads '{}', which is made later", index, value(read).name);
        for (int written : group.writes)
            if (value(written).made != index)
                fault("group {} writes '{}' of another group", index, value(written).name);
        for (const StepWorkspace& workspace : group.workspaces)
            if (!workspace.is_counter &&
                (workspace.offset < 0 || workspace.offset + workspace.bytes > plan_.arena_bytes))
                fault("a workspace of group {} lies outside of the arena", index);
    }

    void check_order() {
        const std::vector<std::set<int>> waits = waits_of(plan_);
        std::vector<std::vector<StepAccess>> accesses;
        for (const StepGroup& group : plan_.groups) accesses.push_back(accesses_of(plan_, group));
        for (size_t g = 0; g < plan_.groups.size(); ++g)
            for (size_t before = 0; before < g; ++before)
                if (!waits[g].contains(static_cast<int>(before)) && conflict(accesses[before], accesses[g]))
                    fault("groups {} and {} touch the same memory, and neither waits", before, g);
    }

    /// Who has each byte: of two that lie over each other, one is done with before the other is made. What a group
    /// reads or writes while it runs lies apart, but for an output in the place of an input.
    void check_memory() {
        struct Use {
            std::string name;
            int64_t begin, end;
            int from, to;
        };
        std::vector<Use> uses;
        for (size_t v = 0; v < plan_.values.size(); ++v) {
            const StepValue& each = plan_.values[v];
            if (each.place != StepValue::Place::Arena || each.bytes == 0) continue;
            uses.push_back(
                {each.name, each.offset, each.offset + each.bytes, each.made, last_use(static_cast<int>(v))});
        }
        for (size_t g = 0; g < plan_.groups.size(); ++g)
            for (const StepWorkspace& workspace : plan_.groups[g].workspaces)
                if (!workspace.is_counter && workspace.bytes > 0)
                    uses.push_back({fmt::format("a workspace of group {}", g), workspace.offset,
                                    workspace.offset + workspace.bytes, static_cast<int>(g), static_cast<int>(g)});
        for (size_t a = 0; a < uses.size(); ++a)
            for (size_t b = a + 1; b < uses.size(); ++b)
                if (uses[a].begin < uses[b].end && uses[b].begin < uses[a].end && uses[a].from <= uses[b].to &&
                    uses[b].from <= uses[a].to)
                    fault("'{}' and '{}' have the same memory at the same time", uses[a].name, uses[b].name);
        for (size_t v = 0; v < plan_.values.size(); ++v) check_replaced(static_cast<int>(v));
    }
    void check_replaced(int index) {
        if (value(index).place != StepValue::Place::Replaced) return;
        const int made = value(index).made, replaced = value(index).replaces;
        for (size_t g = static_cast<size_t>(made) + 1; g < plan_.groups.size(); ++g)
            for (int read : plan_.groups[g].reads)
                if (read == replaced || value(read).part_of == replaced)
                    fault("group {} reads '{}', which '{}' has replaced", g, value(read).name, value(index).name);
    }

    int last_use(int index) const {
        int last = value(index).made;
        for (size_t g = 0; g < plan_.groups.size(); ++g)
            if (std::ranges::count(plan_.groups[g].reads, index) > 0) last = std::max(last, static_cast<int>(g));
        return last;
    }

    const StepPlan& plan_;
    std::vector<std::string> faults_;
};

}  // namespace

std::vector<std::string> faults_of(const StepPlan& plan) { return Checking(plan).faults(); }

}  // namespace tw
