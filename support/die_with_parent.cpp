#include "support/die_with_parent.h"

#include <csignal>

#include <sys/prctl.h>
#include <unistd.h>

namespace tw {

void die_with_parent(pid_t parent) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
}

}  // namespace tw
