// Products of warpgroups: what must come before and after them, and what they do not take.
#include "tests/emulator/small_kernels.h"
#include "tests/support/expect_error.h"

namespace tw::emulator {
namespace {

// 128 threads; a and b are zeros in shared memory, 64 rows of 128 bytes each. From line 12 on: the body.
Case with_body(const std::string& body, const std::string& fence = "tw::fence_proxy_async();") {
    return {.body =
                "unsigned char* bytes = (unsigned char*)shared;\n"
                "for (int i = t; i < 4096; i += 128) shared[i] = 0;\n" +
                fence +
                "\n__syncthreads();\n"
                "unsigned long long a = tw::matrix_descriptor(bytes, 128, 16, 1024), b = "
                "tw::matrix_descriptor(bytes + 8192, 128, 16, 1024);\n"
                "float d[32];\n"
                "for (int i = 0; i < 32; ++i) d[i] = i;\n\n" +
                body + "\nout[t] = tw::to_i32(d[n & 15] + d[16 + (n & 15)]);",
            .threads = 128,
            .shared_bytes = 16384};
}

const std::string Fence = "tw::wgmma_fence();\n", Commit = "tw::wgmma_commit();\n", Wait = "tw::wgmma_wait<0>();\n";
const std::string Product = "tw::wgmma_m64n64k16_bf16(d, a, b, true);\n";

TEST(Wgmma, OrdersByFenceCommitAndWait) {
    expect_silence(with_body(Fence + Product + Commit + Wait));
    expect_silence(with_body(Fence + Product + Product + Commit + Product + Commit + Wait));
    expect_silence(with_body(Fence + Product + Commit + Wait + "d[3] = 1;\n" + Fence + Product + Commit + Wait));
    expect_finding(with_body(Product + Commit + Wait), Kind::Misuse, 12, "calls wgmma without wgmma_fence");
    expect_finding(with_body(Fence + Product + Commit + Wait + "d[3] = 1;\n" + Product + Commit + Wait), Kind::Misuse,
                   0, "calls wgmma without wgmma_fence since its registers were used otherwise");
    expect_finding(with_body(Fence + Product + Commit + Wait + "out[t + 128] = d[n & 7];\n" + Product + Commit + Wait),
                   Kind::Misuse, 0, "since its registers were used otherwise");
    expect_finding(with_body(Fence + Product + Commit), Kind::Misuse, 0,
                   "reads registers of the wgmma at k.cu:13 before wgmma_wait has waited for it");
    expect_finding(with_body(Fence + Product + Wait), Kind::Misuse, 0, "before wgmma_wait has waited for it");
    expect_finding(with_body(Fence + Product + Commit + "d[5] = 0;\n" + Wait), Kind::Misuse, 15,
                   "writes registers of the wgmma");
    expect_finding(with_body(Fence + Product + Commit + Product + Commit + "tw::wgmma_wait<1>();\n"), Kind::Misuse, 0,
                   "reads registers");
}

TEST(Wgmma, OperandsInRegistersStayUntilTheWait) {
    const std::string setup = "unsigned r[4];\nfor (int i = 0; i < 4; ++i) r[i] = n;\n";
    const std::string product = "tw::wgmma_m64n64k16_bf16_registers(d, r, b, true);\n";
    const std::string change = "for (int i = 0; i < 4; ++i) r[i] = n + i;\n";
    expect_silence(with_body(setup + Fence + product + Commit + Wait + change + Fence + product + Commit + Wait));
    expect_finding(with_body(setup + Fence + product + Commit + change + Wait + Fence + product + Commit + Wait),
                   Kind::Misuse, 17, "writes registers of the wgmma at k.cu:15");
    expect_finding(with_body(setup + Fence + product + Commit + Wait + change + product + Commit + Wait), Kind::Misuse,
                   0, "without wgmma_fence");
}

TEST(Wgmma, SharedMemoryIsReadUntilTheWait) {
    const std::string write = "shared[t] = 1;\n";
    expect_silence(with_body(Fence + Product + Commit + Wait + "__syncthreads();\n" + write));
    expect_finding(with_body(Fence + Product + Commit + "__syncthreads();\n" + write + Wait), Kind::Race, 0,
                   "race on shared memory");
    expect_finding(with_body(Fence + Product + Commit + Wait, ""), Kind::Unfenced, 13, "the wgmma of thread (");
    expect_finding(with_body(write + Fence + Product + Commit + Wait), Kind::Race, 0, "race on shared memory");
}

TEST(Wgmma, TheWholeWarpgroupTakesPart) {
    const std::string rest = Commit + Wait;
    expect_finding(with_body(Fence + "if (t < 96) " + Product + "__syncthreads();\n" + rest), Kind::Deadlock, 0,
                   "an operation of its warpgroup");
    expect_finding(with_body(Fence + "if (t < 64) " + Product + "else " + Product + rest), Kind::Divergence, 0,
                   "at k.cu:");
    expect_finding(with_body(Fence + "tw::wgmma_m64n64k16_bf16(d, a, b + (t < 32 ? 2 : 0), true);\n" + rest),
                   Kind::Divergence, 13, "with other operands than thread (");
    expect_finding(with_body(Fence + Product + "if (t % 32 > 3) " + rest), Kind::Divergence, 0, "");
    Case few = with_body(Fence + Product + rest);
    few.threads = 96;
    expect_finding(few, Kind::Divergence, 13, "in a block of 96 threads; it takes whole warpgroups of 128");
    expect_finding(with_body("if (t == 127) return;\n" + Fence + Product + rest), Kind::Divergence, 0, "return");
}

TEST(Wgmma, WhatItDoesNotTake) {
    auto with_a = [](const std::string& a) {
        return with_body(Fence + "tw::wgmma_m64n64k16_bf16(d, " + a + ", b, true);\n" + Commit + Wait);
    };
    expect_finding(with_a("a | 3ull << 49"), Kind::Misuse, 13,
                   "passes wgmma a descriptor of a with base offset 3; it takes 0");
    expect_finding(with_body(Fence + "tw::wgmma_m64n64k16_bf16(d, a, b | 1ull << 49, true);\n" + Commit + Wait),
                   Kind::Misuse, 13, "passes wgmma a descriptor of b with base offset 1");
    // Any row of the pattern, any unit of a line, k that leaves its line, groups of eight rows at any distance.
    for (const char* a :
         {"tw::matrix_descriptor(bytes + 128, 128, 16, 1024)", "a + 7",
          "tw::matrix_descriptor(bytes + 3 * 128, 128, 0, 1280)", "tw::matrix_descriptor(bytes + 16, 0, 16, 128)"})
        expect_silence(with_a(a));
    expect_finding(with_a("tw::matrix_descriptor(bytes + 12288, 128, 16, 1024)"), Kind::OutOfBounds, 13,
                   "shared memory");
    expect_finding(with_body(Fence + "tw::wgmma_m64n64k16_bf16(*(float(*)[32])shared, a, b, true);\n"), Kind::Misuse,
                   13, "passes memory to wgmma where it takes registers");
    expect_finding(
        with_body(Fence + Product + "tw::wgmma_m64n32k16_bf16(*(float(*)[16])d, a, b, true);\n" + Commit + Wait),
        Kind::Misuse, 14, "registers in another way than the wgmma before");
}

TEST(RegisterPool, IsWhatTheThreadsHad) {
    auto with = [](const std::string& body) { return Case{.body = body, .threads = 256}; };
    expect_silence(with("if (t < 128) tw::setmaxnreg_dec<40>();\nelse tw::setmaxnreg_inc<256>();"));
    expect_finding(with("if (t >= 128) tw::setmaxnreg_inc<256>();"), Kind::Deadlock, 0, "setmaxnreg_inc");
    expect_finding(with("tw::setmaxnreg_inc<24>();"), Kind::Misuse, 4, "calls setmaxnreg_inc<24> with 248 registers");
    expect_finding(with("if (t < 128) { tw::setmaxnreg_dec<40>(); tw::setmaxnreg_dec<48>(); }"), Kind::Misuse, 4,
                   "calls setmaxnreg_dec<48> with 40");
    expect_finding({.body = "tw::setmaxnreg_dec<40>();", .threads = 96}, Kind::Divergence, 4,
                   "it takes whole warpgroups");
}

TEST(RegisterPool, HasRoomForAllProductsUnderWay) {
    auto with = [](int registers, const std::string& body) {
        return with_body(fmt::format("tw::setmaxnreg_dec<{}>();\nfloat other[32];\n", registers) + Fence + Product +
                         body + Commit + Wait);
    };
    const std::string second = "tw::wgmma_m64n64k16_bf16(other, a, b, false);\n";
    expect_silence(with(56, ""));
    expect_finding(with(48, ""), Kind::Misuse, 0, "with 48 registers a thread, of which products hold 32;");
    expect_silence(with(88, second));
    expect_finding(with(80, second), Kind::Misuse, 0, "with 80 registers a thread, of which products hold 64;");
    expect_silence(with(56, Commit + Wait + Fence + second));
}

TEST(ElectOne, IsOneLaneOfEachWarp) {
    Case one{.body = "if (tw::elect_one()) out[t / 32] = 1;\nif (tw::elect_one()) out[t / 32] += 1;", .threads = 96};
    for (uint64_t seed = 0; seed < 40; ++seed) {
        one.out.assign(256, 0);
        EXPECT_TRUE(one.run({.seed = seed}).ok());
        EXPECT_EQ(one.out[0] + one.out[1] + one.out[2] + one.out[3], 6);
    }
    expect_finding({.body = "if (t < 16) tw::elect_one();"}, Kind::Divergence, 0, "");
}

TEST(Launches, OfClustersAreChecked) {
    Case one{.body = "out[t] = 1;", .blocks = 3};
    int *out, *in;
    Launch launch = one.launch(&out, &in);
    auto module = compiled(one.text());
    launch.cluster = 2;
    EXPECT_ERROR(run(*module, launch), "a grid of 3 blocks in x and clusters of 2");
    launch.cluster = 3;
    launch.threads = 48;
    EXPECT_ERROR(run(*module, launch), "clusters of 3 blocks of 48 threads");
}

}  // namespace
}  // namespace tw::emulator
