// Which targets have an instruction that is not simply there from some architecture on (Atom::least_arch says that of
// matrix instructions).
#pragma once
#include "dsl/target.h"

namespace tw {

/// wgmma.mma_async: of Hopper alone, in its own feature set.
inline bool has_wgmma(const Target& target) { return target.arch == "sm_90a"; }

/// setmaxnreg, by which roles give and take registers. For sm_120a, ptxas 13.0 ignores it and says so.
inline bool has_setmaxnreg(const Target& target) { return target.arch == "sm_90a" || target.arch == "sm_100a"; }

}  // namespace tw
