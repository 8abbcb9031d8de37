// tw list, show: what there is, without compiling or running it.
#include <memory>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "ops/inspect.h"
#include "ops/program.h"
#include "schedules/load_kernels.h"
#include "schedules/name_forms.h"
#include "schedules/register_kernel.h"
#include "tools/commands.h"
#include "tools/emit.h"
#include "tools/near_names.h"
#include "tools/output.h"

namespace tw {

void add_load_option(CLI::App* command) {
    auto load = [](const std::vector<std::string>& files) {
        for (const std::string& file : files) load_kernels(file);
    };
    command
        ->add_option_function<std::vector<std::string>>("--load", load,
                                                        "a shared object with kernels of yours; any number of times")
        ->allow_extra_args(false)
        ->type_name("FILE");
}

std::vector<const schedules::CatalogEntry*> all_kernels() {
    std::vector<const schedules::CatalogEntry*> kernels;
    for (const auto& entry : schedules::catalog()) kernels.push_back(&entry);
    for (const auto* kernel : schedules::registered_kernels()) kernels.push_back(&kernel->entry);
    return kernels;
}

std::string rate_text(double flops, double rate) { return flops > 0 ? fmt::format("{:.1f}", rate) : "-"; }

const schedules::CatalogEntry& kernel_named(const std::string& name) {
    if (const auto* found = schedules::find_kernel(name)) return *found;
    std::vector<std::string> names;
    for (const auto* entry : all_kernels()) names.push_back(entry->name);
    std::vector<std::string> close = near_names(name, names);
    std::string help = close.empty() ? "" : fmt::format("; near it: {}", fmt::join(close, ", "));
    if (const std::string form = schedules::form_of(name); !form.empty()) help += "; " + form;
    throw CLI::ValidationError(
        fmt::format("no kernel named '{}'{}; `tw list` shows all, and --load FILE brings those of yours", name, help));
}

namespace {

void list(bool as_json) {
    nlohmann::json json = nlohmann::json::array();
    std::string text;
    for (const auto* entry : all_kernels()) {
        text += fmt::format("{:<32} {}\n", entry->name, entry->description);
        json.push_back({{"name", entry->name}, {"description", entry->description}, {"flops", entry->flops}});
    }
    print("{}", as_json ? json_text(json) + "\n" : text);
}

nlohmann::json show_json(const std::string& name, const Schedule& schedule, const Inspection& inspection) {
    nlohmann::json loops = nlohmann::json::array(), kernels = nlohmann::json::array();
    for (const LoopCost& row : inspection.costs)
        loops.push_back({{"name", row.name},
                         {"level", row.level},
                         {"depth", row.depth},
                         {"iterations", row.iterations},
                         {"global_bytes", row.cost.global_bytes},
                         {"shared_bytes", row.cost.shared_bytes},
                         {"flops", row.cost.flops}});
    for (const KernelInspection& kernel : inspection.kernels) {
        kernels.push_back({{"name", kernel.name},
                           {"predicted_ms", kernel.seconds * 1e3},
                           {"bound", kernel.bound},
                           {"threads", kernel.threads},
                           {"shared_bytes", kernel.shared_bytes},
                           {"register_bytes", kernel.register_bytes},
                           {"shared_arrays", nlohmann::json::array()},
                           {"shared_memory", kernel.shared_memory},
                           {"timeline", kernel.timeline},
                           {"timeline_cycles", kernel.timeline_cycles},
                           {"timeline_is_whole", kernel.timeline_is_whole}});
        for (const SharedArray& array : kernel.shared_arrays)
            kernels.back()["shared_arrays"].push_back({{"name", array.name},
                                                       {"type", array.type},
                                                       {"shape", array.shape},
                                                       {"bytes", array.bytes},
                                                       {"swizzle_bytes", array.swizzle_bytes}});
    }
    return {{"name", name},       {"nest", inspection.nest},  {"loops", loops},
            {"kernels", kernels}, {"steps", schedule.save()}, {"notes", inspection.notes}};
}

void show(const std::string& name, const std::string& arch, bool as_json) {
    Schedule schedule = kernel_named(name).make(target(arch));
    Inspection inspection = inspect(schedule);
    print("{}\n", as_json ? json_text(show_json(name, schedule, inspection)) : to_string(inspection));
}

void emit(const std::string& name, const std::string& after, const EmitOptions& options) {
    Program program = build(kernel_named(name).make(target(options.arch)));
    write_whole(stdout, after.empty() ? emitted(program, options) : program.after(after));
}

}  // namespace

void add_kernel_commands(CLI::App& app) {
    struct Options {
        std::string name, after;
        EmitOptions emit;
    };
    auto o = std::make_shared<Options>();
    auto add_common = [o](CLI::App* command) {
        command->add_option("kernel", o->name, "a name of `tw list`, or product_MxNxK")->required();
        command->add_option("--arch", o->emit.arch, "sm_80, sm_90a, sm_100a, ...")->capture_default_str();
        command->add_flag("--json", o->emit.json, "as JSON");
        add_load_option(command);
    };
    auto* list_command = app.add_subcommand("list", "the kernels that come with the library, and those of --load");
    list_command->add_flag("--json", o->emit.json, "as JSON");
    add_load_option(list_command);
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
    emit_command
        ->add_option("--after", o->after,
                     "what a kernel is behind one pass of codegen, as the text of its intermediate form")
        ->check(CLI::IsMember(codegen::pass_names()))
        ->type_name("PASS")
        ->excludes("--as", "--output", "--json");
    emit_command->callback([o] { emit(o->name, o->after, o->emit); });
}

}  // namespace tw
