// The subcommands of tw, by theme. Each registers itself; what it finds wrong goes to `status`.
#pragma once
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "schedules/catalog.h"

namespace tw {

// Exit codes of tw.
inline constexpr int StatusDone = 0, StatusFailed = 1, StatusUsage = 2, StatusBug = 3;

void add_machine_commands(CLI::App& app, int& status);  ///< doctor
void add_kernel_commands(CLI::App& app);                ///< list, show, emit
void add_run_command(CLI::App& app, int& status);       ///< run
void add_bench_command(CLI::App& app);                  ///< bench
void add_tune_command(CLI::App& app, int& status);      ///< tune
void add_candidates_command(CLI::App& app);             ///< candidates
void add_calibrate_command(CLI::App& app);              ///< calibrate
void add_train_command(CLI::App& app);                  ///< train
void add_fuzz_commands(CLI::App& app, int& status);     ///< fuzz schedules, fuzz illegal
void add_cache_commands(CLI::App& app, int& status);    ///< cache ls, cache verify

/// What run and bench say of the emulator's times.
inline constexpr const char* emulated_times = "the emulator's times say nothing about a GPU";
/// The rate of a kernel's operations; "-" if it does not say how many it has.
std::string rate_text(double flops, double rate);

/// Takes kernels from a shared object; to be given any number of times.
void add_load_option(CLI::App* command);

/// The catalog's kernels, then those of users.
std::vector<const schedules::CatalogEntry*> all_kernels();
/// The kernel of this name. Throws CLI::ValidationError, which names close ones, if there is none.
const schedules::CatalogEntry& kernel_named(const std::string& name);

}  // namespace tw
