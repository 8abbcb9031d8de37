#include "dsl/handle_names.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "dsl/edit.h"
#include "support/identifiers.h"

namespace tw {
namespace {

using State = Schedule::State;

/// What steps are written with; a variable of that name would hide it.
const std::set<std::string>& words_of_steps() {
    static const std::set<std::string> words = {
        "s",       "Schedule", "Loop",    "Stage",  "Tensor",     "Expr",      "Tail",         "Memory", "Copy",
        "Combine", "grid",     "cluster", "thread", "warpgroup",  "warp",      "lane",         "vector", "unrolled",
        "serial",  "mma_sync", "wgmma",   "warps",  "warpgroups", "registers", "ping_pong",    "min",    "max",
        "f16",     "bf16",     "tf32",    "f32",    "e4m3",       "e5m2",      "where_partial"};
    return words;
}

}  // namespace

HandleNames::HandleNames(const std::vector<std::shared_ptr<const Operation>>& operations,
                         const std::vector<Expr>& sizes) {
    for (const auto& operation : operations) tensors_[operation.get()] = declare(operation->name);
    for (const Expr& size : sizes) sizes_[to_string(size)] = declare(to_string(size));
}

bool HandleNames::is_free(const std::string& identifier) const {
    return !is_reserved(identifier) && !words_of_steps().count(identifier) && !taken_.count(identifier);
}

std::string HandleNames::declare(const std::string& wish) {
    const std::string base = sanitize(wish);
    std::string name = base;
    for (int number = 2; !is_free(name); ++number) name = fmt::format("{}_{}", base, number);
    taken_.insert(name);
    return name;
}

std::string HandleNames::tensor(const Operation* operation, int output) const {
    const std::string& name = tensors_.at(operation);
    return operation->outputs.size() > 1 ? fmt::format("{}[{}]", name, output) : name;
}

std::string HandleNames::size(const std::string& name) const {
    auto found = sizes_.find(name);
    return found == sizes_.end() ? sanitize(name) : found->second;
}

std::string Edit::loop_as_cpp(int loop) {
    std::string& handle = state.loops[loop].handle;
    bool returned = loop >= static_cast<int>(target_->loops.size());
    if (handle.empty() && returned) handle = state.handle_names.declare(state.loops[loop].name);
    if (handle.empty()) take_handle(loop);
    return handle;
}

std::string Edit::stage_as_cpp(int stage) {
    StageRecord& record = state.stages[stage];
    const Operation* operation = record.definition.operation.get();
    if (state.handle_names.knows(operation)) return state.handle_names.tensor(operation, 0);
    if (!record.handle.empty()) return record.handle;
    record.handle = state.handle_names.declare(record.definition.name);
    if (stage >= static_cast<int>(target_->stages.size())) return record.handle;
    std::vector<int> order = topological_order(*target_);
    auto place = std::find(order.begin(), order.end(), stage) - order.begin();
    handles_ += fmt::format("Stage {} = s.all_stages()[{}];\n", record.handle, place);
    return record.handle;
}

std::string Edit::name_of_root(int loop) {
    const std::string &name = state.loops[loop].name, stage = stage_text(state, target_->loops[loop].stage);
    bool free = state.handle_names.is_free(sanitize(name));
    return state.loops[loop].handle = state.handle_names.declare(free ? name : name + "_" + stage);
}

void Edit::take_handle(int loop) {
    const State& before = *target_;
    const int stage = before.loops[loop].stage;
    const StageRecord& owner = before.stages[stage];
    const std::string of = stage_as_cpp(stage);
    const size_t rank = owner.definition.axes.size();
    const auto root =
        static_cast<size_t>(std::find(owner.roots.begin(), owner.roots.end(), loop) - owner.roots.begin());
    if (root >= rank && root < owner.roots.size()) {
        std::string which = root > rank ? fmt::format(", {}", root - rank) : "";
        handles_ += fmt::format("Loop {} = s.reduce({}{});\n", name_of_root(loop), of, which);
        return;
    }
    std::vector<int> data(owner.roots.begin(), owner.roots.begin() + static_cast<std::ptrdiff_t>(rank));
    bool untouched = root < rank && std::all_of(data.begin(), data.end(), [&](int each) {
                         return state.loops[each].handle.empty() && before.loops[each].dead_step < 0;
                     });
    if (untouched) {
        std::vector<std::string> names;
        for (int each : data) names.push_back(name_of_root(each));
        handles_ += fmt::format("auto [{}] = s.loops<{}>({});\n", fmt::join(names, ", "), rank, of);
    } else {
        handles_ += fmt::format("Loop {} = s.all_loops({})[{}];\n", name_of_root(loop), of, before.position(loop));
    }
}

}  // namespace tw
