#include "ops/built_call.h"

#include <algorithm>

#include "dsl/simplify.h"
#include "ops/bound_arguments.h"
#include "support/error.h"

namespace tw::nn {

BuiltCall::BuiltCall(const Executable& executable, std::vector<std::string> names)
    : executable_(&executable), names_(std::move(names)) {
    for (const BufferRef& output : executable.program().tree().outputs) {
        Result& result = results_.emplace_back(Result{output->type, {}, output->name});
        for (const Expr& extent : declared_shape(*output)) result.shape.push_back(require_constant(extent));
    }
}

std::span<const Launch> BuiltCall::launches(std::span<const Buffer> buffers) {
    if (rebind(buffers)) return launches_;
    Arguments arguments;
    for (size_t k = 0; k < names_.size(); ++k) arguments.buffers[names_[k]] = buffers[k];
    launches_ = executable_->prepare(arguments);
    learn(launches_);
    return launches_;
}

void BuiltCall::forget() {
    if (!is_learnt_) return launches_.clear();
    for (Launch& launch : launches_) launch.forget_buffers();
}

std::optional<size_t> BuiltCall::slot_of(const std::string& name) const {
    const auto found = std::ranges::find(names_, name);
    if (found != names_.end()) return static_cast<size_t>(found - names_.begin());
    const auto& workspaces = executable_->program().tree().workspaces;
    const auto own = std::ranges::find(workspaces, name, [](const BufferRef& each) { return each->name; });
    if (own == workspaces.end()) return {};
    return names_.size() + static_cast<size_t>(own - workspaces.begin());
}

void BuiltCall::learn(const std::vector<Launch>& prepared) {
    const Program& program = executable_->program();
    const Tree& tree = program.tree();
    if (!tree.in_place.empty() || !tree.sizes.empty() || !tree.scalars.empty()) return;
    std::vector<std::vector<size_t>> slots;
    for (size_t k = 0; k < prepared.size(); ++k) {
        const codegen::KernelText& kernel = program.kernels()[k];
        if (!kernel.maps.empty()) return;
        std::vector<size_t>& own = slots.emplace_back();
        for (const BufferRef& argument : kernel.arguments) {
            const auto slot = slot_of(argument->name);
            if (!slot) return;
            own.push_back(*slot);
        }
    }
    std::vector<int64_t> bytes;
    for (const BufferRef& workspace : tree.workspaces) {
        if (workspace->is_counter) return;
        bytes.push_back(bytes_spanned(*workspace, {}));
    }
    slots_ = std::move(slots);
    workspace_bytes_ = std::move(bytes);
    is_learnt_ = true;
}

bool BuiltCall::rebind(std::span<const Buffer> buffers) {
    if (!is_learnt_) return false;
    const std::vector<codegen::KernelText>& kernels = executable_->program().kernels();
    std::vector<Buffer> workspaces;
    for (int64_t bytes : workspace_bytes_) workspaces.push_back(executable_->device()->allocate(bytes, "workspace"));
    for (size_t k = 0; k < launches_.size(); ++k)
        for (size_t a = 0; a < slots_[k].size(); ++a) {
            const size_t slot = slots_[k][a];
            const Buffer& buffer = slot < names_.size() ? buffers[slot] : workspaces[slot - names_.size()];
            const bool fits = buffer && buffer.pointer() % static_cast<uint64_t>(kernels[k].alignments[a]) == 0;
            if (!fits) return is_learnt_ = false;  // prepare() says what is wrong
            launches_[k].set(a, buffer);
        }
    return true;
}

}  // namespace tw::nn
