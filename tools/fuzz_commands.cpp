// tw fuzz: random legal schedules, and illegal steps.
#include <cstdio>
#include <memory>
#include <unistd.h>

#include <fmt/format.h>

#include "tools/commands.h"
#include "tools/fuzz/fuzz.h"
#include "tools/fuzz/run_kernels.h"

namespace tw {
namespace {

int report(const std::vector<fuzz::Failure>& failures) {
    for (const fuzz::Failure& failure : failures) fmt::print("case {}:\n{}\n", failure.number, failure.text);
    fmt::print("{} wrong\n", failures.size());
    return failures.empty() ? 0 : 1;
}

}  // namespace

void add_fuzz_commands(CLI::App& app, int& status) {
    struct Options {
        int64_t count = 200;
        uint64_t seed = 1;
        std::string computation;
        bool interpreter_only = false;
    };
    auto o = std::make_shared<Options>();
    auto* group = app.add_subcommand("fuzz", "random checks");
    group->require_subcommand(1);
    auto add_common = [o](CLI::App* command) {
        command->add_option("--count", o->count, "how many cases");
        command->add_option("--seed", o->seed, "case k of a seed is always the same");
    };
    auto* schedules = group->add_subcommand("schedules", "random legal schedules, checked after each step and as kernels on the emulator");
    add_common(schedules);
    schedules->add_option("--computation", o->computation, "only this one");
    schedules->add_flag("--interpreter-only", o->interpreter_only, "no kernels");
    schedules->callback([o, &status] {
        fuzz::FuzzOptions options;
        options.count = o->count;
        options.seed = o->seed;
        options.computation = o->computation;
        if (!o->interpreter_only) options.run_kernels = fuzz::run_on_emulator;
        if (isatty(1)) options.log = [](const std::string& line) { fmt::print(stderr, "\r{}\033[K", line); };
        fuzz::Summary summary = fuzz::fuzz_schedules(options);
        fmt::print("{}\n", fuzz::to_string(summary));
        status = report(summary.failures);
    });
    auto* illegal = group->add_subcommand("illegal", "steps that must be refused");
    add_common(illegal);
    illegal->callback([o, &status] {
        fuzz::IllegalSummary summary = fuzz::fuzz_illegal(o->count, o->seed);
        for (const auto& kind : summary.kinds) fmt::print("{:<40} {:>6}\n", kind.name, kind.tried);
        status = report(summary.failures);
    });
}

}  // namespace tw
