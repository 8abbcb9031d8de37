// Children of a fork that should not outlive who waits for them.
#pragma once
#include <sys/types.h>

namespace tw {

/// For a forked child: it is killed (SIGKILL) when the thread that forked it ends, by whatever. `parent` is the process
/// that forked, as getpid() gave it before: one that has ended already takes the child along at once.
void die_with_parent(pid_t parent);

}  // namespace tw
