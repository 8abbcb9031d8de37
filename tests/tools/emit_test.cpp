// Emitting kernels, and what is refused.
#include "tools/emit.h"

#include <cstdlib>
#include <filesystem>

#include <gmock/gmock.h>

#include "tests/support/expect_error.h"
#include "tools/disassemble.h"

namespace tw {
namespace {

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
