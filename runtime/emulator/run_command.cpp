#include "runtime/emulator/run_command.h"

#include <cerrno>

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

namespace tw::emulator {

CommandResult run_command(const std::vector<std::string>& words) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return {};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 2);
    std::vector<char*> arguments;
    for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    pid_t child = 0;
    CommandResult result;
    result.started = posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ) == 0;
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    char part[4096];
    for (ssize_t got; result.started && ((got = read(ends[0], part, sizeof part)) > 0 || (got < 0 && errno == EINTR));)
        if (got > 0) result.output.append(part, size_t(got));
    close(ends[0]);
    int status = 0;
    while (result.started && waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    result.succeeded = result.started && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    return result;
}

}  // namespace tw::emulator
