// The bar appears on a terminal only, and leaves an empty line.
#include "support/progress.h"

#include <poll.h>
#include <pty.h>
#include <unistd.h>

#include <gmock/gmock.h>

namespace tw {
namespace {

/// What the action writes to standard error while that is `file`, as read from `reader`.
template <class Action>
std::string written_to(int file, int reader, Action action) {
    int before = dup(2);
    dup2(file, 2);
    action();
    dup2(before, 2);
    close(before);
    close(file);
    std::string text;
    pollfd arrives{.fd = reader, .events = POLLIN, .revents = 0};  // a terminal hands on what it gets piece by piece
    for (char bytes[4096]; poll(&arrives, 1, 200) > 0;) {
        ssize_t got = read(reader, bytes, sizeof bytes);
        if (got <= 0) break;
        text.append(bytes, size_t(got));
    }
    close(reader);
    return text;
}

void show_half() { Progress("run", 4).show(2, "softmax"); }

TEST(Progress, IsABarOnATerminal) {
    int reader = -1, terminal = -1;
    if (openpty(&reader, &terminal, nullptr, nullptr, nullptr) != 0) GTEST_SKIP() << "no pseudo-terminals here";
    std::string text;
    {
        int keep = dup(terminal);  // what was written can be read as long as one end is open
        text = written_to(terminal, reader, show_half);
        close(keep);
    }
    EXPECT_EQ(text, "\rrun [############------------] 2/4 softmax\033[K\r\033[K");
}

TEST(Progress, IsSilentElsewhere) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    EXPECT_EQ(written_to(ends[1], ends[0], show_half), "");
}

}  // namespace
}  // namespace tw
