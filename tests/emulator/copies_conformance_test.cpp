// Copies of all kinds between memories and registers: the emulator does what they mean, and what a GPU does.
#include "tests/emulator/run_on.h"

namespace tw {
namespace {

/// Each thread copies 16 bytes by copies of `bytes`; those of every third one come as zeros.
SmallKernel async_copies(int bytes, bool or_zero) {
    std::string call =
        or_zero
            ? fmt::format("tw::cp_async_or_zero<{0}>(shared + i, in + (i / {0} % 3 ? i : -1), i / {0} % 3 != 0)", bytes)
            : fmt::format("tw::cp_async<{}>(shared + i, in + i)", bytes);
    return {.names = {"cp_async", "cp_async_or_zero", "cp_async_commit", "cp_async_wait"},
            .body = fmt::format("for (int i = 16 * t; i < 16 * t + 16; i += {}) {};\n"
                                "tw::cp_async_commit();\ntw::cp_async_wait<0>();\n__syncthreads();\n"
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

/// What lane t's register i (4 bytes) of `matrices` [matrix, row, 16 bytes] holds.
Bytes expected_registers(const Bytes& matrices, int count, bool transposed) {
    Bytes registers(size_t(32 * count * 4));
    for (int lane = 0; lane < 32; ++lane)
        for (int i = 0; i < count; ++i)
            for (int byte = 0; byte < 4; ++byte) {
                const int half = byte / 2;
                const int row = transposed ? 2 * (lane % 4) + half : lane / 4;
                const int column = transposed ? 2 * (lane / 4) + byte % 2 : 4 * (lane % 4) + byte;
                registers[size_t((lane * count + i) * 4 + byte)] = matrices[size_t((i * 8 + row) * 16 + column)];
            }
    return registers;
}

constexpr const char* ElementTypes[] = {"signed char", "tw::bf16", "float"};

/// Rows lie 80 bytes apart, in a random order.
SmallKernel matrix_loads(int count, bool transposed, const std::string& type) {
    const std::string name = transposed ? "ldmatrix_trans" : "ldmatrix";
    return {.names = {name, "bf16"},
            .body = fmt::format("unsigned char* row = shared + t * 7 % 32 * 80;\n"
                                "for (int i = 0; i < 16 && t < 8 * {0}; ++i) row[i] = in[16 * t + i];\n"
                                "{1} r[{0} * 4 / sizeof({1})];\n__syncthreads();\n"
                                "tw::{2}<{0}>(r, ({1}*)row);\n"
                                "for (int i = 0; i < {0} * 4 / (int)sizeof({1}); ++i)"
                                " (({1}*)out)[t * ({0} * 4 / sizeof({1})) + i] = r[i];",
                                count, type, name)};
}

SmallKernel matrix_stores(int count, bool transposed, const std::string& type) {
    const std::string name = transposed ? "stmatrix_trans" : "stmatrix";
    return {.names = {name, "bf16"},
            .body = fmt::format("unsigned char* row = shared + t * 7 % 32 * 80;\n"
                                "{1} r[{0} * 4 / sizeof({1})];\n"
                                "for (int i = 0; i < {0} * 4 / (int)sizeof({1}); ++i)"
                                " r[i] = (({1}*)in)[t * ({0} * 4 / sizeof({1})) + i];\n"
                                "tw::{2}<{0}>(({1}*)row, r);\n__syncthreads();\n"
                                "for (int i = 0; i < 16 && t < 8 * {0}; ++i) out[16 * t + i] = row[i];",
                                count, type, name)};
}

TEST(CopiesConformance, MatricesToAndFromRegisters) {
    for (int count : {1, 2, 4})
        for (bool transposed : {false, true})
            for (const char* type : ElementTypes) {
                if (transposed && type != ElementTypes[1]) continue;
                Bytes matrices = random_bytes(size_t(128 * count), 17);
                Bytes registers = expected_registers(matrices, count, transposed);
                SCOPED_TRACE(fmt::format("{} of {}, transposed {}", count, type, transposed));
                EXPECT_EQ(matrix_loads(count, transposed, type).run_everywhere(matrices, registers.size()), registers);
                EXPECT_EQ(matrix_stores(count, transposed, type).run_everywhere(registers, matrices.size()), matrices);
            }
}

}  // namespace
}  // namespace tw
