// Emitting kernels, and what is refused.
#include "tools/emit.h"

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>

#include "tests/support/expect_error.h"
#include "tools/disassemble.h"

namespace tw {
namespace {

namespace fs = std::filesystem;

/// Two kernels: y, and z that reads it.
Program two_kernels() {
    Tensor x = input("x", f32, {30});
    Tensor y = compute("y", {30}, [&](Expr i) { return x(i) * 2.0; });
    Tensor z = compute("z", {30}, [&](Expr i) { return y(29 - i) + y(i); });
    return build(Schedule({z}, target("sm_90a")));
}

TEST(Emit, PrintsEveryKernel) {
    std::string text = emitted(two_kernels(), {});
    EXPECT_THAT(text, testing::AllOf(testing::HasSubstr("y_kernel("), testing::HasSubstr("z_kernel(")));
}

TEST(Emit, RefusesTwoCubinsInOneStream) {
    EXPECT_ERROR(emitted(two_kernels(), {.as = "cubin"}), "there are 2 kernels; give --output FOLDER");
}

TEST(Emit, TellsWhereItCannotWrite) {
    EXPECT_ERROR(emitted(two_kernels(), {.folder = "/dev/null/kernels"}), "emit: cannot write to /dev/null/kernels");
    EXPECT_ERROR(emitted(two_kernels(), {.folder = "/proc/self"}), "emit: cannot write /proc/self/y_kernel.cu");
}

/// A folder of the test's own, which is $TMPDIR and stands first on PATH.
struct Disassembler : testing::Test {
    fs::path folder, temporary;
    std::string path = std::getenv("PATH") ? std::getenv("PATH") : "", before;

    Disassembler() {
        std::string pattern = fs::temp_directory_path() / "tw-disassemble-test-XXXXXX";
        folder = mkdtemp(pattern.data());
        temporary = folder / "tmp";
        fs::create_directory(temporary);
        if (const char* now = std::getenv("TMPDIR")) before = now;
        setenv("TMPDIR", temporary.c_str(), 1);
        setenv("PATH", (folder.string() + ":" + path).c_str(), 1);
    }
    ~Disassembler() override {
        setenv("PATH", path.c_str(), 1);
        before.empty() ? unsetenv("TMPDIR") : setenv("TMPDIR", before.c_str(), 1);
        fs::remove_all(folder);
    }

    void write_nvdisasm(const std::string& script) const {
        std::ofstream(folder / "nvdisasm") << "#!/bin/sh\n" << script << "\n";
        fs::permissions(folder / "nvdisasm", fs::perms::owner_all);
    }
    std::vector<fs::path> left() const { return {fs::directory_iterator(temporary), fs::directory_iterator()}; }
};

TEST_F(Disassembler, LeavesNoFileEvenIfKilled) {
    write_nvdisasm("kill -9 $PPID");
    const pid_t child = fork();
    if (child == 0) {
        disassembled("of the killed");
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status));
    EXPECT_EQ(left().size(), 1u);
    write_nvdisasm("cat \"$1\"");
    EXPECT_EQ(disassembled("of the next"), "of the next");
    EXPECT_TRUE(left().empty()) << left()[0];
}

TEST_F(Disassembler, NamesAFullDisk) {
    write_nvdisasm("cat \"$1\"");
    rlimit limit{};
    getrlimit(RLIMIT_FSIZE, &limit);
    auto handler = signal(SIGXFSZ, SIG_IGN);  // the limit then fails the write, as a full disk does
    rlimit small{1000, limit.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
    EXPECT_ERROR(disassembled(std::string(2000, 'x')), "kernel.cubin'; the disk may be full: set TMPDIR to another");
    setrlimit(RLIMIT_FSIZE, &limit);
    signal(SIGXFSZ, handler);
    EXPECT_TRUE(left().empty());
}

TEST(Disassemble, SaysWhichProgramsAreMissing) {
    if (std::filesystem::exists("/usr/local/cuda/bin/nvdisasm") ||
        std::filesystem::exists("/usr/local/cuda/bin/cuobjdump"))
        GTEST_SKIP() << "/usr/local/cuda has a disassembler";
    std::string path = std::getenv("PATH") ? std::getenv("PATH") : "";
    setenv("PATH", "/nonexistent", 1);
    EXPECT_ERROR(disassembled("no cubin"), "no disassembler: neither nvdisasm nor cuobjdump is on PATH");
    setenv("PATH", path.c_str(), 1);
}

}  // namespace
}  // namespace tw
