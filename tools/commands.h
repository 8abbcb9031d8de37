// The subcommands of tw, by theme. Each registers itself; what it finds wrong goes to `status`.
#pragma once
#include <string>

#include <CLI/CLI.hpp>

#include "schedules/catalog.h"

namespace tw {

void add_inspection_commands(CLI::App& app, int& status);  ///< doctor, list, show, emit
void add_run_commands(CLI::App& app, int& status);         ///< run
void add_fuzz_commands(CLI::App& app, int& status);        ///< fuzz schedules, fuzz illegal

/// The catalog's kernel; throws Error naming close ones otherwise.
const schedules::CatalogEntry& kernel_named(const std::string& name);

}  // namespace tw
