// Runs printed CUDA on the CPU and checks what it does: see README.md beside this file.
//
//   auto module = emulator::compile(std::vector<emulator::Source>{{.name = "saxpy", .text = text}});
//   emulator::Launch launch{.kernel = "saxpy", .grid = {4, 1, 1}, .threads = 256, ...};
//   emulator::Report report = emulator::run(*module, launch, {.seed = 7});
//   if (!report.ok()) fmt::print("{}\n", report.findings[0].message);
#pragma once
#include "runtime/emulator/host/compile.h"
#include "runtime/emulator/host/launch.h"

namespace tw::emulator {

/// Runs every block (cluster) to its end, one after another in a seeded order, or up to the finding that stops the
/// launch. Threads are ordered by barriers alone, blocks never, so that a race is found whether or not it changes a
/// value in this run. What was written stays written. One launch at a time in a process: others wait. Throws as
/// check_launch() does.
Report run(const Module& module, const Launch& launch, const Options& options = {});

/// The same in a forked process: whatever a kernel does costs this one launch. Contents of writable regions come back
/// (also after findings), unless the process died or did not report in time; then the report says that as a Crash or a
/// StepLimit. Memory that is shared between processes (MAP_SHARED) shows what was written in any case.
Report run_isolated(const Module& module, const Launch& launch, const Options& options = {});

}  // namespace tw::emulator
