#include "runtime/driver/host_compiler.h"

#include <cstdlib>
#include <string>
#include <vector>

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/core.h>

extern char** environ;

namespace tw {
namespace {

// What the command prints; empty when it cannot be run or fails. No shell sees it.
std::string output_of(std::vector<std::string> words) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return "";
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    pid_t child = 0;
    int error = posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);

    std::string output;
    char part[256];
    for (ssize_t got; error == 0 && (got = read(ends[0], part, sizeof part)) > 0;) output.append(part, size_t(got));
    close(ends[0]);
    int status = 0;
    if (error == 0) waitpid(child, &status, 0);
    return error == 0 && status == 0 ? output : "";
}

std::string version_of(const std::string& command) {
    std::string output = output_of({command, "--version"});
    return output.substr(0, output.find('\n'));
}

bool compiles_cpp(const std::string& command) {
    std::string macros = output_of({command, "-dM", "-E", "-x", "c++", "/dev/null"});
    return macros.find("__cplusplus") != std::string::npos;
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
        std::string version = version_of(command);
        if (!version.empty() && compiles_cpp(command)) return {.command = command, .version = version, .problem = ""};
        tried += (tried.empty() ? "" : ", ") + command + (version.empty() ? "" : ", which compiles no C++");
        const bool is_asked_for = command == own("TW_HOST_CXX");
        if (is_asked_for) break;  // no other will do
    }
    return {.command = "",
            .version = "",
            .problem = fmt::format("none runs (tried {}); install g++ or set TW_HOST_CXX", tried)};
}

}  // namespace tw
