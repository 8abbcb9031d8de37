#include "tutorials/lesson.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <sstream>

#include <CLI/CLI.hpp>

#include "ops/check.h"
#include "runtime/driver/timer.h"
#include "support/error.h"

namespace tw {
namespace {

/// The kernel without the vocabulary above it.
std::string body_of(const codegen::KernelText& kernel) {
    size_t start = kernel.cuda.find("extern \"C\"");
    return start == std::string::npos ? kernel.cuda : kernel.cuda.substr(start);
}

std::string resources_text(const Program& program) {
    std::string text;
    for (const auto& kernel : program.kernels()) {
        try {
            CompiledKernel compiled = compile_kernel(
                {.source = kernel.cuda, .name = kernel.name + ".cu", .arch = program.target().arch, .options = {}});
            const Resources& r = compiled.of(kernel.name);
            text += fmt::format("{}: {} registers, {} bytes of shared memory, {} bytes spilled; {} in {:.0f} ms\n",
                                kernel.name, r.registers, kernel.shared_bytes + r.static_shared_bytes,
                                r.spill_store_bytes + r.spill_load_bytes,
                                compiled.from == CompiledBy::Nvrtc ? "compiled" : "found", compiled.seconds * 1e3);
        } catch (const NvrtcMissing& missing) {
            text += fmt::format("{}: no registers to report: {}\n", kernel.name, missing.what());
        }
    }
    return text;
}

/// The inputs, and room for outputs of these sizes. Launches by tensor maps do not keep them: the caller does.
Arguments arguments_on(Device& device, const Tree& tree, const Bindings& bindings,
                       const std::vector<HostArray>& outputs) {
    Arguments arguments{.buffers = {}, .sizes = bindings.sizes, .scalars = bindings.scalars};
    auto add = [&](const std::string& name, const HostArray& array) {
        return arguments.buffers[name] = device.allocate(static_cast<int64_t>(array.bytes.size()), name);
    };
    for (const auto& [name, array] : bindings.inputs) add(name, array).copy_from_host(array.bytes.data());
    for (size_t k = 0; k < outputs.size(); ++k) add(tree.outputs[k]->name, outputs[k]);
    return arguments;
}

}  // namespace

Lesson::Lesson(int argc, char** argv, const std::string& title) {
    std::string which;
    CLI::App app(title);
    app.add_option("--device", which, "cuda or emulated; the best there is if not given");
    app.add_flag("--cuda", whole_text_, "print kernels with the vocabulary above them");
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        std::exit(app.exit(error));
    }
    ChosenDevice chosen = which.empty() ? best_device() : ChosenDevice{open_device(which), which};
    device_ = chosen.device;
    fmt::print("{}\n{}\n\nRunning on {}.\n", title, std::string(title.size(), '='), chosen.reason);
}

int64_t Lesson::size(int64_t emulated, int64_t gpu) const {
    return device_->kind() == DeviceKind::Cuda ? gpu : emulated;
}

void Lesson::say(const std::string& text) const { fmt::print("\n{}\n\n", text); }

void Lesson::show(const Tensor& tensor) const {
    for (const auto& operation : operations_of({tensor})) {
        std::istringstream lines(to_string(*operation));
        for (std::string line; std::getline(lines, line);) fmt::print("    {}\n", line);
    }
}

void Lesson::show(const Schedule& schedule) const { fmt::print("{}", schedule.to_string()); }

void Lesson::show_explanation(const Schedule& schedule) const { fmt::print("\n{}", build(schedule).explain()); }

void Lesson::expect(bool holds, const std::string& text) {
    fmt::print("    {}{}\n", text, holds ? "" : ": FAILED");
    failed_ |= !holds;
}

void Lesson::show_notes(const Schedule& schedule, const std::vector<std::string>& words) {
    show_lines_of(build(schedule).explain(), words);
}

