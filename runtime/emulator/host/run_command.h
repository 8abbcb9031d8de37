// Runs other programs without a shell.
#pragma once
#include <string>
#include <vector>

namespace tw::emulator {

struct CommandResult {
    bool started = false;
    bool succeeded = false;  // exit status 0
    std::string output;      // stdout and stderr
};

/// The program is looked up in $PATH. If `temporary` is given, it is the program's $TMPDIR.
CommandResult run_command(const std::vector<std::string>& words, const std::string& temporary = "");

}  // namespace tw::emulator
