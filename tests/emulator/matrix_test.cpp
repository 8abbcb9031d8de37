// Operations of a warp on matrices: what they must not be given.
#include "tests/emulator/small_kernels.h"

namespace tw::emulator {
namespace {

// Line 4: 32 threads, rows of 16 bytes in shared memory.
Case loading(const std::string& body) {
    return {.body =
                "tw::bf16 r[8];\ntw::bf16* rows = (tw::bf16*)shared;\n"
                "for (int i = 0; i < 8; ++i) rows[8 * t + i] = {(unsigned short)i};\n__syncthreads();\n" +
                body + "\nfor (int i = 0; i < 8; ++i) out[8 * t + i] = r[i].bits;",  // line 8 on
            .threads = 32};
}

TEST(Matrix, RowsAreCheckedLikeAccesses) {
    expect_silence(loading("tw::ldmatrix<4>(r, rows + 8 * t);"));
    expect_finding(loading("tw::ldmatrix<4>(r, rows + 8 * t + 4);"), Kind::Misaligned, 8, "no multiple of 16");
    expect_finding(loading("tw::ldmatrix<4>(r, rows + 8 * t + 512);"), Kind::OutOfBounds, 8, "");
    expect_finding(loading("tw::ldmatrix<4>(r, rows + 8 * t + 256);"), Kind::Uninitialised, 8, "");
    expect_finding(loading("tw::ldmatrix<4>(r, (tw::bf16*)in + 8 * t);"), Kind::Misuse, 8,
                   "passes ldmatrix a row that is not in shared memory");
    expect_finding(loading("tw::ldmatrix<4>(rows, rows + 8 * t);"), Kind::Misuse, 8,
                   "passes memory to ldmatrix where it takes registers");
    // Only the first 8 lanes give rows.
    expect_silence(
        loading("tw::ldmatrix<1>(r, t < 8 ? rows + 8 * t : rows + 3);\nfor (int i = 2; i < 8; ++i) r[i] = {0};"));
}

TEST(Matrix, RacesWithOtherThreads) {
    const std::string load = "tw::ldmatrix<4>(r, rows + 8 * (t % 32));\n", write = "rows[8 * t + 1] = {1};\n";
    expect_finding(loading(load + write), Kind::Race, 0, "race on shared memory");
    expect_finding(loading(write + load), Kind::Race, 0, "race on shared memory");
    expect_silence(loading(write + "__syncwarp();\n" + load + "__syncwarp();\n" + write));
    expect_finding(loading("for (auto& x : r) x = {1};\ntw::stmatrix<4>(rows + 8 * t, r);\nr[0] = rows[8 * (t ^ 1)];"),
                   Kind::Race, 0, "");
    expect_finding(loading("for (auto& x : r) x = {1};\ntw::stmatrix<4>(rows + 8 * (t / 2), r);"), Kind::Race, 9, "");
}

TEST(Matrix, TheWholeWarpTakesPart) {
    expect_finding(loading("if (t < 16) tw::ldmatrix<4>(r, rows + 8 * t);\nelse tw::ldmatrix<4>(r, rows + 8 * t);"),
                   Kind::Divergence, 0, "of the same warp at k.cu:");
    expect_finding(loading("t < 16 ? tw::ldmatrix<4>(r, rows + 8 * t) : tw::ldmatrix<2>(r, rows + 8 * t);"),
                   Kind::Divergence, 8, "of the same warp at another operation");
    expect_finding(loading("if (t < 31) tw::ldmatrix<4>(r, rows + 8 * t);"), Kind::Divergence, 8, "an operation of its warp");
    Case few = loading("tw::ldmatrix<1>(r, rows + 8 * t);");
    few.threads = 16;
    expect_finding(few, Kind::Divergence, 8, "in a warp of 16 threads; it takes 32");
    expect_finding(loading("float d[4] = {};\nif (t) tw::mma_m16n8k16(d, r, r);"), Kind::Divergence, 9, "");
}

TEST(Matrix, BankConflictsOfRowsAreCounted) {
    auto conflicts = [](const std::string& row) {
        Case one = loading("tw::ldmatrix<4>(r, " + row + ");");
        Statistics counts = one.run({.statistics = true}).statistics;
        for (const Statistics::Site& site : counts.sites)
            if (site.line == 8) return site.conflicts;
        return uint64_t(1000);
    };
    EXPECT_EQ(conflicts("rows + 8 * t"), 0u);
    EXPECT_EQ(conflicts("rows + t % 4 * 64"),
              12u);  // four different rows in the same banks, in each of four wavefronts
}

}  // namespace
}  // namespace tw::emulator
