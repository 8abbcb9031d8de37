// tw doctor, list, show, emit: looking without running.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <memory>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "dsl/simplify.h"
#include "ops/program.h"
#include "runtime/compile.h"
#include "runtime/doctor.h"
#include "support/error.h"
#include "tools/commands.h"

namespace tw {

const schedules::CatalogEntry& kernel_named(const std::string& name) {
    if (const auto* found = schedules::find_kernel(name)) return *found;
    std::string family = name.substr(0, name.find('_')), close;
    for (const auto& entry : schedules::catalog())
        if (entry.name.rfind(family, 0) == 0) close += (close.empty() ? "" : ", ") + entry.name;
    throw_error(Error, "no kernel named '{}'{}; `tw list` shows all", name, close.empty() ? "" : "; there are " + close);
}

namespace {

/// What one level of the nest moves and computes: iterations times the leaves below.
struct LevelCost {
    std::string loop;
    double iterations = 1, bytes = 0, operations = 0;
};

void add_expression_cost(const Expr& root, double times, LevelCost& cost) {
    visit(root, [&](const Expr& e) {
        if (const Load* load = e.as<Load>(); load && load->buffer->memory == Memory::Global) cost.bytes += times * bytes_of(e.type());
        if (e.as<Fma>()) cost.operations += 2 * times;
        if (e.as<Binary>() && is_float(e.type())) cost.operations += times;
    });
}

/// Costs below each loop, outermost first. Sizes count at their largest.
void collect_costs(const Stmt& stmt, double times, int depth, std::vector<LevelCost>& levels) {
    if (const For* loop = stmt.as<For>()) {
        double extent = static_cast<double>(bounds_of(loop->extent).max.value_or(1));
        std::string level = loop->level == Level::Serial ? "" : fmt::format(" ({})", to_string(loop->level));
        levels.push_back({fmt::format("{}{}{}", std::string(2 * depth, ' '), to_string(loop->variable), level), extent, 0, 0});
        size_t own = levels.size() - 1;
        std::vector<LevelCost> below;
        collect_costs(loop->body, 1, depth + 1, below);
        // Leaves are counted once at depth 0 of `below`; nested loops have their own totals.
        for (const LevelCost& b : below)
            if (b.loop.empty() || b.loop.rfind(std::string(2 * (depth + 1), ' '), 0) == 0) {
                bool direct = b.loop.empty() || b.loop[2 * (depth + 1)] != ' ';
                if (direct) {
                    levels[own].bytes += b.bytes * extent;
                    levels[own].operations += b.operations * extent;
                }
            }
        for (LevelCost& b : below)
            if (!b.loop.empty()) levels.push_back(std::move(b));
        (void)times;
    } else if (const Sequence* block = stmt.as<Sequence>()) {
        for (const Stmt& s : block->stmts) collect_costs(s, times, depth, levels);
    } else if (const Allocate* allocate = stmt.as<Allocate>()) {
        collect_costs(allocate->body, times, depth, levels);
    } else if (const Leaf* leaf = stmt.as<Leaf>()) {
        LevelCost cost{"", 1, 0, 0};
        for (const StoreTo& store : leaf->stores) {
            add_expression_cost(store.value, 1, cost);
            if (store.buffer->memory == Memory::Global) cost.bytes += bytes_of(store.buffer->type);
        }
        levels.push_back(cost);
    }
}

void show(const std::string& name, const std::string& arch, bool json) {
    Schedule schedule = kernel_named(name).make(target(arch));
    Program program = build(schedule);
    std::vector<LevelCost> levels;
    for (const Nest& nest : schedule.tree().nests) collect_costs(nest.body, 1, 0, levels);
    if (json) {
        nlohmann::json out{{"name", name}, {"nest", schedule.to_string()}, {"trace", schedule.save()}, {"notes", program.explain()}};
        for (const LevelCost& level : levels)
            if (!level.loop.empty())
                out["levels"].push_back({{"loop", level.loop}, {"iterations", level.iterations}, {"bytes", level.bytes}, {"operations", level.operations}});
        std::cout << out.dump(1) << "\n";
        return;
    }
    for (const auto& operation : operations_of(schedule.outputs())) fmt::print("{}\n", to_string(*operation));
    fmt::print("\n{}\n{:<40} {:>10} {:>14} {:>14}\n", schedule.to_string(), "below one run of the loop", "iterations", "global bytes", "operations");
    for (const LevelCost& level : levels)
        if (!level.loop.empty()) fmt::print("{:<40} {:>10} {:>14} {:>14}\n", level.loop, level.iterations, level.bytes, level.operations);
    fmt::print("\n{}\n{}", schedule.trace_as_cpp(), program.explain());
}

void disassemble(const CompiledKernel& compiled) {
    std::string path = fmt::format("{}/tw-{}.cubin", std::getenv("TMPDIR") ? std::getenv("TMPDIR") : "/tmp", ::rand());
    std::ofstream(path, std::ios::binary) << compiled.cubin;
    for (const char* tool : {"cuobjdump --dump-sass", "nvdisasm", "/usr/local/cuda/bin/cuobjdump --dump-sass", "/usr/local/cuda/bin/nvdisasm"}) {
        std::string command = fmt::format("{} {} 2>/dev/null", tool, path);
        if (std::system(command.c_str()) == 0) {
            std::remove(path.c_str());
            return;
        }
    }
    std::remove(path.c_str());
    throw_error(Error, "emit --as sass: no disassembler: neither cuobjdump nor nvdisasm is on PATH or in /usr/local/cuda/bin; use --as ptx");
}

void emit(const std::string& name, const std::string& arch, const std::string& as, bool json) {
    Program program = build(kernel_named(name).make(target(arch)));
    for (const auto& kernel : program.kernels()) {
        if (as == "cuda" && !json) {
            fmt::print("{}\n", kernel.cuda);
            continue;
        }
        nlohmann::json out{{"name", kernel.name}, {"cuda", kernel.cuda}, {"threads", kernel.threads}, {"shared_bytes", kernel.shared_bytes}};
        if (as != "cuda") {
            CompiledKernel compiled = compile_kernel({.source = kernel.cuda, .name = kernel.name + ".cu", .arch = arch, .options = {}, .want_ptx = as == "ptx"});
            const Resources& r = compiled.of(kernel.name);
            out["registers"] = r.registers;
            out["spill_bytes"] = r.spill_store_bytes + r.spill_load_bytes;
            if (!json && as == "ptx") std::cout << compiled.ptx;
            else if (!json && as == "cubin") std::cout << compiled.cubin;
            else if (!json) disassemble(compiled);
        }
        if (json) std::cout << out.dump(1) << "\n";
    }
}

}  // namespace

void add_inspection_commands(CLI::App& app, int&) {
    struct Options {
        std::string name, arch = "sm_90a", as = "cuda";
        bool json = false;
    };
    auto o = std::make_shared<Options>();
    auto* doctor = app.add_subcommand("doctor", "what this machine has of what is used, where was looked, what is missing");
    doctor->add_flag("--json", o->json, "as JSON");
    doctor->callback([o] {
        DoctorReport report = examine();
        std::cout << (o->json ? to_json(report) : to_text(report)) << "\n";
    });
    auto* list = app.add_subcommand("list", "the kernels that come with the library");
    list->add_flag("--json", o->json, "as JSON");
    list->callback([o] {
        nlohmann::json out = nlohmann::json::array();
        for (const auto& entry : schedules::catalog()) {
            if (o->json) out.push_back({{"name", entry.name}, {"description", entry.description}, {"flops", entry.flops}});
            else fmt::print("{:<28} {}\n", entry.name, entry.description);
        }
        if (o->json) std::cout << out.dump(1) << "\n";
    });
    auto* show_command = app.add_subcommand("show", "formula, loop nest, costs a level, steps and defaults of a kernel");
    show_command->add_option("kernel", o->name, "a name of `tw list`")->required();
    show_command->add_option("--arch", o->arch, "sm_80, sm_90a, sm_100a, ...");
    show_command->add_flag("--json", o->json, "as JSON");
    show_command->callback([o] { show(o->name, o->arch, o->json); });
    auto* emit_command = app.add_subcommand("emit", "the kernel as CUDA, PTX, cubin or SASS on standard output");
    emit_command->add_option("kernel", o->name, "a name of `tw list`")->required();
    emit_command->add_option("--as", o->as, "cuda, ptx, cubin or sass")->check(CLI::IsMember({"cuda", "ptx", "cubin", "sass"}));
    emit_command->add_option("--arch", o->arch, "sm_80, sm_90a, sm_100a, ...");
    emit_command->add_flag("--json", o->json, "as JSON, with resources where compiled");
    emit_command->callback([o] { emit(o->name, o->arch, o->as, o->json); });
}

}  // namespace tw
