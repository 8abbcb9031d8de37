// The tw command line. Exit codes: 0 done, 1 a check failed or the library refused, 2 wrong usage.
#include <cstdio>
#include <fstream>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tools/commands.h"
#include "support/error.h"

int main(int argc, char** argv) {
    CLI::App app("Tilewright: schedules to CUDA kernels, checked.");
    app.require_subcommand(1);
    app.footer("Examples:\n"
               "  tw doctor                                     what this machine has, and where was looked\n"
               "  tw list                                       kernels by name\n"
               "  tw show product_256x256x512                   loop nest, bytes and FLOPs a level, defaults\n"
               "  tw emit product_256x256x512 --as cuda         printed CUDA (or ptx, cubin, sass)\n"
               "  tw run softmax_131x37 --device emulated       run and check against float64\n"
               "  tw fuzz schedules --count 200 --seed 7        random legal schedules against the oracle");
    int status = 0;
    tw::add_inspection_commands(app, status);
    tw::add_run_commands(app, status);
    tw::add_fuzz_commands(app, status);
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        return app.exit(error) == 0 ? 0 : 2;
    } catch (const tw::Error& error) {
        fmt::print(stderr, "tw: {}\n", error.what());
        return 1;
    }
    return status;
}
