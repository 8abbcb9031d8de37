// How many registers threads get where blocks run side by side.
#pragma once
#include "dsl/target.h"

namespace tw {

/// The most registers of a thread where so many blocks of so many threads run side by side on a multiprocessor: each of
/// its four schedulers has a quarter of them and takes whole warps, so that three blocks of 96 threads get 168, not
/// 227. So compilers count what __launch_bounds__ says.
int64_t registers_given(const Target& target, int64_t threads, int64_t blocks);

}  // namespace tw
