// Asynchronous copies: what they must be waited for, and by whom.
#include "tests/emulator/small_kernels.h"

namespace tw::emulator {
namespace {

// From line 4 on; 64 threads copy an int each.
constexpr const char* Copy = "tw::cp_async<1>(shared + t, in + t);\ntw::cp_async_commit();\n";

std::string after_copy(const std::string& rest) { return Copy + rest; }

TEST(CopyAsync, ArrivesBehindTheWait) {
    expect_silence({.body = after_copy("tw::cp_async_wait<0>();\nout[t] = shared[t];")});
    expect_silence({.body = after_copy("tw::cp_async_wait<0>();\n__syncthreads();\nout[t] = shared[t ^ 33];")});
    Case one{.body = after_copy("tw::cp_async_wait<0>();\n__syncthreads();\nout[t] = shared[t ^ 33];")};
    for (uint64_t seed = 0; seed < 8; ++seed) {
        one.out.assign(256, -1);
        one.run({.seed = seed});
        for (size_t t = 0; t < 64; ++t) EXPECT_EQ(one.out[t], int(t ^ 33)) << seed;
    }
}

TEST(CopyAsync, IsInFlightUntilItsOwnThreadHasWaited) {
    expect_finding({.body = after_copy("out[t] = shared[t];")}, Kind::InFlight, 6,
                   ", before its own cp_async_wait has waited for the cp_async to them at k.cu:4");
    expect_finding({.body = after_copy("shared[t] = 1;")}, Kind::InFlight, 6, "writes 4 bytes at byte ");
    expect_finding({.body = after_copy("tw::atomic_add(shared + t, 1);")}, Kind::InFlight, 6, "atomically updates");
    expect_finding({.body = after_copy("out[t] = ((signed char*)shared)[4 * t + 1];")}, Kind::InFlight, 6,
                   "reads 1 byte at byte ");
    expect_finding({.body = after_copy("__syncthreads();\nout[t] = shared[t ^ 1];\ntw::cp_async_wait<0>();")},
                   Kind::InFlight, 7, "before cp_async_wait of thread (");
    expect_finding({.body = after_copy("tw::cp_async<1>(shared + t, in + t + 1);")}, Kind::InFlight, 6, "");
}

TEST(CopyAsync, OnlyCommittedGroupsAreWaitedFor) {
    expect_finding({.body = "tw::cp_async<1>(shared + t, in + t);\ntw::cp_async_wait<0>();\nout[t] = shared[t];"},
                   Kind::InFlight, 6, "k.cu:4");
    const std::string two = after_copy("tw::cp_async<1>(shared + 64 + t, in + t);\ntw::cp_async_commit();\n");
    expect_silence({.body = two + "tw::cp_async_wait<1>();\nout[t] = shared[t];"});
    expect_finding({.body = two + "tw::cp_async_wait<1>();\nout[t] = shared[64 + t];"}, Kind::InFlight, 9, "k.cu:6");
    expect_silence({.body = two + "tw::cp_async_commit();\ntw::cp_async_wait<1>();\nout[t] = shared[64 + t];"});
}

TEST(CopyAsync, IsAWriteToOthers) {
    expect_finding({.body = after_copy("tw::cp_async_wait<0>();\nout[t] = shared[t ^ 1];")}, Kind::Race, 0,
                   "race on shared memory at byte ");
    expect_finding({.body = "shared[t] = t;\n__syncthreads();\nout[t] = shared[t ^ 1];\n" + std::string(Copy)},
                   Kind::Race, 0, "writes 4 bytes at k.cu:7, thread (");
    expect_silence(
        {.body = "shared[t] = t;\n__syncthreads();\nout[t] = shared[t ^ 1];\n__syncthreads();\n" + std::string(Copy)});
}

TEST(CopyAsync, OfSixteenAndEightBytesAndOfZeros) {
    Case one{.body =
                 "if (t < 16) tw::cp_async<4>(shared + 4 * t, in + 4 * t);\n"
                 "else if (t < 48) tw::cp_async_or_zero<2>(shared + 32 + 2 * t, in + (t < 40 ? 2 * t : 1 << 20), t < "
                 "40);\n"
                 "tw::cp_async_commit();\ntw::cp_async_wait<0>();\n__syncthreads();\nout[t] = shared[t];\n"
                 "out[t + 64] = shared[t + 64];"};
    for (uint64_t seed = 0; seed < 8; ++seed) {
        one.out.assign(256, -1);
        Report report = one.run({.seed = seed});
        EXPECT_TRUE(report.ok()) << all_messages(report);
        for (int i = 0; i < 64; ++i) EXPECT_EQ(one.out[size_t(i)], i);
        for (int i = 64; i < 128; ++i) EXPECT_EQ(one.out[size_t(i)], i < 112 ? i - 32 : 0) << i;
    }
}

TEST(CopyAsync, WhatItDoesNotTake) {
    expect_finding({.body = "tw::cp_async<4>(shared + 4 * (t % 8) + 1, in + 4 * (t % 8));"}, Kind::Misaligned, 4,
                   "no multiple of 16");
    expect_finding({.body = "tw::cp_async<2>(shared + 2 * t, in + 2 * t + 1);"}, Kind::Misaligned, 4,
                   "no multiple of 8");
    expect_finding({.body = "tw::cp_async<4>(shared + 4 * t, in + 4 * t + 200);"}, Kind::OutOfBounds, 4, "'in'");
    expect_finding({.body = "tw::cp_async<4>(shared + 4 * t + 4, in + 4 * t);"}, Kind::OutOfBounds, 4,
                   "shared memory, which has 1024 bytes");
    expect_finding({.body = "tw::cp_async<1>(out + t, in + t);"}, Kind::Misuse, 4, "no shared memory");
    expect_finding({.body = "tw::cp_async<1>(shared + t, shared + 64 + t);"}, Kind::Misuse, 4,
                   "cp_async reads global memory");
    expect_finding({.body = "tw::cp_async<1>(shared + t, out + t);"}, Kind::Uninitialised, 4, "'out'");
}

TEST(CopyAsync, IsCountedLikeOtherAccesses) {
    Case one{.body = "tw::cp_async<4>(shared + 4 * t, in + 4 * t);", .threads = 32};
    Statistics counts = one.run({.statistics = true}).statistics;
    EXPECT_EQ(counts.global_bytes, 512u);
    EXPECT_GE(counts.global_sectors, 16u);
    EXPECT_LE(counts.global_sectors, 17u);  // the vector begins within a sector
    EXPECT_EQ(counts.shared_writes, 32u);
    EXPECT_EQ(counts.shared_wavefronts, 4u);
    one.body = "tw::cp_async_or_zero<4>(shared + 4 * t, in, false);";
    EXPECT_EQ(one.run({.statistics = true}).statistics.global_bytes, 0u);
}

}  // namespace
}  // namespace tw::emulator
