#include "runtime/emulator/host/run_command.h"

#include <cerrno>
#include <string_view>

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

namespace tw::emulator {

namespace {

std::vector<std::string> environment(const std::string& temporary) {
    std::vector<std::string> variables;
    for (char** variable = environ; *variable; ++variable)
        if (temporary.empty() || std::string_view(*variable).rfind("TMPDIR=", 0) != 0) variables.push_back(*variable);
    if (!temporary.empty()) variables.push_back("TMPDIR=" + temporary);
    return variables;
}

/// As the system's calls want it; valid as long as the strings.
std::vector<char*> addresses(const std::vector<std::string>& strings) {
    std::vector<char*> result;
    for (const std::string& each : strings) result.push_back(const_cast<char*>(each.c_str()));
    result.push_back(nullptr);
    return result;
}

}  // namespace

CommandResult run_command(const std::vector<std::string>& words, const std::string& temporary) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return {};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 2);
    std::vector<std::string> variables = environment(temporary);
    std::vector<char*> arguments = addresses(words), settings = addresses(variables);
    pid_t child = 0;
    CommandResult result;
    result.started = posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), settings.data()) == 0;
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
