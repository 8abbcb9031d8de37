// The tw command line. Exit codes: 0 done, 1 a check failed or the library refused, 2 wrong usage, 3 a bug of ours.
#include <cstdio>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "support/error.h"
#include "tools/commands.h"

namespace {

constexpr const char* Examples =
    "Examples:\n"
    "  tw doctor                                     what this machine has, and where was looked\n"
    "  tw list                                       kernels by name\n"
    "  tw show product_256x256x512                   loop nest, bytes and FLOPs of each loop, defaults taken\n"
    "  tw emit product_256x256x512 --as cuda         printed CUDA (or ptx, cubin, sass)\n"
    "  tw run softmax_131x37 --device emulated       run and check against float64\n"
    "  tw bench product_4096x4096x4096               time, rate and share of a copy's bandwidth\n"
    "  tw tune gemm_bf16_4096x4096x4096_tb           the fastest tiling, measured and checked, kept as a record\n"
    "  tw fuzz schedules --count 200 --seed 7        random legal schedules against the oracle\n"
    "  tw fuzz tilings --count 200 --seed 7          random products in random tilings\n"
    "  tw fuzz mutations --count 100 --seed 7        altered kernels, which the checks must catch\n"
    "  tw cache verify                               whether every compiled kernel on disk is whole\n"
    "\n"
    "Exit codes: 0 done, 1 a check failed or the library refused, 2 wrong usage, 3 a bug of ours.";

int run(CLI::App& app, int argc, char** argv, const int& status) {
    try {
        app.parse(argc, argv);
        return status;
    } catch (const CLI::ParseError& error) {
        return app.exit(error) == 0 ? tw::StatusDone : tw::StatusUsage;  // --help is such an "error" too
    } catch (const tw::Error& error) {
        fmt::print(stderr, "tw: {}\n", error.what());
        return tw::StatusFailed;
    } catch (const std::exception& bug) {
        fmt::print(stderr, "tw: this is a bug, please report it: {}\n", bug.what());
        return tw::StatusBug;
    }
}

}  // namespace

int main(int argc, char** argv) {
    CLI::App app("Tilewright: schedules to CUDA kernels, checked.");
    app.require_subcommand(1);
    app.footer(Examples);
    int status = tw::StatusDone;
    tw::add_machine_commands(app, status);
    tw::add_kernel_commands(app);
    tw::add_run_command(app, status);
    tw::add_bench_command(app);
    tw::add_tune_command(app, status);
    tw::add_fuzz_commands(app, status);
    tw::add_cache_commands(app, status);
    return run(app, argc, argv, status);
}
