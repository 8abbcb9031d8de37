// tw list, show: what there is, without compiling or running it.
#include <memory>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "ops/program.h"
#include "tools/commands.h"
#include "tools/emit.h"
#include "tools/kernel_pictures.h"
#include "tools/near_names.h"
#include "tools/nest_costs.h"

namespace tw {

const schedules::CatalogEntry& kernel_named(const std::string& name) {
    if (const auto* found = schedules::find_kernel(name)) return *found;
    std::vector<std::string> names;
    for (const auto& entry : schedules::catalog()) names.push_back(entry.name);
    std::vector<std::string> close = near_names(name, names);
    throw CLI::ValidationError(fmt::format("no kernel named '{}'{}; `tw list` shows all", name,
                                           close.empty() ? "" : fmt::format("; near it: {}", fmt::join(close, ", "))));
}

namespace {

void list(bool as_json) {
    nlohmann::json json = nlohmann::json::array();
    for (const auto& entry : schedules::catalog()) {
        if (!as_json) fmt::print("{:<32} {}\n", entry.name, entry.description);
        json.push_back({{"name", entry.name}, {"description", entry.description}, {"flops", entry.flops}});
    }
    if (as_json) fmt::print("{}\n", json.dump(2));
}

/// "131 k": three digits, of any magnitude.
std::string short_number(double value) {
    if (value == 0) return "-";
    for (const char* unit : {"", " k", " M", " G"}) {
        if (value < 999.5) return fmt::format("{:.3g}{}", value, unit);
        value /= 1000;
    }
    return fmt::format("{:.3g} T", value);
}

std::string cost_table(const std::vector<LoopCost>& costs) {
    std::string text = fmt::format("{:<44} {:>10} {:>14} {:>14} {:>10}\n", "one run of", "iterations", "global bytes",
                                   "shared bytes", "FLOPs");
    for (const LoopCost& row : costs) {
        std::string level = row.level.empty() ? "" : fmt::format(" ({})", row.level);
        text +=
            fmt::format("{:<44} {:>10} {:>14} {:>14} {:>10}\n", std::string(2 * row.depth, ' ') + row.name + level,
                        row.depth == 0 ? "" : fmt::format("{}", row.iterations), short_number(row.cost.global_bytes),
                        short_number(row.cost.shared_bytes), short_number(row.cost.flops));
    }
    return text;
}

constexpr size_t events_shown = 2500;  // of a thread: some tiles

/// What each kernel has in shared memory, and when its roles do what.
std::string pictures(const Schedule& schedule) {
    std::string text;
    for (const codegen::ThreadKernel& kernel : kernels_before_printing(schedule.tree(), schedule.target())) {
        std::string memory = shared_memory_picture(kernel);
        if (!memory.empty()) text += fmt::format("Shared memory of {}\n\n{}\n", kernel.name, memory);
        codegen::SignalSimulation simulation = codegen::simulate_signals(kernel, events_shown);
        if (!simulation.simulated) continue;
        text += fmt::format(
            "Who waits for whom in {}: {} of one block, {} cycles by a coarse model. M: products under way; L: boxes "
            "under way; w: other work; a dot: waits\n\n{}\n",
            kernel.name, simulation.whole ? "all" : "the first tiles", simulation.cycles, timeline_picture(simulation));
    }
    return text;
}

nlohmann::json show_json(const std::string& name, const Schedule& schedule, const Program& program) {
    nlohmann::json loops = nlohmann::json::array();
    for (const LoopCost& row : nest_costs(schedule.tree()))
        loops.push_back({{"name", row.name},
                         {"level", row.level},
                         {"depth", row.depth},
                         {"iterations", row.iterations},
                         {"global_bytes", row.cost.global_bytes},
                         {"shared_bytes", row.cost.shared_bytes},
                         {"flops", row.cost.flops}});
    return {{"name", name},
            {"nest", schedule.to_string()},
            {"loops", loops},
            {"steps", schedule.save()},
            {"notes", program.explain()}};
}

std::string show_text(const Schedule& schedule, const Program& program) {
    std::string text;
    for (const auto& operation : operations_of(schedule.outputs())) text += to_string(*operation) + "\n";
    text += fmt::format("\nThe loop nest\n\n{}\n", schedule.to_string());
    text += fmt::format(
        "What each loop moves and computes: masked iterations count, fills of shared memory once a block\n\n{}\n",
        cost_table(nest_costs(schedule.tree())));
    text += pictures(schedule);
    text += fmt::format("The steps\n\n{}\n", schedule.trace_as_cpp());
    return text + fmt::format("Defaults taken\n\n{}", program.explain());
}

void show(const std::string& name, const std::string& arch, bool as_json) {
    Schedule schedule = kernel_named(name).make(target(arch));
    Program program = build(schedule);
    fmt::print("{}\n", as_json ? show_json(name, schedule, program).dump(2) : show_text(schedule, program));
}

void emit(const std::string& name, const EmitOptions& options) {
    Program program = build(kernel_named(name).make(target(options.arch)));
    std::string text = emitted(program, options);
    fwrite(text.data(), 1, text.size(), stdout);
}

}  // namespace

void add_kernel_commands(CLI::App& app) {
    struct Options {
        std::string name;
        EmitOptions emit;
    };
    auto o = std::make_shared<Options>();
    auto add_common = [o](CLI::App* command) {
        command->add_option("kernel", o->name, "a name of `tw list`, or product_MxNxK")->required();
        command->add_option("--arch", o->emit.arch, "sm_80, sm_90a, sm_100a, ...")->capture_default_str();
        command->add_flag("--json", o->emit.json, "as JSON");
    };
    auto* list_command = app.add_subcommand("list", "the kernels that come with the library");
    list_command->add_flag("--json", o->emit.json, "as JSON");
    list_command->callback([o] { list(o->emit.json); });

    auto* show_command = app.add_subcommand(
        "show", "formula, loop nest, costs of each loop, layouts, timelines of roles, steps and defaults");
    add_common(show_command);
    show_command->callback([o] { show(o->name, o->emit.arch, o->emit.json); });

    auto* emit_command = app.add_subcommand("emit", "the kernel as CUDA, PTX, cubin or SASS");
    add_common(emit_command);
    emit_command->add_option("--as", o->emit.as, "cuda, ptx, cubin or sass")
        ->check(CLI::IsMember({"cuda", "ptx", "cubin", "sass"}))
        ->capture_default_str();
    emit_command->add_option("--output", o->emit.folder,
                             "a folder for one file a kernel; without it all goes to standard output");
    emit_command->callback([o] { emit(o->name, o->emit); });
}

}  // namespace tw
