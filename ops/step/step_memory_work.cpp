#include "ops/step/step_memory_work.h"

#include <algorithm>

#include "dsl/interpret.h"
#include "dsl/simplify.h"

namespace tw {
namespace {

bool is_dense(const Operation& operation) { return operation.strides.empty(); }

/// Whether the body is an element of another tensor at the result's own place.
bool is_whole_copy(const Operation& operation) {
    const Read* read = operation.outputs[0].body.as<Read>();
    if (!read || !read->operation->is_input() || !is_dense(*read->operation)) return false;
    if (read->indices.size() != operation.axes.size()) return false;
    for (size_t d = 0; d < operation.axes.size(); ++d)
        if (!read->indices[d].same(operation.axes[d]) || !equal(operation.shape[d], read->operation->shape[d]))
            return false;
    return read->operation->outputs[static_cast<size_t>(read->output)].type == operation.outputs[0].type;
}

bool is_number(const Expr& body) {
    bool is_constant = true;
    visit(body, [&](const Expr& e) {
        is_constant = is_constant && !e.as<Read>() && !e.as<Variable>() && !e.as<Reduce>() && !e.as<Load>();
    });
    return is_constant;
}

/// The shortest bytes that give the number when they are repeated; none if these are more than 4.
std::vector<std::byte> pattern_of(const Expr& number) {
    const Tensor element = compute("element", {}, [&](const std::vector<Expr>&) { return number; });
    std::vector<std::byte> bytes = interpret_plain({element}, {})[0].bytes;
    while (bytes.size() > 1 && std::equal(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(bytes.size() / 2),
                                          bytes.begin() + static_cast<ptrdiff_t>(bytes.size() / 2)))
        bytes.resize(bytes.size() / 2);
    return bytes.size() <= 4 ? bytes : std::vector<std::byte>();
}

}  // namespace

std::optional<StepMemoryWork> memory_work_of(const StepGroup& group) {
    if (group.declared.outputs.size() != 1 || !group.declared.in_place.empty() || !group.workspaces.empty()) return {};
    const Operation& operation = *group.declared.outputs[0].operation();
    const bool is_one = operation.outputs.size() == 1 && !operation.is_input() && !operation.own_schedule;
    if (!is_one || !is_dense(operation) || group.selection->program.kernels().size() != 1) return {};
    if (group.reads.size() == 1 && is_whole_copy(operation)) return StepMemoryWork{.is_copy = true, .element = {}};
    if (!is_number(operation.outputs[0].body)) return {};
    std::vector<std::byte> element = pattern_of(operation.outputs[0].body);
    if (element.empty()) return {};
    return StepMemoryWork{.is_copy = false, .element = std::move(element)};
}

}  // namespace tw
