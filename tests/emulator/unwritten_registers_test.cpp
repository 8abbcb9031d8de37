// Registers that are read before anything is written there: what comes of them is found where it is stored.
#include "device/cpu/hooks.h"
#include "device/vocabulary.h"
#include "runtime/emulator/host/mark_registers.h"
#include "tests/emulator/small_kernels.h"

namespace tw::emulator {
namespace {

/// `k(T* out, const T* in)`, on 64 threads and as many elements.
struct Registers {
    std::string body;
    std::string type = "float";
    std::vector<uint8_t> out = std::vector<uint8_t>(512), in = std::vector<uint8_t>(512);

    std::string text() const {
        return device::vocabulary_text({"max", "min", "exp", "to_bf16", "to_f32", "to_f16", "load", "store", "infinity",
                                        "shuffle_xor", "shared_memory", "erf", "tanh", "rsqrt", "fma"}) +
               fmt::format(
                   "extern \"C\" __global__ void __launch_bounds__(64) k({0}* out, const {0}* in) {{\n"
                   "    const int t = threadIdx.x;\n{1}\n}}\n",
                   type, body);
    }
    Report run(uint64_t seed) {
        void *out_pointer = out.data(), *in_pointer = in.data();
        Launch launch{.kernel = "k",
                      .threads = 64,
                      .shared_bytes = 1024,
                      .arguments = {&out_pointer, &in_pointer},
                      .regions = {{out.data(), out.size(), "out", true, false}, {in.data(), in.size(), "in", false}}};
        return emulator::run(*compiled(text()), launch, {.seed = seed});
    }
    bool is_found(uint64_t seed = 0) {
        Report report = run(seed);
        const Finding* finding = find(report, Kind::Uninitialised);
        if (finding) {
            EXPECT_THAT(finding->message, HasSubstr("comes of a register to which nothing was written before"));
            EXPECT_GT(finding->line, 0) << finding->message;
        }
        return finding != nullptr;
    }
};

TEST(UnwrittenRegisters, AreFoundWhereTheyAreStored) {
    Report report = Registers{.body = "float x;\nif (t != 5) x = 1;\nout[t] = x;"}.run(0);
    ASSERT_EQ(report.findings.size(), 1u) << all_messages(report);
    EXPECT_THAT(
        report.findings[0].message,
        HasSubstr("uninitialised read: what thread (5,0,0) of block (0,0,0) writes at byte 20 of 'out' at k.cu:"));
}

TEST(UnwrittenRegisters, GoThroughArithmeticAndFunctions) {
    for (const char* value : {"x + 1", "in[t] - x * 2", "tw::max(x, in[t])", "tw::max(in[t], x)", "tw::min(x, in[t])",
                              "tw::exp(x - in[t])", "-x", "1.0f / x", "tw::fma(in[t], x, 2.0f)",
                              "tw::max(0.0f, tw::exp(tw::max(-x, 1.0f)))", "tw::rsqrt(x)", "tw::shuffle_xor(x, 3)",
                              "(float)((double)x * 2)", "tw::to_f32(tw::to_bf16(x))", "tw::to_f32(tw::to_f16(x))"}) {
        Registers one{.body = fmt::format("float x;\nout[t] = {};", value)};
        EXPECT_TRUE(one.is_found()) << value;
    }
}

TEST(UnwrittenRegisters, OfArraysAndOtherTypes) {
    for (const char* type : {"double", "tw::bf16", "tw::f16"})
        EXPECT_TRUE(
            (Registers{.body = fmt::format("{} x[2][2];\nx[0][1] = in[t];\nout[t] = x[t % 2][1];", type), .type = type}
                 .is_found()))
            << type;
    EXPECT_TRUE((Registers{.body = "float x[4];\nfor (int i = 0; i < 4; ++i)\n    if (t + i < 66) x[i] = in[t];\n"
                                   "tw::store<4>(out + t / 4 * 4 % 32 + t % 4 * 32, x);"}
                     .run(0)
                     .findings.size() > 0));
}

TEST(UnwrittenRegisters, OfArraysWithoutElements) {
    Registers one{.body = "float none[0], nested[2][0], x;\ntw::bf16 narrow[1][32][0];\nx = 1;\nout[t] = x;"};
    EXPECT_TRUE(one.run(0).findings.empty());
    one.body = "float none[0], x;\nout[t] = x;";
    EXPECT_TRUE(one.is_found());
}

TEST(UnwrittenRegisters, ThatNobodyStoresAreNoFault) {
    Registers one{.body =
                      "float x[2], sum = 0, y;\nx[0] = in[t];\ny = x[1] * 2;\nsum += x[0];\n"
                      "if (t < 0) sum = y;\nout[t] = sum;"};
    for (uint64_t seed = 0; seed < 8; ++seed) EXPECT_TRUE(one.run(seed).ok()) << seed;
}

TEST(UnwrittenRegisters, AreInfinitiesOnSomeSeeds) {
    // A comparison swallows NaN: no finding, but the result depends on the seed.
    Registers one{.body = "float x;\nout[t] = x > 1 ? 1 : 2;"};
    std::set<float> results;
    for (uint64_t seed = 0; seed < 8; ++seed) {
        EXPECT_TRUE(one.run(seed).ok());
        results.insert(reinterpret_cast<const float*>(one.out.data())[0]);
    }
    EXPECT_EQ(results, (std::set<float>{1, 2}));
}

// No finding, but any two neighbouring seeds differ in the result.
TEST(UnwrittenRegisters, OfIntegersAndConditionsChangeWithTheSeed) {
    for (const char* type : {"bool", "signed char", "unsigned char", "short", "unsigned short", "int", "unsigned",
                             "long long", "unsigned long long"})
        for (const char* body : {" x;\nout[t] = x;", " x[2][3];\nx[1][0] = in[t];\nout[t] = x[1][t % 3] + x[0][2];",
                                 " x;\nout[t] = in[t] == (x & 1) ? 1 : 0;"}) {
            Registers one{.body = fmt::format("{}{}", type, body), .type = type};
            std::vector<uint8_t> last;
            for (uint64_t seed = 0; seed < 8; ++seed) {
                EXPECT_TRUE(one.run(seed).ok()) << one.body;
                EXPECT_NE(one.out, last) << one.text() << seed;
                last = one.out;
            }
        }
}

TEST(UnwrittenRegisters, OfFp8AreNoNumberOrTheLargest) {
    for (const auto& [type, largest] : {std::pair("tw::e4m3", 0x7e), std::pair("tw::e5m2", 0x7c)}) {
        Registers one{.body = fmt::format("{} x[3];\nx[1] = in[t];\nout[t] = x[t % 3];", type), .type = type};
        std::set<int> values;
        for (uint64_t seed = 0; seed < 8; ++seed) {
            EXPECT_TRUE(one.run(seed).ok());
            values.insert(one.out[0]);
        }
        EXPECT_EQ(values, (std::set<int>{0x7f, largest, largest | 0x80})) << type;
        EXPECT_EQ(one.out[1], one.in[1]);
    }
}

TEST(UnwrittenRegisters, AreNotTakenForWhatAnInputHolds) {
    Registers one{.body = "out[t] = in[t];"};
    const uint32_t bits = emulated::Unwritten::FloatBits;
    std::memcpy(&one.in[12], &bits, 4);
    EXPECT_TRUE(one.run(0).ok());
    Registers half{.body = "out[t] = in[t];", .type = "tw::bf16"};
    std::memcpy(&half.in[6], reinterpret_cast<const uint8_t*>(&bits) + 2, 2);
    EXPECT_TRUE(half.run(0).ok());
}

std::string marked(const std::string& body) {
    const std::string head = "float before;\n__global__ void k(float* y) {",
                      all = with_marked_registers(head + body + "}");
    EXPECT_TRUE(all.starts_with(head)) << all;
    std::string text = all.substr(head.size(), all.size() - head.size() - 1);
    for (size_t at; (at = text.find("::tw::emulated::leave_unwritten")) != std::string::npos;)
        text.replace(at, 31, "U");
    return text;
}

TEST(MarkRegisters, FindsDeclarationsWithoutInitialiser) {
    EXPECT_EQ(marked("float x;"), "float x; U(x);");
    EXPECT_EQ(marked("unsigned long long a , b[2][3];"), "unsigned long long a , b[2][3]; U(a); U(b);");
    EXPECT_EQ(marked("if (a < b) { tw::bf16 c[N * (2 + 1)]; }"), "if (a < b) { tw::bf16 c[N * (2 + 1)]; U(c); }");
    EXPECT_EQ(marked("#pragma unroll\nfor (int i = 0; i < 4; ++i) {\n int z; // why\n z = i; }"),
              "#pragma unroll\nfor (int i = 0; i < 4; ++i) {\n int z; U(z); // why\n z = i; }");
    EXPECT_EQ(marked("do { float q; } while (f(1));float r;"), "do { float q; U(q); } while (f(1));float r; U(r);");
    EXPECT_EQ(marked("for (int i = 0; i < 2; ++i) if (i) y[i] = 0; else { int b; }"),
              "for (int i = 0; i < 2; ++i) if (i) y[i] = 0; else { int b; U(b); }");
}

TEST(MarkRegisters, LeavesAllElse) {
    for (const char* body : {"float x = 1;", "const float x = 1;", "float* p;", "Shared& shared = f();",
                             "struct A { float x; int y[2]; } a;", "x = y; int* q = &x;",
                             "// float x;\n/* int y; */ f(\"{ int z; \");", "for (int i;;) break;", "return;",
                             "float f(int);", "int a[2] = {1, 2};", "static int s;", "tw::Barrier b;", "y[0] = {};"})
        EXPECT_EQ(marked(body), body);
    EXPECT_EQ(with_marked_registers("void f() { int x; }"), "void f() { int x; }");
}

}  // namespace
}  // namespace tw::emulator
