// Copies of all kinds between memories and registers: the emulator does what they mean, and what a GPU does.
#include "tests/emulator/run_on.h"

namespace tw {
namespace {

/// Each thread copies 16 bytes by copies of `bytes`; those of every third one come as zeros.
SmallKernel async_copies(int bytes, bool or_zero) {
    std::string call =
        or_zero ? fmt::format("tw::copy_async_or_zero<{0}>(shared + i, in + (i / {0} % 3 ? i : -1), i / {0} % 3 != 0)",
                              bytes)
                : fmt::format("tw::copy_async<{}>(shared + i, in + i)", bytes);
    return {.names = {"copy_async", "copy_async_or_zero", "commit_copies", "wait_copies"},
            .body = fmt::format("for (int i = 16 * t; i < 16 * t + 16; i += {}) {};\n"
                                "tw::commit_copies();\ntw::wait_copies<0>();\n__syncthreads();\n"
                                "for (int i = 0; i < 16; ++i) out[16 * (t ^ 5) + i] = shared[16 * (t ^ 5) + i];",
                                bytes, call)};
}

TEST(CopiesConformance, AsyncCopies) {
    for (size_t bytes : {size_t(4), size_t(8), size_t(16)})
        for (bool or_zero : {false, true}) {
            Bytes in = random_bytes(512, bytes), expected = in;
            for (size_t i = 0; or_zero && i < in.size(); ++i)
                if (i / bytes % 3 == 0) expected[i] = 0;
            EXPECT_EQ(async_copies(int(bytes), or_zero).run_everywhere(in, 512), expected) << bytes << or_zero;
        }
}

}  // namespace
}  // namespace tw