void Lesson::show_lines(const Schedule& schedule, const std::vector<std::string>& words) {
    Program program = build(schedule);
    std::string text;
    for (const auto& kernel : program.kernels()) text += body_of(kernel);
    show_lines_of(text, words);
}

void Lesson::show_lines_of(const std::string& text, const std::vector<std::string>& words) {
    auto has = [](const std::string& part, const std::string& word) { return part.find(word) != std::string::npos; };
    std::istringstream lines(text);
    std::set<std::string> shown;
    for (std::string line; std::getline(lines, line);) {
        bool wanted = std::any_of(words.begin(), words.end(), [&](const std::string& word) { return has(line, word); });
        if (wanted && shown.insert(line).second) fmt::print("    {}\n", line.substr(line.find_first_not_of(' ')));
    }
    for (const std::string& word : words)
        if (!has(text, word)) expect(false, fmt::format("a line with \"{}\"", word));
}

void Lesson::show_oracle(const Tensor& tensor) {
    Bindings bindings = random_bindings({tensor}, 1);
    HostArray declared = interpret_plain({tensor}, bindings)[0];
    HostArray exact = interpret_plain({tensor}, bindings, Precision::Float64)[0];
    std::vector<int64_t> indices(tensor.rank(), 0);
    for (int shown = 0; shown < 6; ++shown) {
        fmt::print("    {}{} = {}  ({})\n", tensor.name(), indices_text(indices), to_string(declared.at(indices)),
                   to_string(exact.at(indices)));
        if (!advance(indices, declared.shape)) break;
    }
}

void Lesson::show_error(const std::function<void()>& mistake) {
    try {
        mistake();
        failed_ = true;
        fmt::print("    (no error: this is one)\n");
    } catch (const Error& error) {
        fmt::print("    {}\n", error.what());
    }
}

double Lesson::run(const Schedule& schedule, double flops, const std::string& name) {
    Program program = build(schedule);
    fmt::print("\n--- {}: the CUDA that is printed\n\n", name);
    for (const auto& kernel : program.kernels()) fmt::print("{}\n", whole_text_ ? kernel.cuda : body_of(kernel));
    fmt::print("{}", resources_text(program));

    Bindings bindings = random_bindings(schedule.outputs(), 1);
    Executable executable(program, device_);
    std::vector<HostArray> got = run_on(executable, bindings);
    for (size_t k = 0; k < got.size(); ++k) {
        CheckResult check =
            check_output(schedule.outputs()[k], bindings, got[k],
                         {.approximate = program.approximate(), .roundings = schedule.roundings(), .samples = 512});
        fmt::print("{}: {}\n", schedule.outputs()[k].name(), check.text);
        failed_ |= !check.ok;
    }
    Arguments arguments = arguments_on(*device_, program.tree(), bindings, got);
    executable.bind(arguments);
    bool gpu = device_->kind() == DeviceKind::Cuda;
    Timing timing = time_on(*device_,
                            [&](const Stream& stream) {
                                for (const Launch& l : executable.launches()) l.run(stream);
                            },
                            {.warmups = gpu ? 3 : 0, .samples = gpu ? 20 : 1, .before_sample = {}});
    fmt::print("{}: {:.3f} ms, {:.4g} GFLOP/s on {}\n", name, timing.median_seconds * 1e3,
               flops / timing.median_seconds * 1e-9, device_->name());
    return timing.median_seconds;
}

void Lesson::compare(const std::string& name_a, const Schedule& a, const std::string& name_b, const Schedule& b,
                     double flops) {
    double before = run(a, flops, name_a), after = run(b, flops, name_b);
    fmt::print("\n{} takes {:.2f} of the time of {}{}.\n", name_b, after / before, name_a,
               device_->kind() == DeviceKind::Cuda
                   ? ""
                   : " (on the emulator: counts of checked accesses, not of a GPU's time)");
}

int Lesson::finish() const {
    fmt::print("\n{}\n", failed_ ? "A check FAILED." : "All checks passed.");
    return failed_ ? 1 : 0;
}

}  // namespace tw
