#include "runtime/host_compiler.h"

#include <cstdlib>

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/core.h>

extern char** environ;

namespace tw {
namespace {

// The first line that `command --version` prints; empty when it cannot be run. No shell sees the command.
std::string version_of(const std::string& command) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return "";
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
    std::string name = command, option = "--version";
    char* arguments[] = {name.data(), option.data(), nullptr};
    pid_t child = 0;
    int error = posix_spawnp(&child, command.c_str(), &actions, nullptr, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);

    std::string output;
    char part[256];
    for (ssize_t got; error == 0 && (got = read(ends[0], part, sizeof part)) > 0;) output.append(part, size_t(got));
    close(ends[0]);
    int status = 0;
    if (error == 0) waitpid(child, &status, 0);
    return error == 0 && status == 0 ? output.substr(0, output.find('\n')) : "";
}

}  // namespace

// The order is the emulator's.
HostCompilerHealth examine_host_compiler() {
    std::string tried;
    auto own = [](const char* variable) {
        const char* value = std::getenv(variable);
        return std::string(value ? value : "");
    };
    for (const std::string& command :
         {own("TW_HOST_CXX"), own("CXX"), std::string("c++"), std::string("g++"), std::string("clang++")}) {
        if (command.empty()) continue;
        if (std::string version = version_of(command); !version.empty())
            return {.command = command, .version = version, .problem = ""};
        tried += (tried.empty() ? "" : ", ") + command;
    }
    return {.command = "",
            .version = "",
            .problem = fmt::format("none runs (tried {}); install g++ or set TW_HOST_CXX", tried)};
}

}  // namespace tw
