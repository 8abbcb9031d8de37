#include "ops/program.h"

#include <algorithm>
#include <regex>
#include <sstream>

#include <fmt/ranges.h>

#include "schedules/calibrated_speeds.h"
#include "support/error.h"

namespace tw {
namespace {

/// "a f32 [64, 48]"
std::string input_text(const Operation& input) {
    std::vector<std::string> extents;
    for (const Expr& extent : input.shape) extents.push_back(to_string(extent));
    return fmt::format("{} {} [{}]", input.name, name_of(input.outputs[0].type), fmt::join(extents, ", "));
}

std::vector<std::string> lines_of(const std::string& text) {
    std::istringstream stream(text);
    std::vector<std::string> lines;
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    return lines;
}

/// The comment on top of each kernel: every formula, the inputs with their shapes, and the steps that lines below cite.
std::vector<std::string> header_of(const std::vector<Tensor>& outputs, const std::vector<Step>& trace) {
    std::vector<std::string> lines, inputs;
    for (const auto& operation : operations_of(outputs)) {
        if (operation->is_input())
            inputs.push_back(input_text(*operation));
        else
            for (const std::string& line : lines_of(to_string(*operation))) lines.push_back(line);
    }
    lines.push_back(fmt::format("inputs    {}", fmt::join(inputs, ", ")));
    for (size_t s = 0; s < trace.size(); ++s)
        lines.push_back(fmt::format("{:<10}[{}] {}", s == 0 ? "schedule" : "", s, trace[s].text));
    return lines;
}

/// Where tensors were declared. Of several of one name, none: what the schedule calls them is not theirs.
std::map<std::string, std::string> places_of(const Schedule& schedule) {
    std::map<std::string, std::string> places;
    for (const auto& operation : operations_of(schedule.outputs()))
        if (auto [known, is_new] = places.try_emplace(operation->name, place_text(operation->where)); !is_new)
            known->second.clear();
    return places;
}

/// How errors cite a step: "matmul.cpp:31: s.split(k, 48): "; nothing for -1.
CiteStep cite_from(const std::vector<Step>& trace) {
    return [&trace](int step) {
        if (step < 0 || step >= static_cast<int>(trace.size())) return std::string();
        return fmt::format("{}: {}: ", trace[step].file_line, trace[step].text);
    };
}

}  // namespace

Program build(const Schedule& schedule, const SeePass& seen) {
    Program program;
    program.tree_ = schedule.tree();
    program.target_ = schedule.target();
    program.trace_ = schedule.trace();
    program.declared_ = places_of(schedule);
    program.schedule_notes_ = schedule.explain();
    program.outputs_ = schedule.outputs();
    const CiteStep cite = cite_from(program.trace_);
    if (seen) {
        codegen::LowerOptions options;
        options.cite = cite;
        options.dump = seen;
        codegen::lower(program.tree_, program.target_, options);
    }
    program.predicted_ = codegen::predict_time(program.tree_, program.target_, {}, cite);  // which lowers all kernels
    return program;
}

const codegen::Lowered& Program::lowered() const {
    std::call_once(printed_->once, [&] {
        codegen::LowerOptions options;
        options.headers.assign(tree_.nests.size(), header_of(outputs_, trace_));
        options.cite = cite_from(trace_);
        printed_->lowered = codegen::lower(tree_, target_, options);
    });
    return printed_->lowered;
}

std::string Program::cuda() const {
    std::string text;
    for (const codegen::KernelText& kernel : kernels()) text += kernel.cuda + "\n";
    return text;
}

Program Program::with_cuda(const std::string& kernel, const std::string& cuda, const EditedLaunch& launch,
                           std::source_location where) const {
    std::vector<std::string> names;
    for (const codegen::KernelText& each : kernels()) names.push_back(each.name);
    const auto found = std::ranges::find(names, kernel);
    user_check(found != names.end(), where, "with_cuda: there is no kernel '{}'; there are [{}]", kernel,
               fmt::join(names, ", "));
    user_check(std::regex_search(cuda, std::regex("__global__[^;{]*\\b" + kernel + "\\s*\\(")), where,
               "with_cuda: the text has no __global__ function '{}'; it is launched by that name, with the parameters "
               "of the printed one",
               kernel);
    const auto grid = launch.grid.value_or(std::array<int64_t, 3>{1, 1, 1});
    user_check(std::ranges::min(grid) >= 1 && launch.threads.value_or(1) >= 1 && launch.shared_bytes.value_or(0) >= 0,
               where,
               "with_cuda: '{}' would have [{}] blocks of {} threads and {} bytes of shared memory; give at "
               "least 1 block, 1 thread and 0 bytes",
               kernel, fmt::join(grid, ", "), launch.threads.value_or(1), launch.shared_bytes.value_or(0));
    Program edited = *this;
    edited.printed_ = std::make_shared<Printed>();
    codegen::Lowered& lowered = edited.printed_->lowered;
    std::call_once(edited.printed_->once, [&] { lowered = this->lowered(); });
    codegen::KernelText& text = lowered.kernels[static_cast<size_t>(found - names.begin())];
    text.cuda = cuda;
    const size_t lines = lines_of(cuda).size();
    text.line_steps.assign(lines, -1);
    text.line_stages.assign(lines, "");
    if (launch.grid)
        for (size_t d = 0; d < 3; ++d) text.grid[d] = constant(text.grid[d].type(), (*launch.grid)[d]);
    text.threads = launch.threads.value_or(text.threads);
    text.shared_bytes = launch.shared_bytes.value_or(text.shared_bytes);
    edited.given_.insert(kernel);
    lowered.notes.push_back(fmt::format("'{}' is of a text that was given ({})", kernel, place_text(where)));
    return edited;
}

std::string Program::after(const std::string& pass) const {
    const std::vector<std::string> passes = codegen::pass_names();
    if (std::find(passes.begin(), passes.end(), pass) == passes.end())
        throw_error(Error, "after(\"{}\"): no pass has this name; there are {}", pass, fmt::join(passes, ", "));
    std::string text;
    codegen::LowerOptions options;
    options.dump = [&](std::string_view seen, std::string_view, const std::string& kernel) {
        if (seen == pass) text += kernel + "\n";
    };
    codegen::lower(tree_, target_, options);
    return text;
}

std::string Program::notes() const {
    std::string text = schedule_notes_;
    for (const std::string& note : lowered().notes) text += note + "\n";
    return text;
}

std::string Program::explain() const {
    std::string text = notes();
    const codegen::DeviceSpeeds& speeds = schedules::calibrated_speeds(target_);
    for (size_t k = 0; k < kernels().size(); ++k) {
        const std::string& name = kernels()[k].name;
        if (given_.contains(name)) continue;
        const codegen::KernelPrediction time =
            codegen::predict_kernel(name, predicted_.kernels[k].work, target_, speeds);
        text +=
            fmt::format("'{}': {:.4f} ms by the model of time, most of it {}\n", name, time.seconds * 1e3, time.bound);
    }
    return text;
}

bool Program::approximate() const {
    return std::any_of(kernels().begin(), kernels().end(), [](const auto& kernel) { return kernel.approximate; });
}

std::vector<std::string> Program::line_notes(size_t kernel) const {
    const codegen::KernelText& text = kernels()[kernel];
    auto note = [&](int step, const std::string& stage) {
        if (step >= 0) return fmt::format("[{}] {} ({})", step, trace_[step].text, trace_[step].file_line);
        auto place = declared_.find(stage);
        if (place != declared_.end() && !place->second.empty())
            return fmt::format("of '{}' ({})", stage, place->second);
        return stage.empty() ? stage : fmt::format("of '{}'", stage);
    };
    std::vector<std::string> notes;
    for (size_t line = 0; line < text.line_steps.size(); ++line)
        notes.push_back(note(text.line_steps[line], text.line_stages[line]));
    return notes;
}

}  // namespace tw
