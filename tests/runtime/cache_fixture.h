// A cache in a scratch folder, with ways to damage it and processes to share it.
#pragma once
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <sys/wait.h>
#include <unistd.h>

#include "runtime/compile/cubin_cache.h"
#include "runtime/compile/cubin_format.h"
#include "tests/runtime/support.h"

namespace tw {

namespace fs = std::filesystem;

constexpr unsigned StuckAfterSeconds = 120;  // everything here takes seconds at most, but the machine may be busy

struct Cache : testing::Test {
    ScratchFolder scratch;
    CaughtWarnings warnings;
    CubinCache cache{scratch.path() / "cache"};
    std::string key = "key " + random_bytes(50), payload = random_bytes(300);
    Cache() { alarm(StuckAfterSeconds); }  // ends the process
    ~Cache() override { alarm(0); }
    fs::path file() const { return file_of(key); }
    fs::path file_of(const std::string& another_key) const { return cache.directory() / entry_file_name(another_key); }
};

inline std::string contents(const fs::path& file) {
    std::ostringstream text;
    text << std::ifstream(file, std::ios::binary).rdbuf();
    return text.str();
}

inline void overwrite(const fs::path& file, const std::string& bytes) {
    std::ofstream(file, std::ios::binary) << bytes;
}

inline void set_age(const fs::path& file, int64_t seconds) {
    fs::last_write_time(file, fs::file_time_type::clock::now() - std::chrono::seconds(seconds));
}

/// Runs the action in a new process, which is killed when it is stuck; the action's result is its exit status.
template <class Action>
pid_t start_child(Action action) {
    pid_t child = fork();
    if (child != 0) return child;
    alarm(StuckAfterSeconds);
    _exit(action());
}

/// Its exit status, or the negative number of the signal that ended it (-SIGALRM: it was stuck).
inline int result_of(pid_t child) {
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

template <class Action>
int in_child(Action action) {
    return result_of(start_child(action));
}

}  // namespace tw
