// Scans dealt out to blocks and threads.
#pragma once
#include <optional>

#include "dsl/schedule.h"

namespace tw::schedules {

/// The data loop along which the stage is a scan (Schedule::running); none if it is none, or if its loops were
/// scheduled already.
std::optional<Loop> scanned_loop(const Schedule& s, Stage stage);

/// Runs along the loop: of columns that lie side by side a thread each; else the threads of a block share a row, each
/// with four terms at a time, short rows a block together. Few rows or columns that are long are scanned in parts, by
/// three kernels.
void schedule_scan(Schedule& s, Stage stage, Loop along);

}  // namespace tw::schedules
