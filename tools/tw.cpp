// The tw command line. Exit codes: 0 done, 1 a check failed or the library refused, 2 wrong usage, 3 a bug of ours.
#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include "support/error.h"
#include "support/version.h"
#include "tools/commands.h"
#include "tools/near_names.h"
#include "tools/output.h"

namespace {

constexpr const char* Examples =
    "Examples:\n"
    "  tw doctor                                     what this machine has, and where was looked\n"
    "  tw list                                       kernels by name\n"
    "  tw show product_256x256x512                   loop nest, bytes and FLOPs of each loop, defaults taken\n"
    "  tw emit product_256x256x512 --as cuda         printed CUDA (or ptx, cubin, sass)\n"
    "  tw run softmax_131x37 --device emulated       run and check against float64\n"
    "  tw bench product_4096x4096x4096               time, rate and share of a copy's bandwidth\n"
    "  tw candidates softmax_16384x8192_bf16_automatic   other schedules, the fastest by the model of time first\n"
    "  tw tune gemm_bf16_4096x4096x4096_tb           the fastest tiling, measured and checked, kept as a record\n"
    "  tw train chars --values bf16                  a transformer that learns characters, each step one launch\n"
    "  tw fuzz schedules --count 200 --seed 7        random legal schedules against the oracle\n"
    "  tw fuzz tilings --count 200 --seed 7          random products in random tilings\n"
    "  tw fuzz convolutions --count 500 --seed 7     random convolutions and their gradients\n"
    "  tw fuzz mutations --count 100 --seed 7        altered kernels, which the checks must catch\n"
    "  tw cache verify                               whether every compiled kernel on disk is whole\n"
    "  tw --load libmine.so show my_kernel           a kernel of your own: see <tilewright/kernel.h>\n"
    "\n"
    "Exit codes: 0 done, 1 a check failed or the library refused, 2 wrong usage, 3 a bug of ours.";

/// "no subcommand named 'lits'; near it: list", or nothing if all are known.
std::string unknown_subcommand(const CLI::App& app) {
    const CLI::App* group = &app;
    std::string called = "tw";
    while (!group->get_subcommands().empty()) {
        group = group->get_subcommands().front();
        called += " " + group->get_name();
    }
    std::vector<std::string> names, rest = app.remaining(true);
    for (const CLI::App* one : group->get_subcommands([](const CLI::App*) { return true; }))
        names.push_back(one->get_name());
    if (names.empty() || rest.empty() || rest[0].starts_with('-')) return "";
    std::vector<std::string> close = tw::near_names(rest[0], names);
    return fmt::format("{}: no subcommand named '{}'; {}: {}\n", called, rest[0],
                       close.empty() ? "there are" : "near it", fmt::join(close.empty() ? names : close, ", "));
}

/// --help and --version are such "errors" too.
int answer(const CLI::App& app, const CLI::ParseError& error) {
    std::ostringstream out, err;
    const bool is_done = app.exit(error, out, err) == 0;
    tw::print("{}", out.str());
    const std::string unknown = is_done ? "" : unknown_subcommand(app);
    if (!is_done) std::fputs(unknown.empty() ? err.str().c_str() : unknown.c_str(), stderr);
    return is_done ? tw::StatusDone : tw::StatusUsage;
}

int run(CLI::App& app, int argc, char** argv, const int& status) {
    try {
        try {
            app.parse(argc, argv);
            return status;
        } catch (const CLI::ParseError& error) {
            return answer(app, error);
        }
    } catch (const tw::ReaderGone&) {
        return tw::StatusFailed;
    } catch (const tw::Error& error) {
        tw::complain(fmt::format("tw: {}", error.what()));
        return tw::StatusFailed;
    } catch (const std::exception& bug) {
        tw::complain(fmt::format("tw: this is a bug, please report it: {}", bug.what()));
        return tw::StatusBug;
    }
}

}  // namespace

int main(int argc, char** argv) {
    tw::keep_standard_streams_apart();
    CLI::App app("Tilewright: schedules to CUDA kernels, checked.");
    app.require_subcommand(1);
    app.set_version_flag("--version", "tw " TILEWRIGHT_VERSION);
    tw::add_load_option(&app);
    app.footer(Examples);
    int status = tw::StatusDone;
    tw::add_machine_commands(app, status);
    tw::add_kernel_commands(app);
    tw::add_run_command(app, status);
    tw::add_bench_command(app);
    tw::add_tune_command(app, status);
    tw::add_candidates_command(app);
    tw::add_calibrate_command(app);
    tw::add_train_command(app);
    tw::add_fuzz_commands(app, status);
    tw::add_cache_commands(app, status);
    return run(app, argc, argv, status);
}
