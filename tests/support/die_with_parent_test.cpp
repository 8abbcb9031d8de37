// A child of a killed process: it ends too, and is not left behind running for ever.
#include "support/die_with_parent.h"

#include <csignal>

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

namespace tw {
namespace {

TEST(DieWithParent, AChildOfAKilledProcessEnds) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t middle = fork();
    if (middle == 0) {
        const pid_t parent = getpid();
        if (fork() == 0) {
            die_with_parent(parent);
            (void)!write(ends[1], "x", 1);
            for (;;) pause();
        }
        for (;;) pause();
    }
    close(ends[1]);
    char lives = 0;
    ASSERT_EQ(read(ends[0], &lives, 1), 1);
    kill(middle, SIGKILL);
    waitpid(middle, nullptr, 0);
    pollfd closed{ends[0], POLLIN, 0};  // both writers are gone
    EXPECT_EQ(poll(&closed, 1, 20'000), 1);
    close(ends[0]);
}

TEST(DieWithParent, AChildThatComesTooLateEnds) {
    const pid_t child = fork();
    if (child == 0) {
        die_with_parent(1 << 30);  // no process: one that has ended
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(WEXITSTATUS(status), 1);
}

}  // namespace
}  // namespace tw
