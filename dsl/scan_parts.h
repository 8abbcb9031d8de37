// Scans in parts: rfactor of a stage that runs along a loop. Inside of dsl/ only.
#pragma once
#include <string>

#include "dsl/edit.h"

namespace tw {

/// Takes a scan apart along the outer part of a split of its loop; `call` is the step, for messages. Returns the stage
/// of the parts' totals; what comes before each part is a stage behind it, and the scan goes on from that, with fresh
/// loops. Throws Error if the loop is none such.
int scan_in_parts(Edit& edit, int stage, int along, const std::string& call);

}  // namespace tw
