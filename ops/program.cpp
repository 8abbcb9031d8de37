#include "ops/program.h"

#include <algorithm>

#include "support/error.h"

namespace tw {
namespace {

/// The stage's formula and shapes, for the comment above its kernel.
std::vector<std::string> header_of(const Schedule& schedule, const Nest& nest) {
    std::vector<std::string> lines;
    for (const auto& operation : operations_of(schedule.outputs()))
        if (!operation->is_input()) lines.push_back(to_string(*operation));
    std::vector<std::string> shapes;
    for (const auto& operation : operations_of(schedule.outputs())) {
        if (!operation->is_input()) continue;
        std::vector<std::string> extents;
        for (const Expr& extent : operation->shape) extents.push_back(to_string(extent));
        shapes.push_back(fmt::format("{} {} [{}]", operation->name, name_of(operation->outputs[0].type), fmt::join(extents, ", ")));
    }
    lines.push_back(fmt::format("inputs    {}", fmt::join(shapes, ", ")));
    (void)nest;
    return lines;
}

}  // namespace

Program build(const Schedule& schedule) {
    Program program;
    program.tree_ = schedule.tree();
    program.target_ = schedule.target();
    program.trace_ = schedule.trace();
    program.schedule_notes_ = schedule.explain();
    codegen::LowerOptions options;
    options.cite = [&](int step) {
        if (step < 0 || step >= static_cast<int>(program.trace_.size())) return std::string();
        return fmt::format("{}: {}: ", program.trace_[step].file_line, program.trace_[step].text);
    };
    for (const Nest& nest : program.tree_.nests) options.headers.push_back(header_of(schedule, nest));
    program.lowered_ = codegen::lower(program.tree_, program.target_, options);
    return program;
}

std::string Program::cuda() const {
    std::string text;
    for (const codegen::KernelText& kernel : kernels()) text += kernel.cuda + "\n";
    return text;
}

std::string Program::explain() const {
    std::string text = schedule_notes_;
    for (const std::string& note : lowered_.notes) text += note + "\n";
    return text;
}

std::vector<std::string> Program::line_notes(size_t kernel) const {
    std::vector<std::string> notes;
    for (int step : kernels()[kernel].line_steps)
        notes.push_back(step < 0 ? "" : fmt::format("[{}] {} ({})", step, trace_[step].text, trace_[step].file_line));
    return notes;
}

}  // namespace tw
