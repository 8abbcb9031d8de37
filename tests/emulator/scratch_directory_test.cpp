// What compiling leaves on disk: nothing, whoever is killed.
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <random>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/emulator/emulator.h"
#include "runtime/emulator/host/scratch_directory.h"
#include "tests/support/expect_error.h"

namespace tw::emulator {
namespace {

namespace fs = std::filesystem;

/// A temporary directory of the test's own.
struct Scratch : testing::Test {
    fs::path path;
    std::string before;

    Scratch() {
        std::string pattern = fs::temp_directory_path() / "tw-scratch-test-XXXXXX";
        path = mkdtemp(pattern.data());
        if (const char* now = std::getenv("TMPDIR")) before = now;
        setenv("TMPDIR", path.c_str(), 1);
    }
    ~Scratch() override {
        before.empty() ? unsetenv("TMPDIR") : setenv("TMPDIR", before.c_str(), 1);
        std::error_code ignored;
        fs::remove_all(path, ignored);
    }

    std::vector<std::string> left() const {
        std::vector<std::string> names;
        for (const auto& entry : fs::directory_iterator(path)) names.push_back(entry.path().filename());
        return names;
    }
};

// Another text each time: equal ones are compiled once.
void compile_kernel() {
    static unsigned number = 0;
    Source source{.name = "k",
                  .text = fmt::format("// {}\nextern \"C\" __global__ void k(int* x) {{ *x = 1; }}", number++),
                  .line_notes = {}};
    compile({&source, 1});
}

TEST_F(Scratch, IsGoneAfterCompiling) {
    compile_kernel();
    EXPECT_THAT(left(), testing::IsEmpty());
}

TEST_F(Scratch, OfKilledProcessesIsRemovedByTheNext) {
    std::mt19937 random{std::random_device()()};
    size_t most = 0;
    for (unsigned i = 0; i < 20; ++i) {
        pid_t child = fork();
        if (child == 0) {
            setpgid(0, 0);  // killed with its compiler
            for (;;) compile_kernel();
        }
        setpgid(child, child);
        usleep(unsigned(random() % 150'000));
        kill(-child, SIGKILL);
        waitpid(child, nullptr, 0);
        most = std::max(most, left().size());
    }
    EXPECT_GE(most, 1u) << "no kill landed within a compilation";
    EXPECT_LE(most, 3u) << "they pile up: " << testing::PrintToString(left());
    compile_kernel();
    for (int wait = 0; wait < 50 && !left().empty(); ++wait) {  // the last compiler may still be about to end
        usleep(100'000);
        compile_kernel();
    }
    EXPECT_THAT(left(), testing::IsEmpty());
}

TEST_F(Scratch, OfLivingProcessesStays) {
    ScratchDirectory mine;
    pid_t child = fork();
    if (child == 0) {
        ScratchDirectory theirs;
        _exit(fs::exists(mine.path()) && theirs.path() != mine.path() ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    fs::create_directory(path / "tilewright-kernels-left");
    ScratchDirectory another;
    EXPECT_TRUE(fs::exists(mine.path()));
    EXPECT_FALSE(fs::exists(path / "tilewright-kernels-left"));
}

TEST_F(Scratch, AFullDiskIsNamed) {
    rlimit limit{};
    getrlimit(RLIMIT_FSIZE, &limit);
    auto handler = signal(SIGXFSZ, SIG_IGN);  // the limit then fails the write, as a full disk does
    rlimit small{1000, limit.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
    EXPECT_ERROR(compile_kernel(), "kernels.cpp'; the disk may be full: set TMPDIR to another");
    setrlimit(RLIMIT_FSIZE, &limit);
    signal(SIGXFSZ, handler);
    EXPECT_THAT(left(), testing::IsEmpty());
}

}  // namespace
}  // namespace tw::emulator
